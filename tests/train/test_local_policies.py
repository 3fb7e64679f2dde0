"""Policies with local steps against the papers' equations, written plainly in one process, in float64."""

from __future__ import annotations

import copy
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
from policy_runs import STEPS, script, settings
from torch import nn

from geomx.node.topology import Edge
from geomx.sync import policies
from geomx.sync.contract import Policy
from geomx.sync.diloco import DiLoCo
from geomx.sync.fsa import FSA
from geomx.sync.hfa import HFA
from geomx.train import LiveRun, Settings


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


@pytest.mark.parametrize("buffers", ["auto", "average"])
@pytest.mark.parametrize(
    "spec", ["hfa k1=2 k2=2", "diloco every=4", "diloco every=4 fragments=2 overlap=1", "esync"]
)
def test_batch_norm_s_statistics_are_averaged_with_the_weights(spec: str, buffers: str) -> None:
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
        slice_elements=512,
        pack_below=100,
        policy=policies.make(spec),
        buffers=buffers,  # type: ignore[arg-type]
    )
    results, _ = train([2, 1], main, averaging, policy=spec)
    (_, first), *others = results.values()
    if "overlap" not in spec:
        for _, other in others:
            assert_equal(other, first)
    own, _ = train([2, 1], main, settings(policies.make(spec), buffers="own"), policy=spec)
    assert len({values["1.running_mean"].sum().item() for _, values in own.values()}) == 3
    if spec == "diloco every=4":
        shares = {name: samples_of(place) for place, name in enumerate(sorted(results))}
        mean = sum(shares[name] * results[name][0] for name in results) / sum(shares.values())
        torch.testing.assert_close(first["1.running_mean"], mean, rtol=1e-12, atol=1e-14)


def two_steps(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Of this worker on its own batches, which count the same for all."""
    for step in range(2):
        x, y = parts_of(step, len(run.workers))[place_of(run)]
        run.weight(1)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def test_buffers_that_are_no_statistics_stay_at_home_unless_they_are_asked_for() -> None:
    """A mask is the same on all workers, and may be as large as the model."""

    def main(run: LiveRun) -> float:
        model = nn.Sequential(small_model(), nn.Identity())
        model[1].register_buffer("mask", torch.full((2000,), float(place_of(run)), dtype=torch.float64))
        model, optimizer = run.attach(model, sgd(model))
        model[1].mask.fill_(place_of(run))  # behind attach, which gives all the first worker's
        two_steps(run, model, optimizer)
        return float(model[1].mask[0])

    for buffers, found in (("auto", {"A/0": 0.0, "B/0": 1.0}), ("average", {"A/0": 0.5, "B/0": 0.5})):
        results, _ = train([1, 1], main, settings(HFA(k1=2, k2=1), buffers=buffers))
        assert results == found


def test_a_buffer_of_one_s_own_beside_a_batch_norm_is_no_statistic() -> None:
    """Small buffers share slices, but not with statistics."""

    def main(run: LiveRun) -> tuple[float, torch.Tensor]:
        model = nn.Sequential(small_model(), nn.BatchNorm1d(5).double())
        model[1].register_buffer("own", torch.zeros(1, dtype=torch.float64))
        model, optimizer = run.attach(model, sgd(model))
        model[1].own.fill_(place_of(run))
        two_steps(run, model, optimizer)
        return float(model[1].own), model[1].running_mean.clone()

    results, _ = train([1, 1], main, settings(HFA(k1=2, k2=1)))
    (mine, mean), (theirs, their_mean) = results["A/0"], results["B/0"]
    assert (mine, theirs) == (0.0, 1.0)
    assert torch.equal(mean, their_mean)


@pytest.mark.parametrize("wan", [Edge("bisparse ratio=0.2", "int8"), Edge("int4", "dense")])
def test_local_steps_go_through_codecs(wan: Edge) -> None:
    results, _ = train([2, 1], script(sgd), settings(DiLoCo(every=5, lr=1.0, momentum=0.0)), wan=wan)
    first, *others = results.values()
    for other in others:
        assert_equal(other, first)


def test_what_a_script_says_of_weights_counts_with_local_steps_as_well() -> None:
    by_samples, _ = train([2, 1], script(sgd, 12), settings(HFA(k1=2, k2=2)))
    said, _ = train([2, 1], script(sgd, 12), settings(HFA(k1=2, k2=2), weight="equal"))
    assert_equal(said["B/0"], by_samples["B/0"])
