"""Policies whose parties do not wait against the papers' equations, written plainly in one process, in float64."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import pytest
import torch
from live_runs import (
    Make,
    adam,
    apply,
    assert_close,
    assert_equal,
    begin,
    gradients,
    sgd,
    small_model,
    weights,
)
from policy_runs import STEPS, momentum, script, train_by, uneven
from torch import nn

from geomx.errors import ConfigError, Unsupported
from geomx.node.topology import Edge
from geomx.optim.dcasgd import DCASGD
from geomx.simulate.simulator import Simulator
from geomx.sync.diloco import DiLoCo
from geomx.sync.hfa import HFA
from geomx.sync.mixed import MixedSync

ONE_SLICE = {"slice_elements": 1 << 20, "pack_below": 1 << 20}  # so that the root's rounds have one order


def rounds(simulator: Simulator) -> list[dict[str, Any]]:
    """Those of steps at the root, in the order in which they ended."""
    noted = simulator.noted("round")
    return [fields for _, node, fields in noted if node == "global/0" and fields["kind"] == "gradient"]


def mixed_reference(
    simulator: Simulator, parties: list[int], make: Make, compensation: DCASGD | None = None
) -> nn.Module:
    """Aggregates applied one after the other. Each party computes with the weights that it was sent last."""
    everyone = sum(parties)
    places, first = {}, 0
    for index, count in enumerate(parties):
        places[chr(65 + index)] = list(range(first, first + count))
        first += count
    model = small_model(seed=0)
    optimizer = make(model)
    received = {party: copy.deepcopy(model) for party in places}
    steps: dict[str, int] = defaultdict(int)
    for fields in rounds(simulator):
        party = fields["cohort"]
        found = gradients(received[party], steps[party], places[party], everyone)
        steps[party] += 1
        if compensation is not None:
            pairs = zip(model.parameters(), received[party].parameters(), found, strict=True)
            for index, (now, then, gradient) in enumerate(pairs):
                compensation.correct(index, gradient, now.detach(), then.detach())
        apply(model, optimizer, found)
        received[party] = copy.deepcopy(model)
    assert set(steps.values()) == {STEPS}
    return model


@pytest.mark.parametrize(
    ("parties", "make", "compensation"),
    [
        ([2, 1], momentum, ""),
        ([1, 2, 1], adam, ""),
        ([1, 2], sgd, "dcasgd strength=0.5"),
        ([1, 2], adam, "dcasgd strength=2 adaptive=true decay=0.9"),
    ],
)
def test_mixed_sync_applies_what_comes(parties: list[int], make: Make, compensation: str) -> None:
    how = {"compensation": compensation} if compensation else {}
    results, simulator = train_by("mixed", parties, script(make, pause_s=uneven), ONE_SLICE, **how)
    rules = {
        "": None,
        "dcasgd strength=0.5": DCASGD(strength=0.5),
        "dcasgd strength=2 adaptive=true decay=0.9": DCASGD(strength=2.0, adaptive=True, decay=0.9),
    }
    expected = weights(mixed_reference(simulator, parties, make, rules[compensation]))
    assert_close(results[f"{rounds(simulator)[-1]['cohort']}/0"], expected)
    assert max(fields["staleness"] for fields in rounds(simulator)) >= 2


def test_the_compensation_is_the_paper_s() -> None:
    torch.manual_seed(0)
    g, now, then = (torch.randn(9, dtype=torch.float64) for _ in range(3))
    constant, adaptive = g.clone(), g.clone()
    DCASGD(strength=0.04).correct(0, constant, now, then)
    torch.testing.assert_close(constant, g + 0.04 * g * g * (now - then), rtol=1e-15, atol=0)
    rule, square = DCASGD(strength=2.0, adaptive=True, decay=0.95), torch.zeros_like(g)
    for _ in range(3):
        adaptive = g.clone()
        rule.correct(0, adaptive, now, then)
        square = 0.95 * square + 0.05 * g * g
    expected = g + 2.0 / (square + 1e-7).sqrt() * g * g * (now - then)
    torch.testing.assert_close(adaptive, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_party_goes_further_ahead_than_the_bound(bound: int) -> None:
    spec = f"mixed staleness={bound}"
    results, simulator = train_by(spec, [1, 1, 1], script(adam, pause_s=uneven), ONE_SLICE)
    done: dict[str, int] = dict.fromkeys("ABC", 0)
    furthest = 0
    for fields in rounds(simulator):
        done[fields["cohort"]] += 1
        furthest = max(furthest, max(done.values()) - min(done.values()))
    assert furthest == bound + 1  # whoever is that far ahead waits with its next
    last = rounds(simulator)[-1]["cohort"]
    assert_close(results[f"{last}/0"], weights(mixed_reference(simulator, [1, 1, 1], adam)))


def test_each_party_has_a_stream_of_its_own() -> None:
    """Lossy updates are deltas on what each party holds; workers of one party stay bit-identical."""
    for wan in (Edge("bisparse ratio=0.2", "int8"), Edge("fp16", "bisparse ratio=0.3")):
        results, _ = train_by("mixed", [2, 2], script(sgd, pause_s=uneven), wan=wan, shards=2)
        assert_equal(results["A/0"], results["A/1"])
        assert_equal(results["B/0"], results["B/1"])


def downpour_reference(
    simulator: Simulator, everyone: int, make: Make, lr: float, n_push: int, n_fetch: int
) -> dict[str, list[torch.Tensor]]:
    """DistBelief's client and server, in the order in which the root's rounds ended: the weights of each worker."""
    server = small_model(seed=0)
    optimizer = make(server)
    names = list(dict.fromkeys(fields["cohort"] for fields in rounds(simulator)))
    clients = {name: copy.deepcopy(server) for name in names}
    places = {"A/0": 0, "A/1": 1, "B/0": 2}
    steps: dict[str, int] = dict.fromkeys(names, 0)
    for name in (fields["cohort"] for fields in rounds(simulator)):
        client = clients[name]
        total = [torch.zeros_like(p) for p in client.parameters()]
        while True:
            found = gradients(client, steps[name], [places[name]], everyone)
            steps[name] += 1
            with torch.no_grad():
                for parameter, gradient, accrued in zip(client.parameters(), found, total, strict=True):
                    accrued.add_(gradient)
                    parameter.sub_(lr * gradient)
            if steps[name] % n_push == 0:
                break
        apply(server, optimizer, total)
        if steps[name] % n_fetch == 0:
            clients[name] = copy.deepcopy(server)
    return {name: [p.detach() for p in client.parameters()] for name, client in clients.items()}


@pytest.mark.parametrize(("n_push", "n_fetch"), [(1, 1), (1, 5), (5, 10)])
def test_downpour_is_distbelief_s(n_push: int, n_fetch: int) -> None:
    def adagrad(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=0.01)

    spec = f"downpour n_push={n_push} n_fetch={n_fetch}"
    results, simulator = train_by(spec, [2, 1], script(adagrad, pause_s=uneven), ONE_SLICE)
    expected = downpour_reference(simulator, 3, adagrad, 0.01, n_push, n_fetch)
    for name, values in results.items():
        ours = {f"{place}": value for place, value in enumerate(values.values())}
        assert_close(ours, {f"{place}": value for place, value in enumerate(expected[name])})


def test_what_does_not_go_together_is_refused() -> None:
    class Own(torch.optim.SGD):
        pass

    with pytest.raises(Unsupported, match="needs an optimizer on the global servers"):
        train_by("mixed", [1, 1], lambda run: begin(run, lambda model: Own(model.parameters(), lr=0.1)))
    for make in (lambda: MixedSync(staleness=-2), lambda: HFA(k1=0), lambda: DiLoCo(overlap=500)):
        with pytest.raises(ConfigError):
            make()
