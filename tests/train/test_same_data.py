"""One data set and one seed in two parties: everybody is told, and with `run.strict` the run ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from exploring import each_value
from live_runs import begin
from policy_runs import train_by
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
)

from geomx.errors import RunFailed, SameData
from geomx.node.same_data import MOST_SAMPLES
from geomx.train import LiveRun
from geomx.train.data.first_samples import FirstSamples

N = 24


def data(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(N, width, generator=generator, dtype=torch.float64) for width in (20, 5))
    return TensorDataset(x, y)


class Items(Dataset[Any]):
    """A data set of given items."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


def as_stream(items: Sequence[Any]) -> IterableDataset[Any]:
    class Given(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(items)

    return Given()


class Noisy(Items):
    """The same items for all, which change by chance."""

    def __init__(self, seed: int) -> None:
        super().__init__(images(0))
        self._noise = torch.Generator().manual_seed(seed)

    def __getitem__(self, index: int) -> Any:
        return self._items[index] + torch.rand(5, 5, generator=self._noise)


def images(seed: int) -> list[torch.Tensor]:
    """Images, [5, 5], whose first row is black."""
    drawn = torch.rand(8, 5, 5, generator=torch.Generator().manual_seed(seed))
    drawn[:, 0] = 0
    return list(drawn)


def texts(seed: int) -> list[torch.Tensor]:
    """[time, samples]; all begin with the same token."""
    drawn = torch.randint(9, (3, 6, 4), generator=torch.Generator().manual_seed(seed))
    drawn[:, 0] = 0
    return list(drawn)


def party_of(run: LiveRun) -> int:
    return run.parties.index(run.party)


def reads(make: Callable[[LiveRun], Iterable[Any]], over: Any = "party") -> Any:
    """A script that takes a step for each batch, whatever is in it."""

    def script(run: LiveRun) -> None:
        model, optimizer = begin(run)
        for _ in run.shard(make(run), over=over):
            run.weight(1)
            optimizer.zero_grad()
            model(torch.ones(1, 20, dtype=torch.float64)).sum().backward()
            optimizer.step()

    return script


def shuffled(items: Any) -> DataLoader[Any]:
    return DataLoader(items, batch_size=2, shuffle=True)


def one_by_one(items: Any) -> DataLoader[Any]:
    """Samples as they are: nothing has a first dimension of samples."""
    return DataLoader(items, batch_size=None)


def ranked(rank: int) -> DataLoader[Any]:
    return DataLoader(data(0), batch_size=2, sampler=DistributedSampler(data(0), 2, rank))


def advice(parties: Sequence[int], script: Any, policy: str = "fsa", **how: Any) -> dict[str, str]:
    """By node: what it was told."""
    given = {"seed": how.pop("seed", 0)}
    _, simulator = train_by(policy, parties, script, given, **how)
    told = [*simulator.noted("advice"), *simulator.noted("advised")]
    return {node: fields["text"] for _, node, fields in told}


@pytest.mark.parametrize("policy", ["fsa", "hfa k1=3 k2=1", "mixed", "downpour", "esync"])
def test_two_parties_with_one_data_set_are_told_of_it(policy: str) -> None:
    told = advice([2, 1], reads(lambda _: shuffled(data(0))), policy)
    assert told.keys() == {"global/0", "A/0", "B/0"}
    assert len(set(told.values())) == 1
    assert "A and B train on the same samples" in told["A/0"]
    assert 'run.shard(loader, over="run")' in told["A/0"]


def test_strict_makes_it_an_error_that_says_what_to_do() -> None:
    with pytest.raises((SameData, RunFailed), match=r'over="run"'):
        advice([1, 1], reads(lambda _: shuffled(data(0))), strict=True)


ALIKE: dict[str, Callable[[LiveRun], Iterable[Any]]] = {
    "a stream": lambda _: DataLoader(as_stream([*data(0)]), batch_size=2),
    "samples as they are": lambda _: one_by_one(Items(images(0))),
    "a stream of samples": lambda _: one_by_one(as_stream(images(0))),
    "single numbers": lambda _: one_by_one(Items([torch.tensor(0.5), torch.tensor(0.25)])),
    "subsets, concatenated, in batches of one": lambda _: DataLoader(
        ConcatDataset([Subset(data(0), range(8)), Subset(data(1), range(8))]), batch_size=1, shuffle=True
    ),
    "the same rank of a distributed sampler": lambda _: ranked(0),
}


@pytest.mark.parametrize(("parties", "name"), each_value([[1, 1], [2, 1], [3, 2]], ALIKE))
def test_all_kinds_of_data_are_compared(parties: list[int], name: str) -> None:
    assert advice(parties, reads(ALIKE[name]))


OWN: dict[str, Callable[[LiveRun], Iterable[Any]]] = {
    "a data set of their own": lambda run: shuffled(data(party_of(run))),
    "samples as they are": lambda run: one_by_one(Items(images(party_of(run)))),
    "a stream of samples": lambda run: one_by_one(as_stream(images(party_of(run)))),
    "places in a data set that is not seen": lambda _: range(8),
    "batches that do not begin with the dimension of samples": lambda run: texts(party_of(run)),
    "what a collate function of one's own gives": lambda run: DataLoader(
        Items(images(party_of(run))), batch_size=4, collate_fn=torch.cat
    ),
    # images as objects; the first label is the same
    "a part that cannot be read": lambda _: DataLoader(
        Items([(object(), 0)] * 4),
        batch_size=2,
        collate_fn=lambda each: ([x for x, _ in each], torch.zeros(2)),
    ),
    "what one party's workers begin with alike": lambda run: DataLoader(
        TensorDataset(*(torch.ones(N, n, dtype=torch.float64) for n in (20, 5)))
        if run.party == "A"
        else data(1),
        batch_size=2,
    ),
    "disjoint subsets": lambda run: shuffled(Subset(data(0), range(party_of(run), N, 2))),
    "a rank of a distributed sampler each": lambda run: ranked(party_of(run)),
    # a miss, and no false alarm
    "samples that change by chance": lambda run: DataLoader(Noisy(party_of(run)), batch_size=2),
    "blank samples first": lambda run: DataLoader(
        Items([torch.zeros(5, 5)] * 8 + images(party_of(run))), batch_size=4
    ),
    "streams that begin alike": lambda run: one_by_one(
        as_stream([*images(0)[:1], *images(party_of(run))[1:]])
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_nobody_is_told_where_each_trains_on_its_own(name: str) -> None:
    assert not advice([2, 2] if "rank" in name else [2, 1], reads(OWN[name]), strict=True)


def test_nor_where_the_run_shares_one_data_set() -> None:
    assert not advice([2, 2], reads(lambda _: shuffled(data(0)), "run"), strict=True)


@pytest.mark.parametrize("seed", range(4))
def test_parties_that_have_some_samples_in_common_are_not_taken_for_one(seed: int) -> None:
    """Though both may begin with one of those."""

    def common_last(run: LiveRun) -> Any:
        mine = Subset(data(1 + party_of(run)), range(12))
        return shuffled(ConcatDataset([mine, Subset(data(0), range(12))]))

    def overlapping(run: LiveRun) -> Any:
        own = range(8 * party_of(run), 8 * party_of(run) + 8)
        return shuffled(Subset(data(0), [*range(8), *own]))

    assert not advice([1, 1], reads(common_last), seed=seed, strict=True)
    assert not advice([1, 2], reads(overlapping), seed=seed, strict=True)


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(6).view(3, 2),
        [torch.arange(3), {"labels": torch.ones(3)}],
        (["some text", "more"], torch.zeros(2, dtype=torch.bfloat16)),
        np.arange(4.0),
        {"x": [1, 2]},
        {"x": torch.ones(2, 3), "id": "a", "weight": None, "scale": torch.tensor(2.0)},
    ],
)
def test_a_batch_has_digests_whatever_holds_it(batch: Any) -> None:
    digests = digests_of(batch, None)
    assert list(digests) == [0]
    assert digests_of(batch, None) == digests


def digests_of(batch: Any, of_batch: int | None, place: int = 0, places: int = 1) -> dict[int, bytes]:
    first = FirstSamples(of_batch, place, places)
    first.read(batch)
    return first.digests


def test_a_batch_is_cut_into_samples_where_all_of_its_parts_are_of_so_many() -> None:
    batch = [torch.arange(6).view(3, 2), {"y": torch.arange(3), "name": ["a", "b", "c"]}]
    changed = [torch.tensor([[0, 1], [7, 7], [4, 5]]), {"y": torch.arange(3), "name": ["a", "b", "d"]}]
    ours, theirs = digests_of(batch, 3, 1, 2), digests_of(changed, 3, 1, 2)
    assert [place for place in (1, 3, 5) if ours[place] == theirs[place]] == [1]
    assert len(digests_of(batch, 2)) == len(digests_of(batch, None)) == 1
    assert len(digests_of([*batch, torch.ones(5)], 3)) == 1


def test_no_more_is_read_than_is_told() -> None:
    first = FirstSamples(3, 0, 1)
    assert [first.read(torch.arange(3 * n, 3 * n + 3)) for n in range(3)] == [False, False, True]
    assert list(first.digests) == list(range(MOST_SAMPLES))
    assert len(set(first.digests.values())) == MOST_SAMPLES


def test_what_cannot_be_read_has_no_digest() -> None:
    endless: list[Any] = []
    endless.append(endless)
    sparse = torch.ones(2, 2).to_sparse()
    for batch in (
        np.array([{"id": 1}, {"id": 2}]),
        [sparse, torch.ones(2)],
        endless,
        [torch.ones(2), object()],
    ):
        first = FirstSamples(2, 0, 1)
        first.read(torch.ones(2))
        assert first.read(batch)
        assert not first.digests
