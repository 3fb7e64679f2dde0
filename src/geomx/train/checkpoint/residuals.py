"""What codecs hold back, beside a checkpoint: a file of its own for each worker that has some near it.

Every worker keeps that of its own edges, the first below each server that of the server, the first of all that of the
global servers, so that little crosses the WAN. The file lies beside the checkpoint on the worker's machine:
`model.safetensors` and `model.safetensors.A-0.residuals` (for A/0).

    SLICE.PLANE            a tensor; see `geomx.node.slices.slice_state` for the names of planes
    header["geomx"]        JSON: format, layout (its fingerprint), parameters_sha256 (of the weights it belongs to)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from geomx.node.slices.slice_state import Planes, planes_of
from geomx.train.checkpoint import file as files
from geomx.train.model.model_slices import ModelSlices

FORMAT = 2
_logger = logging.getLogger("geomx")


def path_of(path: Path, worker: str) -> Path:
    """Where the residuals lie that belong to a checkpoint."""
    return path.with_name(f"{path.name}.{worker.replace('/', '-')}.residuals")


def write(path: Path, model_slices: ModelSlices, kept: Mapping[int, Planes]) -> None:
    """Write them, or remove what an earlier checkpoint left where there are none. Raises `CheckpointError`."""
    tensors = {
        f"{index}.{name}": plane
        for index, planes in kept.items()
        for name, plane in planes.items()
        if not (name.startswith("@") and name.endswith("/anchor") and _is_live(model_slices, index, plane))
    }
    if not tensors:
        path.unlink(missing_ok=True)
        return
    files.write_tensors(path, tensors, {"format": FORMAT, **_belongs_to(model_slices)})


def read(path: Path, model_slices: ModelSlices, above: Sequence[str]) -> dict[int, Planes]:
    """The inverse, once the checkpoint's weights are in the model; empty where there is no file.

    `above`: the servers above this worker, its local server first. A file of other weights, or of another layout, is of
    no use: a warning says so, and all begins anew.
    """
    if not path.exists():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("geomx", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        return _useless(path, str(error))
    if about != {"format": FORMAT, **_belongs_to(model_slices)}:
        return _useless(path, "it belongs to other weights, or to other slices")
    kept: dict[int, Planes] = {}
    for name, plane in tensors.items():
        index, _, plane_name = name.partition(".")
        kept.setdefault(int(index), {})[plane_name] = plane
    for planes in kept.values():
        for child, parent in pairwise(above):  # what the one applies deltas to, the other's encoder goes by
            if (anchor := planes.get(f"{planes_of(child)}anchor")) is not None:
                planes[f"{planes_of(parent)}down.anchor"] = anchor
        highest = planes.get(f"{planes_of(above[-1])}anchor") if above else None
        if "root/weights" in planes and highest is not None:
            planes["root/anchor"] = highest
    return kept


def _useless(path: Path, why: str) -> dict[int, Planes]:
    _logger.warning("%s is not used: %s; residuals of codecs begin at zero", path, why)
    return {}


def _belongs_to(model_slices: ModelSlices) -> dict[str, str | None]:
    return {"layout": model_slices.layout.fingerprint, "parameters_sha256": model_slices.trained_sha256()}


def _is_live(model_slices: ModelSlices, index: int, plane: torch.Tensor) -> bool:
    values = model_slices.gather(model_slices.layout.slices[index], model_slices.tensor).values
    return values is not None and torch.equal(values, plane)
