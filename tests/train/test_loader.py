"""`run.shard`: each sample once in an epoch, the same bits as the whole data set, and an end that nobody waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exploring import pairwise
from live_runs import assert_close, assert_equal, begin, descend, sgd, small_model, train, weights
from loops import momentum
from policy_runs import train_by
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from geomx.train import LiveRun, Settings
from geomx.train.data.loader import every_nth, samples_in, share_length

N = 23
GENERATOR = torch.Generator().manual_seed(5)
DATA = TensorDataset(
    torch.randn(N, 20, generator=GENERATOR, dtype=torch.float64),
    torch.randn(N, 5, generator=GENERATOR, dtype=torch.float64),
)
INDEX = TensorDataset(torch.arange(N))


def read(
    loader: Any, parties: list[int], over: str = "run", epochs: int = 1
) -> dict[str, list[list[list[int]]]]:
    """Which samples each worker saw: worker -> epoch -> batch -> samples. Nothing is trained."""

    def script(run: LiveRun) -> list[list[list[int]]]:
        share = run.shard(loader, over=over)  # type: ignore[arg-type]
        return [[[int(i) for i in flat(batch)] for batch in share] for _ in range(epochs)]

    results, _ = train(parties, script)
    return results


def flat(batch: Any) -> Any:
    batch = batch[0] if isinstance(batch, list | tuple) and isinstance(batch[0], torch.Tensor) else batch
    return batch.reshape(-1) if isinstance(batch, torch.Tensor) else batch


def seen(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def loaders() -> dict[str, DataLoader[Any]]:
    return {
        "in order": DataLoader(INDEX, 4),
        "shuffled": DataLoader(INDEX, 4, shuffle=True),
        "with a generator": DataLoader(INDEX, 4, shuffle=True, generator=torch.Generator().manual_seed(1)),
        "a subset": DataLoader(INDEX, 4, sampler=SubsetRandomSampler(range(N))),
        "batches of indices": DataLoader(
            INDEX, batch_sampler=BatchSampler(SequentialSampler(INDEX), 4, False)
        ),
        "random batches": DataLoader(INDEX, batch_sampler=BatchSampler(RandomSampler(INDEX), 4, False)),
        "one by one": DataLoader(INDEX, batch_size=None, shuffle=True),
    }


@pytest.mark.parametrize("name", loaders())
def test_workers_share_each_epoch(name: str) -> None:
    """Epochs differ, where they are shuffled, and runs do not."""
    results = read(loaders()[name], [2, 1], epochs=2)
    for epoch in range(2):
        everybody_s = [sample for epochs in results.values() for sample in seen(epochs[epoch])]
        assert sorted(everybody_s) == list(range(N))
    torch.randn(3)
    assert read(loaders()[name], [2, 1], epochs=2) == results
    if name in ("shuffled", "random batches"):
        assert results["A/0"][0] != results["A/0"][1]


def test_each_party_has_its_own_data() -> None:
    results = read(DataLoader(INDEX, 4), [2, 1], over="party")
    assert sorted(seen(results["A/0"][0]) + seen(results["A/1"][0])) == list(range(N))
    assert seen(results["B/0"][0]) == list(range(N))


def test_batches_keep_their_size() -> None:
    results = read(DataLoader(INDEX, 4, drop_last=True), [2])
    assert [len(batch) for batch in results["A/0"][0]] == [4, 4, 4]
    assert [len(batch) for batch in results["A/1"][0]] == [4, 4]


def test_samplers_with_replacement() -> None:
    sampler = WeightedRandomSampler([1.0] * (N - 1) + [50.0], num_samples=40)
    results = read(DataLoader(INDEX, 4, sampler=sampler), [2])
    assert len(seen(results["A/0"][0])) == len(seen(results["A/1"][0])) == 20
    assert seen(results["A/0"][0]).count(N - 1) > 5


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


@pytest.mark.parametrize(
    "loader", [DataLoader(Stream(), 4), [list(range(i, min(i + 4, N))) for i in range(0, N, 4)]]
)
def test_every_nth_batch_of_anything_else(loader: Any) -> None:
    results = read(loader, [2, 1])
    assert results["A/0"][0] == [[0, 1, 2, 3], [12, 13, 14, 15]]
    assert results["B/0"][0] == [[8, 9, 10, 11], [20, 21, 22]]


def test_lengths() -> None:
    def script(run: LiveRun) -> list[int]:
        shares = [
            run.shard(loader, over="run")
            for loader in (DataLoader(INDEX, 4), DataLoader(INDEX, 4, drop_last=True), list(range(5)))
        ]
        with pytest.raises(TypeError):
            len(run.shard(iter(range(3))))
        return [len(share) for share in shares]

    results, _ = train([2, 1], script)
    assert results == {"A/0": [2, 2, 2], "A/1": [2, 2, 2], "B/0": [2, 1, 1]}


@pytest.mark.parametrize("count", range(8))
def test_even_shares_are_as_long_as_the_shortest(count: int) -> None:
    shares = [list(every_nth(iter(range(count)), place, 3, even=True)) for place in range(3)]
    uneven = [list(every_nth(range(count), place, 3, even=False)) for place in range(3)]
    shortest = min(map(len, uneven))
    assert shares == [share[:shortest] for share in uneven]
    for place in range(3):
        assert share_length(range(count), place, 3, even=True) == shortest
        assert share_length(range(count), place, 3, even=False) == len(uneven[place])


def test_worker_processes_persist() -> None:
    """The rebuilt loader is one and the same for every call of shard."""
    loader = DataLoader(INDEX, 4, shuffle=True, num_workers=1, persistent_workers=True)

    def script(run: LiveRun) -> tuple[list[Any], bool]:
        passes = [[flat(batch).tolist() for batch in run.shard(loader)] for _ in range(2)]
        return passes, run.shard(loader)._batches is run.shard(loader)._batches

    results, _ = train([1], script)
    passes, same = results["A/0"]
    assert same
    assert sorted(seen(passes[0])) == sorted(seen(passes[1])) == list(range(N))
    assert passes[0] != passes[1]


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(4, 3), 4),
        ((torch.zeros(4, 3), torch.zeros(5)), 4),
        ([["a", "b", "c"], torch.zeros(3)], 3),
        ({"text": ["a", "b"], "label": torch.zeros(2)}, 2),
        ({"x": {"y": np.zeros((6, 2))}}, 6),
        (["a", "b", "c"], 3),
        (torch.tensor(1.0), None),
        ("text", None),
        (object(), None),
    ],
)
def test_samples_in_a_batch(batch: Any, expected: int | None) -> None:
    assert samples_in(batch) == expected


# -- training over shares of unequal length --------------------------------------------------------------------


def epochs_of(run: LiveRun, loader: Any, **options: Any) -> tuple[dict[str, torch.Tensor], int]:
    model, optimizer = begin(run, momentum, **options)
    for _ in range(2):
        for x, y in run.shard(loader, over="run"):
            descend(model, optimizer, x, y)
    run.wait()
    return weights(model), run.turn


def expected_epochs(workers: int, batch: int) -> tuple[dict[str, torch.Tensor], int]:
    """Step by step, the batches of all workers that still have one."""
    model = small_model()
    optimizer = momentum(model)
    shares = [[*torch.arange(N)[place::workers].split(batch)] for place in range(workers)]
    steps = max(map(len, shares))
    for step in [*range(steps)] * 2:
        descend(model, optimizer, *DATA[torch.cat([share[step] for share in shares if step < len(share)])])
    return weights(model), 1 + 2 * steps


@pytest.mark.parametrize(("batch", "workers", "place"), pairwise([2, 3, 8], [1, 2, 3], ["server", "workers"]))
def test_unequal_shares_give_the_mean_over_all_samples(workers: int, batch: int, place: Any) -> None:
    """And no worker takes an extra turn unless another had data for it."""
    parties = [workers] if workers == 1 else [workers - 1, 1]
    results, _ = train(parties, lambda run: epochs_of(run, DataLoader(DATA, batch)), Settings(place=place))
    expected, turns = expected_epochs(workers, batch)
    # Otherwise whether the ends fall together depends on the shares.
    together = len({len(range(place, N, workers)) % batch == 0 for place in range(workers)}) == 1
    for ours, taken in results.values():
        assert_close(ours, expected)
        assert taken == turns if together else taken >= turns
        assert_equal(ours, next(iter(results.values()))[0])


@pytest.mark.parametrize("options", [{}, {"push_at": "step"}, {"overlap": "forward"}])
def test_a_worker_without_any_data_takes_part(options: dict[str, str]) -> None:
    loader = [(DATA.tensors[0][:5], DATA.tensors[1][:5])]  # one batch, for the first worker
    results, _ = train([1, 1], lambda run: epochs_of(run, loader, **options))
    model = small_model()
    optimizer = momentum(model)
    for _ in range(2):
        descend(model, optimizer, *loader[0])
    for ours, _ in results.values():
        assert_close(ours, weights(model))


SPECS = [
    "hfa k1=2 k2=1", "hfa k1=1 k2=2", "diloco every=2", "diloco every=4 fragments=2 overlap=1", "esync",
    "esync wait=true", "mixed", "mixed staleness=1", "downpour n_push=2 n_fetch=2",
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_nor_does_it_hold_up_any_policy(spec: str) -> None:
    """Nor do two loaders at once, of which the second has still more when the first has ended."""
    batches = list(DataLoader(DATA, 2))[:5]

    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run)
        for loader in (batches[:1], batches, []):
            for x, y in run.shard(loader, over="run"):
                descend(model, optimizer, x, y)
        return weights(model)

    results, _ = train_by(spec, [2, 1], script)
    assert all(value.isfinite().all() for values in results.values() for value in values.values())
    if not spec.startswith(("mixed", "downpour")):
        for values in results.values():
            assert_equal(values, results["A/0"])


def test_evaluation_counts_nothing_and_waits_for_nobody() -> None:
    """One worker alone may evaluate, in any of three ways."""
    loader = DataLoader(DATA, 4)

    def script(run: LiveRun) -> tuple[int, int]:
        model, optimizer = begin(run)
        if run.is_first:
            with torch.no_grad():
                before = len(list(run.shard(loader)))
            model.eval()
            list(run.shard(loader))
            model.train()
            list(run.shard(loader, train=False))
            assert before == len(run.shard(loader))
        for x, y in run.shard([DATA.tensors] * 2):
            descend(model, optimizer, x, y)
        return run.turn, run._samples.seen

    results, _ = train([1, 1], script)
    assert set(results.values()) == {(3, 2 * N)}


def test_training_in_evaluation_mode_by_request() -> None:
    def script(run: LiveRun) -> int:
        model, optimizer = begin(run, model=small_model().eval())
        for x, y in run.shard(DataLoader(DATA, 8), train=True):
            descend(model, optimizer, x, y)
        return run._samples.seen

    results, _ = train([1, 1], script)
    assert set(results.values()) == {N}


def test_breaking_out_of_the_loop() -> None:
    def script(run: LiveRun) -> int:
        model, optimizer = begin(run)
        for _ in range(2):
            for number, (x, y) in enumerate(run.shard(DataLoader(DATA, 2))):
                descend(model, optimizer, x, y)
                if number == 2:
                    break
        return run.turn

    results, _ = train([1, 1], script)
    assert set(results.values()) == {7}


def test_accumulation_over_the_end_of_the_data() -> None:
    """What was accumulated and not pushed stays in `.grad`, while others still have data; so in plain PyTorch."""

    def pass_over(model: nn.Module, optimizer: Any, batches: Any, accumulate: Any) -> list[torch.Tensor]:
        for number, (x, y) in enumerate(batches):
            if number % 2 == 0:
                optimizer.zero_grad()
            with nullcontext() if number % 2 else accumulate():
                F.mse_loss(model(x), y).backward()
            if number % 2:
                optimizer.step()
        return [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]

    def script(run: LiveRun) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        model, optimizer = begin(run)
        batches = run.shard([DATA.tensors] * (3 if run.is_first else 4))
        gradients = pass_over(model, optimizer, batches, run.accumulate)
        return weights(model), gradients

    model, halfway = small_model(), small_model()
    pass_over(model, sgd(model), [DATA.tensors] * 4, nullcontext)
    kept = pass_over(halfway, sgd(halfway), [DATA.tensors] * 3, nullcontext)
    for place in ("server", "workers"):
        results, _ = train([1, 1], script, Settings(place=place))  # type: ignore[arg-type]
        assert_equal(results["A/0"][0], results["B/0"][0])
        assert_close(results["A/0"][0], weights(model))
        for ours, theirs in zip(results["A/0"][1], kept, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_schedule_for_each_epoch_with_unequal_shares() -> None:
    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(3):
            for x, y in run.shard(DataLoader(DATA, 4), over="run"):
                descend(model, optimizer, x, y)
            scheduler.step()
        return weights(model)

    for place in ("server", "workers"):
        results, _ = train([1, 1], script, Settings(place=place))  # type: ignore[arg-type]
        assert_equal(results["A/0"], results["B/0"])
