"""Which table a run uses: one that saves time, by what it has measured, and the star else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from benchmarks.overlay_sim import Loop, ends_of
from geomx.layout import Layout, Tensor
from geomx.node.factory import make_node
from geomx.node.overlay.meter import Meter
from geomx.node.topology import Topology
from geomx.overlay.contract import Route, Routes
from geomx.overlay.trees import Trees
from geomx.simulate.graph import Graph
from geomx.simulate.network import Network
from geomx.simulate.simulator import Simulator
from geomx.tree import TOP
from geomx.wire.overlay_messages import Rates
from geomx.wire.session import Patience

FOR_EVER = 1 << 30
LAYOUT = Layout((Tensor("weights", (480_000,), "float32"),), slice_elements=10_000)


def begun(
    overlay: str, access: dict[str, tuple[float, float, float]], neighbours: Any = None, **links: Network
) -> Simulator:
    """One worker a party; `access` has the hub, too."""
    parties = {name: [f"{name}/0"] for name in access if name != "hub"}
    topology = Topology.of_parties(
        "tables",
        parties,
        overlays={TOP: overlay} if overlay else {},
        neighbours=neighbours or {},
    ).with_patience(Patience(heartbeat_s=2.0, timeout_s=60.0))
    nodes = {"global/0": "hub"} | {node: name for name in parties for node in (name, f"{name}/0")}
    simulator = Simulator(0, graph=Graph.of_access(access, nodes), memory_bytes_per_s=1e12)
    for node in topology.tree.nodes:
        simulator.add(make_node(topology, node))
    loops = [
        Loop(simulator, name, LAYOUT, not place, FOR_EVER, False)
        for place, name in enumerate(topology.tree.workers)
    ]
    simulator.run(1.0)
    for loop in loops:
        simulator.call(loop.name, "attach", LAYOUT, {"optimizer": "torch.optim.SGD"})
    return simulator


def rounds_of(simulator: Simulator) -> list[float]:
    """The seconds of each."""
    ends = ends_of(simulator)
    ordered = [ends[turn] for turn in sorted(ends)]
    return [later - earlier for earlier, later in itertools.pairwise(ordered)]


def states_of(simulator: Simulator, state: str) -> list[dict[str, Any]]:
    return [fields for _, _, fields in simulator.noted("overlay") if fields["state"] == state]


def alike(parties: int, mbps: float = 20.0) -> dict[str, tuple[float, float, float]]:
    return dict.fromkeys([*(f"p{place}" for place in range(parties)), "hub"], (mbps, mbps, 5.0))


def test_eight_parties_that_share_the_hubs_link_are_far_faster_by_trees() -> None:
    star = begun("", alike(8))
    star.run(60.0)
    trees = begun("trees", alike(8))
    trees.run(60.0)
    assert rounds_of(star)[-1] > 2.5 * min(rounds_of(trees)[-4:])
    assert trees.noted("overlay")[0][2]["state"] == "used"


def test_where_the_hub_is_fast_enough_the_star_is_found_again() -> None:
    """Parties that are alike might share its link: that is tried."""
    fast = alike(3) | {"hub": (1000.0, 1000.0, 5.0)}
    simulator = begun("trees", fast)
    simulator.run(30.0)
    star = begun("", fast)
    star.run(30.0)
    assert min(rounds_of(simulator)[-3:]) <= 1.05 * min(rounds_of(star)[-3:])


def test_a_table_by_which_rounds_take_longer_is_left_and_it_is_said_why() -> None:
    """Every second turn another drawn at random, over links that are slow but for the hub's."""
    simulator = begun("shuffled:Shuffled every=50", alike(6) | {"hub": (1000.0, 1000.0, 5.0)})
    simulator.run(60.0, lambda: not states_of(simulator, "left"))
    (left, *_) = [fields for _, _, fields in simulator.noted("overlay") if fields["state"] == "left"]
    assert "s by it, and" in left["reason"]


@pytest.mark.grids
@pytest.mark.parametrize("overlay", ["ring", "binary-blocks", "ps", "ts"])
def test_each_of_the_others_runs_as_well(overlay: str) -> None:
    simulator = begun(overlay, alike(5))
    simulator.run(40.0, lambda: len(rounds_of(simulator)) < 6 or not states_of(simulator, "used"))
    assert len(rounds_of(simulator)) > 5
    assert any(fields["state"] == "used" for _, _, fields in simulator.noted("overlay"))


def test_a_fixed_table_that_cannot_be_says_so_and_the_star_goes_on() -> None:
    simulator = begun("butterfly", alike(3))
    simulator.run(20.0)
    (told, *_) = [fields for _, _, fields in simulator.noted("overlay")]
    assert told["state"] == "star"
    assert "binary-blocks" in told["reason"]
    assert len(rounds_of(simulator)) > 3


@pytest.mark.grids
def test_a_fixed_table_is_used_again_after_two_did_not_reach_each_other() -> None:
    simulator = begun("ring", alike(3))
    simulator.run(20.0)
    simulator.cut("p0", "p1", 30.0, reset=True)
    simulator.run(120.0, lambda: len(states_of(simulator, "used")) < 2)
    states = [fields["state"] for _, _, fields in simulator.noted("overlay")]
    assert states == ["used", "void", "star", "used"]


def test_rates_that_cannot_be_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Rates({"global/0": 0.0, "p1": float("nan"), "nobody": 1e9}, -1.0, float("inf"))
    monkeypatch.setattr(Meter, "take", lambda self: wrong)
    simulator = begun("trees", alike(3))
    simulator.run(20.0)
    assert len(rounds_of(simulator)) > 2


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (
            lambda *_: Routes((Route(3, (1, 0, 3), (3, 3, 3)),), (0,) * len(LAYOUT.slices)),
            "p0 does not reach its holder, global/0",
        ),
        (
            lambda *_: 1 // 0,
            "the planner failed with ZeroDivisionError('integer division or modulo by zero')",
        ),
    ],
    ids=["circle", "raises"],
)
def test_a_table_that_is_none_is_passed_over_and_it_is_said_why(
    plan: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trees, "plan", plan)
    simulator = begun("trees", alike(3))
    simulator.run(20.0)
    states = [(fields["state"], fields["reason"]) for _, _, fields in simulator.noted("overlay")]
    assert set(states) == {("star", why)}
    assert len(rounds_of(simulator)) > 2
