"""Policies that wait until a time: their nodes wake them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from trees import Loop, assert_well, layout_of, run_tree, topology_of

from geomx.simulate.simulator import Network


@pytest.mark.parametrize("shards", [1, 2])
def test_a_round_closes_at_the_time_until_which_its_policy_waits(shards: int) -> None:
    topology = topology_of([2, 1], shards, policy="late_answers:LateAnswers least_s=0.5")
    loop = Loop(layout_of(3), topology.tree.workers, rounds=3)
    simulator, programs = run_tree(topology, loop, Network(delay_ms=5.0))
    assert_well(simulator, topology, programs)
    times = sorted({turn: time for time, _, turn, _ in loop.arrived}.items())
    later = [after - before for (_, before), (_, after) in pairwise(times)]
    # Both tiers wait, one after the other: 0.5 s each, and two round trips over 5 ms each way.
    assert all(1.0 < seconds < 1.1 for seconds in later)
