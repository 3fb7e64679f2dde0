"""How long a worker that is lost is awaited, and where nobody is."""

from __future__ import annotations

from typing import Any

import pytest
from live_runs import Faults, dies, pauses, train
from restarts import Script, assert_same, run_of
from trees import topology_of

from geomx.errors import NodeLost, RunFailed
from geomx.node.topology import AS_ABOVE, Edge
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Simulator
from geomx.wire.session import Patience

LAN = Edge(codec_down=AS_ABOVE, patience=Patience(heartbeat_s=1.0, timeout_s=5.0))


def awaited(wait_s: float, faults: Faults) -> tuple[dict[str, Any], Simulator]:
    losses = Losses("wait", wait_s) if wait_s else Losses()
    return train([2, 1], Script(), faults=faults, lan=LAN, losses=losses)


def test_a_lost_worker_is_awaited_and_the_log_says_so() -> None:
    results, simulator = awaited(60.0, dies("A/1", at_s=0.5, back_s=50.0))
    assert_same(results, run_of(Script()))
    told = [(time, fields["peer"]) for time, node, fields in simulator.noted("awaited") if node == "A"]
    assert [peer for _, peer in told] == ["A/1", "A/1"]
    assert 5.0 < told[0][0] < 7.0
    assert 35.0 < told[1][0] < 37.0


def test_a_worker_that_was_stopped_goes_on_as_if_nothing_had_been() -> None:
    results, simulator = awaited(60.0, pauses("A/1", 0.5, 20.0))
    assert_same(results, run_of(Script()))
    assert [fields["peer"] for _, node, fields in simulator.noted("awaited") if node == "A"] == ["A/1"]


def test_who_is_not_awaited_or_comes_too_late_ends_the_run() -> None:
    with pytest.raises((NodeLost, RunFailed), match=r"A/1 is lost: A has heard nothing from it for 5 s: "):
        awaited(0.0, dies("A/1", at_s=0.5))
    late = r"A/1.*silent for 5 s, and not back within 20 s more \(run\.wait_s\)"
    with pytest.raises((NodeLost, RunFailed), match=late):
        awaited(20.0, dies("A/1", at_s=0.5))


def test_the_workers_of_a_collective_party_are_not_awaited() -> None:
    topology = topology_of([1, 1], collective=frozenset({"B"}), losses=Losses("wait", 60.0))
    assert topology.losses_at("A").on_loss == "wait"
    assert topology.losses_at("B").on_loss == "stop"
