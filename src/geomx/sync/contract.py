"""When a server answers, and what a worker contributes: the contract of a sync policy.

Policies decide, they do not compute: each method returns a plan, and the node carries it out. One object serves one
node, so a policy may keep state. It sees no tensor, no socket, and no clock but the `now` it is given.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from geomx.tree import SyncGroup
from geomx.wire.messages import Hyperparameters, Kind


@dataclass(frozen=True, slots=True)
class GradientStep:
    """A worker's plan for one step: push its gradients, and continue from the weights that come back."""


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A worker's plan for one step: step with its own optimizer, then average weights.

    Attributes:
        average: Whose weights are averaged after this step: "nobody"'s, the "party"'s or the "run"'s. With "run", each
            worker pushes how far it has moved since the last time, as a pseudo-gradient; the outer optimizer at the
            root, SGD, steps along their mean, and all workers continue from there. "told": a `StepController` decides
            while the round goes on.
        tier: Whose with "party": 1 is the party, 2 the region that it is in, and so on. Where that spans more tiers,
            since another branch is deeper, it is the next smaller one.
        outer: Hyper-parameters of the outer optimizer. With "run" and "told".
        fragment: Which of how many equal parts of the model is averaged; (1, 4) is every fourth slice from the second
            on. With "run".
        overlap: The answer is taken in so many steps later. With "run".
        merge: The share of its own weights, from 0 to below 1, that a worker keeps when it takes a late answer in.
        least: The smallest number of steps between two averages. With "told".
        wait: Wait after every step to hear whether to average; else continue with what was heard last. With "told".
        equal: All workers that have stepped count the same, whatever `sync.weight` says. With "told".
        most: The largest number of steps between two averages; 0: that is not known. With "told".
    """

    average: Literal["nobody", "party", "run", "told"] = "nobody"
    outer: Hyperparameters = field(default_factory=dict)
    fragment: tuple[int, int] = (0, 1)
    overlap: int = 0
    merge: float = 0.0
    least: int = 1
    wait: bool = False
    equal: bool = False
    tier: int = 1
    most: int = 0


@dataclass(frozen=True, slots=True)
class AccumulateStep:
    """A worker's plan for one step: add its gradients to a sum, and step along them (SGD, with the group's rate).

    Attributes:
        push: Push the sum, as one gradient, and begin a new one.
        fetch: Continue from the weights at the root.
    """

    push: bool
    fetch: bool


StepPlan = GradientStep | LocalStep | AccumulateStep


@dataclass(frozen=True, slots=True)
class Apply:
    """A server's plan: close the round with the contributions that are there."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A server's plan: keep the round open.

    Attributes:
        whom: For whom it waits: workers, or cohorts that are behind. It is told when it takes long.
        until: The policy is asked again at this time, on the clock of `gathered`'s `now`, if nothing has closed the
            round before; None: only when something happens.
    """

    whom: tuple[str, ...]
    until: float | None = None


@dataclass(frozen=True, slots=True)
class RoundView:
    """What a policy sees of one slice's round on a server.

    Attributes:
        turn: The number of this collective call in its cohort, from 0.
        slice: The index of the slice.
        kind: What is contributed: "gradient" in a step; in other calls something else, and then all must be awaited.
        cohort: The name of the cohort, see `Policy.sync_group`; "" is the whole run.
        origins: The workers whose contributions are in.
        members: The workers that are expected in this turn.
        opened: When the first contribution came, on the clock of `gathered`'s `now`, in seconds.
        closed: For each other cohort on this server that still trains, its last closed turn; -1: none yet. Empty for
            a policy with `lockstep`.
    """

    turn: int
    slice: int
    kind: Kind
    cohort: str
    origins: Set[str]
    members: Set[str]
    opened: float
    closed: Mapping[str, int]


class Policy(Protocol):
    """A sync policy; `fsa.py` is the simplest one.

    Keyword-only arguments of the class are its parameters in a description; an `__init__` that refuses one raises
    `ConfigError`.

    Attributes:
        sync_group: Who moves in step, and so forms a cohort: the whole "run", each "party", or each "worker". Calls
            that are not steps (attach, save, load) are always the whole run's.
        lockstep: True if nobody contributes to a slice before everybody has its last update. Two open rounds of one
            slice are then an error.
        plans: The class of every plan that `step` returns.
    """

    sync_group: SyncGroup
    lockstep: bool
    plans: type[StepPlan]

    def step(self, step: int) -> StepPlan:
        """Plan a worker's step. Asked on every worker; the answer must depend on `step` alone.

        Args:
            step: The number of the step, from 0. Turns in which this worker takes part without data count as well.

        Returns:
            An object of the class `plans`.
        """

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        """Decide whether a slice's round closes. Asked on every server.

        It is asked when a contribution arrives, a worker leaves, a round that may matter closes, or the time has come
        until which it wanted to wait.

        Args:
            view: The round as it stands.
            now: The server's clock, in seconds.

        Returns:
            `Apply()` to close the round, or `Wait(whom, until)`, with `whom` in a fixed order.
        """


@runtime_checkable
class StepController(Protocol):
    """A policy that decides during a round how many local steps each worker may take in it; `esync.py` is one.

    The first shard asks it. `stepped` and `closed` return, by worker, how many steps of the round it may take; only
    workers for whom that has changed need to be named.
    """

    def stepped(self, worker: str, turn: int, steps: int, seconds: float, now: float) -> dict[str, int]:
        """A worker has taken its `steps`-th step of round `turn`, which took `seconds` by its own clock."""

    def contributed(self, workers: Iterable[str], turn: int, now: float) -> None:
        """A slice of what these workers push in round `turn` has arrived."""

    def closed(self, turn: int, now: float) -> dict[str, int]:
        """Round `turn` of a slice has closed."""

    def left(self, workers: Iterable[str]) -> None:
        """These workers have left, and take no part in later rounds."""


MOST_STEPS = 1 << 20  # that a policy is asked for
MOST_TURNS_AHEAD = 8  # for which it is asked
MOST_STEPS_AHEAD = 1 << 13  # for which it is asked while the run goes on: some 10 ms


def next_run_mean(
    policy: Policy, start: int = 0, most_steps: int = MOST_STEPS
) -> tuple[int, LocalStep] | None:
    """The first step from `start` on after which a policy averages over the run, or may.

    None where it does not within so many steps.
    """
    for step in range(start, start + (most_steps if policy.plans is LocalStep else 0)):
        plan = policy.step(step)
        if isinstance(plan, LocalStep) and plan.average in ("run", "told"):
            return step, plan
    return None


def has_own_means(policy: Policy) -> bool:
    """Whether parties or regions have means of their own, between those of the run."""
    step, _ = next_run_mean(policy) or (0, None)
    plans = map(policy.step, range(step))
    return any(isinstance(plan, LocalStep) and plan.average == "party" for plan in plans)


def last_own_mean(policy: Policy, tiers: Container[int], step: int) -> int:
    """The last step, up to this one, after which a policy averages over parties or regions of these tiers; -1: none."""
    for each in range(step, max(step - MOST_STEPS, -1), -1):
        plan = policy.step(each)
        if isinstance(plan, LocalStep) and plan.average == "party" and plan.tier in tiers:
            return each
    return -1


def mean_period(policy: Policy) -> int | None:
    """The steps from one mean over the run to the next of the same weights.

    None where a policy at the root decides that, or it never averages. Fragments of the model take turns.
    """
    step, plan = next_run_mean(policy) or (0, None)
    return None if plan is None or plan.average == "told" else (step + 1) * plan.fragment[1]


def furthest_step(policy: Policy, step: int, turns: int) -> int | None:
    """The last step that workers can have come to so many turns behind one that has closed with `step`.

    None where that is not known: a policy has not said, or there are too many turns or steps to ask it about.
    """
    if policy.plans is GradientStep:
        return step + turns
    last = step + MOST_STEPS_AHEAD
    for _ in range(turns) if turns <= MOST_TURNS_AHEAD else ():
        found, plan = next_run_mean(policy, step + 1, last - step) or (0, LocalStep())
        if plan.average == "nobody" or (plan.average == "told" and not plan.most):
            return None
        # Whoever has come back may take as many steps as others, and begins with where the slowest is.
        step = step + 2 * plan.most if plan.average == "told" else found
    return step if turns <= MOST_TURNS_AHEAD else None
