"""One data set and one seed in two parties: everybody is told, and with `run.strict` the run ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from live_runs import small_model, train
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from geomx.errors import RunFailed, SameData
from geomx.node.same_data import DIGEST_BYTES
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import LiveRun, Settings
from geomx.train.data.first_sample import first_sample

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
    assert "A/0 and B/0 train on the same samples" in told["A/0"]
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


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(6).view(3, 2),
        [torch.arange(3), {"labels": torch.ones(3)}],
        (["some text", "more"], torch.zeros(2, dtype=torch.bfloat16)),
        np.arange(4.0),
        {"x": [1, 2]},
    ],
)
def test_a_first_sample_has_a_name_whatever_holds_it(batch: Any) -> None:
    name = first_sample(batch, 3)
    assert name is not None
    assert len(name) == DIGEST_BYTES
    assert name == first_sample(batch, 3)
    assert name != first_sample(batch, 4)


def test_what_cannot_be_read_has_none() -> None:
    assert first_sample(np.array([{"id": 1}, {"id": 2}])) is None
    assert first_sample(np.zeros((0, 3))) is None
    endless: list[Any] = []
    endless.append(endless)
    assert first_sample(endless) is None
    assert first_sample(object()) is None
    assert first_sample(torch.zeros(0, 3)) is None
    assert first_sample(torch.zeros(())) is None
