"""A key-value store over a run: sums of what workers push, with an optimizer and without."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from live_runs import assert_close, place_of, train
from policy_runs import train_by

from geomx.errors import ConfigError, GeomxError, Unsupported
from geomx.kvstore import KVStore, create
from geomx.kvstore.variables import INSTEAD
from geomx.train import LiveRun, Settings

SHAPES = {"0": (3, 4), "1": (5,), "weight": (2, 2, 2)}


def values(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES.values()]


def store(run: LiveRun) -> KVStore:
    kv = create("dist_sync", run)
    kv.init(list(SHAPES), values(place_of(run)))
    return kv


@pytest.mark.parametrize("place", ["server", "workers"])
def test_an_optimizer_is_given_the_sum_over_workers(place: Any) -> None:
    make = functools.partial(torch.optim.Adam, lr=0.1)

    def main(run: LiveRun) -> list[torch.Tensor]:
        kv = store(run)
        kv.set_optimizer(make)
        assert (kv.rank, kv.num_workers, kv.num_all_workers) == (run.rank, len(run._party_members), 3)
        assert kv.is_master_worker == (run.name == "A/0")
        for step in range(3):
            kv.push(list(SHAPES), values(10 * step + place_of(run)))
            out = [torch.empty_like(value) for value in values(0)]
            assert kv.pull(list(SHAPES), out=out) is out
        kv.barrier()
        return out

    results, _ = train([2, 1], main, Settings(place=place))
    alone = [torch.nn.Parameter(value) for value in values(0)]
    optimizer = make(alone)
    for step in range(3):
        for parameter, *pushed in zip(alone, *(values(10 * step + place) for place in range(3)), strict=True):
            parameter.grad = sum(pushed)  # type: ignore[assignment]
        optimizer.step()
    for result in results.values():
        assert_close(dict(enumerate(result)), dict(enumerate(p.detach() for p in alone)))  # type: ignore[arg-type]


def test_without_one_a_value_becomes_the_sum() -> None:
    """Of arrays and of several devices' parts, too; keys that nobody pushes rest; a key may be pushed twice."""

    def main(run: LiveRun) -> tuple[Any, ...]:
        kv, mine = store(run), float(1 + place_of(run))
        kv.push("1", [torch.full((5,), mine), np.full(5, 10 * mine)])
        kv.push("1", torch.full((5,), 100 * mine))  # the first leaves now
        both, array = kv.pull("1"), np.zeros((3, 4))
        assert kv.pushpull("0", np.full((3, 4), mine), out=array) is array
        rows = kv.row_sparse_pull("0", row_ids=[2, 0])
        into = torch.zeros(3, 4, dtype=torch.float64)
        kv.row_sparse_pull("0", into, row_ids=torch.tensor([1]))
        return both, array, rows, into, kv.pull("weight")

    results, _ = train([1, 1], main)
    for both, array, rows, into, rests in results.values():
        assert torch.equal(both, torch.full((5,), 300.0, dtype=torch.float64))
        assert (array == 3.0).all()
        assert torch.equal(rows, torch.full((2, 4), 3.0, dtype=torch.float64))
        assert into.sum() == 12.0
        assert torch.equal(rests, values(0)[2])


def test_parties_need_not_wait() -> None:
    def main(run: LiveRun) -> torch.Tensor:
        kv = create("dist_async", run)
        kv.init("w", torch.zeros(3, dtype=torch.float64))
        kv.set_optimizer(functools.partial(torch.optim.SGD, lr=0.5))
        for _ in range(4):
            kv.pushpull("w", torch.ones(3, dtype=torch.float64))
        return kv.pull("w")

    for parties in ([1], [1, 1], [2, 2], [1, 1, 1]):
        results, _ = train_by("mixed", parties, main, {"policy_spec": "mixed"})
        last = min(float(value[0]) for value in results.values())
        assert last == -0.5 * 4 * sum(parties)


def test_a_checkpoint(tmp_path: Path) -> None:
    def main(run: LiveRun, loads: bool) -> torch.Tensor:
        kv = store(run)
        kv.set_optimizer(functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9))
        path = str(tmp_path / "kv.safetensors")
        if loads:
            kv.load_optimizer_states(path)
        for _ in range(2):
            kv.push("0", values(7)[0])
            value = kv.pull("0")
        if not loads:
            kv.save_optimizer_states(path)
            for _ in range(2):
                value = kv.pushpull("0", values(7)[0])
        return value

    first, _ = train([1, 1], functools.partial(main, loads=False))
    again, _ = train([1, 1], functools.partial(main, loads=True))
    assert torch.equal(first["A/0"], again["B/0"])


def refused(match: str, main: Any, error: type[GeomxError] = Unsupported) -> None:
    with pytest.raises(error, match=match):
        train([1], main)


def test_what_cannot_be_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(r'set sync\.policy = "mixed"', lambda run: create("dist_async", run))
    refused("dist_sync or dist_async", lambda run: create("local", run))
    refused("has no value: call init", lambda run: store(run).pull("2"))
    refused(
        "behind the first push or pull",
        lambda run: (kv := store(run), kv.pull("0"), kv.init("2", torch.ones(1))),
    )
    refused("this key has a value", lambda run: store(run).init("0", torch.ones(1)))
    refused(r"\(4,\) for a value of \(5,\)", lambda run: store(run).push("1", torch.ones(4)))
    refused("not one for each", lambda run: store(run).push(["0", "1"], [torch.ones(3, 4)]))
    refused(
        r'wan\.codec_up = "bisparse ratio=0\.01"',
        lambda run: store(run).set_gradient_compression({"type": "bisparse", "threshold": 0.01}),
    )
    monkeypatch.setenv("DMLC_PS_ROOT_URI", "10.0.0.1")
    monkeypatch.setenv("MXNET_KVSTORE_USE_HFA", "1")
    refused(r'DMLC_PS_ROOT_URI(.|\n)*party\.address(.|\n)*sync\.policy = "hfa', store, ConfigError)


def test_the_page_has_every_variable() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming-from-geomx.md").read_text("utf-8")
    page = re.sub(r"`(MXNET_KVSTORE)_USE_HFA`, `…(_HFA_K1)`, `…(_HFA_K2)`", r"\1_USE_HFA \1\2 \1\3", page)
    assert not [name for name in INSTEAD if f"`{name}`" not in page and name not in page]
