"""Each sync policy against the papers' equations, written plainly in one process, in float64."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable
from functools import partial
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
    samples_of,
    sgd,
    small_model,
    train,
    weights,
)
from policy_runs import STEPS, script, settings, uneven
from torch import nn

from geomx.errors import ConfigError, Unsupported
from geomx.node.topology import Edge
from geomx.optim.dcasgd import DCASGD
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.sync.contract import Policy
from geomx.sync.diloco import DiLoCo
from geomx.sync.downpour import Downpour
from geomx.sync.fsa import FSA
from geomx.sync.hfa import HFA
from geomx.sync.mixed import MixedSync
from geomx.train import LiveRun, Settings


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


# -- local steps ----------------------------------------------------------------------------------------------


def averaged(models: list[nn.Module], shares: list[float]) -> list[torch.Tensor]:
    total = sum(shares)
    columns = zip(*(model.parameters() for model in models), strict=True)
    return [
        sum((share / total) * p.detach() for share, p in zip(shares, column, strict=True))  # type: ignore[misc]
        for column in columns
    ]


def set_weights(model: nn.Module, values: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)


def local_reference(
    parties: list[int],
    make: Make,
    k1: int,
    every: int,
    outer: Callable[[list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]],
    steps: int = STEPS,
) -> nn.Module:
    """HierFAVG and DiLoCo: local steps, means in a party every k1, an outer step every `every`."""
    everyone = sum(parties)
    members, first = [], 0
    for count in parties:
        members.append(list(range(first, first + count)))
        first += count
    start = small_model(seed=0)
    models = [copy.deepcopy(start) for _ in range(everyone)]
    optimizers = [make(model) for model in models]
    anchor = [p.detach().clone() for p in start.parameters()]
    for step in range(steps):
        for place, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            apply(model, optimizer, gradients(model, step, [place], everyone))
        done = step + 1
        if done % every == 0:
            mean = averaged(models, [samples_of(place) for place in range(everyone)])
            anchor = outer(anchor, mean)
            for model in models:
                set_weights(model, anchor)
        elif done % k1 == 0:
            for places in members:
                mean = averaged([models[p] for p in places], [samples_of(p) for p in places])
                for place in places:
                    set_weights(models[place], mean)
    return models[0]


class Nesterov:
    """DiLoCo's outer step: v ← μ v + Δ;  w ← w − η (Δ + μ v)."""

    def __init__(self, lr: float, mu: float) -> None:
        self.lr, self.mu = lr, mu
        self.velocity: list[torch.Tensor] | None = None

    def __call__(self, start: list[torch.Tensor], mean: list[torch.Tensor]) -> list[torch.Tensor]:
        delta = [a - b for a, b in zip(start, mean, strict=True)]
        old = self.velocity or [torch.zeros_like(d) for d in delta]
        self.velocity = [self.mu * v + d for v, d in zip(old, delta, strict=True)]
        return [w - self.lr * (d + self.mu * v) for w, d, v in zip(start, delta, self.velocity, strict=True)]


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("parties", [[2, 1], [1, 1, 2]])
def test_hfa_is_hierarchical_averaging(parties: list[int], make: Make) -> None:
    results, _ = train(parties, script(make), settings(HFA(k1=5, k2=2)), shards=2)
    expected = local_reference(parties, make, 5, 10, lambda _, mean: mean)
    for values in results.values():
        assert_close(values, weights(expected))


def test_hfa_with_a_mean_in_every_step_and_sgd_is_fsa() -> None:
    ours, _ = train([2, 1], script(sgd), settings(HFA(k1=1, k2=1)))
    fsa, _ = train([2, 1], script(sgd), settings(FSA()))
    assert_close(ours["A/0"], fsa["A/0"])


@pytest.mark.parametrize("make", [sgd, adam])
def test_diloco_is_its_outer_step(make: Make) -> None:
    results, _ = train([2, 1], script(make), settings(DiLoCo(every=10, lr=0.7, momentum=0.9)), shards=2)
    expected = local_reference([2, 1], make, 10**9, 10, Nesterov(0.7, 0.9))
    for values in results.values():
        assert_close(values, weights(expected))


def test_diloco_with_outer_sgd_is_hfa() -> None:
    ours, _ = train([2, 2], script(adam), settings(DiLoCo(every=5, lr=1.0, momentum=0.0)))
    hfa, _ = train([2, 2], script(adam), settings(HFA(k1=5, k2=1)))
    assert_close(ours["B/1"], hfa["B/1"])


Cut = list[list[tuple[int, int, int]]]  # of each slice: parameter, first element, element behind the last


def streaming_reference(
    everyone: int, every: int, fragments: int, overlap: int, merge: float, cut: Cut
) -> list[nn.Module]:
    """arXiv 2501.18512: a fragment at a time, taken in `overlap` steps later, mixed with what a worker has by then."""
    start = small_model(seed=0)
    models = [copy.deepcopy(start) for _ in range(everyone)]
    optimizers = [adam(model) for model in models]
    shares = [samples_of(place) for place in range(everyone)]

    def part(model: nn.Module, slice_: list[tuple[int, int, int]]) -> torch.Tensor:
        flat = [p.detach().reshape(-1) for p in model.parameters()]
        return torch.cat([flat[number][first:last] for number, first, last in slice_])

    anchors = [part(start, slice_) for slice_ in cut]
    outers = [Nesterov(0.7, 0.9) for _ in cut]
    under_way: list[tuple[int, int, torch.Tensor]] = []
    for step in range(STEPS):
        for place, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            apply(model, optimizer, gradients(model, step, [place], everyone))
        for fragment in range(fragments):
            if (step + 1 - (fragment + 1) * every // fragments) % every == 0:
                for index in range(fragment, len(cut), fragments):
                    parts = [part(model, cut[index]) for model in models]
                    mean = sum(n * p for n, p in zip(shares, parts, strict=True)) / sum(shares)
                    (anchors[index],) = outers[index]([anchors[index]], [mean])  # type: ignore[list-item]
                    under_way.append((step + overlap, index, anchors[index]))
        for due, index, new in [each for each in under_way if each[0] == step]:
            assert due == step
            for model in models:
                mixed = merge * part(model, cut[index]) + (1 - merge) * new
                at = 0
                for number, first, last in cut[index]:
                    with torch.no_grad():
                        flat = list(model.parameters())[number].view(-1)
                        flat[first:last] = mixed[at : at + last - first]
                    at += last - first
    return models


@pytest.mark.parametrize(("fragments", "overlap"), [(2, 0), (3, 2), (1, 4)])
def test_streaming_diloco_is_the_paper_s(fragments: int, overlap: int) -> None:
    cuts: list[Cut] = []
    plain = script(adam)

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        values: dict[str, torch.Tensor] = plain(run)
        assert run._attached is not None
        cuts.append(
            [
                [(part.tensor, part.start, part.stop) for part in slice_.parts]
                for slice_ in run._attached.model_slices.slices("weight")
            ]
        )
        return values

    merge = 0.5 if overlap else 0.0
    policy = DiLoCo(every=12, fragments=fragments, overlap=overlap)
    results, _ = train([2, 1], main, settings(policy), shards=2)
    expected = streaming_reference(3, 12, fragments, overlap, merge, cuts[0])
    for values, model in zip(results.values(), expected, strict=True):
        assert_close(values, weights(model))


@pytest.mark.parametrize(
    "policy", [HFA(k1=2, k2=3), DiLoCo(every=7), DiLoCo(every=6, fragments=2, overlap=2)]
)
def test_an_epoch_of_unequal_data_ends_with_equal_weights(policy: Policy) -> None:
    def main(run: LiveRun) -> tuple[int, dict[str, torch.Tensor]]:
        model = small_model()
        model, optimizer = run.attach(model, adam(model))
        batches = [parts_of(step, len(run.workers))[place_of(run)] for step in range(3 + 8 * place_of(run))]
        for _ in range(2):
            for x, y in run.shard(batches):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
        return run._attached.steps.steps, weights(model)  # type: ignore[union-attr]

    results, _ = train([2, 1], main, settings(policy))
    (steps, first), *others = results.values()
    assert steps >= 2
    for _, other in others:
        assert_equal(other, first)


def test_the_last_outer_step_of_an_epoch_weighs_what_was_trained_since_the_parts_own() -> None:
    """Two parts, each averaged behind two of four steps; one worker makes a fifth, and alone has moved since then."""
    seen: dict[str, dict[str, torch.Tensor]] = {}
    cuts: list[Cut] = []

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        batches = [parts_of(step, 2)[place_of(run)] for step in range(4 + place_of(run))]
        for x, y in run.shard(batches):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            seen[run.name] = weights(model)
        assert run._attached is not None
        slices = run._attached.model_slices.slices("weight")
        cuts.append([[(part.tensor, part.start, part.stop) for part in slice_.parts] for slice_ in slices])
        return weights(model)

    policy = DiLoCo(every=4, fragments=2, lr=1.0, momentum=0.0)
    results, _ = train([1, 1], main, settings(policy))
    assert_equal(results["A/0"], results["B/0"])
    names = list(results["A/0"])
    for cut in cuts[0][1::2]:
        for number, first, last in cut:
            name = names[number]
            assert_close(
                {name: results["A/0"][name].view(-1)[first:last]},
                {name: seen["B/0"][name].view(-1)[first:last]},
            )


def test_a_checkpoint_between_means_has_the_mean(tmp_path: Path) -> None:
    path, seen = tmp_path / "c.safetensors", {}

    def main(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        x, y = parts_of(0, 2)[place_of(run)]
        run.weight(len(x))
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        run.save(path)
        seen[run.name] = weights(model)

    def later(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model(seed=5)
        run.attach(model, sgd(model))
        run.load(path)
        return weights(model)

    train([1, 1], main, settings(HFA(k1=100, k2=1)))
    loaded, _ = train([1, 1], later, settings(HFA(k1=100, k2=1)))
    n = [samples_of(0), samples_of(1)]
    for name, a in seen["A/0"].items():
        b = seen["B/0"][name]
        assert not torch.equal(a, b)
        expected = (n[0] * a + n[1] * b) / sum(n)
        torch.testing.assert_close(loaded["A/0"][name], expected, rtol=1e-12, atol=1e-14)
    assert_equal(loaded["A/0"], loaded["B/0"])


def test_a_checkpoint_of_diloco_has_its_outer_momentum(tmp_path: Path) -> None:
    """Behind an outer step, and with inner steps that keep no state, all goes on as if it had never stopped."""
    path = tmp_path / "c.safetensors"

    def main(run: LiveRun, first: int, last: int) -> dict[str, torch.Tensor]:
        model = small_model(seed=first)
        model, optimizer = run.attach(model, sgd(model))
        if first:
            run.load(path)
        for step in range(first, last):
            x, y = parts_of(step, 2)[place_of(run)]
            run.weight(len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if step == 7:
                run.save(path)
        return weights(model)

    went_on, _ = train([1, 1], partial(main, first=0, last=16), settings(DiLoCo(every=4)), shards=2)
    resumed, _ = train([1, 1], partial(main, first=8, last=16), settings(DiLoCo(every=4)), shards=2)
    assert_close(resumed["B/0"], went_on["B/0"])


NORMALIZING = nn.BatchNorm1d(64).double()


@pytest.mark.parametrize(
    "spec", ["hfa k1=2 k2=2", "diloco every=4", "diloco every=4 fragments=2 overlap=1", "esync"]
)
def test_batch_norm_s_statistics_are_averaged_where_asked(spec: str) -> None:
    """In the last step all have averaged; a moment earlier each had statistics of its own."""
    before: dict[str, torch.Tensor] = {}

    def main(run: LiveRun) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        plain = small_model()
        model = nn.Sequential(plain[0], copy.deepcopy(NORMALIZING), plain[1], plain[2])
        model, optimizer = run.attach(model, sgd(model))
        for step in range(4):
            x, y = parts_of(step, len(run.workers))[place_of(run)]
            run.weight(len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            before[run.name] = model[1].running_mean.clone()
            run._client.port.sleep(0.1)  # type: ignore[attr-defined]  # of the virtual clock: all are alike to ESync
            optimizer.step()
        return before[run.name], weights(model)

    averaging = Settings(
        slice_elements=512, size_lower_bound=100, policy=policies.make(spec), buffers="average"
    )
    results, _ = train([2, 1], main, averaging, policy=spec)
    (_, first), *others = results.values()
    if "overlap" not in spec:
        for _, other in others:
            assert_equal(other, first)
    own, _ = train([2, 1], main, settings(policies.make(spec)), policy=spec)
    assert len({values["1.running_mean"].sum().item() for _, values in own.values()}) == 3
    if spec == "diloco every=4":
        shares = {name: samples_of(place) for place, name in enumerate(sorted(results))}
        mean = sum(shares[name] * results[name][0] for name in results) / sum(shares.values())
        torch.testing.assert_close(first["1.running_mean"], mean, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("wan", [Edge("bisparse ratio=0.2", "int8"), Edge("int4", "dense")])
def test_local_steps_go_through_codecs(wan: Edge) -> None:
    results, _ = train([2, 1], script(sgd), settings(DiLoCo(every=5, lr=1.0, momentum=0.0)), wan=wan)
    first, *others = results.values()
    for other in others:
        assert_equal(other, first)


# -- parties that do not wait ---------------------------------------------------------------------------------


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
    return Settings(slice_elements=1 << 20, size_lower_bound=1 << 20, policy=policy)


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
    def clipped(run: LiveRun) -> None:
        model = small_model()
        run.attach(model, sgd(model), clip_norm=1.0)

    for policy, spec in ((MixedSync(), "mixed"), (HFA(), "hfa")):
        with pytest.raises(Unsupported, match="clip_norm with"):
            train([1, 1], clipped, settings(policy), policy=spec)

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


def test_what_a_script_says_of_weights_counts_with_local_steps_as_well() -> None:
    by_samples, _ = train([2, 1], script(sgd, 12), settings(HFA(k1=2, k2=2)))
    said, _ = train([2, 1], script(sgd, 12), settings(HFA(k1=2, k2=2), weight="equal"))
    assert_equal(said["B/0"], by_samples["B/0"])
