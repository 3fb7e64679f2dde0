"""The parts of a table by themselves: places of keys, rows, shards, rules, clocks, keys on their way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import ConfigError, ProtocolError
from geomx.tables import table_filters, table_inits, table_rules
from geomx.tables.clocks import Clocks
from geomx.tables.filters.contract import HeldBack
from geomx.tables.keys import MOST_LISTS, CameLists, SentLists, coded, decoded, digest_of
from geomx.tables.ring import Ring
from geomx.tables.rows import KeyPlaces, Rows

KEYS = st.lists(st.lists(st.integers(0, (1 << 62) - 1), max_size=60, unique=True), max_size=8)


def as_keys(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(sorted(values), np.int64)


@examples(60)
@given(KEYS)
def test_places_are_those_of_a_dict(batches: list[list[int]]) -> None:
    places, known = KeyPlaces(), dict[int, int]()
    for batch in batches:
        keys = np.array(batch, np.int64)
        assert places.find(keys).tolist() == [known.get(key, -1) for key in batch]
        for key in batch:
            known.setdefault(key, len(known))
        assert places.touch(keys).tolist() == [known[key] for key in batch]
    assert places.count == len(known)
    assert places.all().tolist() == list(known)


def test_many_keys_have_each_a_place() -> None:
    places, keys = KeyPlaces(), np.random.default_rng(0).permutation(1 << 20)[:200_000].astype(np.int64)
    for part in np.array_split(keys, 7):
        places.touch(part)
    assert np.array_equal(places.find(keys), np.arange(len(keys)))
    assert (places.find(keys + (1 << 40)) == -1).all()


def test_servers_have_equally_much_and_keep_what_they_have() -> None:
    keys = np.arange(200_000)
    few, more = Ring(["a", "b", "c"]), Ring(["a", "b", "c", "d"])
    before, after = few.shards_of(keys), more.shards_of(keys)
    for shards, found in ((3, before), (4, after)):
        counts = np.bincount(found)
        assert counts.max() < 1.1 * len(keys) / shards < 1.21 * counts.min()
    assert set(after[before != after].tolist()) == {3}  # what moves, moves to the new one
    assert np.array_equal(Ring(["c", "a", "b"]).shards_of(keys) == 1, before == 0)  # by name, not by place


def test_ftrl_is_what_its_paper_says() -> None:
    alpha, beta, l1, l2 = 0.3, 0.7, 0.4, 0.2
    rows = Rows(
        1, table_inits.make("zeros", 0), table_rules.make(f"ftrl alpha={alpha} beta={beta} l1={l1} l2={l2}")
    )
    w = z = n = 0.0
    for step in range(30):
        g = float(np.sin(step)) * 2
        rows.update(np.array([5]), torch.tensor([[g]]))
        sigma = ((n + g * g) ** 0.5 - n**0.5) / alpha
        z, n = z + g - sigma * w, n + g * g
        w = 0.0 if abs(z) <= l1 else -(z - np.sign(z) * l1) / ((beta + n**0.5) / alpha + l2)
        assert float(rows.read(np.array([5]))) == pytest.approx(w, rel=1e-4, abs=1e-6)
    assert rows.count == 1


def test_adagrad_is_pytorchs() -> None:
    rows = Rows(4, table_inits.make("normal std=1.0", 3), table_rules.make("adagrad lr=0.3"))
    keys = np.array([3, 9])
    theirs = torch.nn.Parameter(rows.read(keys))
    optimizer = torch.optim.Adagrad([theirs], lr=0.3)
    for step in range(5):
        theirs.grad = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
        rows.update(keys, theirs.grad)
        optimizer.step()
        assert torch.allclose(rows.read(keys), theirs.detach(), atol=1e-6)


def test_a_row_begins_alike_wherever_and_whenever() -> None:
    init = table_inits.make("uniform low=-1.0 high=3.0", 7)
    keys = np.arange(0, 1 << 40, 1 << 26)
    every = init.rows(keys, 5)
    assert torch.equal(every[10:20], init.rows(keys[10:20], 5))
    assert float(every.min()) >= -1.0
    assert float(every.max()) < 3.0
    assert 0.9 < float(every.mean()) < 1.1
    assert not torch.equal(every, table_inits.make("uniform low=-1.0 high=3.0", 8).rows(keys, 5))


def test_state_and_back() -> None:
    one, other = (Rows(2, table_inits.make("normal", 0), table_rules.make("ftrl l1=0.0")) for _ in range(2))
    for step in range(3):
        one.update(
            np.arange(step, 3000 * (step + 1), 7), torch.ones(len(np.arange(step, 3000 * (step + 1), 7)), 2)
        )
    keys, values, *planes = one.state()
    other.put_back(keys, values, planes)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one.state(), other.state(), strict=True))


def test_nobody_waits_for_whoever_is_out_and_who_comes_back_is_not_behind() -> None:
    clocks = Clocks(1, goes_on=True)
    for worker in ("a", "b", "c"):
        clocks.opened(worker, "serving" if worker == "c" else "", ("a", "b", "c"))
    for clock in range(3):
        clocks.reached("a", clock + 1)
    assert clocks.behind("a", 3) == ["b"]
    assert clocks.behind("c", 0) == []
    clocks.changed(("a", "c"))
    assert clocks.behind("a", 3) == []
    clocks.changed(("a", "b", "c"))
    assert clocks.of("b") == 3


@examples(60)
@given(st.lists(st.integers(0, 999_999), unique=True, max_size=200), st.integers(1_000_000, 1 << 62))
def test_keys_come_as_they_went(values: list[int], rows: int) -> None:
    keys = as_keys(values)
    arrays = coded(keys, rows)
    found = decoded(arrays, rows)
    assert found is not None
    assert found.tolist() == keys.tolist()
    assert not arrays


def test_many_keys_take_few_bits() -> None:
    keys = as_keys(np.random.default_rng(0).choice(10_000_000, 30_000, replace=False))
    assert coded(keys, 10_000_000)["gaps"].numel() < 30_000 * 10.5 / 8


@pytest.mark.parametrize(
    "arrays",
    [
        {"keys": torch.tensor([3, 3])},
        {"keys": torch.tensor([-1, 3])},
        {"keys": torch.tensor([3, 100])},
        {"keys": torch.tensor([1.0])},
        {"keys": torch.tensor([[1]])},
        {"keys": torch.tensor([1, 2]), "gaps": torch.zeros(3, dtype=torch.uint8)},
        {"keys": torch.tensor([1, 40, 2]), "gaps": torch.zeros(3, dtype=torch.uint8)},
        {"keys": torch.tensor([-1, 2, 2]), "gaps": torch.zeros(3, dtype=torch.uint8)},
        {"keys": torch.tensor([4, 2, 20]), "gaps": torch.full((4,), 255, dtype=torch.uint8)},
        {"keys": torch.tensor([1, 2, 3]), "gaps": torch.zeros(4)},
    ],
)
def test_keys_that_nobody_sends_are_refused(arrays: dict[str, torch.Tensor]) -> None:
    with pytest.raises(ProtocolError):
        decoded(arrays, 100)


def test_both_ends_know_which_lists_are_there() -> None:
    sent, came, chance = SentLists(), CameLists(), np.random.default_rng(0)
    for _ in range(2000):
        keys = as_keys([int(chance.integers(0, 2 * MOST_LISTS))])
        digest = digest_of(keys)
        assert came.named(digest, keys if sent.name(digest) else None).tolist() == keys.tolist()
    with pytest.raises(ProtocolError, match="was not sent"):
        came.named(b"x" * 16, None)


def test_what_is_held_back_is_added_to_what_comes() -> None:
    held = HeldBack(2)
    held.hold(as_keys([1, 5]), torch.tensor([[1.0, 2.0], [0.5, 0.0]]))
    assert held.add_to(as_keys([5, 7]), torch.ones(2, 2)).tolist() == [[1.5, 1.0], [1.0, 1.0]]
    held.hold(as_keys([7]), torch.ones(1, 2))
    keys, rows = held.all()
    assert keys.tolist() == [1, 7]
    assert rows.tolist() == [[1.0, 2.0], [1.0, 1.0]]
    assert not len(held.all()[0])


@pytest.mark.parametrize(
    ("registry", "spec"),
    [
        (table_rules, "sgd lr=0.0"),
        (table_rules, "adagrad eps=0.0"),
        (table_rules, "ftrl alpha=-1.0"),
        (table_rules, "sgd speed=1"),
        (table_filters, "significant threshold=0.0"),
        (table_filters, "random-skip probability=1.0"),
    ],
)
def test_parameters_that_cannot_be_are_told(registry: Any, spec: str) -> None:
    with pytest.raises(ConfigError):
        registry.make(spec)
