"""Whatever datagrams go through, nothing of a contribution is lost for good, and nothing counts twice.

    what was applied + what codecs hold = what was pushed        (of each weight)

Sums are exact in float32 (see `flow_training.py`), and compared bit for bit. `int4` rounds: there the two sides are
compared within what float32 rounds off.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from flow_training import STEPS, Trained, check, train
from trees import Loop, bad_network, disturb, layout_of, run_tree, topology_of

from geomx.node.topology import AS_ABOVE, Edge
from geomx.simulate.network import Network
from geomx.wire.flow import ends as ends_module
from geomx.wire.flow.outbox import BlockOut
from geomx.wire.session import Patience

POLICIES = ("fsa", "hfa k1=2 k2=1", "hfa k1=1 k2=2", "diloco every=2 lr=1 momentum=0", "mixed")
CODECS = ("dense", "fp16", "int4", "bisparse ratio=0.05")
DROPS = "dgt k=0.3 adaptive=false drop=true"
CHANNELS = ("datagram", "datagram deadline=1", "dgt adaptive=false", "dgt k=0 adaptive=false", DROPS)
PATIENCE = Patience(heartbeat_s=0.5, timeout_s=30.0)


def run(seed: int, policy: str, codec: str, channel: str, shards: int) -> Trained:
    """One cell of the grid, over a network that is drawn from the seed."""
    chance = random.Random(f"{seed} {policy} {codec} {channel} {shards}")
    network = replace(bad_network(chance), loss=chance.choice((0.0, 0.02, 0.1, 0.2)), keeps_streams=True)
    lan = Edge(chance.choice(("dense", "fp16")), AS_ABOVE, channel=chance.choice(("tcp", "tcp", channel)))
    wan = Edge(codec, channel=channel)
    topology = topology_of([2, 2], shards, PATIENCE, policy=policy, lan=lan, wan=wan)
    try:
        trained = train(topology, network, seed, lambda s: disturb(s, chance, topology, 3.0))
        check(trained, is_exact=codec != "int4")
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {lan.channel} below, {network}: {error}") from error
    return trained


def grid() -> list[Any]:
    """Each value in two cells or more; the whole grid, with other seeds, is left to `make faults`."""
    usual = [
        (policy, CODECS[place % 4], CHANNELS[(2 * place + place // 5) % 5], 1 + place % 2, 0)
        for place, policy in enumerate(2 * POLICIES)
    ]
    more = product(POLICIES, CODECS, CHANNELS, (1, 2), (1, 2))
    return [*usual, *(pytest.param(*cell, marks=pytest.mark.faults) for cell in more)]


@pytest.mark.parametrize(("policy", "codec", "channel", "shards", "seed"), grid())
def test_what_was_applied_and_what_is_held_is_what_was_pushed(
    policy: str, codec: str, channel: str, shards: int, seed: int
) -> None:
    run(seed, policy, codec, channel, shards)


@pytest.mark.parametrize("channel", CHANNELS)
def test_blocks_are_lost_where_the_channel_may_lose_them(channel: str) -> None:
    """So the test above sees such runs, and what is lost goes with the next round."""
    topology = topology_of([2, 2], patience=PATIENCE, wan=Edge(channel=channel))
    trained = train(topology, Network(50.0, 20.0, loss=0.1, keeps_streams=True), 1)
    check(trained, is_exact=True)
    held = sum(int((trained.held(index) != 0).sum()) for index in trained.pushed)
    counts = trained.counts
    # 1,404 bytes each of 100,000 and of 12,000, or 1,425 where all must come; and two small slices. Of two parties, and
    # once of the one that has the weights to begin with.
    whole, loses = 71 + 9 + 2, channel != CHANNELS[0]
    blocks = whole + 2 * STEPS * (72 + 9 + 2 if loses else whole)
    assert counts["sent"] == blocks if channel != DROPS else counts["sent"] < blocks / 2
    assert (held > 0) == loses
    assert counts["came"] < counts["sent"], "the rest was rebuilt, or did not come"


LATE = {"worker": {1}, "party": {2, 3}, "both": {1, 2, 3}}  # whose steps take longer


def late_grid() -> list[Any]:
    """What keeps its own returns and what keeps a residual in the usual run."""
    cells = [(who, codec, channel) for channel in CHANNELS[1::2] for who in LATE for codec in CODECS]
    usual = {("both", "dense", CHANNELS[3]), ("both", CODECS[3], CHANNELS[1])}
    return [pytest.param(*cell, marks=() if cell in usual else pytest.mark.faults) for cell in cells]


@pytest.mark.parametrize(("who", "codec", "channel"), late_grid())
def test_what_comes_too_late_for_its_round_goes_with_a_later_one(who: str, codec: str, channel: str) -> None:
    """Whether the round closed before it was encoded, on its way, or before it was made."""
    chance = random.Random(f"{who} {codec} {channel}")
    slow = {(place, step): chance.uniform(0.1, 0.5) for place in sorted(LATE[who]) for step in range(1, 8)}
    lan = Edge("fp16", AS_ABOVE, channel=channel)
    policy, wan = "quorum:Quorum grace_s=0.1", Edge(codec, channel=channel)
    topology = topology_of([2, 2], patience=PATIENCE, policy=policy, lan=lan, wan=wan)
    network = Network(50.0, 10.0, loss=0.02, keeps_streams=True)
    trained = train(topology, network, 1, steps=8, pause_s=lambda *at: slow.get(at, 0.03))
    most = 0.0 if codec != "int4" else 1e-5
    for index, pushed in trained.pushed.items():
        assert float(trained.late(index).abs().max()) <= most * float(pushed.abs().max()), f"slice {index}"
    for uplink in trained.uplinks():
        assert not uplink._blocks._sent
    assert not any(
        trained.node(name)._receipts._counted for name in (*topology.tree.parties, *topology.tree.shards)
    )


def test_whoever_cuts_a_payload_into_other_bytes_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = ends_module._cut

    def lying(*arguments: Any) -> list[BlockOut]:
        return [block._replace(start=block.start + 1) for block in cut(*arguments)]

    monkeypatch.setattr(ends_module, "_cut", lying)
    topology = topology_of([1, 1], wan=Edge(channel="datagram"))
    loop = Loop(layout_of(2), topology.tree.workers, rounds=40)
    simulator, _ = run_tree(topology, loop, Network(50.0, 10.0, keeps_streams=True))
    for name in topology.tree.nodes:
        assert "broke the protocol: bytes 1 to" in str(simulator.hosts[name].error)


def test_a_run_replays_from_its_seed() -> None:
    one, other = (run(1, "mixed", "fp16", "dgt k=0 adaptive=false", 2) for _ in range(2))
    assert one.counts == other.counts
    assert one.simulator.events == other.simulator.events
    assert one.simulator.now == other.simulator.now
