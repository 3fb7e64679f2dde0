"""What `geomx.join()` returns: a run, as its training loop sees it.

    run = geomx.join()
    model, optimizer = run.attach(model, optimizer)
    for x, y in run.shard(loader):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

Alone (`members` of length 1) everything goes the same way: the global server is then in the same process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from geomx.config.choices import Overlap, PushAt
from geomx.errors import GeomxError, Unsupported, refusal_of
from geomx.node.port import Port
from geomx.train import notes
from geomx.train.attach import AttachedModel, attach
from geomx.train.calls.collective_client import CollectiveClient
from geomx.train.checkpoint import save_load as saving
from geomx.train.context import TrainingContext
from geomx.train.data.loader import Share, Shares
from geomx.train.data.progress import Progress
from geomx.train.data.samples import Samples
from geomx.train.ending import cause_of, why_ended
from geomx.train.model.support import script_of
from geomx.train.optimizer.schedules import Every, Schedules
from geomx.train.settings import Settings
from geomx.train.steps.timeline import Timeline

Model = TypeVar("Model", bound=nn.Module)


class LiveRun:
    """One worker's place in a run, made by `geomx.join()`.

    Every worker makes the same collective calls (`attach`, `step()`, `save`, `load`, ...) in the same order, from one
    thread at a time. Every method may raise `RunFailed` or `NodeLost`, which name the node that ended the run, and
    `Unsupported` once the run is closed.

    `name`: this worker, "A/0". `workers`: the names of all, in order; the first one's weights are the ones that all
    begin with.
    """

    def __init__(
        self,
        port: Port,
        *,
        name: str,
        members: Sequence[str],
        party_members: Sequence[str],
        settings: Settings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`members`: the run's workers, `party_members`: those of this party. `clock`: seconds, for the trace."""
        self.name = name
        self.workers = tuple(members)
        self._party_members = tuple(party_members)
        self._settings = settings or Settings()
        self._samples = Samples(self._settings, len(self.workers), len(self._party_members))
        self._client = CollectiveClient(port, name)
        self._timeline = Timeline(port, clock, self._settings.after_step)
        self._began = 0.0
        self._attached: AttachedModel | None = None
        self._progress = Progress(self._samples, self._timeline)
        self._schedules = Schedules()
        among = {"party": self._party_members, "run": self.workers}
        self._shares = Shares(name, among, self._settings.seed, self._progress)
        self._closed = False

    # -- where we are -----------------------------------------------------------------------------------------

    @property
    def party(self) -> str:
        """The party's name."""
        return self.name.rpartition("/")[0]

    @property
    def policy(self) -> str:
        """The sync policy's name in the run's description, without its parameters: "fsa", "hfa", ..."""
        return self._settings.policy_spec.split(maxsplit=1)[0]

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties of the run, in order."""
        return tuple(dict.fromkeys(member.rpartition("/")[0] for member in self.workers))

    @property
    def rank(self) -> int:
        """This worker's place within its party."""
        return self._party_members.index(self.name)

    @property
    def is_first(self) -> bool:
        """Whether this is the worker whose weights all begin with, and which writes checkpoints."""
        return self.name == self.workers[0]

    @property
    def is_closed(self) -> bool:
        """Whether this worker has left the run, in order or with an error of its own."""
        return self._closed

    @property
    def is_amid_data(self) -> bool:
        """Whether a pass over `shard` trains that is not at its end, nor was left for another one or a checkpoint."""
        return self._progress.is_amid

    @property
    def turn(self) -> int:
        """How many collective calls (attach, rounds, saves, ...) those who move in step with this worker have made."""
        return self._attached.steps.turn if self._attached else self._client.turn

    @property
    def epoch(self) -> int:
        """How many passes over `shard` have trained, those before a checkpoint or a restart included."""
        return self._progress.epoch

    @property
    def step(self) -> int:
        """How often this worker's script has called `step()`, before a checkpoint or a restart included."""
        return self._progress.steps

    @property
    def ledger(self) -> torch.Tensor | None:
        """With `run.ledger`: for each worker, in how many steps it was counted (int64); else None."""
        return self._attached.ledger.values if self._attached else None

    # -- training ---------------------------------------------------------------------------------------------

    def attach(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        clip_norm: float | None = None,
        push_at: PushAt | None = None,
        overlap: Overlap | None = None,
    ) -> tuple[Model, torch.optim.Optimizer]:
        """Join the run with a model: returns it as it is, and an optimizer whose `step()` all workers take together.

        `optimizer`: over parameters of `model`; it runs on the global servers if its update is elementwise, else here.
        `clip_norm`: a bound above 0 for the L2 norm of the whole gradient that a step is taken with: the mean over the
        run (with mixed over the party), or under local steps each worker's own; None: no bound. `push_at`: "backward"
        (gradients leave as they are completed, and may not be edited) or "step" (they may). `overlap`: "none" or
        "forward" (`step()` returns early, and the next forward waits for each weight as it comes to it). None: as the
        run's description says. Returns when this worker has the first worker's weights and buffers.

        In a party whose workers reduce among themselves, `model` may be wrapped in `DistributedDataParallel`, or cut by
        `torch.distributed.fsdp.fully_shard`; gradients leave in `step()`, whatever `push_at` says.

        Raises `Unsupported` for what cannot be carried, `Refused` when the workers' models or optimizers differ.
        """
        if self._attached is not None:
            raise Unsupported(
                "a run carries one model; attach several as one: torch.nn.ModuleDict({'first': ..., 'second': ...}), "
                "with one optimizer whose groups have the parameters of each"
            )
        settings = dataclasses.replace(
            self._settings,
            push_at=push_at or self._settings.push_at,
            overlap=overlap or self._settings.overlap,
        )
        context = TrainingContext(
            self._client,
            self.workers,
            self._party_members,
            self._samples,
            self._progress,
            settings,
            self._timeline,
        )
        self._attached = self._progress.attached = attach(context, model, optimizer, clip_norm)
        if self._client.place is not None:
            self._progress.go_on(self._client.place)
            self._client.port.note("rejoined", "info", step=self.step, epoch=self.epoch)
        notes.attached(self._client.port, self._attached, script_of(optimizer, clip_norm))
        self._began = self._timeline.now()
        return model, self._attached.optimizer

    def shard(
        self, loader: Iterable[Any], over: Literal["party", "run"] = "party", train: bool | None = None
    ) -> Share:
        """This worker's share of a loader: of its party's data, or of one data set that the whole run shares.

        `loader`: a DataLoader, or another iterable of batches; the first dimension of the first tensor in a batch is
        its number of samples, which is counted. The end of a pass waits for the other workers. A pass under
        `torch.no_grad()` or after `model.eval()` is an evaluation: it counts nothing, and waits for nobody; `train`
        says otherwise. On a worker that was started again, and behind `load`, the first pass begins where the run, or
        the checkpoint, was in it. Raises `Unsupported` for what is no loader.
        """
        return self._shares.of(loader, over, train)

    def weight(self, weight: float) -> None:
        """How much this worker counts in the next step, in samples, in place of those counted; not below 0.

        Call it before backward(), where gradients begin to leave.
        """
        self._samples.give(weight)

    def accumulate(self) -> AbstractContextManager[None]:
        """Within it, backward() adds to the gradients and nothing is pushed: for all micro-batches but the last."""
        return self._joined("accumulate").steps.accumulate()

    def log(self, **values: Any) -> None:
        """Show numbers (loss=..., accuracy=...), one each, in the live view and the report.

        Where there is neither, the logger `geomx` has them at level INFO.
        """
        notes.logged(self._client.port, self.turn, values)

    def wait(self) -> None:
        """Return when every weight is current; with `overlap="none"` it always is."""
        self._client.wait()

    # -- checkpoints ------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], everywhere: bool = False) -> None:
        """Write weights, buffers (floating ones as the mean over all samples) and optimizer to one safetensors file.

        Every worker must call it, between steps. The first worker writes; with `everywhere`, the first of each party
        does, and `path` is on its own machine. The file appears whole or not at all. Raises `CheckpointError` where it
        cannot be written.
        """
        helps = everywhere or self.party == self.parties[0]
        task = saving.Task(Path(path), self.name, self.is_first, self.rank == 0, everywhere, helps)
        self._progress.is_amid = False
        saving.save(self._joined("save"), task, self._progress.place)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint: weights, buffers, optimizer, and where the data and the schedules were.

        Every worker must call it, after `attach` and between steps, and have the same file. A worker that was started
        again goes on where the run is. Raises `CheckpointError` for a file that is missing, damaged, or of another
        model, with every name that does not fit.
        """
        attached = self._joined("load")
        place = saving.load(attached, Path(path), self.name, self._progress.place)
        if place is not None:
            self._progress.go_on(place)
        self._schedules.again(attached.optimizer, self._progress.place, is_its=place is not None)

    def resume(self, *schedulers: LRScheduler, every: Every = "step") -> None:
        """Bring learning-rate schedules to where the run is: on a worker that was started again, and behind `load`.

        Call it once, before the loop; where nothing is to be resumed it changes nothing.

        `schedulers`: those of `torch.optim.lr_scheduler` over this optimizer, all in one call. `every`: whether the
        script steps them with every "step" or with every "epoch", that is with each pass over `shard`. Raises
        `Unsupported` for a `ReduceLROnPlateau`, since the metrics that it has seen are gone, and for what is no
        scheduler of this optimizer.
        """
        attached = self._joined("resume")
        self._schedules.resume(schedulers, every, attached.optimizer, self._progress.place)

    # -- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the run: the others go on without this worker. The model and its weights stay usable.

        Under local steps (hfa, diloco, esync) what this worker has learned since the last mean goes into the next one
        first: workers that close behind the same step end with the same weights. With esync, where each takes steps of
        its own number, it returns when all have closed or come to the end of their data. With downpour it pushes what
        was not pushed. In a party with `inside = "collective"` all must close behind the same step.
        """
        if self._closed:
            return
        self.wait()
        if self._attached is not None:
            self._attached.steps.finish()
        self._closed = True
        if self._attached is not None:
            self._attached.unhook()
            train_s = self._timeline.now() - self._began
            notes.finished(self._client.port, self._attached, self._samples.seen, train_s)
        self._client.leave()
        if self._attached is not None:
            self._attached.intra_party.close()

    def outcome(self, error: BaseException) -> GeomxError | None:
        """What ended the run, where an error may only follow from it: of PyTorch's own collective calls in a party."""
        return cause_of(error, self._client.port, self._settings.collective)

    def fail(self, reason: str, refusal: str = "") -> None:
        """End the run for everybody: this worker cannot go on. `refusal`: see `geomx.errors.refusal_of`."""
        self._closed = True
        with contextlib.suppress(GeomxError):  # the run may have ended already, which is why we are here
            self._client.fail(reason, refusal)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            try:
                self.close()
            except BaseException as caught:
                self.fail(why_ended(caught))
                raise
            return
        told = self.outcome(error)
        self.fail(why_ended(error), refusal_of(error))
        if told is not None:
            raise told from error

    # -- helpers ------------------------------------------------------------------------------------------------

    def _joined(self, method: str) -> AttachedModel:
        if self._attached is None:
            raise Unsupported(f"run.{method}() before run.attach(model, optimizer)")
        return self._attached
