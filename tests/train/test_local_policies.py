"""Policies with local steps against the papers' equations, written plainly in one process, in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import (
    Make,
    adam,
    apply,
    assert_close,
    assert_equal,
    begin,
    descend,
    drawn,
    gradients,
    lockstep,
    parts_of,
    place_of,
    samples_of,
    sgd,
    sleep,
    small_model,
    weights,
)
from policy_runs import STEPS, script, train_by
from torch import nn

from geomx.train import LiveRun


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


def average(models: list[nn.Module], places: list[int]) -> None:
    """Give all of these workers' models their mean."""
    mean = averaged([models[place] for place in places], [samples_of(place) for place in places])
    for place in places:
        set_weights(models[place], mean)


def local_reference(
    parties: list[int],
    make: Make,
    k1: int,
    every: int,
    outer: Callable[[list[torch.Tensor], list[torch.Tensor]], list[torch.Tensor]],
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
    for step in range(STEPS):
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
                average(models, places)
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


@pytest.mark.parametrize(("parties", "make"), [([2, 1], sgd), ([1, 1, 2], adam)])
def test_hfa_is_hierarchical_averaging(parties: list[int], make: Make) -> None:
    results, _ = train_by("hfa k1=5 k2=2", parties, script(make), shards=2)
    expected = local_reference(parties, make, 5, 10, lambda _, mean: mean)
    for values in results.values():
        assert_close(values, weights(expected))


@pytest.mark.parametrize("make", [sgd, adam])
def test_diloco_is_its_outer_step(make: Make) -> None:
    results, _ = train_by("diloco every=5 lr=0.7 momentum=0.9", [2, 1], script(make), shards=2)
    expected = local_reference([2, 1], make, 10**9, 5, Nesterov(0.7, 0.9))
    for values in results.values():
        assert_close(values, weights(expected))


Cut = list[list[tuple[int, int, int]]]  # of each slice: parameter, first element, element behind the last


def cut_of(run: LiveRun) -> Cut:
    assert run._attached is not None
    slices = run._attached.model_slices.slices("weight")
    return [[(part.tensor, part.start, part.stop) for part in slice_.parts] for slice_ in slices]


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
        for _, index, new in [each for each in under_way if each[0] == step]:
            for model in models:
                mixed = merge * part(model, cut[index]) + (1 - merge) * new
                at = 0
                for number, first, last in cut[index]:
                    with torch.no_grad():
                        flat = list(model.parameters())[number].view(-1)
                        flat[first:last] = mixed[at : at + last - first]
                    at += last - first
    return models


@pytest.mark.parametrize(("fragments", "overlap"), [(2, 0), (3, 1), (1, 4)])
def test_streaming_diloco_is_the_paper_s(fragments: int, overlap: int) -> None:
    cuts: list[Cut] = []
    plain = script(adam)

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        values: dict[str, torch.Tensor] = plain(run)
        cuts.append(cut_of(run))
        return values

    merge = 0.5 if overlap else 0.0
    results, _ = train_by(f"diloco every=6 fragments={fragments} overlap={overlap}", [2, 1], main, shards=2)
    expected = streaming_reference(3, 6, fragments, overlap, merge, cuts[0])
    for values, model in zip(results.values(), expected, strict=True):
        assert_close(values, weights(model))


def test_the_last_outer_step_of_an_epoch_weighs_what_was_trained_since_the_parts_own() -> None:
    """Two parts, each averaged behind two of four steps; one worker makes a fifth, and alone has moved since then."""
    seen: dict[str, dict[str, torch.Tensor]] = {}
    cuts: list[Cut] = []

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run)
        batches = [parts_of(step, 2)[place_of(run)] for step in range(4 + place_of(run))]
        for x, y in run.shard(batches):
            descend(model, optimizer, x, y)
            seen[run.name] = weights(model)
        cuts.append(cut_of(run))
        return weights(model)

    results, _ = train_by("diloco every=4 fragments=2 lr=1.0 momentum=0.0", [1, 1], main)
    assert_equal(results["A/0"], results["B/0"])
    names = list(results["A/0"])
    for number, first, last in (part for cut in cuts[0][1::2] for part in cut):
        ours, theirs = (each[names[number]].view(-1)[first:last] for each in (results["A/0"], seen["B/0"]))
        assert_close({"": ours}, {"": theirs})


def test_a_checkpoint_between_means_has_the_mean(tmp_path: Path) -> None:
    path, seen = tmp_path / "c.safetensors", {}

    def main(run: LiveRun) -> None:
        model, optimizer = begin(run)
        lockstep(run, model, optimizer, range(1))
        run.save(path)
        seen[run.name] = weights(model)

    def later(run: LiveRun) -> dict[str, torch.Tensor]:
        model, _ = begin(run)
        run.load(path)
        return weights(model)

    train_by("hfa k1=100 k2=1", [1, 1], main)
    loaded, _ = train_by("hfa k1=100 k2=1", [1, 1], later)
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

    def main(run: LiveRun, goes_on: bool) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run)
        if goes_on:
            run.load(path)
        else:
            lockstep(run, model, optimizer, range(8))
            run.save(path)
        lockstep(run, model, optimizer, range(8, 16))
        return weights(model)

    went_on, resumed = (
        train_by("diloco every=4", [1, 1], partial(main, goes_on=goes_on), shards=2)[0]
        for goes_on in (False, True)
    )
    assert_close(resumed["B/0"], went_on["B/0"])


@pytest.mark.parametrize(
    ("spec", "buffers"),
    each_value(
        ["hfa k1=2 k2=2", "diloco every=4", "diloco every=4 fragments=2 overlap=1", "esync"],
        ["average", "auto"],
    ),
)
def test_batch_norm_s_statistics_are_averaged_with_the_weights(spec: str, buffers: str) -> None:
    """In the last step all have averaged; a moment earlier each had statistics of its own."""
    before: dict[str, torch.Tensor] = {}

    def main(run: LiveRun) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model, optimizer = begin(run, model=small_model().insert(1, nn.BatchNorm1d(64).double()))
        for step in range(4):
            x, y = drawn(run, step)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            before[run.name] = model[1].running_mean.clone()
            sleep(run, 0.1)  # all are alike to ESync
            optimizer.step()
        return before[run.name], weights(model)

    results, _ = train_by(spec, [2, 1], main, {"buffers": buffers})
    (_, first), *others = results.values()
    if "overlap" not in spec:
        for _, other in others:
            assert_equal(other, first)
    own, _ = train_by(spec, [2, 1], main, {"buffers": "own"})
    assert len({values["1.running_mean"].sum().item() for _, values in own.values()}) == 3
    if spec == "diloco every=4":
        shares = {name: samples_of(place) for place, name in enumerate(sorted(results))}
        mean = sum(shares[name] * results[name][0] for name in results) / sum(shares.values())
        torch.testing.assert_close(first["1.running_mean"], mean, rtol=1e-12, atol=1e-14)


def test_buffers_that_are_no_statistics_stay_at_home_unless_they_are_asked_for() -> None:
    """A mask is the same on all workers, and may be as large as the model.

    Small buffers share slices, but a buffer of one's own does not with statistics.
    """

    def main(run: LiveRun) -> tuple[float, float, torch.Tensor]:
        model = nn.Sequential(small_model(), nn.BatchNorm1d(5).double())
        model[1].register_buffer("mask", torch.full((2000,), float(place_of(run)), dtype=torch.float64))
        model[1].register_buffer("own", torch.zeros(1, dtype=torch.float64))
        model, optimizer = run.attach(model, sgd(model))
        for buffer in (model[1].mask, model[1].own):
            buffer.fill_(place_of(run))  # behind attach, which gives all the first worker's
        lockstep(run, model, optimizer, range(2))
        return float(model[1].mask[0]), float(model[1].own), model[1].running_mean.clone()

    for buffers, expected in (("auto", (0.0, 1.0)), ("average", (0.625, 0.625))):  # 3 samples and 5
        results, _ = train_by("hfa k1=2 k2=1", [1, 1], main, {"buffers": buffers})
        (*ours, mean), (*theirs, their_mean) = results["A/0"], results["B/0"]
        assert list(zip(ours, theirs, strict=True)) == [expected, expected]
        assert torch.equal(mean, their_mean)


def test_what_a_script_says_of_weights_counts_with_local_steps_as_well() -> None:
    by_samples, _ = train_by("hfa k1=2 k2=2", [2, 1], script(sgd, 12))
    said, _ = train_by("hfa k1=2 k2=2", [2, 1], script(sgd, 12), {"weight": "equal"})
    assert_equal(said["B/0"], by_samples["B/0"])
