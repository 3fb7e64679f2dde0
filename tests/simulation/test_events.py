"""Links that change while a run goes on, on the virtual clock."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from trees import Loop, Programs, assert_well, layout_of, start

from geomx.config import Run
from geomx.errors import ConfigError, NodeLost, RunFailed
from geomx.node.topology import Topology
from geomx.simulate.links import emulate
from geomx.simulate.simulator import Simulator

TOML = """
[wan]
link = { rate_mbps = 100, delay_ms = 20 }
[lan]
link = { delay_ms = 1 }
[[party]]
name = "A"
workers = 2
[[party]]
name = "B"
workers = 1
"""
SLOW = '[[event]]\nat_s = 2\nfor_s = 3\nparty = "B"\nrate_mbps = 1\n'
CUT = '[[event]]\nat_s = 2\nfor_s = 4\nparty = "B"\ncut = true\n'


@cache
def trained(text: str, shards: int = 1) -> tuple[Simulator, Topology, Programs, Loop]:
    run = Run.parse(text, "run.toml", [f"run.shards={shards}"])
    topology, simulator = Topology.of(run), Simulator()
    emulate(run, simulator)
    loop = Loop(layout_of(len(topology.tree.workers)), topology.tree.workers, 100)
    programs = start(simulator, topology, loop)
    simulator.run(600.0)
    return simulator, topology, programs, loop


def ends(loop: Loop, worker: str) -> list[float]:
    """When each turn was over for a worker, the first at the end of `attach`."""
    last = {turn: time for time, name, turn, _ in loop.arrived if name == worker}
    return [last[turn] for turn in sorted(last)]


def lengths(loop: Loop, begin: float, end: float) -> list[float]:
    """How long the rounds took that lay between two seconds of the training."""
    times = [time - ends(loop, "B/0")[0] for time in ends(loop, "B/0")]
    return [b - a for a, b in pairwise(times) if begin < a and b < end]


@pytest.mark.parametrize("shards", [1, 2])
def test_rounds_take_longer_while_a_link_is_slow_and_no_longer_after(shards: int) -> None:
    simulator, topology, programs, loop = trained(TOML + SLOW, shards=shards)
    assert_well(simulator, topology, programs)
    before, slow, after = lengths(loop, 0.0, 2.0), lengths(loop, 2.1, 5.0), lengths(loop, 5.3, 60.0)
    bytes_s = 4 * 2740 * 8e-6  # of the three slices of weights at 1 Mbit/s, one way
    assert min(slow) > max(before) + bytes_s
    assert after[-1] == pytest.approx(before[-1], abs=1e-3)
    calm = trained(TOML, shards=shards)[3]
    assert all(torch.equal(calm.weights["A/0"][s], w) for s, w in loop.weights["A/0"].items())


def test_each_end_changes_its_direction_by_its_own_second_0_and_notes_it() -> None:
    simulator, _, _, loop = trained(TOML + SLOW)
    noted = [(node, time, fields["state"]) for time, node, fields in simulator.noted("link")]
    slow, fast = "1 Mbit/s, 20 ms one way", "100 Mbit/s, 20 ms one way"
    assert [(node, state) for node, _, state in noted] == [
        ("global/0", slow),
        ("B", slow),
        ("global/0", fast),
        ("B", fast),
    ]
    began = ends(loop, "B/0")[0] - 0.001  # the LAN's delay
    for node, time, state in noted:
        second = time - (2.0 if state == slow else 5.0)
        assert second == pytest.approx(began - (0.020 if node == "global/0" else 0.0), abs=0.002)


def test_a_cut_holds_its_party_up_and_heals() -> None:
    simulator, topology, programs, loop = trained(TOML + CUT)
    assert_well(simulator, topology, programs)
    rounds = lengths(loop, 0.0, 60.0)
    assert 3.9 < max(rounds) < 4.3
    assert sorted(rounds)[-2] < 0.2
    calm = trained(TOML)[3]
    assert all(torch.equal(calm.weights["B/0"][s], w) for s, w in loop.weights["B/0"].items())


def test_a_cut_that_outlasts_the_patience_loses_the_party() -> None:
    text = TOML.replace("[wan]", "[wan]\nheartbeat_s = 0.5\ntimeout_s = 3") + CUT
    simulator, topology, _, _ = trained(text)
    for name in topology.tree.nodes:
        error = simulator.error_of(name)
        assert isinstance(error, NodeLost | RunFailed), (name, error)
        assert error.node == ("global/0" if name in ("B", "B/0") else "B")


def test_a_session_that_broke_within_a_cut_resumes() -> None:
    text = TOML.replace("[wan]", "[wan]\ntimeout_s = 6") + CUT  # it dials anew after 3 s
    simulator, topology, programs, _ = trained(text)
    assert_well(simulator, topology, programs)
    assert any(node == "B" for _, node, _ in simulator.noted("resumed"))


def test_what_the_simulator_cannot_imitate_is_refused() -> None:
    with pytest.raises(ConfigError, match="loses whole messages"):
        trained(TOML + SLOW.replace("rate_mbps = 1", "loss = 0.1"))
