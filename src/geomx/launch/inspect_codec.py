"""`geomx inspect codec`: what codecs would save and cost for a model, on this machine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from geomx.channels.memory import reuse_freed_blocks
from geomx.codecs import codecs
from geomx.codecs.pack import native
from geomx.codecs.spec import size_bounds_of, slices_wanted
from geomx.errors import ConfigError, Fault
from geomx.launch.environment import import_beside
from geomx.layout import PACK_BELOW, SLICES_WANTED, Layout, Slice, Tensor, automatic_slice_elements
from geomx.observe.costs import Cost, cost, memory_of
from geomx.train.model.model_slices import ModelSlices


def inspect(specs: Sequence[str], model: str | None, parameters: int) -> None:
    """Measure and print; `model` is `module:function`, which is called without arguments."""
    import_beside(Path.cwd() / "run.toml")
    torch.set_num_threads(1)
    reuse_freed_blocks()  # as every node does
    made = model_of(model) if model else None
    memory = memory_of()
    rows = []
    for spec in specs or [name for name in codecs.names if name != "dense"]:
        wanted = slices_wanted(spec)
        if made is None:
            slices = slices_like(parameters, wanted)
        else:
            slices = slices_of(made, slices=wanted, size_bounds=size_bounds_of(spec))
        rows.append(cost(spec, slices, memory))
        parameters = sum(slice_.elements for slice_ in slices)
    kernels = "compiled kernels" if native.available() else "torch operations alone"
    title = f"{parameters:,} parameters, {kernels}, one core\nmemory: {memory}"
    Console().print(table_of(title, rows))


def table_of(title: str, rows: Sequence[Cost]) -> Table:
    """A line for each codec."""
    table = Table(title=title, title_justify="left")
    table.add_column("codec")
    for column in ("slices", "MB", "of dense", "encode\nms", "\nfloor", "decode\nms", "\nfloor"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        times = (row.encode_s, row.floor_s, row.decode_s, row.decode_floor_s)
        figures = (f"{1e3 * seconds:.3g}" for seconds in times)
        table.add_row(
            row.spec, f"{row.slices}", f"{row.sent_bytes / 1e6:.3g}", f"1/{row.ratio:.4g}", *figures
        )
    return table


def slices_like(parameters: int, slices: int = SLICES_WANTED, slice_elements: int = 0) -> list[Slice]:
    """Those of one large float32 tensor. `slice_elements`: 0 cuts it into about so many `slices`."""
    tensors = (Tensor("weights", (parameters,), "float32"),)
    largest = slice_elements or automatic_slice_elements(tensors, slices)
    return list(Layout(tensors, slice_elements=largest).slices)


def slices_of(
    model: torch.nn.Module,
    pack_below: int = PACK_BELOW,
    slice_elements: int = 0,
    slices: int = SLICES_WANTED,
    size_bounds: tuple[int, ...] = (),
) -> list[Slice]:
    """Those of the tensors that a model trains."""
    group = {"params": [parameter for parameter in model.parameters() if parameter.requires_grad]}
    return ModelSlices(model, [group], 0, pack_below, slice_elements, slices, size_bounds).slices("weight")


def model_of(model: str) -> torch.nn.Module:
    """What `module:function` gives. Raises `ConfigError`."""
    module_name, colon, name = model.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module_name), name)() if colon else None
    except Exception as error:  # whatever the user's code raises
        raise _wrong(model, f"{type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(made, torch.nn.Module):
        raise _wrong(model, "it gives no torch.nn.Module" if colon else "there is no colon")
    return made


def _wrong(model: str, reason: str) -> ConfigError:
    allowed = "`module:function`, which gives a model when it is called without arguments"
    return ConfigError("the command line", [Fault("--model", model, allowed, reason)])
