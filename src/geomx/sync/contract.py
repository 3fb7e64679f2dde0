"""When a node answers, and what a worker contributes: the contract of a sync policy.

Policies decide, they do not compute: each method returns a plan, and the node carries it out. One object serves
one node, so a policy may keep state. It sees no tensor, no socket and no clock but the `now` it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from geomx.wire.messages import Hyperparameters, Kind

SyncGroup = Literal["run", "party", "worker"]


@dataclass(frozen=True, slots=True)
class GradientStep:
    """A worker's plan for one step: its gradients go up, and what comes back is the outcome of the step."""


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A worker's plan for one step: its own optimizer takes it; then weights are averaged over `average`.

    "party": the party's workers go on from the mean of their weights. "run": how far they have moved since the last
    time goes up as a pseudo-gradient to the optimizer at the root, with hyper-parameters `outer`, and all go on from
    there.

    `fragment` (of "run"): which of how many equal parts of the model; (1, 4) is every fourth slice from the second on.
    `overlap`: so many steps later the answer is taken in, and `merge` says which share of a worker's own weights stays.
    "told": "run" where a `StepController` says so, else "nobody", and for so many steps at `least`; `wait`: for its
    word on this very step. `equal`: whoever has stepped counts the same.
    """

    average: Literal["nobody", "party", "run", "told"] = "nobody"
    outer: Hyperparameters = field(default_factory=dict)
    fragment: tuple[int, int] = (0, 1)
    overlap: int = 0
    merge: float = 0.0
    least: int = 1
    wait: bool = False
    equal: bool = False


@dataclass(frozen=True, slots=True)
class AccumulateStep:
    """A worker's plan for one step: its gradients add up, and its own weights follow them.

    `push`: the sum goes up, as one gradient. `fetch`: the worker goes on from the weights at the root.
    """

    push: bool
    fetch: bool


StepPlan = GradientStep | LocalStep | AccumulateStep


@dataclass(frozen=True, slots=True)
class Apply:
    """Close the round with what is there."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Keep the round open, for these members."""

    whom: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundView:
    """What a server's policy may look at when a contribution has come, or when a round that may matter has closed."""

    turn: int
    slice: int
    kind: Kind
    cohort: str
    origins: Set[str]  # whose contributions are in
    members: Set[str]  # whose are expected in this turn of the cohort
    closed: Mapping[str, int]  # the last turn of each other cohort here that still trains; -1: none yet


class Policy(Protocol):
    """A sync policy; see `fsa.py` for the simplest one.

    `sync_group`: who moves in step, and has its turns counted together: the whole run, each party, each worker. Calls
    that are no steps (attach, save, load) are always of the whole run. `lockstep`: nobody contributes to a turn of a
    slice before everybody has that slice's update of the turn before; two open rounds of a slice are then an error.
    `plans`: the class of what `step` plans, always the same.
    """

    sync_group: SyncGroup
    lockstep: bool
    plans: type[StepPlan]

    def step(self, step: int) -> StepPlan:
        """On a worker: what happens in a step, counted from 0."""

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        """On a server: close the slice's round, or wait for whom?"""


@runtime_checkable
class StepController(Protocol):
    """A policy that says while a round goes on how many steps workers may take in it.

    The first shard asks it. Both `stepped` and `closed` return how many steps of the round some workers may take.
    """

    def stepped(self, worker: str, turn: int, steps: int, seconds: float, now: float) -> dict[str, int]:
        """A worker has taken a step, which took it so many `seconds`; these are its `steps` for round `turn`."""

    def contributed(self, workers: Iterable[str], turn: int, now: float) -> None:
        """What these workers push in a round has come, or a slice of it."""

    def closed(self, turn: int, now: float) -> dict[str, int]:
        """A slice's round has closed."""

    def left(self, workers: Iterable[str]) -> None:
        """These workers take no part in rounds to come."""


def cohort_of(worker: str, sync_group: SyncGroup) -> str:
    """The name of the cohort in which a worker takes its steps."""
    return {"run": "", "party": worker.rpartition("/")[0], "worker": worker}[sync_group]


MOST_STEPS = 1 << 16  # that a policy is asked for


def next_run_mean(policy: Policy, start: int = 0) -> tuple[int, LocalStep] | None:
    """The first step from `start` on behind which a policy averages over the run, or may; None: it never does."""
    for step in range(start, start + (MOST_STEPS if policy.plans is LocalStep else 0)):
        plan = policy.step(step)
        if isinstance(plan, LocalStep) and plan.average in ("run", "told"):
            return step, plan
    return None


def mean_period(policy: Policy) -> int | None:
    """The steps from one mean over the run to the next; None where a policy at the root decides that, or never."""
    step, plan = next_run_mean(policy) or (0, None)
    return None if plan is None or plan.average == "told" else step + 1
