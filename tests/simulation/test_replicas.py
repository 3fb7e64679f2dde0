"""Shards that keep each other's logs (`run.replicas`): one dies, and nothing is lost; two die at once, and all hear."""

from __future__ import annotations

import pytest
import torch
from small_runs import SmallRun
from storms import POLICIES, Storm, faults_of, run

from geomx.errors import NodeLost
from geomx.node.durable.replicas import Copy
from geomx.node.topology import Topology
from geomx.rounds.losses import Losses
from geomx.wire.copy_messages import Keep, Kept

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


@pytest.mark.parametrize("seed", range(8))
def test_a_storm_takes_no_contribution_and_no_weight(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(100, 600))
def test_many_storms_take_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, monkeypatch)


def run_of(shards: int) -> SmallRun:
    names = [f"global/{shard}" for shard in range(shards)]
    topology = Topology.of_parties(
        "copies",
        {"A": ("A/0",), "B": ("B/0",)},
        shards=names,
        losses=Losses("wait", 60.0),
        is_durable=True,
        replicas=1,
        cut_every_s=600.0,
    )
    run = SmallRun(topology, lambda worker, now: 0.1, ends_s=6.0)
    run.start(*topology.tree.nodes)
    return run


@pytest.mark.parametrize("later_s", [0.0, 0.7])
def test_two_that_die_together_end_the_run_and_say_why(later_s: float) -> None:
    run = run_of(2)
    run.simulator.at(3.0, lambda: run.kill("global/0", 0.5))
    run.simulator.at(3.0 + later_s, lambda: run.kill("global/1", 0.5))
    run.simulator.run(until=120.0)
    assert len(run.errors) == 2
    assert all("started again without its log" in str(error) for error in run.errors)
    assert isinstance(run.simulator.error_of("global/0"), NodeLost)


def test_one_dies_behind_the_other_and_each_has_its_log_again() -> None:
    run = run_of(3)
    for number, at_s in enumerate((1.0, 2.2, 3.4, 4.6)):
        run.simulator.at(at_s, lambda number=number: run.kill(f"global/{number % 3}", 0.2))
    run.simulator.run(until=120.0)
    assert run.errors == []
    assert run.counted() == run.gave
    assert len(set(run.weights.values())) == 1


def test_a_copy_does_not_grow_behind_cuts() -> None:
    copy = Copy()
    for number in range(1, 6):
        assert copy.take(Keep(number, "log", True, 3), PIECE) is None
        assert copy.take(Keep(number, "log", False, 3), PIECE) == Kept(number)
    assert copy.take(Keep(4, "cut", False, 3), PIECE) is None
    assert len(list(copy)) == 5  # half a cut stands for nothing
    assert copy.take(Keep(4, "whole", False, 3), PIECE) == Kept(4, cut=True)
    assert [len(record) for record in copy] == [1, 1, 2]  # the cut, and the record behind it
