"""Every collective call over a whole tree on the virtual clock: assign, gradient, mean, fetch, and how they compose."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from driven import SETTINGS
from trees import SGD, assert_well, start, topology_of

from geomx.errors import GeomxError
from geomx.layout import Layout, Tensor
from geomx.node.port import Arrived, Contribution, Fetched, Left, Ready
from geomx.node.topology import Edge, Topology
from geomx.optim.contract import SliceState
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Network, Simulator
from geomx.wire.presence import pack

torch.set_num_threads(1)
WAN = Network(rate_mbps=100.0, delay_ms=20.0)
LAYOUT = Layout(
    (
        Tensor("w", (1200,), "float32"),
        Tensor("v", (2000,), "float32"),
        Tensor("b", (7,), "float32"),
        Tensor("running", (5,), "float32", role="buffer"),
    )
)
W, V, B, RUNNING = (slice_.index for slice_ in LAYOUT.slices)
WEIGHTS = (W, V, B)
PLAIN = {**SGD, "lr": 1.0, "momentum": 0.0}


class Member:
    """A worker's side of a few calls, by hand."""

    def __init__(self, program: Program, place: int, settings: dict[str, Any]) -> None:
        self.program, self.place, self.settings = program, place, settings
        self.inbox: list[Any] = []
        self.weights: dict[int, torch.Tensor] = {}
        self.turn = 0
        program.listen(self.inbox.append)

    def attach(self) -> tuple[int, ...]:
        self.program.call("attach", LAYOUT, self.settings)
        self._until(Ready, 1)
        (ready,) = self.inbox
        return tuple(own for own, _ in ready.by_slice.values())

    def assign(self, state: dict[int, SliceState] | None = None, values: float = 1.0) -> dict[int, Arrived]:
        """The first member's weights are everybody's."""
        given = []
        for slice_ in LAYOUT.slices:
            mine, present, held = None, pack([False] * len(slice_.parts)), None
            if not self.place:
                mine, present = torch.full((slice_.elements,), values), None
                held = (state or {}).get(slice_.index)
            call = Contribution.of(
                self.turn, slice_.index, "assign", "load()", 0.0, mine, present, state=held
            )
            given.append(call)
        return self._exchange(given)

    def step(
        self, gradient: float, weight: float = 1.0, hyper: dict[str, Any] | None = None
    ) -> dict[int, Arrived]:
        return self._exchange(
            [
                Contribution.of(
                    self.turn, index, "gradient", "step()", weight,
                    torch.full((LAYOUT.slices[index].elements,), weight * gradient), None, hyper or dict(SGD),
                )
                for index in WEIGHTS
            ]
        )  # fmt: skip

    def mean(self, value: float, weight: float) -> torch.Tensor | None:
        values = torch.full((LAYOUT.slices[RUNNING].elements,), weight * value)
        call = Contribution.of(self.turn, RUNNING, "mean", "save()", weight, values)
        return self._exchange([call])[RUNNING].values

    def fetch(self, index: int) -> SliceState:
        self.inbox.clear()
        self.program.call("fetch", index, "optimizer")
        self._until(Fetched, 1)
        return self.inbox[0].state

    def leave(self) -> None:
        self.program.call("leave", {"": self.turn - 1})
        self._until(Left, 1)

    def _exchange(self, calls: list[Contribution]) -> dict[int, Arrived]:
        self.inbox.clear()
        for call in calls:
            self.program.call("contribute", call)
        self._until(Arrived, len(calls))
        self.turn += 1
        return {item.update.slice: item for item in self.inbox}

    def _until(self, kind: type, count: int) -> None:
        self.program.wait(
            lambda: sum(isinstance(i, kind) for i in self.inbox) == count, lambda: f"{kind.__name__}"
        )


def stepped(step: Callable[[Member], Any], values: float = 1.0) -> Callable[[Member], Any]:
    """A script that attaches, gives first values, and does this."""

    def script(member: Member) -> Any:
        member.attach()
        member.assign(values=values)
        return step(member)

    return script


def run(
    topology: Topology, script: Callable[[Member], Any], settings: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Every worker runs `script`; returns what each came to."""
    simulator, results = Simulator(0, WAN), dict[str, Any]()

    def main(program: Program) -> None:
        member = Member(program, topology.tree.workers.index(program.name), settings or SETTINGS)
        results[program.name] = script(member)
        member.leave()

    programs = start(simulator, topology, main)
    simulator.run(120.0)
    for program in programs.values():
        if program.error is not None:
            raise program.error
    assert_well(simulator, topology, programs)
    return results


def test_a_mean_is_weighted_and_changes_no_weights():
    script = stepped(lambda m: m.mean(value=m.place + 1.0, weight=[1.0, 2.0, 5.0][m.place]))
    for mean in run(topology_of([2, 1]), script).values():
        torch.testing.assert_close(mean, torch.full((5,), (1 + 4 + 15) / 8))


@pytest.mark.parametrize(
    ("shards", "norms_sent", "clip_norm"), [(1, 4096, 3.0), (2, 4096, 1e6), (2, 1, 3.0), (4, 4096, 3.0)]
)
def test_the_global_norm_is_clipped_over_all_shards(shards, norms_sent, clip_norm, monkeypatch):
    """g = 2 everywhere: its norm is 2 * sqrt(elements of all trained slices), wherever they lie."""
    monkeypatch.setattr("geomx.node.slices.clipping.NORMS_SENT", norms_sent)
    script = stepped(lambda member: member.step(gradient=2.0, hyper=PLAIN), values=0.0)
    elements = sum(LAYOUT.slices[index].elements for index in WEIGHTS)
    expected = -2.0 * min(clip_norm / (2.0 * math.sqrt(elements) + 1e-6), 1.0)
    settings = {"optimizer": "torch.optim.SGD", "clip_norm": clip_norm}
    for updates in run(topology_of([1, 1], shards), script, settings).values():
        for index in WEIGHTS:
            torch.testing.assert_close(
                updates[index].values, torch.full_like(updates[index].values, expected)
            )


def test_a_slice_without_any_gradient_counts_as_zero_in_the_norm():
    def script(member: Member) -> Any:
        member.attach()
        member.assign(values=0.0)
        calls = [
            Contribution.of(1, index, "gradient", "step()", 1.0, None, pack([False]), dict(SGD))
            for index in (W, V)
        ]
        calls.append(
            Contribution.of(1, B, "gradient", "step()", 1.0, torch.full((7,), 3.0), None, {**SGD, "lr": 1.0})
        )
        updates = member._exchange(calls)
        assert updates[W].values is None
        return updates[B].values[0].item()

    settings = {"optimizer": "torch.optim.SGD", "clip_norm": 1.0}
    for value in run(topology_of([1, 1], 2), script, settings).values():
        assert value == pytest.approx(-1 / math.sqrt(7), rel=1e-5)


def test_where_the_workers_own_the_optimizer_the_mean_gradient_comes_back():
    def script(member: Member) -> float:
        member.attach()
        assert member.assign()[W].values is not None
        updates = member.step(gradient=[1.0, 4.0][member.place], weight=[1.0, 2.0][member.place])
        return updates[V].values[0].item()

    settings = {"optimizer": "workers", "clip_norm": None}
    assert set(run(topology_of([1, 1], 2), script, settings).values()) == {3.0}


@pytest.mark.parametrize("shards", [1, 2])
def test_the_optimizer_state_comes_and_goes(shards):
    """A step, the state, another step; then back to where the state was taken, and the same step again."""

    def script(member: Member) -> Any:
        member.attach()
        member.assign()
        before = member.step(gradient=1.0)
        weight = before[W].values[0].item()
        states = {index: member.fetch(index) for index in WEIGHTS}
        after = member.step(gradient=2.0)[W].values
        assert torch.equal(states[W].planes["momentum_buffer"], torch.ones(1200))
        member.assign(states, values=weight)
        assert torch.equal(member.step(gradient=2.0)[W].values, after)
        return after

    first, second = run(topology_of([1, 1], shards), script).values()
    assert torch.equal(first, second)


HALF = "half_codec:Half"


@pytest.mark.parametrize(
    ("lan", "wan"),
    [
        (Edge(), Edge(HALF, HALF)),
        (Edge(HALF, HALF), Edge()),
        (Edge(HALF, "dense"), Edge("dense", HALF)),
        (Edge(HALF, HALF), Edge(HALF, HALF)),
    ],
)
def test_each_edge_and_direction_has_the_codec_that_it_was_given(lan, wan):
    """1 - lr * mean(0.1, 0.2) as float16 and float32 see it; what must be exact travels dense."""

    hyper = {**PLAIN, "lr": 0.05}

    def script(member: Member) -> Any:
        member.attach()
        given = member.assign(values=1.0 + 2**-20)[V].values
        assert torch.equal(given, torch.full((2000,), 1.0 + 2**-20))
        return member.step([0.1, 0.2][member.place], hyper=hyper)[V].values

    rows = run(topology_of([1, 1], lan=lan, wan=wan), script)
    down_halved = HALF in (lan.codec_down, wan.codec_down)
    for values in rows.values():
        exact = torch.full((2000,), 1.0 + 2**-20 - 0.05 * 0.15)
        torch.testing.assert_close(values, exact, atol=1e-3, rtol=0)
        assert torch.equal(values, values.to(torch.float16).float()) == down_halved


def test_whoever_sent_what_cannot_be_read_is_named():
    script = stepped(lambda member: member.step(gradient=0.1, hyper=PLAIN))
    with pytest.raises(GeomxError, match=r"what B/0 sent for slice \d+: it is torn"):
        run(topology_of([1, 1], lan=Edge("half_codec:Torn")), script)
