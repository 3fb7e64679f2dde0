"""Nodes that are asked to leave, in real processes: they end with status 0, and the others go on to the end."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from launched_runs import LaunchedRun
from real_runs import BOUND_S, RealRun

from geomx.cli import main

pytestmark = pytest.mark.processes
GOES_ON = ("run.on_loss=continue", "lan.codec_up=int8", "wan.codec_up=int8")


@pytest.mark.grids
def test_a_worker_that_is_sent_sigterm_leaves_and_geomx_run_says_so(
    tmp_path: Path, runs: list[RealRun]
) -> None:
    run = RealRun(tmp_path, steps=100, workers=(2, 1))
    runs.append(run)
    report = tmp_path / "report.json"
    launched = LaunchedRun(run, *GOES_ON, f"--report={report}")
    try:
        launched.until(r"A/1 +│ step 8\n")
        os.kill(launched.pids()["A/1"], signal.SIGTERM)
        assert launched.wait(BOUND_S) == 0, launched.printed
    finally:
        launched.close()
    assert "A/1 has left; 2 of 3 workers take part" in launched.printed
    assert "the run goes on without it" not in launched.printed
    assert launched.printed.count("step 99\n") == 2
    told = json.loads(report.read_text())
    assert [(change["kind"], change["who"]) for change in told["members"]] == [("left", ["A/1"])]
    assert told["lost"] == {}
    assert isinstance(told["parameters_sha256"], str)  # the same on both that are left


def test_a_server_leaves_with_its_workers(tmp_path: Path, runs: list[RealRun]) -> None:
    """By `geomx leave`, which returns when its process has ended."""
    settings = (*GOES_ON, f"run.name=leaving-{os.getpid()}")
    run = RealRun(tmp_path, steps=40, workers=(1, 2))
    runs.append(run)
    run.start(run.nodes, *settings, script=["gate=step 30"])
    for worker in run.workers:
        run.until(worker, "step 30\n")
    statuses: list[int] = []
    asks = threading.Thread(
        target=lambda: statuses.append(main(["leave", str(run.toml), *settings, "B"])), daemon=True
    )
    asks.start()
    run.until("B", "was asked to leave, and asks all below it to leave")
    run.let_go()
    asks.join(BOUND_S)
    assert statuses == [0]
    ended = run.wait(run.nodes)
    assert {name: status for name, (status, _) in ended.items()} == dict.fromkeys(run.nodes, 0), run.report()
    assert "step 39\n" in run.printed("A/0")
    assert "step 39\n" not in run.printed("B/0") + run.printed("B/1")
    members = run.told(*settings)["members"]
    assert [change["kind"] for change in members] == ["left"] * len(members)
    assert {name for change in members for name in change["who"]} == {"B/0", "B/1"}
