"""What stands in a shard's log comes to the state that is written there, and a byte that was changed is found."""

from __future__ import annotations

from typing import Any

import pytest
from small_runs import SmallRun

from geomx.drive.past import repeat
from geomx.node.factory import make_node
from geomx.node.topology import AS_ABOVE, Edge, Topology
from geomx.rounds.losses import Losses
from geomx.simulate.stores import MemoryStore
from geomx.store.contract import StoreError
from geomx.store.log import PIECE, Log

POLICIES = ("fsa", "mixed", "diloco every=2 lr=0.7 momentum=0.9")
SHARD = "global/1"


def run_of(policy: str, codec: str = "bisparse ratio=0.2", **more: Any) -> SmallRun:
    topology = Topology.of_parties(
        "past",
        {"A": ("A/0", "A/1"), "B": ("B/0",)},
        policy=policy,
        shards=["global/0", SHARD],
        wan=Edge(codec, "int4"),
        lan=Edge("dense", AS_ABOVE),
        losses=Losses("continue", 60.0),
        is_durable=True,
        **({"cut_every_s": 1.0} | more),
    )
    run = SmallRun(topology, lambda worker, now: 0.05, ends_s=30.0)
    run.start(*topology.tree.nodes)
    return run


@pytest.mark.parametrize("policy", POLICIES)
def test_a_log_repeated_comes_to_what_was_written(policy: str) -> None:
    run = run_of(policy)
    run.simulator.at(2.7, lambda: run.kill(SHARD, 0.3))  # one that was started again writes the same
    run.simulator.run(until=6.0)
    found = repeat(make_node(run.topology, SHARD), Log(run.store, SHARD), first=5)
    assert found.differ == []
    assert found.compared > 0
    assert len(found.turns) > 2
    assert len({each.digest for each in found.turns}) == len(found.turns)
    assert min(each.turn for each in found.turns) >= 5
    assert all(each.workers and each.weight for each in found.turns)


def test_a_byte_that_was_changed_is_found() -> None:
    run = run_of("fsa", "dense")
    run.simulator.run(until=6.0)
    log = Log(run.store, SHARD)
    pieces = run.store.list(f"{SHARD}/{PIECE}")
    piece = next(name for name in pieces if len(run.store.get(name) or b"") > 200)
    content = bytearray(run.store.get(piece) or b"")
    content[-1] ^= 0x40  # an exponent
    run.store.put(piece, [content])
    found = repeat(make_node(run.topology, SHARD), log)
    assert found.differ


def test_a_log_that_is_full_is_cut_early() -> None:
    run = run_of("fsa", cut_every_s=600.0, keep_bytes=3_000.0)
    run.simulator.run(until=20.0)
    cuts = run.simulator.noted("cut")
    assert len(list(cuts)) > 3
    assert sum(len(run.store.get(name) or b"") for name in run.store.list(SHARD)) < 40_000


def test_there_is_no_log() -> None:
    with pytest.raises(StoreError, match=r"there is no log of global/1"):
        repeat(make_node(run_of("fsa").topology, SHARD), Log(MemoryStore(), SHARD))
