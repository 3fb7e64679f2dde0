"""`run.save` and `run.load`: between a model in a run and a checkpoint file.

Buffers stay local while a model trains, and so do weights between the means of local steps; a checkpoint has the mean
of those in float32 and float64, weighted by all samples that each worker has contributed, and the first worker's of all
others. Where parties do not wait for each other, the weights are those at the global servers, with their optimizer's
state; where steps are local, that lies beside the workers' own. What codecs hold back lies beside the checkpoint; see
`residuals`. A model that is cut is put together tensor by tensor, on the worker that writes; what codecs hold back of
it is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from geomx.errors import CheckpointError, Unsupported
from geomx.node.slices.slice_state import WEIGHTS
from geomx.train.attach import Attached
from geomx.train.calls.broadcast import Holder
from geomx.train.checkpoint import file as files
from geomx.train.checkpoint import residuals
from geomx.train.checkpoint.file import Checkpoint, ParameterState
from geomx.train.model import optimizer_state
from geomx.train.model.fsdp import cut_like, held_of
from geomx.train.model.model_slices import Carried, write_flat


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is. `samples`: what this worker has contributed so far."""

    epoch: int
    samples: float


@dataclass(frozen=True, slots=True)
class Task:
    """A worker's part in keeping a checkpoint at `path`. `everywhere`: each party's first worker writes it.

    `helps`: somebody in its party writes.
    """

    path: Path
    worker: str
    leads_run: bool
    leads_party: bool
    everywhere: bool
    helps: bool

    @property
    def writes(self) -> bool:
        """Whether it leaves the checkpoint itself."""
        return self.leads_run or (self.everywhere and self.leads_party)

    @property
    def holders(self) -> Iterator[Holder]:
        """Whose residuals it keeps beside the checkpoint."""
        yield "worker"
        if self.leads_party:
            yield "parent"
        if self.leads_run:
            yield "root"


def save(attached: Attached, task: Task, position: Position) -> None:
    """Every worker takes part; those who write leave a checkpoint, all leave residuals where there are some."""
    carried = attached.carried
    if task.everywhere and not attached.turns.in_step and not attached.turns.local:
        raise Unsupported(
            "save(everywhere=True): the parties have weights of their own, and load() takes the same file everywhere; "
            "save without it, and copy the file of the first worker"
        )
    attached.turns.between("save()")
    carried.check_same()
    buffers = carried.slices("buffer")
    averaged: dict[int, torch.Tensor] = {}
    weights = carried.slices("weight") if attached.turns.local else []
    if buffers or weights:
        means = carried.floating_buffers()
        others = [piece for piece in buffers if piece not in means]
        averaged = attached.sharing.average("save()", [*weights, *means], others, position.samples)
    if attached.turns.in_step and not carried.is_cut:
        kept = attached.sharing.kept(task.holders)
        residuals.write(residuals.path_of(task.path, task.worker), carried, kept)
    if not task.helps:
        return
    live = _whole(attached, _saved(carried))
    served = attached.optimizer.on_server
    here = {} if served else attached.optimizer.current_state()
    own = {parameter: _whole(attached, values) for parameter, values in here.items()}
    if not task.writes:
        return
    ahead = served and not attached.turns.in_step
    optimized = carried.slices("weight") if served or attached.turns.local else []
    at_root = attached.sharing.fetch(optimized, with_weights=ahead)
    newer = {index: state.planes[WEIGHTS] for index, state in at_root.items()} if ahead else {}
    model = {name: tensor.detach() for name, tensor in live.items()}
    model |= _patched(carried, live, averaged | newer)
    names = _names(carried)
    theirs = _by_name(names, optimizer_state.assemble(carried, at_root))
    state, outer = (theirs, {}) if served else (_by_name(names, own), theirs)
    groups = [
        {**group, "params": [names[id(p)] for p in group["params"]]}
        for group in attached.optimizer.param_groups
    ]
    turn, epoch = attached.turns.turn, position.epoch
    files.write(task.path, Checkpoint(model, attached.optimizer_class, groups, state, turn, epoch, outer))


def load(attached: Attached, path: Path, worker: str) -> int:
    """Every worker takes part, and reads the same file. Returns the epoch to go on with; raises `CheckpointError`.

    Where all are in step, turns go on from the checkpoint's, since codecs draw random numbers by turn. A worker that
    was started again has the run's weights, which are newer: it takes hyper-parameters and epoch from the file, and is
    alone in that.
    """
    carried = attached.carried
    attached.turns.between("load()")
    carried.check_same()
    checkpoint = files.read(path)
    live = _saved(carried)
    files.check_names(path, checkpoint.model, live)
    state_dict = _state_dict(attached, path, checkpoint)
    if attached.turns.goes_on:
        attached.optimizer.adopt(state_dict)
        _go_on_from(attached, checkpoint)
        return checkpoint.epoch
    with torch.no_grad():
        for name, tensor in live.items():
            local, mine = held_of(tensor, checkpoint.model[name])
            local.copy_(mine)
    keeps = attached.turns.in_step and not carried.is_cut
    kept = residuals.read(residuals.path_of(path, worker), carried) if keeps else {}
    states = attached.optimizer.adopt(state_dict)
    if attached.turns.local:
        parameters: dict[str, torch.Tensor] = {carried.name(n): p for n, p in carried.trained.items()}
        outer = {parameters[name]: state for name, state in checkpoint.outer.items() if name in parameters}
        states = optimizer_state.divide(carried, outer)
    slices = carried.slices("weight", "frozen", "buffer")
    name = files.digest(
        checkpoint, of_state=not attached.turns.local
    )  # where steps are local, states are, too
    attached.sharing.assign(f"load() of file {name}", slices, states, kept)
    _go_on_from(attached, checkpoint)
    return checkpoint.epoch


def _go_on_from(attached: Attached, checkpoint: Checkpoint) -> None:
    """Where all are in one turn, go on with the checkpoint's; elsewhere it was that of one party, or of few steps."""
    if attached.turns.in_step:
        attached.turns.skip_to(checkpoint.turn)


def _state_dict(attached: Attached, path: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint's optimizer in torch's own format."""
    groups = attached.optimizer.param_groups
    names = _names(attached.carried)
    ours = [[names[id(p)] for p in group["params"]] for group in groups]
    theirs = [group.get("params") for group in checkpoint.groups]
    if checkpoint.optimizer != attached.optimizer_class or ours != theirs:
        raise CheckpointError(
            f"{path} belongs to another optimizer: {checkpoint.optimizer} with {len(theirs)} parameter groups; "
            f"here is {attached.optimizer_class} with {len(ours)}, or the groups have other parameters"
        )
    flat = [name for group in ours for name in group]
    unknown = sorted(checkpoint.state.keys() - set(flat))
    if unknown:
        raise CheckpointError(
            f"{path} has optimizer state for tensors that are not trained: {', '.join(unknown)}"
        )
    places = {name: place for place, name in enumerate(flat)}
    restored = [
        {key: _like(group.get(key), value) for key, value in saved.items()}
        | {"params": [places[n] for n in own]}
        for group, saved, own in zip(groups, checkpoint.groups, ours, strict=True)
    ]
    on_server = attached.optimizer.on_server
    parameters = {attached.carried.name(n): p for n, p in attached.carried.trained.items()}
    return {
        "state": {
            places[name]: state if on_server else _as_held(parameters[name], state)
            for name, state in checkpoint.state.items()
        },
        "param_groups": restored,
    }


def _like(live: Any, saved: Any) -> Any:
    """A saved hyper-parameter in the type that the live one has."""
    if isinstance(live, tuple):
        return tuple(saved)
    return torch.full_like(live, saved) if isinstance(live, torch.Tensor) else saved


def _saved(carried: Carried) -> dict[str, torch.Tensor]:
    """The live tensors that belong in a checkpoint: parameters and persistent buffers."""
    return {
        tensor.name: carried.tensor(number)
        for number, tensor in enumerate(carried.layout.tensors)
        if tensor.role in ("weight", "frozen") or (tensor.role == "buffer" and carried.is_persistent(number))
    }


def _whole(attached: Attached, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Values, of which tensors are in full; what is cut is so on the party's first worker, and None elsewhere."""
    return {
        name: attached.inside.whole(value) if isinstance(value, torch.Tensor) else value
        for name, value in tensors.items()
    }


def _as_held(parameter: torch.Tensor, state: ParameterState) -> ParameterState:
    """An optimizer's state of a parameter, cut as that is."""
    return {
        key: cut_like(parameter, value)
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
        else value
        for key, value in state.items()
    }


def _patched(
    carried: Carried, live: Mapping[str, torch.Tensor], values: Mapping[int, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Copies on the CPU of the live tensors of which slices have other `values`, with these."""
    copies: dict[str, torch.Tensor] = {}
    for index, flat in values.items():
        for part in carried.layout.slices[index].parts:
            name = carried.name(part.tensor)
            if name not in live:
                continue
            if name not in copies:
                copies[name] = live[name].detach().to("cpu", copy=True)
            write_flat(copies[name], part, flat[part.offset : part.offset + part.elements])
    return copies


def _by_name(
    names: Mapping[int, str], states: Mapping[torch.Tensor, Mapping[str, Any]]
) -> dict[str, ParameterState]:
    """Of the parameters that have a state."""
    return {names[id(parameter)]: dict(state) for parameter, state in states.items() if state}


def _names(carried: Carried) -> dict[int, str]:
    return {id(parameter): carried.name(number) for number, parameter in enumerate(carried.parameters)}
