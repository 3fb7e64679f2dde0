"""Policies whose parties do not wait against the papers' equations, written plainly in one process, in float64."""

from __future__ import annotations

import copy
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from live_runs import (
    Make,
    adam,
    apply,
    assert_close,
    assert_equal,
    gradients,
    parts_of,
    place_of,
    sgd,
    small_model,
    train,
    weights,
)
from policy_runs import STEPS, momentum, script, settings, uneven
from torch import nn

from geomx.errors import ConfigError, Unsupported
from geomx.node.topology import Edge
from geomx.optim.dcasgd import DCASGD
from geomx.simulate.simulator import Simulator
from geomx.sync.contract import Policy
from geomx.sync.diloco import DiLoCo
from geomx.sync.downpour import Downpour
from geomx.sync.fsa import FSA
from geomx.sync.hfa import HFA
from geomx.sync.mixed import MixedSync
from geomx.train import LiveRun, Settings


def mixed_reference(
    simulator: Simulator,
    parties: list[int],
    make: Make,
    compensation: DCASGD | None = None,
) -> nn.Module:
    """Aggregates applied one after the other, in the order in which the root's rounds ended.

    Each party computes with the weights that it was sent last.
    """
    everyone = sum(parties)
    places, first = {}, 0
    for index, count in enumerate(parties):
        places[chr(65 + index)] = list(range(first, first + count))
        first += count
    model = small_model(seed=0)
    optimizer = make(model)
    received = {party: copy.deepcopy(model) for party in places}
    steps: dict[str, int] = defaultdict(int)
    for _, node, fields in simulator.noted("round"):
        if node != "global/0" or fields["kind"] != "gradient":
            continue
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


def one_slice(policy: Policy) -> Settings:
    """The whole model in one slice, so that the root's rounds have one order."""
    return Settings(slice_elements=1 << 20, pack_below=1 << 20, policy=policy)


@pytest.mark.parametrize("make", [sgd, momentum, adam])
@pytest.mark.parametrize("parties", [[2, 1], [1, 2, 1]])
def test_mixed_sync_applies_what_comes(parties: list[int], make: Make) -> None:
    results, simulator = train(parties, script(make, pause_s=uneven), one_slice(MixedSync()), policy="mixed")
    expected = weights(mixed_reference(simulator, parties, make))
    last = [fields["cohort"] for _, node, fields in simulator.noted("round") if node == "global/0"][-1]
    assert_close(results[f"{last}/0"], expected)
    ages = [fields["staleness"] for _, node, fields in simulator.noted("round") if node == "global/0"]
    assert max(ages) >= 2


@pytest.mark.parametrize("spec", ["dcasgd strength=0.5", "dcasgd strength=2 adaptive=true decay=0.9"])
@pytest.mark.parametrize("make", [sgd, adam])
def test_mixed_sync_with_delay_compensation(spec: str, make: Make) -> None:
    results, simulator = train(
        [1, 2], script(make, pause_s=uneven), one_slice(MixedSync()), policy="mixed", compensation=spec
    )
    adaptive = "adaptive" in spec
    plain = DCASGD(strength=2.0, adaptive=True, decay=0.9) if adaptive else DCASGD(strength=0.5)
    expected = weights(mixed_reference(simulator, [1, 2], make, plain))
    last = [fields["cohort"] for _, node, fields in simulator.noted("round") if node == "global/0"][-1]
    assert_close(results[f"{last}/0"], expected)


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


def test_mixed_sync_with_one_party_is_fsa() -> None:
    mixed, _ = train([3], script(momentum), settings(MixedSync()), policy="mixed", shards=2)
    fsa, _ = train([3], script(momentum), settings(FSA()), shards=2)
    assert_equal(mixed["A/0"], fsa["A/0"])


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_party_goes_further_ahead_than_the_bound(bound: int) -> None:
    _, simulator = train(
        [1, 1, 1],
        script(sgd, pause_s=uneven),
        one_slice(MixedSync(staleness=bound)),
        policy=f"mixed staleness={bound}",
    )
    done: dict[str, int] = dict.fromkeys("ABC", 0)
    furthest = 0
    for _, node, fields in simulator.noted("round"):
        if node == "global/0":
            done[fields["cohort"]] += 1
            furthest = max(furthest, max(done.values()) - min(done.values()))
    assert furthest == bound + 1  # whoever is that far ahead waits with its next


def test_a_bound_of_zero_applies_every_party_once_in_each_round() -> None:
    results, simulator = train(
        [1, 1], script(adam, pause_s=uneven), one_slice(MixedSync(staleness=0)), policy="mixed staleness=0"
    )
    order = [fields["cohort"] for _, node, fields in simulator.noted("round") if node == "global/0"]
    assert all(set(order[place : place + 2]) == {"A", "B"} for place in range(0, len(order), 2))
    assert_close(results[f"{order[-1]}/0"], weights(mixed_reference(simulator, [1, 1], adam)))


@pytest.mark.parametrize("wan", [Edge("bisparse ratio=0.2", "int8"), Edge("fp16", "bisparse ratio=0.3")])
def test_each_party_has_a_stream_of_its_own(wan: Edge) -> None:
    """Lossy updates are deltas on what each party holds; workers of one party stay bit-identical."""
    results, _ = train(
        [2, 2], script(sgd, pause_s=uneven), settings(MixedSync()), policy="mixed", wan=wan, shards=2
    )
    assert_equal(results["A/0"], results["A/1"])
    assert_equal(results["B/0"], results["B/1"])


def test_calls_of_the_whole_run_find_each_other(tmp_path: Path) -> None:
    """However many steps each party has made by then."""
    path = tmp_path / "c.safetensors"

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        for step in range(3 if run.party == "A" else 8):
            x, y = parts_of(step, 2)[place_of(run)]
            run.weight(len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        run.save(path)
        optimizer.load_state_dict(optimizer.state_dict())  # gives every worker the first one's weights
        return weights(model)

    results, _ = train([1, 1], main, settings(MixedSync()), policy="mixed")
    assert_equal(results["A/0"], results["B/0"])
    assert path.exists()


def downpour_reference(
    simulator: Simulator, everyone: int, make: Make, lr: float, n_push: int, n_fetch: int
) -> dict[str, list[torch.Tensor]]:
    """DistBelief's client and server, in the order in which the root's rounds ended: the weights of each worker."""
    server = small_model(seed=0)
    optimizer = make(server)
    names = list(dict.fromkeys(f["cohort"] for _, node, f in simulator.noted("round") if node == "global/0"))
    clients = {name: copy.deepcopy(server) for name in names}
    places = {"A/0": 0, "A/1": 1, "B/0": 2}
    steps: dict[str, int] = dict.fromkeys(names, 0)
    for _, node, fields in simulator.noted("round"):
        if node != "global/0":
            continue
        name = fields["cohort"]
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


@pytest.mark.parametrize(("n_push", "n_fetch"), [(1, 1), (2, 2), (1, 5), (5, 10)])
def test_downpour_is_distbelief_s(n_push: int, n_fetch: int) -> None:
    def adagrad(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=0.01)

    policy = Downpour(n_push=n_push, n_fetch=n_fetch)
    spec = f"downpour n_push={n_push} n_fetch={n_fetch}"
    results, simulator = train([2, 1], script(adagrad, pause_s=uneven), one_slice(policy), policy=spec)
    expected = downpour_reference(simulator, 3, adagrad, 0.01, n_push, n_fetch)
    for name, values in results.items():
        ours = {f"{place}": value for place, value in enumerate(values.values())}
        assert_close(ours, {f"{place}": value for place, value in enumerate(expected[name])})


def test_downpour_fetches_without_a_push() -> None:
    results, _ = train(
        [1, 1],
        script(sgd, pause_s=uneven),
        settings(Downpour(n_push=10, n_fetch=1)),
        policy="downpour n_push=10 n_fetch=1",
        wan=Edge("int8", "int8"),
        lan=Edge("fp16", "fp16"),
        shards=2,
    )
    assert all(value.isfinite().all() for values in results.values() for value in values.values())


def test_what_does_not_go_together_is_refused() -> None:
    class Own(torch.optim.SGD):
        pass

    def own(run: LiveRun) -> None:
        model = small_model()
        run.attach(model, Own(model.parameters(), lr=0.1))

    with pytest.raises(Unsupported, match="needs an optimizer on the global servers"):
        train([1, 1], own, settings(MixedSync()), policy="mixed")
    for make in (lambda: MixedSync(staleness=-2), lambda: HFA(k1=0), lambda: DiLoCo(overlap=500)):
        with pytest.raises(ConfigError):
            make()
