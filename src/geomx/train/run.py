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

import msgspec
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from geomx.config.compatibility.choices import Overlap, PushAt
from geomx.errors import AskedToLeave, GeomxError, Unsupported, refusal_of
from geomx.node.port import Port
from geomx.train import notes
from geomx.train.attach import AttachedModel, Attachment, attach, prepare
from geomx.train.calls.collective_client import CollectiveClient
from geomx.train.calls.collectives import Collectives
from geomx.train.calls.requests import Requests
from geomx.train.calls.run_calls import RunCalls
from geomx.train.calls.tables import Table
from geomx.train.checkpoint import save_load as saving
from geomx.train.context import TrainingContext
from geomx.train.data.loader import Share, Shares
from geomx.train.data.loss import Loss
from geomx.train.data.progress import Progress
from geomx.train.data.samples import Samples
from geomx.train.ending import cause_of, is_of_job, why_ended
from geomx.train.model.none import NoModel
from geomx.train.model.support import script_of
from geomx.train.optimizer.run_optimizer import RunOptimizer
from geomx.train.optimizer.schedules import Every, Schedules
from geomx.train.settings import Settings
from geomx.train.steps.pending import Unjoined
from geomx.train.steps.timeline import Timeline
from geomx.tree import SOLO, Tree

Model = TypeVar("Model", bound=nn.Module)


class LiveRun(RunCalls):
    """One worker's place in a run; `geomx.join()` makes it.

    `attach`, `optimizer.step()`, `save` and `load` are collective: every worker must call them, in the same order. Use
    one thread at a time. As a context manager, the run is closed at the end of the block; if the block raises, the run
    ends on every node, with that exception as the reason.

    Attributes:
        name: This worker's name: its party and its rank, such as "A/0".
        workers: The names of all workers that the run's description names, in its order; of a party that has come
            later, its own behind them. All begin with the first one's weights.
        has_left: Whether this worker has left the run in order.

    Raises:
        NodeLost: From any method: a node that the run needs has died or fallen silent.
        RunFailed: From any method: another node has failed, and the run has ended.
        Unsupported: From any method that needs the run, after `close`.
    """

    def __init__(
        self,
        port: Port,
        *,
        name: str,
        tree: Tree,
        settings: Settings | None = None,
        clock: Callable[[], float] = time.monotonic,
        party: Sequence[str] = (),
    ) -> None:
        """`name`: which of the tree's workers this is. `clock`: seconds, for the trace.

        `party`: the workers of its party, where the tree has places for more.
        """
        self.name = name
        self._tree, self._party_members = tree, tuple(party) or tree.party_members(name)
        self.workers = tuple(
            each for each in tree.workers if each not in tree.guests or each in self._party_members
        )
        self._settings = settings or Settings()
        self._samples = Samples(self._settings, len(self.workers), len(self._party_members))
        self._loss = Loss(self._settings, name)
        self._client = CollectiveClient(port, name)
        self._timeline = Timeline(port, clock, self._settings.after_step)
        self._began = 0.0
        self._attached: AttachedModel | None = None
        self._attachments: list[Attachment] = []  # models with names, which join together
        self._unjoined = Unjoined(self._join)
        self._progress = Progress(self._samples, self._loss, self._timeline)
        self._schedules = Schedules()
        self._shares = Shares(name, tree, self._settings.seed, self._progress, self._party_members)
        self._asked: Requests | None = None
        self._tables: list[Table] = []
        self._closed = self.has_left = False
        self._progress.followed, self._progress.joins = self._schedules.follow, self._join
        if self.may_leave_early:
            self._progress.between = self._leave_if_asked

    # -- where we are -----------------------------------------------------------------------------------------

    @property
    def party(self) -> str:
        """The name of this worker's party, such as "A"."""
        return self._tree.cohort_at(self.name, 1) or SOLO

    @property
    def policy(self) -> str:
        """The name of the sync policy, without its parameters, such as "fsa"."""
        return self._settings.policy_spec.split(maxsplit=1)[0]

    @property
    def codecs_up(self) -> dict[str, str]:
        """What contributions travel as, by the key that says so, such as "wan.codec_up"."""
        return {codec.key: codec.spec for codec in self._settings.codecs_up}

    @property
    def parties(self) -> tuple[str, ...]:
        """The names of all parties, in the order of the description."""
        return tuple(dict.fromkeys(self._tree.cohort_at(name, 1) or SOLO for name in self.workers))

    @property
    def rank(self) -> int:
        """This worker's rank in its party, from 0."""
        return self._party_members.index(self.name)

    @property
    def is_first(self) -> bool:
        """Whether this is the first worker of all, whose weights all begin with.

        It writes the checkpoints, unless it is away (`run.on_loss`).
        """
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
        """How many collective calls (attach, steps, saves, ...) have been made by the workers in step with this one."""
        return self._attached.steps.turn if self._attached else self._client.turn

    @property
    def epoch(self) -> int:
        """The number of finished training passes over `shard`, including those before a checkpoint or a restart."""
        return self._progress.epoch

    @property
    def step(self) -> int:
        """The number of steps: `optimizer.step()` calls, including those before a checkpoint or a restart.

        Where gradients are averaged, also those that others have taken when this worker had no data left in a pass.
        """
        return self._progress.steps

    @property
    def ledger(self) -> torch.Tensor | None:
        """How many steps each worker was counted in, int64 of shape (workers,); None without `run.ledger`."""
        return self._attached.ledger.values if self._attached else None

    # -- training ---------------------------------------------------------------------------------------------

    def attach(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        clip_norm: float | None = None,
        push_at: PushAt | None = None,
        overlap: Overlap | None = None,
        name: str = "",
    ) -> tuple[Model, torch.optim.Optimizer]:
        """Train this model together with all other workers.

        Returns when the model has the first worker's weights and buffers. Models with a `name` have them as soon as one
        of these weights is read, or the run is used: they join it together then.

        Args:
            model: The module to train, on its device. In a party with `inside = "collective"` it may be wrapped in
                `DistributedDataParallel` or sharded by `torch.distributed.fsdp.fully_shard`.
            optimizer: A PyTorch optimizer over parameters of `model`. Where it runs, `optimizer.place` in the
                description decides: an elementwise one (SGD, Adam, ...) usually on the global servers, others on the
                workers.
            clip_norm: Clip to this L2 norm, above 0. It bounds the mean gradient that a step uses: of the run, or of
                one party with `mixed`. With local steps and `downpour` it bounds each worker's own gradient. None: do
                not clip.
            push_at: "backward" sends each gradient as soon as it is complete; do not edit `.grad` then. "step" sends
                all in `step()`, and you may edit them before. None: `worker.push_at` of the description. Gradients of
                parties with `inside = "collective"` always leave in `step()`.
            overlap: With "forward", `step()` returns at once and the next forward waits for each weight when it needs
                it; with "none", `step()` waits. None: `worker.overlap` of the description.
            name: The model's, where the run has several, each with an optimizer of its own: call `attach` for each of
                them, before any is used. Their steps may come in any order, the same on all workers; their gradients
                leave in `step()`.

        Returns:
            The same `model`, and the optimizer to use from now on. Schedulers made before or after `attach` both work.

        Raises:
            Unsupported: geomx cannot train this model with this optimizer and description; the message says what
                would work.
            Refused: The models or optimizers of the workers differ.
            GradientEdited: Later, from `step()`: a gradient was changed after it had left.
            WeightUnknown: Later, from `backward()` or `step()`: no samples were counted for the step.
            LossUnknown: Later, from `backward()` or `step()`: see `loss`.
        """
        self._check_name(name, push_at)
        push_at = "step" if name else push_at or self._settings.push_at
        settings = dataclasses.replace(
            self._settings, push_at=push_at, overlap=overlap or self._settings.overlap
        )
        self._unjoined.show()
        attachment = prepare(self._context(settings), model, optimizer, clip_norm, name, self._join)
        self._attachments.append(attachment)
        if name:
            for each in self._attachments:
                self._unjoined.hide(each.model)
        else:
            try:
                self._join()
            except BaseException:
                self._attachments.clear()
                raise
        return model, attachment.wrapped

    def _check_name(self, name: str, push_at: PushAt | None) -> None:
        if self._attached is not None and isinstance(self._attachments[0].model, NoModel):
            raise Unsupported(
                "run.attach() behind a collective call or a table, with which a run begins that has no model: attach "
                "first, and set run.calls = true in the description"
            )
        if self._attached is not None:
            raise Unsupported(
                "the run has its model, or its models have been used: give several a name each, as in "
                'run.attach(critic, optimizer, name="critic"), and attach all of them before you read a weight of one '
                "or begin with the data"
            )
        names = [each.name for each in self._attachments]
        if name in names or (name and not name.isidentifier()) or (names and not name):
            raise Unsupported(
                f"run.attach(..., name={name!r}) beside {names}: a name is a word, and each model has its own"
            )
        if name and push_at == "backward":
            raise Unsupported(
                'push_at="backward" with several models, where a backward() makes gradients of models that do not '
                'step: leave it "step"'
            )

    def _context(self, settings: Settings) -> TrainingContext:
        return TrainingContext(
            self._client, self._tree, self._samples, self._loss, self._progress, settings, self._timeline
        )

    def _join(self) -> None:
        """What was attached joins the run, if it has not."""
        if self._attached is not None or not self._attachments:
            return
        self._unjoined.show()
        first = self._attachments[0]
        self._attached = self._progress.attached = attach(self._context(first.settings), self._attachments)
        self._client.moved = self._moved
        if self._client.place is not None:
            self._progress.go_on(self._client.place)
            self._client.port.note("rejoined", "info", step=self.step, epoch=self.epoch)
            self._progress.left_out(self._client.unread)
        scripts = [script_of(each.optimizer, each.clip_norm, each.model) for each in self._attachments]
        notes.attached(self._client.port, self._attached, scripts)
        self._began = self._timeline.now()

    def shard(
        self,
        loader: Iterable[Any],
        over: Literal["party", "run"] = "party",
        train: bool | None = None,
        even: bool = False,
    ) -> Share:
        """Iterate over this worker's share of the data; its samples are counted as this worker's weight.

        A training pass ends on all workers together: one whose share is shorter takes part with weight 0 until then.
        Passes under `torch.no_grad()` or after `model.eval()` are evaluations: they count nothing and wait for nobody.
        After `load`, or on a worker that was started again, the first pass resumes where the run was.

        Args:
            loader: A `DataLoader`, or another iterable of batches. The first dimension of a batch's first tensor is its
                number of samples.
            over: "party" if each party has its own data, "run" if all parties read the same data set.
            train: Whether passes train or evaluate; None: as described above.
            even: Every worker of those who share gets equally many batches; what does not make one for each is left
                out.

        Returns:
            An iterable of batches. Each iteration over it is one pass, and its `len()` is the number of this worker's
            batches.

        Raises:
            Unsupported: `loader` is not an iterable of batches, or `over` is neither of the two.
        """
        return self._shares.of(loader, over, train, even)

    def skip_to(self, epoch: int, batches: int, steps: int) -> None:
        """Go on from a place that another library's checkpoint tells, as `load` does from its own.

        Every worker must call it, with the same, after `attach` and before the first pass.

        Args:
            epoch: How many passes have ended.
            batches: How many batches of the next one are done, of each worker.
            steps: How many steps have been taken.
        """
        if self._client.place is None:  # one that was started again while the run lasted knows better
            there = msgspec.structs.replace(
                self._progress.place, epoch=epoch, batches=(batches,), steps=steps
            )
            self._progress.go_on(there)

    def weight(self, weight: float) -> None:
        """Set this worker's weight in the next step, in place of the samples that `shard` counts.

        Call it before `backward()`, where gradients begin to leave. Calls within `accumulate` add up, and what is set
        outside of it is added to them; of several calls outside, the last counts.

        Args:
            weight: Usually the number of samples behind the gradient; 0 leaves this worker out of the mean.

        Raises:
            Unsupported: `weight` is negative or not finite.
        """
        self._samples.give(weight)

    def loss(self, value: Any) -> None:
        """Tell the loss of the next step, for a channel that adapts to it (`dgt`); others do without.

        Call it in every step before `backward()`, or with `push_at="step"` or local steps before `step()`; the last
        call counts. A CUDA tensor is read when a contribution leaves: that waits for the GPU, as gradients do, too.

        Args:
            value: A number, or a tensor with one element. NaN and Inf are allowed: the channel passes over them.

        Raises:
            Unsupported: `value` is something else.
        """
        self._loss.give(value)

    def accumulate(self) -> AbstractContextManager[None]:
        """Accumulate gradients: inside this block `backward()` adds to them, and nothing leaves.

        Use it for all micro-batches of a step but the last.
        """
        return self._joined("accumulate").steps.accumulate()

    def log(self, **values: Any) -> None:
        """Show values such as `loss=...` in the live view and the report, and log them to `geomx` at level INFO.

        Args:
            values: Numbers, text, or tensors and arrays with one element.

        Raises:
            Unsupported: A value is something else.
        """
        notes.logged(self._client.port, self.turn, values)

    # -- collective calls, see `RunCalls` ---------------------------------------------------------------------

    def _without_model(self) -> AttachedModel:
        """Where nothing is to be trained, that is attached."""
        if self._attached is None and not self._attachments:
            nothing, settings = NoModel(), dataclasses.replace(self._settings, calls=True)
            context = self._context(settings)
            self._attachments.append(prepare(context, nothing, nothing.optimizer(), None, "", self._join))
            self._client.port.note("no_model", "debug")
        return self._joined("reduce")

    def _requests(self) -> Requests:
        self._without_model()
        if self._asked is None:
            self._asked = Requests(
                self._client, self._tree.shards, self._tree.holders, self._settings.on_loss == "continue"
            )
        return self._asked

    def _parties(self) -> Sequence[str]:
        return self.parties

    def _party(self) -> str:
        return self.party

    def _is_first(self) -> bool:
        return self.is_first

    def has_table(self, name: str) -> bool:
        return any(table.name == name for table in self._tables)

    def _opened(self, table: Table) -> Table:
        self._tables.append(table)
        return table

    def _calls(self) -> Collectives:
        attached = self._without_model()
        if attached.calls is None:
            raise Unsupported(
                "collective calls in a run that trains a model: set run.calls = true in the description"
            )
        return attached.calls

    def _source(self) -> str:
        return self._tree.workers[0]

    def wait(self) -> None:
        """Wait until all weights are up to date. Only needed with `overlap="forward"`."""
        self._client.wait()

    # -- checkpoints ------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], everywhere: bool = False) -> None:
        """Write a checkpoint: weights, buffers, the optimizer's state, and the progress in data and schedules.

        Every worker must call it, between steps. Floating-point buffers, such as BatchNorm's statistics, are saved as
        their mean over all workers, weighted by samples. An interrupted save leaves no partial file.

        Args:
            path: The safetensors file to write, on the first worker's machine; where that is away (`run.on_loss`), on
                the next one's.
            everywhere: The first worker of each party writes `path` on its own machine, too. Not with policies whose
                parties have different weights (`mixed`, `downpour`).

        Raises:
            CheckpointError: The file cannot be written.
            Unsupported: A step has begun and not ended, or `everywhere` with such a policy.
        """
        task = saving.Task(Path(path), self.name, self._tree, everywhere)
        attached, self._progress.is_amid = self._joined("save"), False
        # It may have been cut off while the others saved.
        if self._progress.catches_up or not saving.save(attached, task, self._progress.place):
            self._client.port.note("unsaved", "warning", path=str(path))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint: weights, buffers, optimizer, and the progress in data and schedules.

        Every worker must call it, after `attach` and between steps. A worker that was started again while the run
        lasted (`run.on_loss`) keeps the run's weights and progress, which are newer than the file's.

        Args:
            path: The file that `save` wrote; each worker reads it, and all must have the same one.

        Raises:
            CheckpointError: The file is missing or damaged, or of another model or optimizer; the message lists every
                name that does not fit.
        """
        attached = self._joined("load")
        place = saving.load(attached, Path(path), self.name, self._tree, self._progress)
        if place is not None:
            self._progress.go_on(place)
        if isinstance(attached.optimizer, RunOptimizer):
            self._schedules.again(attached.optimizer, self._progress.place, is_its=place is not None)

    def _moved(self) -> None:
        """The run has gone on without this worker: its steps and schedules follow."""
        attached, data = self._joined("step"), self._client.data
        missed = max(0, attached.steps.moved())
        if data.is_known:
            missed = max(0, data.reading.steps - self._progress.steps)
        self._progress.steps += missed
        self._progress.catches_up = self._progress.is_behind
        if isinstance(attached.optimizer, RunOptimizer):
            self._schedules.ahead(attached.optimizer, missed)

    def resume(self, *schedulers: LRScheduler, every: Every = "step") -> None:
        """Bring learning-rate schedules to the run's progress, after `load` or when this worker was started again.

        Call it once, before the loop. In a new run it changes nothing.

        Args:
            schedulers: All schedulers of this optimizer, from `torch.optim.lr_scheduler`.
            every: Whether your script steps them in every "step", or once an "epoch" (a pass over `shard`).

        Raises:
            Unsupported: One is not a scheduler of this optimizer, or a `ReduceLROnPlateau`, which depends on metrics
                that are gone: save and load its `state_dict()` yourself.
        """
        attached = self._joined("resume")
        if not isinstance(attached.optimizer, RunOptimizer):
            raise Unsupported(
                "run.resume() counts the steps of one optimizer; with several models, save and load the state_dict() "
                "of their schedules yourself"
            )
        self._schedules.resume(schedulers, every, attached.optimizer, self._progress.place)

    # -- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the run; the others continue. The model keeps its weights and stays usable.

        A script that ends in order closes its run by itself: call this to leave early, or to evaluate the final model.

        With `hfa`, `diloco` and `esync` the weights are averaged once more: workers that close behind the same step end
        with the same model. With `esync`, it waits until all have closed or reached the end of their data. With
        `downpour`, it pushes the gradients that have not left yet. With `inside = "collective"` all workers of a party
        must close behind the same step.
        """
        if self._closed:
            return
        self._join()
        self.wait()
        if self._attached is not None:
            with contextlib.suppress(AskedToLeave):  # while it waited for others: it has left
                if self._attached.calls is not None:
                    self._attached.calls.flush()
                for table in self._tables:
                    table.flush()
                self._attached.steps.finish()
                self.wait()  # the ledger's answers, too
        if not self._closed:
            self._leave()

    def _leave(self, early: bool = False) -> None:
        self._closed = True
        if self._attached is not None:
            self._attached.unhook()
            train_s = self._timeline.now() - self._began
            requests = 0 if self._asked is None else self._asked.made
            notes.finished(self._client.port, self._attached, self._samples.seen, train_s, requests)
        self._client.leave(early)
        self.has_left = True
        if self._attached is not None:
            self._attached.intra_party.close()

    @property
    def may_leave_early(self) -> bool:
        """Whether this worker can be asked to leave: the run goes on without it, and so does its party."""
        return self._settings.on_loss == "continue" and self._settings.collective is None

    def ask_to_leave(self) -> None:
        """Leave behind the step that is under way, or before the next batch, where `AskedToLeave` is raised.

        Any thread may call it, and a signal's handler. It changes nothing where `may_leave_early` is false.
        """
        self._client.asked = True

    def _leave_if_asked(self) -> None:
        if self._client.asked and not self._closed:
            self.wait()
            self._joined("step").steps.hand_over()
            self._leave(early=True)
            raise AskedToLeave

    def outcome(self, error: BaseException) -> GeomxError | None:
        """What ended the run, where an error may only follow from it: of PyTorch's own collective calls in a party."""
        return cause_of(error, self._client.port, self._settings.collective)

    def end_with(self, error: BaseException) -> None:
        """The script has raised: end the run for everybody, or this worker's part in it.

        Where the run goes on without whoever is lost, it does so without a party whose job has broken.
        """
        settings = self._settings
        if settings.collective is None or settings.on_loss != "continue" or not is_of_job(error):
            self.fail(why_ended(error), refusal_of(error))
            return
        self._closed = True
        with contextlib.suppress(GeomxError):
            self._client.give_up(why_ended(error))

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
                self.end_with(caught)
                raise
            return
        told = self.outcome(error)
        self.end_with(error)
        if told is not None:
            raise told from error

    # -- helpers ------------------------------------------------------------------------------------------------

    def _joined(self, method: str) -> AttachedModel:
        self._join()
        if self._attached is None:
            raise Unsupported(f"run.{method}() before run.attach(model, optimizer)")
        return self._attached
