"""The engine `ray`, on two real clusters of this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from site_machines import ROOT, copy_examples, with_source
from transcripts import play

lacks = "" if importlib.util.find_spec("ray") else "no Ray: pip install 'geomx[ray]'"
pytestmark = [pytest.mark.engines, pytest.mark.grids, pytest.mark.skipif(bool(lacks), reason=lacks)]
WAIT_S = 300.0


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[str, str]]:
    """Addresses of two clusters, each with 4 CPUs as it believes."""
    addresses, running = [], []
    for number in range(2):
        first = 20_100 + 20 * number
        ports = {"port": first, "ray-client-server-port": first + 1, "dashboard-port": first + 2}
        ports |= {
            "node-manager-port": first + 3,
            "object-manager-port": first + 4,
            "metrics-export-port": first + 5,
        }
        ports |= {
            "dashboard-agent-listen-port": first + 6,
            "dashboard-agent-grpc-port": first + 7,
            "runtime-env-agent-port": first + 8,
        }
        argv = [
            str(Path(sys.executable).with_name("ray")),
            "start",
            "--head",
            "--block",
            "--num-cpus=4",
            "--disable-usage-stats",
        ]
        argv += [
            "--node-ip-address=127.0.0.1",
            f"--temp-dir=/tmp/ray-geomx-{os.getpid()}-{number}",
            "--object-store-memory=100000000",
        ]
        argv += [f"--{name}={port}" for name, port in ports.items()]
        running.append(
            subprocess.Popen(
                argv,
                env=with_source(os.environ),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        addresses.append(f"127.0.0.1:{first}")
    for address, process in zip(addresses, running, strict=True):
        give_up_at = time.monotonic() + WAIT_S
        probe = [sys.executable, "-m", "geomx.launch.ray", "probe", address, "test"]
        while (
            done := subprocess.run(probe, env=with_source(os.environ), capture_output=True, check=False)
        ).returncode:
            assert time.monotonic() < give_up_at, done.stderr.decode()
            assert process.poll() is None, process.stdout and process.stdout.read()
    yield addresses[0], addresses[1]
    for process in running:
        os.killpg(process.pid, signal.SIGTERM)
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        subprocess.run(["pkill", "-9", "-f", f"ray-geomx-{os.getpid()}"], check=False)
    for number in range(2):
        subprocess.run(["rm", "-rf", f"/tmp/ray-geomx-{os.getpid()}-{number}"], check=False)


def geomx(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "geomx", *words]
    return subprocess.run(argv, env=with_source(os.environ), capture_output=True, text=True, check=False)


def described(folder: Path, clusters: tuple[str, str], epochs: int = 100, cpus: int = 1) -> Path:
    copy_examples(folder)
    common = f'python = "{sys.executable}"\nsetup = ["export PYTHONPATH={ROOT / "src"} OMP_NUM_THREADS=1"]'
    (folder / "rays.toml").write_text(
        f"""
        run = {{ script = "cnn.py", arguments = ["--epochs", "{epochs}"], on_loss = "continue" }}
        global = {{ addresses = ["127.0.0.1:9440"] }}
        party = [{{ name = "paris", workers = 1 }}, {{ name = "tokyo", workers = 2 }}]
        [[site]]
        party = "paris"
        serves = ["global"]
        engine = "ray address={clusters[0]}"
        {common}
        [[site]]
        party = "tokyo"
        engine = "ray address={clusters[1]} cpus={cpus}"
        {common}
        """
    )
    return folder / "rays.toml"


def test_a_run_over_two_clusters_from_up_to_down(tmp_path: Path, clusters: tuple[str, str]) -> None:
    file = str(described(tmp_path, clusters))
    up = geomx("up", file)
    assert up.returncode == 0, up.stderr
    assert "tokyo (ray): tokyo, tokyo/0, tokyo/1; kept by this machine: Ray, as actors" in up.stdout
    try:
        give_up_at = time.monotonic() + WAIT_S
        while "epoch  3" not in (log := geomx("logs", file, "paris/0").stdout):
            assert time.monotonic() < give_up_at, (
                log + geomx("status", file).stdout + geomx("logs", file, "global/0").stdout
            )
            time.sleep(0.5)
        assert geomx("up", file).stdout.count("runs already") == 2
        verb = [sys.executable, "-m", "geomx.launch.ray", "state", clusters[1], "geomx.rays.tokyo"]
        told = json.loads(
            subprocess.run(verb, env=with_source(os.environ), capture_output=True, check=True).stdout
        )
        os.kill(told["tokyo/1"]["pid"], signal.SIGKILL)
        attached = geomx("attach", file, "--plain")
        states = geomx("status", file).stdout
        assert attached.returncode == 0, attached.stdout + attached.stderr + states
        assert states.count(" ended ") == 6, states
        assert re.search(r"tokyo/1 .* ended +\d:\d\d +1 ", states), states
    finally:
        down = geomx("down", file)
    assert down.returncode == 0, down.stderr
    assert "nothing of this run is on its sites" in geomx("status", file).stdout
    assert not list(Path("/tmp").glob("geomx.rays.*"))


def test_the_page_s_transcript(tmp_path: Path, clusters: tuple[str, str]) -> None:
    play("on-ray.md", tmp_path, geomx, {"127.0.0.1:9000": "127.0.0.1:9450", "127.0.0.1:6379": clusters[1]})


def test_a_cluster_without_room_is_told_before_anything_starts(
    tmp_path: Path, clusters: tuple[str, str]
) -> None:
    up = geomx("up", str(described(tmp_path, clusters, cpus=9)))
    assert up.returncode == 1
    assert "tokyo (ray): this machine: the cluster has 4 CPU, and the party needs 19" in up.stderr
    assert up.stdout == ""
