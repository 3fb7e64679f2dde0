"""Shards that keep each other's logs (`run.replicas`): one dies, and nothing is lost; two die at once, and all hear."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_runs import PATIENCE, SmallRun
from storms import POLICIES, Storm, faults_of, run

from geomx.errors import NodeLost, ProtocolError
from geomx.node.contract import Persist
from geomx.node.durable.replicas import Copy, Replicas
from geomx.node.peers.peer import Peer
from geomx.node.topology import Topology
from geomx.rounds.losses import Losses
from geomx.simulate.network import Network
from geomx.wire.copy_messages import Keep, Kept, Recall, Recalled
from geomx.wire.session import Session

PIECE = torch.zeros(3, dtype=torch.uint8)


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    storm = Storm(
        POLICIES[seed % len(POLICIES)],
        ("dense", "int4", "bisparse")[seed // 3 % 3],
        2 + seed % 2,
        2 + seed // 2 % 2,
        seed,
        faults=2 + seed % 5,
        rate_mbps=(200.0, 0.5)[seed // 5 % 2],
        replicas=True,
    )
    assert faults_of(storm, run(storm, monkeypatch)) == [], storm.command


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_takes_no_contribution_and_no_weight(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(4, 600))
def test_many_storms_take_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


def run_of(shards: int, policy: str = "fsa", on_loss: str = "wait", ends_s: float = 6.0) -> SmallRun:
    topology = Topology.of_parties(
        "copies",
        {"A": ("A/0",), "B": ("B/0",)},
        policy=policy,
        shards=[f"global/{shard}" for shard in range(shards)],
        losses=Losses(on_loss, 60.0),  # type: ignore[arg-type]
        is_durable=True,
        replicas=1,
        cut_every_s=600.0,
    )
    return SmallRun(topology, lambda worker, now: 0.1, ends_s=ends_s)


def ends_well(run: SmallRun) -> None:
    run.simulator.run(until=120.0)
    assert run.errors == []
    assert run.counted() == run.gave
    assert len(run.weights) == 2
    assert len(set(run.weights.values())) == 1


@pytest.mark.parametrize("later_s", [0.0, 0.7])
def test_two_that_die_together_end_the_run_and_say_why(later_s: float) -> None:
    run = run_of(2)
    run.start(*run.topology.tree.nodes)
    run.simulator.at(3.0, lambda: run.kill("global/0", 0.5))
    run.simulator.at(3.0 + later_s, lambda: run.kill("global/1", 0.5))
    run.simulator.run(until=120.0)
    assert len(run.errors) == 2
    assert all("started again without its log" in str(error) for error in run.errors)
    assert isinstance(run.simulator.error_of("global/0"), NodeLost)


def test_one_dies_behind_the_other_and_each_has_its_log_again() -> None:
    run = run_of(3)
    run.start(*run.topology.tree.nodes)
    for number, at_s in enumerate((1.0, 2.2, 3.4, 4.6)):
        run.simulator.at(at_s, lambda number=number: run.kill(f"global/{number % 3}", 0.2))
    ends_well(run)


def test_one_that_comes_late_has_not_died() -> None:
    run = run_of(3)
    run.start(*(name for name in run.topology.tree.nodes if name != "global/1"))
    run.simulator.at(1.0, lambda: run.start("global/1"))
    ends_well(run)


@pytest.mark.parametrize("at_s", [3.29, 3.31])
def test_what_one_event_decides_is_kept_as_a_whole(at_s: float) -> None:
    """A turn is promised slice by slice; the link to where that is kept takes a while for it."""
    run = run_of(2, "diloco every=2 lr=0.7 momentum=0.9", "continue")
    run.simulator.link("global/0", "global/1", Network(0.05, delay_ms=2.0))
    run.start(*run.topology.tree.nodes)
    run.simulator.at(at_s, lambda: run.kill("global/1", 0.3))
    ends_well(run)


class Beside:
    """A shard of two, and what its `Replicas` says and tells it."""

    name = "global/0"
    now = 0.0

    def __init__(self) -> None:
        self.other = Peer("global/1", Session("global/1", 1, PATIENCE, 0.0), dialled=False)
        self.said: list[Any] = []
        self.told: list[Any] = []
        self.replicas = Replicas(self, self, "global/1", "global/1", self)  # type: ignore[arg-type]
        self.replicas.on_message(self.other, Recalled(0, False), None)

    def peer(self, name: str) -> Peer:
        return self.other

    def send(self, peer: Peer, message: Any, payload: Any = None, priority: int = 0) -> None:
        self.said.append(message)

    def persisted(self, number: int) -> None:
        self.told.append(number)

    def is_known(self) -> None:
        pass


def test_of_a_log_without_its_beginning_only_that_is_said() -> None:
    shard = Beside()
    shard.replicas.on_message(shard.other, Keep(7, "log", False, False, 3), PIECE)
    shard.replicas.on_message(shard.other, Recall(), None)
    assert shard.said == [Kept(7), Recalled(7, is_lost=True)]
    again = Beside()
    again.replicas.is_restoring = True
    with pytest.raises(NodeLost, match=r"it and global/1, .* have both died within seconds"):
        again.replicas.on_message(again.other, Recalled(7, is_lost=True), None)


def test_nobody_waits_for_one_that_has_left() -> None:
    shard = Beside()
    shard.replicas.keep(Persist(1, b"header"))
    shard.replicas.flush()
    assert shard.told == []
    shard.other.has_gone = True
    shard.replicas.look()
    shard.replicas.keep(Persist(2, b"header"))
    shard.replicas.flush()
    assert shard.told == [1, 2]


def test_what_is_sent_unasked_is_refused() -> None:
    shard = Beside()
    for message in (Keep(1, "recalled", False, False, 3), Recalled(0, False)):
        with pytest.raises(ProtocolError, match="does not await it"):
            shard.replicas.on_message(shard.other, message, PIECE)
    for size in (0, -1, 1 << 40):
        with pytest.raises(ProtocolError, match="a piece of a log"):
            shard.replicas.check_payload(shard.other, Keep(1, "log", False, False, size))


def test_a_copy_has_whole_batches_and_does_not_grow_behind_cuts() -> None:
    copy = Copy()
    assert copy.take(Keep(2, "log", True, False, 3), PIECE) is None  # of a process that dies
    copy.begin()
    for number in (2, 4, 6):
        assert copy.take(Keep(number, "log", True, True, 3), PIECE) is None
        assert copy.take(Keep(number, "log", False, True, 3), PIECE) is None
        assert copy.take(Keep(number, "log", False, False, 3), PIECE) == Kept(number)
    assert [len(record) for record in copy] == [2, 1] * 3
    assert copy.take(Keep(4, "cut", False, True, 3), PIECE) is None
    assert len(list(copy)) == 6  # half a cut stands for nothing
    assert copy.take(Keep(4, "cut", False, False, 3), PIECE) == Kept(4, cut=True)
    assert [len(record) for record in copy] == [1, 1, 2, 1]  # the cut, and the batch behind it
