"""`run.resume`: learning-rate schedules where the run is, on a script that begins at its beginning.

A schedule of torch is a function of how often it was stepped, but most compute a rate from the one before. So it begins
anew, as its constructor has it begin, and takes all its steps again: that gives the bits of a run that never stopped.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, SequentialLR

from geomx.errors import Unsupported
from geomx.optim.hyper import as_plain
from geomx.train.optimizer.run_optimizer import RunOptimizer
from geomx.wire.messages import Place

Every = Literal["step", "epoch"]
_logger = logging.getLogger("geomx")


class Schedules:
    """The schedules that a script has named, which a later `run.load` brings to the checkpoint's place as well."""

    def __init__(self) -> None:
        self._named: tuple[LRScheduler, ...] = ()
        self._every: Every = "step"
        self._loaded: list[Any] | None = None  # the rates that a checkpoint has brought

    def resume(self, named: Sequence[object], every: Every, optimizer: RunOptimizer, place: Place) -> None:
        """Bring them to `place`. Raises `Unsupported`."""
        if every not in ("step", "epoch"):
            raise Unsupported(
                f'run.resume(..., every={every!r}): use "step" or "epoch", as the script calls scheduler.step()'
            )
        checked = tuple(_checked(schedule, optimizer) for schedule in named)
        if not checked:
            raise Unsupported("run.resume() takes the script's schedules: run.resume(scheduler)")
        if self._named and {id(each) for each in self._named} != {id(each) for each in checked}:
            raise Unsupported(
                "a second run.resume() with other schedules; pass all in one call, run.resume(first, second)"
            )
        self._named, self._every = checked, every
        if any(_count(schedule) != self._steps_at(place) for schedule in checked):
            self._bring(optimizer, place)
        self._count_steps(place)

    def again(self, optimizer: RunOptimizer, place: Place, is_its: bool) -> None:
        """A checkpoint has brought its learning rates: bring those that have been named to `place`.

        `is_its`: whether that is the checkpoint's, so that the rates should be the same.
        """
        self._loaded = _rates(optimizer) if is_its else None
        if self._named:
            self._bring(optimizer, place)
            self._count_steps(place)

    def ahead(self, optimizer: RunOptimizer, steps: int) -> None:
        """The others have taken so many steps without this worker: take those of the named schedules as well."""
        if steps > 0 and self._named and self._every == "step":
            self._replay(optimizer, _count(self._named[0]) + steps)

    def follow(self) -> None:
        """Others have taken one more step than this worker: take that of the named schedules as well."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of steps that no optimizer takes
            for schedule in self._named if self._every == "step" else ():
                schedule.step()

    def _count_steps(self, place: Place) -> None:
        """Torch warns of schedules that step before their optimizer has: it has, in another process."""
        if place.steps:
            for schedule in self._named:
                schedule.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _steps_at(self, place: Place) -> int:
        return place.steps if self._every == "step" else place.epoch

    def _bring(self, optimizer: RunOptimizer, place: Place) -> None:
        steps = self._steps_at(place)
        loaded, self._loaded = self._loaded, None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of steps that no optimizer takes
                before, now = self._replay(optimizer, steps)
        except ValueError as error:  # OneCycleLR has an end
            raise Unsupported(f"{self._told(steps)} is not possible: {error}") from error
        if loaded is not None and loaded not in (before, now):
            _logger.warning(
                "%s has the learning rate %s, the checkpoint had %s: it is another schedule, or not stepped every %s",
                self._told(steps),
                now,
                loaded,
                self._every,
            )

    def _replay(self, optimizer: RunOptimizer, steps: int) -> tuple[list[Any], list[Any]]:
        """Take all steps again; returns the rates before the last one and behind it."""
        for group, rate in zip(optimizer.param_groups, _first_of(self._named[0]).base_lrs, strict=True):
            _set_rate(group, rate)
        for schedule in self._named:
            _begin(schedule)
        before = _rates(optimizer)
        for left in reversed(range(steps)):
            if not left:
                before = _rates(optimizer)
            for schedule in self._named:
                schedule.step()
        return before, _rates(optimizer)

    def _told(self, steps: int) -> str:
        names = ", ".join(type(schedule).__name__ for schedule in self._named)
        return f'{names} after {steps} steps (run.resume(..., every="{self._every}"))'


def _checked(schedule: object, optimizer: RunOptimizer) -> LRScheduler:
    """A schedule that is a function of its steps, and of this optimizer. Raises `Unsupported`."""
    if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
        raise Unsupported(
            "run.resume() cannot resume a ReduceLROnPlateau: it depends on metrics that are gone. To continue from a "
            "checkpoint, save and load its state_dict() yourself; a worker that is restarted during the run "
            "(run.on_loss) needs a schedule that depends on steps alone"
        )
    if not isinstance(schedule, LRScheduler):
        raise Unsupported(
            f"run.resume() takes schedules of torch.optim.lr_scheduler; found a {type(schedule).__name__}: bring it to "
            "run.step or run.epoch yourself"
        )
    of = getattr(schedule, "optimizer", None)
    if not isinstance(of, torch.optim.Optimizer) or of.param_groups is not optimizer.param_groups:
        raise Unsupported(
            f"run.resume({type(schedule).__name__}): it belongs to another optimizer; make it with the one that "
            "attach() returned or was given"
        )
    for inner in getattr(schedule, "_schedulers", ()):
        _checked(inner, optimizer)
    return schedule


def _first_of(schedule: LRScheduler) -> LRScheduler:
    """The schedule itself, or the first of those in it that has no others."""
    inner = getattr(schedule, "_schedulers", None)
    return _first_of(inner[0]) if inner else schedule


def _count(schedule: LRScheduler) -> int:
    """How often it was stepped."""
    return schedule.last_epoch if isinstance(schedule, SequentialLR) else _first_of(schedule).last_epoch


def _begin(schedule: LRScheduler) -> None:
    """As its constructor leaves it, given the first learning rate."""
    inner = getattr(schedule, "_schedulers", None)
    if inner:
        for each in inner:
            _begin(each)
        if isinstance(schedule, SequentialLR):
            SequentialLR.__init__(schedule, schedule.optimizer, inner, schedule._milestones)
        elif isinstance(schedule, ChainedScheduler):
            ChainedScheduler.__init__(schedule, inner, schedule.optimizer)
        return
    schedule.last_epoch = -1
    schedule._initial_step()


def _rates(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [as_plain(group["lr"]) for group in optimizer.param_groups]


def _set_rate(group: dict[str, Any], rate: Any) -> None:
    group.setdefault("initial_lr", rate)
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(as_plain(rate))
    else:
        group["lr"] = rate
