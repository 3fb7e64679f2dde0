"""One data set and one seed in two parties: everybody is told, and with `run.strict` the run ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from live_runs import small_model, train
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
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import LiveRun, Settings
from geomx.train.data.first_samples import FirstSamples

N = 24


def data(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(N, width, generator=generator, dtype=torch.float64) for width in (20, 5))
    return TensorDataset(x, y)


class Stream(IterableDataset[Any]):
    """The samples of a data set, one after the other."""

    def __init__(self, of: TensorDataset) -> None:
        self._of = of

    def __iter__(self) -> Iterator[Any]:
        return (self._of[index] for index in range(N))


def trains_on(make: Callable[[LiveRun], Dataset[Any]], over: str = "party", shuffle: bool = True) -> Any:
    def script(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        loader = DataLoader(make(run), batch_size=2, shuffle=shuffle)
        for x, y in run.shard(loader, over=over):  # type: ignore[arg-type]
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()

    return script


def advice(simulator: Simulator) -> dict[str, str]:
    """By node: what it was told."""
    told = [*simulator.noted("advice"), *simulator.noted("advised")]
    return {node: fields["text"] for _, node, fields in told}


def test_two_parties_with_one_data_set_are_told_of_it() -> None:
    _, simulator = train([1, 1], trains_on(lambda _: data(0)))
    told = advice(simulator)
    assert told.keys() == {"global/0", "A/0", "B/0"}
    assert len(set(told.values())) == 1
    assert "A and B train on the same samples" in told["A/0"]
    assert 'run.shard(loader, over="run")' in told["A/0"]


@pytest.mark.parametrize("policy", ["hfa k1=3 k2=1", "mixed", "downpour", "esync"])
def test_so_they_are_with_every_kind_of_step(policy: str) -> None:
    settings = Settings(policy=policies.make(policy))
    _, simulator = train([1, 1], trains_on(lambda _: data(0)), settings, policy=policy)
    assert "B/0" in advice(simulator)


def test_parties_of_unequal_size_and_with_streams_are_seen_as_well() -> None:
    _, simulator = train([2, 1], trains_on(lambda _: data(0)))
    assert advice(simulator).keys() == {"global/0", "A/0", "B/0"}
    _, simulator = train([1, 2], trains_on(lambda _: Stream(data(0)), shuffle=False))
    assert advice(simulator)


def test_strict_makes_it_an_error_that_says_what_to_do() -> None:
    with pytest.raises((SameData, RunFailed), match=r'over="run"'):
        train([1, 1], trains_on(lambda _: data(0)), strict=True)


@pytest.mark.parametrize("over", ["party", "run"])
def test_nobody_is_told_where_each_trains_on_its_own(over: str) -> None:
    def make(run: LiveRun) -> TensorDataset:
        return data(0 if over == "run" else run.parties.index(run.party))

    _, simulator = train([2, 2], trains_on(make, over), strict=True)
    assert not advice(simulator)


def test_workers_of_one_party_may_begin_alike() -> None:
    alike = TensorDataset(torch.ones(N, 20, dtype=torch.float64), torch.ones(N, 5, dtype=torch.float64))

    def make(run: LiveRun) -> TensorDataset:
        return alike if run.party == "A" else data(1)

    _, simulator = train([2, 1], trains_on(make, shuffle=False), strict=True)
    assert not advice(simulator)


class Items(Dataset[Any]):
    """A data set of given items."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index]


def reads(make: Callable[[LiveRun], Iterable[Any]]) -> Any:
    """A script that takes a step for each batch, whatever is in it."""

    def script(run: LiveRun) -> None:
        model = small_model()
        model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for _ in run.shard(make(run)):
            run.weight(1)
            optimizer.zero_grad()
            model(torch.ones(1, 20, dtype=torch.float64)).sum().backward()
            optimizer.step()

    return script


def images(seed: int) -> list[torch.Tensor]:
    """Images, [5, 5], whose first row is black."""
    drawn = torch.rand(8, 5, 5, generator=torch.Generator().manual_seed(seed))
    drawn[:, 0] = 0
    return list(drawn)


def party_of(run: LiveRun) -> int:
    return run.parties.index(run.party)


def as_stream(items: Sequence[Any]) -> IterableDataset[Any]:
    class Given(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(items)

    return Given()


@pytest.mark.parametrize("made", [Items, as_stream])
def test_a_loader_that_gives_samples_as_they_are_is_compared_by_whole_samples(made: Any) -> None:
    """With `batch_size=None` nothing has a first dimension of samples."""
    _, simulator = train([1, 1], reads(lambda _: DataLoader(made(images(0)), batch_size=None)))
    assert advice(simulator)
    own = reads(lambda run: DataLoader(made(images(party_of(run))), batch_size=None))
    _, simulator = train([1, 1], own, strict=True)
    assert not advice(simulator)


def test_places_in_a_data_set_that_is_not_seen_tell_nothing() -> None:
    assert not advice(train([1, 1], reads(lambda _: range(8)), strict=True)[1])


def test_samples_that_are_single_numbers_are_compared() -> None:
    numbers = reads(lambda _: DataLoader(Items([torch.tensor(0.5), torch.tensor(0.25)]), batch_size=None))
    assert advice(train([1, 1], numbers)[1])


def test_batches_of_a_stream_need_not_begin_with_the_dimension_of_samples() -> None:
    """Of text, say: [time, samples], and all begin with the same token."""

    def batches(run: LiveRun) -> list[torch.Tensor]:
        drawn = torch.randint(9, (3, 6, 4), generator=torch.Generator().manual_seed(party_of(run)))
        drawn[:, 0] = 0
        return list(drawn)

    assert not advice(train([1, 1], reads(batches), strict=True)[1])


def test_what_a_collate_function_of_ones_own_gives_is_compared_as_a_whole() -> None:
    def loader(run: LiveRun) -> DataLoader[Any]:
        return DataLoader(Items(images(party_of(run))), batch_size=4, collate_fn=torch.cat)

    assert not advice(train([1, 1], reads(loader), strict=True)[1])


def test_where_a_part_cannot_be_read_nothing_is_known() -> None:
    """Each party has images of its own, as objects; the first label is the same."""

    def loader(run: LiveRun) -> DataLoader[Any]:
        own = Items([(object(), 0)] * 4)
        return DataLoader(own, batch_size=2, collate_fn=lambda each: ([x for x, _ in each], torch.zeros(2)))

    assert not advice(train([1, 1], reads(loader), strict=True)[1])


def shared(own: int, common: int) -> Callable[[LiveRun], Dataset[Any]]:
    """So many samples of a party's own, and behind them so many that all parties have."""

    def make(run: LiveRun) -> Dataset[Any]:
        mine = Subset(data(1 + party_of(run)), range(own))
        return ConcatDataset([mine, Subset(data(0), range(common))])

    return make


@pytest.mark.parametrize("seed", range(4))
def test_parties_that_have_some_samples_in_common_are_not_taken_for_one(seed: int) -> None:
    """Though both may begin with one of those."""
    settings = Settings(seed=seed)
    _, simulator = train([1, 1], trains_on(shared(12, 12)), settings, strict=True)
    assert not advice(simulator)
    overlapping = trains_on(
        lambda run: Subset(data(0), [*range(8), *range(8 * party_of(run), 8 * party_of(run) + 8)])
    )
    _, simulator = train([1, 2], overlapping, settings, strict=True)
    assert not advice(simulator)


def test_disjoint_subsets_of_one_base_are_data_of_their_own() -> None:
    _, simulator = train(
        [1, 1], trains_on(lambda run: Subset(data(0), range(party_of(run), N, 2))), strict=True
    )
    assert not advice(simulator)


@pytest.mark.parametrize("parties", [[1, 1], [2, 1], [3, 2]])
def test_equal_subsets_and_concatenations_are_the_same_data(parties: list[int]) -> None:
    """Also where batches are of single samples."""

    def loader(_: LiveRun) -> DataLoader[Any]:
        both = ConcatDataset([Subset(data(0), range(8)), Subset(data(1), range(8))])
        return DataLoader(both, batch_size=1, shuffle=True)

    assert advice(train(parties, reads(loader))[1])


@pytest.mark.parametrize("is_shared", [False, True])
def test_with_a_distributed_sampler_the_ranks_tell(is_shared: bool) -> None:
    """One rank for each party is a share for each; the same rank in both is the trap again."""

    def loader(run: LiveRun) -> DataLoader[Any]:
        rank = 0 if is_shared else party_of(run)
        return DataLoader(data(0), batch_size=2, sampler=DistributedSampler(data(0), 2, rank))

    assert bool(advice(train([2, 2], reads(loader))[1])) is is_shared


def test_samples_that_change_by_chance_are_not_compared() -> None:
    """A miss, and no false alarm: both parties read the same items."""

    class Noisy(Items):
        def __init__(self, seed: int) -> None:
            super().__init__(images(0))
            self._noise = torch.Generator().manual_seed(seed)

        def __getitem__(self, index: int) -> Any:
            return self._items[index] + torch.rand(5, 5, generator=self._noise)

    noisy = reads(lambda run: DataLoader(Noisy(party_of(run)), batch_size=2))
    assert not advice(train([1, 1], noisy, strict=True)[1])


def test_blank_samples_at_the_beginning_prove_nothing() -> None:
    def loader(run: LiveRun) -> DataLoader[Any]:
        return DataLoader(Items([torch.zeros(5, 5)] * 8 + images(party_of(run))), batch_size=4)

    assert not advice(train([1, 1], reads(loader), strict=True)[1])


def test_streams_that_begin_alike_are_told_apart() -> None:
    def loader(run: LiveRun) -> DataLoader[Any]:
        return DataLoader(as_stream([*images(0)[:1], *images(party_of(run))[1:]]), batch_size=None)

    assert not advice(train([1, 1], reads(loader), strict=True)[1])


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
