"""ESync: fast workers take more local steps while the slowest computes (Li et al., IEEE Trans. Serv. Comput., 2020).

    each step                w_i ← worker i's own optimizer
    each synchronisation     Δ = mean_i (w_start − w_i);   w ← w_start − lr · Δ;   w_i ← w for all

`lr` is 1, and all workers that have stepped count the same, as in the paper; with `equal=false` they count as
`sync.weight` says. A worker tells the first shard of every step; the shard answers how many steps it may take until
the slowest will be there, so that none waits long and none is waited for:

    there_j = when worker j took its last step, or began + what it lacks of `least` steps · step_j + reach_j
    steps_i = steps that worker i has taken + ⌊(max_j there_j − its last step − reach_i) / step_i + slack⌋

step_j: how long one of its steps takes, by its own clock: the median of its last three, so that an evaluation between
two of them makes no slow worker of it. reach_j: from the news of its last step to its contribution,
codecs and transmission included. All points in time are the shard's own: no clock is compared with another one.
`slack`: by what share of a step a worker may be late. At least `least` and at most `most` steps lie between two
synchronisations; before all workers have been timed, `least`.

A worker goes on with what it was told last, and knows at the beginning of a round how many steps it has; with
`wait=true` it waits for the answer behind every step, as in the paper's blocking mode. A worker that has gone silent
makes the others late by the round alone: they stop when it should have been there, and wait as in any round.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from geomx.errors import ConfigError, Fault
from geomx.sync.contract import Apply, LocalStep, RoundView, StepPlan, Wait
from geomx.sync.fsa import when_complete
from geomx.sync.hfa import AVERAGE
from geomx.tree import SyncGroup

SHORTEST_S = 1e-6  # below, a step counts as long
TIMED = 3  # of its last steps, for how long a worker's steps take


@dataclass(slots=True)
class _WorkerTiming:
    """What the shard knows of a worker. Points in time are the shard's, in seconds."""

    last_s: deque[float]  # how long its last steps took
    begin_s: float = 0.0  # from the beginning of a round here until this worker computes
    reach_s: float = 0.0
    reaching_s: float = 0.0  # the same of the round whose slices are coming in
    steps: int = 0  # of this round
    stepped: float = 0.0  # when the news of its last step came
    arrived: float | None = None  # when its contribution to this round did, or a slice of it
    round: int = -1  # of its last step
    told: int = 1  # how many steps of this round it may take

    @property
    def step_s(self) -> float:
        return statistics.median(self.last_s)


class ESync:
    """ESync: all exchange when the slowest worker is ready, and the others take more local steps until then.

    Args:
        wait: Ask after every step how many may follow, the paper's blocking mode.
        least: The smallest number of steps between two exchanges, 1 or more.
        most: The largest number of steps between two exchanges, `least` or more.
        slack: By what share of one of its steps a worker may be late, from 0 to below 1.
        lr: Learning rate of the outer step, above 0; 1 takes the mean.
        equal: All workers count the same, as in the paper; else as `sync.weight` says.

    Raises:
        ConfigError: A parameter is out of range.
    """

    sync_group: SyncGroup = "run"
    lockstep = True
    plans: type[StepPlan] = LocalStep

    def __init__(
        self,
        *,
        wait: bool = False,
        least: int = 1,
        most: int = 100,
        slack: float = 0.1,
        lr: float = 1.0,
        equal: bool = True,
    ) -> None:
        faults = []
        if least < 1:
            faults.append(Fault("least", f"{least}", "1 or more"))
        if most < least:
            faults.append(Fault("most", f"{most}", f"least={least} or more"))
        if not 0.0 <= slack < 1.0:
            faults.append(Fault("slack", f"{slack}", "a share from 0, below 1"))
        if not lr > 0.0:
            faults.append(Fault("lr", f"{lr}", "a number above 0"))
        if faults:
            raise ConfigError("policy esync", faults)
        self._plan = LocalStep("told", {**AVERAGE, "lr": lr}, least=least, most=most, wait=wait, equal=equal)
        self._least, self._most, self._slack = least, most, slack
        self._round, self._began = -1, 0.0
        self._timings: dict[str, _WorkerTiming] = {}

    def step(self, step: int) -> LocalStep:
        return self._plan

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        return when_complete(view)

    # -- on the first shard -----------------------------------------------------------------------------------

    def stepped(self, worker: str, turn: int, steps: int, seconds: float, now: float) -> dict[str, int]:
        if turn < self._round:  # it has come back, and takes part in a round that has closed
            return {worker: steps}
        if turn > self._round:
            self._begin(turn, now)
        timing = self._timings.setdefault(worker, _WorkerTiming(deque(maxlen=TIMED)))
        timing.last_s.append(seconds)
        if steps == 1:  # everything of the last round has arrived
            timing.begin_s = max(0.0, now - seconds - self._began)
            timing.reach_s = timing.reaching_s
        timing.round, timing.steps, timing.stepped = turn, steps, now
        changed = self._told()
        return changed | {worker: timing.told}

    def contributed(self, workers: Iterable[str], turn: int, now: float) -> None:
        timings = [self._timings[worker] for worker in workers if worker in self._timings]
        stepped = [timing.stepped for timing in timings if timing.round == turn]
        for timing in timings:
            if stepped:
                timing.reaching_s = now - max(stepped)
            if turn == self._round:
                timing.arrived = now

    def closed(self, turn: int, now: float) -> dict[str, int]:
        if turn < self._round:
            return {}
        self._begin(turn + 1, now)
        return self._told()

    def left(self, workers: Iterable[str]) -> None:
        for worker in workers:
            self._timings.pop(worker, None)

    def _begin(self, turn: int, now: float) -> None:
        self._round, self._began = turn, now
        for timing in self._timings.values():
            timing.steps, timing.arrived, timing.told = 0, None, self._least

    def _told(self) -> dict[str, int]:
        """How many steps everybody may take in this round, of those for whom that has changed."""
        changed: dict[str, int] = {}
        last = max((self._there(timing) for timing in self._timings.values()), default=0.0)
        for worker, timing in self._timings.items():
            room = (last - self._ready(timing) - timing.reach_s) / max(
                timing.step_s, SHORTEST_S
            ) + self._slack
            steps = max(self._least, timing.steps, min(timing.steps + math.floor(room), self._most))
            if steps != timing.told:
                changed[worker] = timing.told = steps
        return changed

    def _ready(self, timing: _WorkerTiming) -> float:
        """When a worker could begin its next step."""
        return timing.stepped if timing.steps else self._began + timing.begin_s

    def _there(self, timing: _WorkerTiming) -> float:
        """When a worker's contribution could be here at the earliest."""
        if timing.arrived is not None and not timing.steps:  # it has no data left
            return timing.arrived
        return self._ready(timing) + max(0, self._least - timing.steps) * timing.step_s + timing.reach_s
