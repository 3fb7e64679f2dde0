"""The engine `slurm`, by a real Slurm on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import forks
import pytest
from site_machines import ROOT, copy_examples, with_source
from slurm_cluster import cluster, jobs, lacks
from transcripts import play

pytestmark = [pytest.mark.engines, pytest.mark.skipif(bool(lacks()), reason=lacks())]


@pytest.fixture(scope="module", autouse=True)
def _slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with cluster(tmp_path_factory.mktemp("slurm")):
        yield


def geomx(*words: str) -> subprocess.CompletedProcess[str]:
    return forks.geomx(words, with_source(os.environ), Path.cwd())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A user's folder; whatever runs by its end is ended."""
    yield tmp_path
    if (tmp_path / "state").exists():
        print(geomx("logs", str(tmp_path / "mixed.toml"), "global/0").stdout)
        geomx("down", str(tmp_path / "mixed.toml"))


def described(folder: Path, port: int, engine: str = "slurm partition=cpu", **keys: str) -> Path:
    """paris with the global server on this machine, tokyo on the cluster; `keys`: of tokyo's site."""
    copy_examples(folder)
    common = f'folder = "{folder}/state"\npython = "{sys.executable}"\n'
    common += f'setup = ["export PYTHONPATH={ROOT / "src"} OMP_NUM_THREADS=1"]'
    site = "\n".join(f"{key} = {value}" for key, value in {"restart": "{ most = 3 }", **keys}.items())
    (folder / "mixed.toml").write_text(
        f"""
        run = {{ script = "cnn.py", arguments = ["--epochs", "40"], on_loss = "continue" }}
        global = {{ addresses = ["127.0.0.1:{port}"] }}
        party = [{{ name = "paris", workers = 1 }}, {{ name = "tokyo", workers = 2 }}]
        [[site]]
        party = "paris"
        serves = ["global"]
        engine = "local"
        {common}
        [[site]]
        party = "tokyo"
        engine = "{engine}"
        {common}
        {site}
        """
    )
    return folder / "mixed.toml"


@pytest.mark.grids  # `test_three_engines.py` has one on Slurm, too
def test_a_party_on_slurm_from_up_to_down(folder: Path) -> None:
    file = str(described(folder, 9310))
    up = geomx("up", file)
    assert up.returncode == 0, up.stderr
    assert re.search(r"tokyo \(slurm\): tokyo, tokyo/0, tokyo/1; kept by .*: Slurm, as job \d+", up.stdout)
    worker = folder / "state" / "mixed" / "tokyo.0" / "state" / "tokyo.1"
    give_up_at = time.monotonic() + 60
    while not worker.exists():
        assert time.monotonic() < give_up_at, jobs()
        time.sleep(0.1)
    assert geomx("up", file).stdout.count("runs already") == 2
    os.kill(json.loads(worker.read_text())["pid"], signal.SIGKILL)
    attached = geomx("attach", file, "--plain")
    assert attached.returncode == 0, attached.stdout + attached.stderr
    states = geomx("status", file).stdout
    assert re.search(r"tokyo/1 .* ended +\d:\d\d +1 ", states), states
    assert len(re.findall(r"^ tokyo\S* +tokyo \(slurm\) +n1 +ended", states, re.MULTILINE)) == 3, states
    down = geomx("down", file)
    assert down.returncode == 0, down.stderr
    assert jobs() == ""
    assert not (folder / "state").exists()


@pytest.mark.grids
def test_the_page_s_transcript(tmp_path: Path) -> None:
    play("on-slurm.md", tmp_path, geomx, {"127.0.0.1:9000": "127.0.0.1:9340"})


@pytest.mark.grids
def test_a_job_that_waits_is_told_and_down_takes_it_out_of_the_queue(folder: Path) -> None:
    blocker = [
        "sbatch",
        "--parsable",
        "--nodes=2",
        "--exclusive",
        "--output=/dev/null",
        "--wrap",
        "sleep 600",
    ]
    number = subprocess.run(blocker, capture_output=True, text=True, check=True).stdout.strip()
    try:
        file = str(described(folder, 9320))
        assert geomx("up", file).returncode == 0
        states = geomx("status", file).stdout
        assert re.search(r" tokyo/1 +tokyo \(slurm\) +starting", states), states
        assert "tokyo, tokyo/0, tokyo/1: Slurm: PENDING (" in states
        assert geomx("down", file).returncode == 0
        assert jobs() == f"{number} RUNNING\n"
        assert not (folder / "state").exists()
    finally:
        subprocess.run(["scancel", number], check=True)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("slurm partition=gpu", "sbatch refuses the job: .*Invalid partition name"),
        ("slurm gres=gpu:9", "sbatch refuses the job: "),
    ],
)
def test_what_slurm_refuses_is_told_before_anything_starts(folder: Path, engine: str, words: str) -> None:
    up = geomx("up", str(described(folder, 9330, engine)))
    assert up.returncode == 1
    assert re.search(words, up.stderr), up.stderr
    assert up.stdout == ""
    assert not (folder / "state").exists()
