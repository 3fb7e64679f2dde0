"""`run.save` and `run.load`: between a model in a run and a checkpoint file.

Buffers stay local while a model trains, and so do weights between the means of local steps; a checkpoint has the mean
of those in float32 and float64, weighted by all samples that each worker has contributed, and the first worker's of all
others. Where parties do not wait for each other, the weights are those at the global servers, with their optimizer's
state; where steps are local, that lies beside the workers' own. What codecs hold back lies beside the checkpoint; see
`residuals`. A model that is cut is put together tensor by tensor, on the worker that writes; what codecs hold back of
it is not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from geomx.errors import CheckpointError, Unsupported
from geomx.node.slices.slice_state import WEIGHTS
from geomx.train.attach import AttachedModel
from geomx.train.calls.broadcast import Holder
from geomx.train.checkpoint import file as files
from geomx.train.checkpoint import residuals
from geomx.train.checkpoint.file import Checkpoint, ParameterState
from geomx.train.data.progress import Progress
from geomx.train.model.fsdp import cut_like, held_of
from geomx.train.model.model_slices import ModelSlices, real, write_flat
from geomx.train.optimizer import state as optimizer_state
from geomx.train.optimizer.masters import MASTER
from geomx.tree import EVERYONE, Tree
from geomx.wire.messages import Place

_logger = logging.getLogger("geomx")


@dataclass(frozen=True, slots=True)
class Task:
    """A worker's part in keeping a checkpoint at `path`. `everywhere`: each party's first worker writes it.

    `away`: workers that take no part in it; the next is the first then.
    """

    path: Path
    worker: str
    tree: Tree
    everywhere: bool
    away: frozenset[str] = frozenset()

    @property
    def first(self) -> str:
        """The first of all."""
        return self._first_of(self.tree.workers)

    @property
    def leads_run(self) -> bool:
        """Whether it is the first of all."""
        return self.worker == self.first

    @property
    def leads_party(self) -> bool:
        """Whether it is the first of its party."""
        return self.worker == self._first_of(self.tree.party_members(self.worker))

    @property
    def helps(self) -> bool:
        """Whether somebody in its party writes."""
        return self.everywhere or self.first in self.tree.party_members(self.worker)

    @property
    def writes(self) -> bool:
        """Whether it leaves the checkpoint itself."""
        return self.leads_run or (self.everywhere and self.leads_party)

    def _first_of(self, names: Sequence[str]) -> str:
        return next((name for name in names if name not in self.away), names[0])

    @property
    def holders(self) -> Iterator[Holder]:
        """Whose residuals it keeps beside the checkpoint."""
        yield "worker", ""
        for server in self.tree.ancestors(self.worker):
            if self._first_of(self.tree.leaves(server)) == self.worker:
                yield "server", server
        if self.leads_run:
            yield "root", ""


def save(attached: AttachedModel, task: Task, place: Place) -> bool:
    """Every worker takes part; those who write leave a checkpoint, all leave residuals where there are some.

    Where the run goes on without whoever is lost, all agree on who writes: the first of those who have taken part in a
    call of everybody's. `place`: how far this worker's script is; the file has that of who writes it.

    Returns whether this worker did its part; False: the run has gone on without it meanwhile.
    """
    model_slices, client, port = attached.model_slices, attached.client, attached.client.port
    absences = client.absences
    if task.everywhere and not attached.steps.lockstep and not attached.steps.local:
        raise Unsupported(
            "save(everywhere=True): with this sync policy parties have different weights, but load() needs the same "
            "file everywhere; save without it, and copy the first worker's file to every machine"
        )
    attached.steps.require_quiescent("save()")
    model_slices.check_same()
    buffers = model_slices.slices("buffer")
    averaged: dict[int, torch.Tensor] = {}
    weights = model_slices.slices("weight") if attached.steps.local else []
    means = model_slices.floating_buffers()
    others = [slice_ for slice_ in buffers if slice_ not in means]
    roll_call = min(model_slices.slices("weight"), key=lambda slice_: slice_.size_bytes, default=None)
    if buffers or weights:
        averaged = attached.broadcast.average("save()", [*weights, *means], others, place.weight)
    elif attached.broadcast.goes_on and roll_call is not None:
        attached.broadcast.average("save()", [roll_call], [], place.weight)
    if client.absences != absences:
        return False
    task = replace(task, away=frozenset(task.tree.workers_in(client.data.absences.in_turn(client.turn - 1))))
    if task.leads_run and task.worker != task.tree.workers[0]:
        port.note("saves", "warning", path=str(task.path), first=task.tree.workers[0])
    if attached.steps.lockstep and not model_slices.is_cut:
        kept = attached.broadcast.kept(task.holders)
        if client.absences != absences:
            return False
        residuals.write(residuals.path_of(task.path, task.worker), model_slices, kept)
    if not task.helps:
        return True
    live = _whole(attached, _saved(model_slices))
    served = attached.optimizer.on_server
    here = {} if served else attached.optimizer.current_state()
    own = {parameter: _whole(attached, _kept(attached, values)) for parameter, values in here.items()}
    if not task.writes:
        return True
    ahead = served and not attached.steps.lockstep
    optimized = model_slices.slices("weight") if served or attached.steps.local else []
    at_root = attached.broadcast.fetch(optimized, with_weights=ahead)
    if client.absences != absences:
        return False
    newer = {index: state.planes[WEIGHTS] for index, state in at_root.items()} if ahead else {}
    model = {name: tensor.detach() for name, tensor in live.items()}
    model |= _patched(model_slices, live, averaged | newer)
    names = _names(model_slices)
    theirs = _by_name(names, optimizer_state.assemble(model_slices, at_root))
    state, outer = (theirs, {}) if served else (_by_name(names, own), theirs)
    groups = [
        {**group, "params": [names[id(p)] for p in group["params"]]}
        for group in attached.optimizer.param_groups
    ]
    reached = attached.steps.turn, place.epoch, place.batches, place.steps
    absent = task.tree.workers_in(client.data.absent(place.epoch))
    made = Checkpoint(
        model, attached.optimizer_class, groups, state, *reached, outer, place.first_loss, absent
    )
    files.write(task.path, made)
    return True


def load(attached: AttachedModel, path: Path, worker: str, tree: Tree, progress: Progress) -> Place | None:
    """Every worker takes part, and reads the same file. Returns where to go on; raises `CheckpointError`.

    Where all are in step, turns go on from the checkpoint's, since codecs draw random numbers by turn. A worker that
    was started again has the run's weights and its place, which are newer: it takes hyper-parameters from the file,
    and is alone in that. None: its place stands. `progress`: how far this worker's script is.
    """
    model_slices, place = attached.model_slices, progress.place
    attached.steps.require_quiescent("load()")
    model_slices.check_same()
    checkpoint = files.read(path)
    live = _saved(model_slices)
    files.check_names(path, checkpoint.model, live)
    state_dict = _state_dict(attached, path, checkpoint)
    if attached.steps.goes_on:
        attached.optimizer.adopt(state_dict)
        _go_on_from(attached, checkpoint)
        return None if attached.client.place is not None else _place(checkpoint, place)
    with torch.no_grad():
        for name, tensor in live.items():
            local, mine = held_of(tensor, checkpoint.model[name])
            local.copy_(mine)
        for number, master in model_slices.masters.items():
            master.copy_(model_slices.trained[number])
    keeps = attached.steps.lockstep and not model_slices.is_cut
    beside, above = residuals.path_of(path, worker), tree.ancestors(worker)
    kept = residuals.read(beside, model_slices, above) if keeps else {}
    states = attached.optimizer.adopt(state_dict)
    if attached.steps.local:
        parameters: dict[str, torch.Tensor] = {
            model_slices.name(n): p for n, p in model_slices.trained.items()
        }
        outer = {parameters[name]: state for name, state in checkpoint.outer.items() if name in parameters}
        states = optimizer_state.divide(model_slices, outer)
    slices = model_slices.slices("weight", "frozen", "buffer")
    name = files.digest(
        checkpoint, of_state=not attached.steps.local
    )  # where steps are local, states are, too
    there, client = _place(checkpoint, place), attached.client
    absences = client.absences
    client.reached(EVERYONE, -1, there, there)
    attached.broadcast.assign(f"load() of file {name}", slices, states, kept, alike=True)
    _go_on_from(attached, checkpoint)
    if client.absences != absences:  # the others have loaded it, and gone on from there
        return client.data.place_beside(there)
    client.data.loaded(there, tree.bitmap_of(checkpoint.absent))
    return there


def _place(checkpoint: Checkpoint, place: Place) -> Place:
    """Where a script goes on from a checkpoint that is now at `place`, whose contributions still count."""
    if checkpoint.step is None:
        _logger.warning(
            "the checkpoint was written by an older version and does not say its step: run.step continues from %d; "
            "restore schedules that count steps with their own load_state_dict()",
            place.steps,
        )
    steps = place.steps if checkpoint.step is None else checkpoint.step
    first_loss = place.first_loss if checkpoint.first_loss is None else checkpoint.first_loss
    return Place(checkpoint.epoch, checkpoint.batches, steps, place.weight, first_loss)


def _go_on_from(attached: AttachedModel, checkpoint: Checkpoint) -> None:
    """Where all are in one turn, go on with the checkpoint's; elsewhere it was that of one party, or of few steps."""
    if attached.steps.lockstep:
        attached.steps.skip_to(checkpoint.turn)


def _state_dict(attached: AttachedModel, path: Path, checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint's optimizer in torch's own format."""
    groups = attached.optimizer.param_groups
    names = _names(attached.model_slices)
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
    parameters = {attached.model_slices.name(n): p for n, p in attached.model_slices.trained.items()}
    return {
        "state": {
            places[name]: _as_held(parameters[name], state, on_server)
            for name, state in checkpoint.state.items()
        },
        "param_groups": restored,
    }


def _like(live: Any, saved: Any) -> Any:
    """A saved hyper-parameter in the type that the live one has."""
    if isinstance(live, tuple):
        return tuple(saved)
    return torch.full_like(live, saved) if isinstance(live, torch.Tensor) else saved


def _saved(model_slices: ModelSlices) -> dict[str, torch.Tensor]:
    """The live tensors that belong in a checkpoint: parameters and persistent buffers; complex ones as pairs."""
    return {
        tensor.name: real(model_slices.tensor(number))
        for number, tensor in enumerate(model_slices.layout.tensors)
        if tensor.role in ("weight", "frozen")
        or (tensor.role == "buffer" and model_slices.is_persistent(number))
    }


def _kept(attached: AttachedModel, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A parameter's state; where steps are local the model has the mean of all workers', and no master is of that."""
    return {key: value for key, value in state.items() if not (attached.steps.local and key == MASTER)}


def _whole(attached: AttachedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Values, of which tensors are in full; what is cut is so on the party's first worker, and None elsewhere."""
    return {
        name: attached.intra_party.whole(value) if isinstance(value, torch.Tensor) else value
        for name, value in tensors.items()
    }


def _as_held(parameter: torch.Tensor, state: ParameterState, whole: bool) -> ParameterState:
    """An optimizer's state of a parameter, which may be complex, and cut as that is unless it is to be `whole`."""

    def of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if parameter.is_complex() and value.shape == (*parameter.shape, 2):
            return torch.view_as_complex(value)
        return cut_like(parameter, value) if value.shape == parameter.shape and not whole else value

    return {key: of(value) for key, value in state.items()}


def _patched(
    model_slices: ModelSlices, live: Mapping[str, torch.Tensor], values: Mapping[int, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Copies on the CPU of the live tensors of which slices have other `values`, with these."""
    copies: dict[str, torch.Tensor] = {}
    for index, flat in values.items():
        for part in model_slices.layout.slices[index].parts:
            name = model_slices.name(part.tensor)
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
    return {
        names[id(parameter)]: {
            key: real(value) if isinstance(value, torch.Tensor) else value for key, value in state.items()
        }
        for parameter, state in states.items()
        if state
    }


def _names(model_slices: ModelSlices) -> dict[int, str]:
    return {
        id(parameter): model_slices.name(number) for number, parameter in enumerate(model_slices.parameters)
    }
