"""Nodes that are asked to leave, in real processes: they end with status 0, and the others go on to the end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from real_runs import BOUND_S, RealRun

from geomx.cli import main
from geomx.launch.local.ports import Ports

pytestmark = pytest.mark.processes
GOES_ON = ("run.on_loss=continue", "lan.codec_up=int8", "wan.codec_up=int8")


def test_a_server_leaves_with_its_workers(real: Callable[..., RealRun]) -> None:
    """By `geomx leave`, which returns when its process has ended."""
    settings = (*GOES_ON, f"run.name=leaving-{os.getpid()}")
    run = real(workers=(1, 2))
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
    run.end_well()
    assert "step 39\n" in run.printed("A/0")
    assert "step 39\n" not in run.printed("B/0") + run.printed("B/1")
    members = run.told(*settings)["members"]
    assert [change["kind"] for change in members] == ["left"] * len(members)
    assert {name for change in members for name in change["who"]} == {"B/0", "B/1"}


def test_a_party_that_the_others_do_not_know_comes_later(real: Callable[..., RealRun]) -> None:
    """By its own copy of the description, which names it."""
    settings = ("run.on_loss=continue", "run.open=true", "run.ledger=true")
    run = real()
    run.start(run.nodes, *settings, script=["endless"])
    run.until("A/0", "step 10\n")
    with Ports() as ports:
        run.start_guest(f"127.0.0.1:{ports.hold()}", *settings)
        run.until("guest-1/0", "step 5\n")
        run.until("global/0", "guest-1/0 has come")
        run.end_data()
        run.nodes += ["guest-1", "guest-1/0"]
        run.end_well()
    assert len(run.weights()) == 1
