"""What codecs hold back survives a checkpoint: whoever goes on from one has the bits of the run that never stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exploring import each_value
from live_runs import adam, assert_equal, begin, lockstep, own, sgd, small_model, train, weights
from safetensors.torch import load_file, save_file

from geomx.node.topology import Edge
from geomx.train import LiveRun, Settings

Script = Callable[[LiveRun], dict[str, torch.Tensor]]
DENSE = Edge()


def begun(path: Path, make: Any, dtype: torch.dtype) -> Script:
    """Three steps, a checkpoint, three steps."""

    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, make, small_model(dtype=dtype))
        lockstep(run, model, optimizer, range(3))
        run.save(path)
        lockstep(run, model, optimizer, range(3, 6))
        return weights(model)

    return script


def resumed(path: Path, make: Any, dtype: torch.dtype, stray_steps: int = 0) -> Script:
    """Another run, which may have trained before it goes on from the checkpoint."""

    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, make, small_model(seed=7, dtype=dtype))
        lockstep(run, model, optimizer, range(20, 20 + stray_steps))
        run.load(path)
        lockstep(run, model, optimizer, range(3, 6))
        return weights(model)

    return script


def settings(slice_elements: int = 512) -> Settings:
    return Settings(slice_elements=slice_elements, pack_below=100)


SPARSE = "bisparse ratio=0.1 momentum=0.9 warmup_rounds=5"
EDGES = {
    "sparse up": (Edge(SPARSE, "dense"), DENSE),
    "sparse down": (Edge("dense", "bisparse ratio=0.1"), DENSE),
    "both ways": (Edge(SPARSE, "bisparse ratio=0.1 values=int4"), DENSE),
    "every edge": (Edge("int4 stochastic=true", "int4"), Edge("mpq ratio=0.2", "sign")),
    "inside a party": (DENSE, Edge("topk ratio=0.1", "two_bit threshold=0.01")),
    "tiny ones too": (Edge("mpq ratio=0.1 momentum=0.5", "mpq ratio=0.1"), DENSE),
}


@pytest.mark.parametrize(
    ("edges", "make", "dtype"), each_value(EDGES, [sgd, own, adam], [torch.float32, torch.float64])
)
def test_a_run_goes_on_with_the_same_bits(edges: str, make: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    """The optimizer's state travels beside them."""
    path, (wan, lan) = tmp_path / "c.safetensors", EDGES[edges]
    saved, _ = train([2, 1], begun(path, make, dtype), settings(), shards=2, wan=wan, lan=lan)
    loaded, _ = train([2, 1], resumed(path, make, dtype), settings(), shards=2, wan=wan, lan=lan)
    for worker, expected in saved.items():
        assert_equal(loaded[worker], expected)


def test_what_was_held_back_of_other_weights_is_gone(tmp_path: Path) -> None:
    """`load` in the middle of training is `load` at its beginning."""
    path, edge = tmp_path / "c.safetensors", Edge("bisparse ratio=0.1", "bisparse ratio=0.1")
    train([1, 1], begun(path, sgd, torch.float32), settings(), wan=edge)
    for file in tmp_path.glob("*.residuals"):
        file.unlink()
    first, _ = train([1, 1], resumed(path, sgd, torch.float32), settings(), wan=edge)
    later, _ = train([1, 1], resumed(path, sgd, torch.float32, stray_steps=2), settings(), wan=edge)
    assert_equal(first["A/0"], later["A/0"])


def test_each_keeps_what_is_near(tmp_path: Path) -> None:
    path, edge = tmp_path / "c.safetensors", Edge("bisparse ratio=0.1", "int4")
    train([2, 1], begun(path, sgd, torch.float32), settings(), wan=edge)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"c.safetensors", "c.safetensors.A-0.residuals", "c.safetensors.B-0.residuals"}
    mine, theirs = (load_file(tmp_path / f"c.safetensors.{name}-0.residuals") for name in "AB")
    owners = [{name.partition(".")[2].partition("/")[0] for name in file} for file in (mine, theirs)]
    assert owners == [{"@A", "root"}, {"@B"}]


def test_without_lossy_codecs_there_is_nothing_to_keep(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    (tmp_path / "c.safetensors.A-0.residuals").write_text("of an earlier run")
    train([1, 1], begun(path, sgd, torch.float32), settings())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damage", ["truncated", "other weights", "other slices"])
def test_residuals_that_do_not_belong_are_told_and_left(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, edge = tmp_path / "c.safetensors", Edge("bisparse ratio=0.1", "dense")
    train([1, 1], begun(path, sgd, torch.float32), settings(), wan=edge)
    kept = tmp_path / "c.safetensors.B-0.residuals"
    if damage == "truncated":
        kept.write_bytes(kept.read_bytes()[:100])
    elif damage == "other weights":
        save_file(load_file(kept), kept, metadata={"geomx": "{}"})
    with caplog.at_level(logging.WARNING, logger="geomx"):
        cut = settings(256 if damage == "other slices" else 512)
        train([1, 1], resumed(path, sgd, torch.float32), cut, wan=edge)
    said = [record.getMessage() for record in caplog.records if "is not used" in record.getMessage()]
    assert len(said) == (2 if damage == "other slices" else 1)
    assert all("residuals of codecs begin at zero" in each for each in said)
