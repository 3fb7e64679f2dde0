"""A party that no description names comes to a run that has begun, and takes part like any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_runs import SmallRun

from geomx.node.topology import Topology
from geomx.rounds.losses import Losses
from geomx.tree import GUESTS

ENDS_S, COMES_S, DIES_S = 8.0, 3.0, 5.0
PARTY = ("guest-3/0", "guest-3/5")


def open_run(policy: str, shards: int) -> Topology:
    names = [f"global/{shard}" for shard in range(shards)]
    parties = {"A": ("A/0", "A/1"), "B": ("B/0",)}
    first = Topology.of_parties("open", parties, shards=names, policy=policy, losses=Losses("continue", 60.0))
    edges = first.edges | dict.fromkeys(GUESTS, first.edges["A"])
    return replace(first, tree=first.tree.with_guests(GUESTS), edges=edges)


def pause(worker: str, now: float) -> float:
    """What others have read before it came is not its to read: it passes over that."""
    return 0.001 if worker in PARTY and now < COMES_S + 0.5 else 0.1


@pytest.mark.parametrize("one_dies", [False, True])
@pytest.mark.parametrize(("policy", "shards"), [("fsa", 2), ("diloco every=5", 2), ("mixed", 1)])
def test_a_party_comes_later(policy: str, shards: int, one_dies: bool) -> None:
    run = SmallRun(open_run(policy, shards), pause, ends_s=ENDS_S)
    tree = run.topology.tree
    run.start(*(name for name in tree.nodes if name.partition("/")[0] not in GUESTS))
    run.simulator.at(COMES_S, lambda: run.start("guest-3", *PARTY, party=PARTY))
    if one_dies:
        run.simulator.at(DIES_S, lambda: run.simulator.crash(PARTY[1]))
    run.simulator.run(until=100.0)
    there = {"A/0", "A/1", "B/0", PARTY[0]} | ({PARTY[1]} if not one_dies else set())
    assert run.errors == []
    assert run.weights.keys() == there
    if policy != "mixed":
        assert len(set(run.weights.values())) == 1
    counted = run.counted()
    assert all(counted[name] == run.gave[name] > 3 for name in there)
    assert run.runs["A/0"].workers == ("A/0", "A/1", "B/0")
    assert run.runs[PARTY[0]].workers == ("A/0", "A/1", "B/0", *PARTY)
    reasons = [fields["reason"] for _, node, fields in run.simulator.noted("roster") if node == "A/0"]
    assert reasons[:2] == ["guest-3/0 has come", "guest-3/5 has come"]
