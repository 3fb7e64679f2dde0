"""Checkpoint files: safetensors for the tensors, JSON in its header for the rest, no pickle.

    model.NAME             a parameter or persistent buffer
    optimizer.NAME.KEY     the optimizer's state of a parameter, under torch's own key
    outer.NAME.KEY         where steps are local: that of the optimizer at the global servers
    header["geomx"]        JSON: format, optimizer, param_groups, values (state that is no tensor), turn, epoch, batches
                           (of the passes under way), step (null in files of before there was one), first_loss (null:
                           none was told), absent (workers among whom the running pass was not shared)

A file appears whole or not at all: it is written beside its place, synced, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from geomx.errors import CheckpointError
from geomx.optim.hyper import as_plain
from geomx.store.folder import sync

FORMAT = 1
Plain = str | int | float | bool | None
ParameterState = dict[str, torch.Tensor | Plain]


@dataclass(slots=True)
class Checkpoint:
    """What a file holds. `optimizer`: the class's name; `groups` and `state` go by the parameters' names.

    `absent`: workers among whom the running pass was not shared.
    """

    model: dict[str, torch.Tensor]
    optimizer: str
    groups: list[dict[str, Any]]
    state: dict[str, ParameterState] = field(default_factory=dict)
    turn: int = 0
    epoch: int = 0
    batches: tuple[int, ...] = ()
    step: int | None = None
    outer: dict[str, ParameterState] = field(default_factory=dict)
    first_loss: float | None = None
    absent: tuple[str, ...] = ()


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; raises `CheckpointError` for what has no place in one."""
    tensors = {f"model.{name}": _stored(tensor) for name, tensor in checkpoint.model.items()}
    values: dict[str, dict[str, Plain]] = {}
    for name, state in checkpoint.state.items():
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                values.setdefault(name, {})[key] = _plain(value, f"the optimizer's state {key} of {name}")
    for owner, states in (("optimizer", checkpoint.state), ("outer", checkpoint.outer)):
        for name, state in states.items():
            stored = {key: _stored(value) for key, value in state.items() if isinstance(value, torch.Tensor)}
            tensors |= {f"{owner}.{name}.{key}": value for key, value in stored.items()}
    about = {
        "format": FORMAT,
        "optimizer": checkpoint.optimizer,
        "param_groups": [_plain_group(number, group) for number, group in enumerate(checkpoint.groups)],
        "values": values,
        "turn": checkpoint.turn,
        "epoch": checkpoint.epoch,
        "batches": checkpoint.batches,
        "step": checkpoint.step,
        "first_loss": checkpoint.first_loss,
        "absent": checkpoint.absent,
    }
    write_tensors(path, tensors, about)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
    """Write a file with a header, whole or not at all. Raises `CheckpointError`."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        save_file(dict(tensors), draft, metadata={"geomx": json.dumps(about)})
        draft.chmod(_mode(path))
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def _mode(path: Path) -> int:
    """A new file is as readable as any other (safetensors makes it the owner's alone); an old one stays as it was."""
    if path.exists():
        return path.stat().st_mode
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; raises `CheckpointError` for a file that is missing, damaged or not one of ours."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("geomx", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{path} is not on this machine: every worker reads the file, so copy it to each"
        ) from error
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint that run.save() wrote (format {FORMAT})")
    try:
        return _described(about, tensors)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} has a damaged description: {error!r}") from error


def digest(checkpoint: Checkpoint, of_state: bool) -> str:
    """A short name, by which workers find out that they do not read the same; `of_state`: the optimizer's, too.

    The first loss is not in it: that is of whichever worker has written the file (`save(everywhere=True)`).
    """
    states = checkpoint.state.items() if of_state else ()
    told = {f"optimizer.{name}.{key}": value for name, state in states for key, value in state.items()}
    outer = checkpoint.outer.items()
    told |= {f"outer.{name}.{key}": value for name, state in outer for key, value in state.items()}
    told |= {f"model.{name}": tensor for name, tensor in checkpoint.model.items()}
    found = hashlib.blake2b(digest_size=8)
    for name, value in sorted(told.items()):
        found.update(name.encode())
        if isinstance(value, torch.Tensor):
            found.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            found.update(repr(value).encode())
    place = [checkpoint.epoch, checkpoint.batches, checkpoint.step]
    about = [checkpoint.optimizer, checkpoint.groups, checkpoint.turn, *place]
    found.update(json.dumps(about, sort_keys=True).encode())
    return found.hexdigest()


def check_names(path: Path, found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """Raise `CheckpointError` listing every tensor that is missing, unexpected, or of another shape or dtype."""
    problems = [f"missing: {name}" for name in wanted.keys() - found.keys()]
    problems += [f"unexpected: {name}" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        theirs, ours = found[name], wanted[name]
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            problems.append(
                f"of another shape: {name} is {theirs.dtype} {tuple(theirs.shape)} in the file, "
                f"{ours.dtype} {tuple(ours.shape)} in the model"
            )
    if problems:
        raise CheckpointError(
            f"{path} belongs to another model:\n" + "\n".join(f"  - {p}" for p in sorted(problems))
        )


def _described(about: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Checkpoint:
    state: dict[str, ParameterState] = {name: dict(values) for name, values in about["values"].items()}
    outer: dict[str, ParameterState] = {}
    for name, tensor in tensors.items():
        owner, _, rest = name.partition(".")
        if owner in ("optimizer", "outer"):
            parameter, key = rest.rsplit(".", 1)
            (state if owner == "optimizer" else outer).setdefault(parameter, {})[key] = tensor
    model = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    groups = [dict(group) for group in about["param_groups"]]
    step, first_loss = about.get("step"), about.get("first_loss")
    return Checkpoint(
        model,
        str(about["optimizer"]),
        groups,
        state,
        turn=int(about["turn"]),
        epoch=int(about["epoch"]),
        batches=tuple(max(0, int(each)) for each in about.get("batches", ())),
        step=None if step is None else int(step),
        outer=outer,
        first_loss=_first_loss(first_loss),
        absent=tuple(map(str, about.get("absent", ()))),
    )


def _first_loss(stored: Any) -> float | None:
    """Raises `ValueError` for one that no script can have told first."""
    if stored is None:
        return None
    if not 0.0 < float(stored) < math.inf:
        raise ValueError(f"first_loss is {stored}")
    return float(stored)


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its own: safetensors refuses tensors that share memory."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _plain_group(number: int, group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(value, f"{key} of parameter group {number}") for key, value in group.items()}


def _plain(value: Any, what: str) -> Any:
    value = as_plain(value)
    if all(
        isinstance(each, str | int | float | bool | None)
        for each in (value if isinstance(value, list) else [value])
    ):
        return value
    raise CheckpointError(f"{what} is a {type(value).__name__}: a checkpoint holds tensors, numbers and text")
