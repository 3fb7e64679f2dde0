"""One run over three engines at once, with TLS: ssh, Slurm and this machine; and one worker after the other dies."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from site_machines import ROOT, copy_examples, machines, needs_machines
from slurm_cluster import cluster, jobs, lacks

pytestmark = [
    needs_machines,
    pytest.mark.engines,
    pytest.mark.lab,
    pytest.mark.skipif(bool(lacks()), reason=lacks()),
]
PARTIES = {"paris": "ssh config={config}", "tokyo": "slurm partition=cpu", "boston": "local"}


def described(folder: Path, config: Path, address: str) -> Path:
    copy_examples(folder)
    state = folder / "runs"
    lines = ['run = { script = "cnn.py", arguments = ["--epochs", "100"], on_loss = "continue" }']
    lines += [f'global = {{ addresses = ["{address}:9000"] }}']
    for name in PARTIES:
        lines += ["[[party]]", f'name = "{name}"', "workers = 2"]
    for name, engine in PARTIES.items():
        lines += ["[[site]]", f'party = "{name}"', f'engine = "{engine.format(config=config)}"']
        lines += [
            f'python = "{sys.executable}"',
            f'setup = ["export PYTHONPATH={ROOT / "src"} OMP_NUM_THREADS=1"]',
        ]
        lines += ['hosts = ["paris"]', 'serves = ["global"]'] if name == "paris" else [f'folder = "{state}"']
    (folder / "three.toml").write_text("\n".join(lines) + "\n")
    return folder / "three.toml"


def test_three_engines_train_one_model_and_each_brings_a_killed_worker_back(tmp_path: Path) -> None:
    with machines(tmp_path, "paris") as ground, cluster(tmp_path, ground.inside):
        file = str(described(tmp_path, ground.config, ground.lab.address("paris")))
        up = ground.geomx("up", file)
        try:
            assert (up.returncode, up.stderr) == (0, "")
            ground.until(file, "paris/0", "epoch  2")
            home = tmp_path / "runs" / "three"
            told = {
                "paris/1": ground.on("paris", "cat ~/.geomx/three/paris.0/state/paris.1").stdout,
                "tokyo/1": (home / "tokyo.0" / "state" / "tokyo.1").read_text(),
                "boston/1": (home / "boston.0" / "state" / "boston.1").read_text(),
            }
            for node, state in told.items():
                kill = f"kill -9 {json.loads(state)['pid']}"
                assert (
                    ground.on("paris", kill) if node == "paris/1" else ground.call(["sh", "-c", kill])
                ).returncode == 0
                ground.until(file, node, "it is started again")
            for node in told:
                ground.until(file, "global/0", f"{node} is back")
            states = ground.geomx("status", file).stdout
            assert states.count(" running ") == 10, states
            assert len(re.findall(r"(?m)^ \S+/1 .* running +\d:\d\d +1 ", states)) == 3, states
            keys = list((tmp_path / "three.keys" / "nodes").glob("*.key"))
            assert len(keys) == 10
        finally:
            down = ground.geomx("down", file)
        assert down.returncode == 0, down.stderr
        assert down.stdout.count("nothing runs") == 3
        assert jobs(ground.inside) == ""
        assert not (tmp_path / "runs").exists()
        assert ground.on("paris", "ls ~/.geomx").returncode
        assert ground.on("paris", "pgrep -f 'keeper.p[y]|cnn.p[y]'").stdout == ""
