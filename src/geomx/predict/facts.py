"""What a prediction is made of: parties, a model, and what codecs make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from geomx.config.tables import LinkTable
from geomx.observe.costs import Cost
from geomx.predict.transports import EmulatedTcp, Transport
from geomx.sync import policies
from geomx.sync.contract import LocalStep, Policy, RoundView, StepController, StepPlan, Wait
from geomx.tree import TOP, SyncGroup

FIRST_STEPS, MOST_STEPS = 64, 1 << 20
STEPPED_PASSES = 5  # an optimizer's step, about: reads the gradient, reads and writes weights and momentum
CLIPPED_PASSES = 3  # a norm reads the gradient; scaling it reads and writes


@dataclass(frozen=True, slots=True)
class Site:
    """A party. `compute_s`: of its slowest worker, for a step; `backward_s`: of it, while gradients are completed.

    `local_step_s`: of a step of its own, its optimizer included; None where only `compute_s` is known.
    """

    name: str
    workers: int
    compute_s: float
    backward_s: float
    wan: LinkTable
    lan: LinkTable
    local_step_s: float | None = None
    parent: str = TOP


@dataclass(frozen=True, slots=True)
class Region:
    """A server between parties and the global servers. `wan`: its link to its parent."""

    name: str
    parent: str
    wan: LinkTable


@dataclass(frozen=True, slots=True)
class EdgeCodecs:
    """What the codecs of some edges cost for the whole model. `passes`: what comes from above goes down as it is."""

    up: Cost
    down: Cost
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Codecs:
    """Those of all edges, for a model that is cut into so many `slices`. `regions`: of the edges below each region.

    With `passes`, the codec down is that of the edges above.
    """

    slices: int
    wan: EdgeCodecs
    lan: EdgeCodecs
    regions: Mapping[str, EdgeCodecs] = field(default_factory=dict)

    def below(self, server: str) -> EdgeCodecs:
        """Of the edges between a region's server, or `TOP`, and what hangs on it."""
        return self.wan if server == TOP else self.regions[server]


@dataclass(frozen=True, slots=True)
class Facts:
    """`size_bytes`: of what is trained. `memory_bytes_per_s`: what a core moves in adding, reads and writes counted.

    `on_workers`: gradients come back as means, with which each worker steps. `clips`: a step waits for the whole norm.
    `wan_up`, `wan_down`: what carries contributions and updates over the WAN.
    """

    sites: tuple[Site, ...]
    size_bytes: int
    memory_bytes_per_s: float
    shards: int = 1
    in_backward: bool = True  # gradients leave as they are completed
    overlap: bool = False  # the next forward begins before the update is complete
    on_workers: bool = False
    clips: bool = False
    wan_up: Transport = field(default_factory=EmulatedTcp)
    wan_down: Transport = field(default_factory=EmulatedTcp)
    regions: tuple[Region, ...] = ()

    def above(self, site: Site) -> list[str]:
        """A party's servers, its own first, up to the one that hangs on the global servers."""
        parents = {region.name: region.parent for region in self.regions}
        found, parent = [site.name], site.parent
        while parent != TOP:
            found.append(parent)
            parent = parents[parent]
        return found

    def below_top(self, site: Site) -> str:
        """Which child of the global servers a party is, or hangs on."""
        return self.above(site)[-1]

    def cohorts(self, site: Site, tiers: int) -> list[str]:
        """A party's servers below which there are no more tiers than that; see `geomx.tree`."""
        heights: dict[str, int] = {}
        for other in self.sites:
            for height, name in enumerate(self.above(other), 1):
                heights[name] = max(heights.get(name, 0), height)
        return [name for name in self.above(site) if heights[name] <= tiers]

    def passes_s(self, passes: float) -> float:
        """Seconds for so many passes over memory as large as the model: a read or a write each."""
        return passes * self.size_bytes / self.memory_bytes_per_s

    def local_step_s(self, site: Site) -> float:
        """A worker's own step, from its batch to its weights."""
        if site.local_step_s is not None:
            return site.local_step_s
        return site.compute_s + self.passes_s(STEPPED_PASSES + CLIPPED_PASSES * self.clips)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """What a policy makes of time: the plans of its steps, over and over again, and who waits for whom.

    `bounded`: whoever is far ahead waits, so that in the long run all are as fast as the slowest.
    `step_controller`: makes the policy anew, where it says while a round goes on how many steps that has.
    """

    plans: tuple[StepPlan, ...]
    sync_group: SyncGroup
    bounded: bool
    step_controller: Callable[[], StepController] | None = None

    @classmethod
    def of(cls, spec: str) -> Rhythm:
        """That of a policy, found by asking it: its plans, and what it says to a party far ahead of another.

        Raises `ConfigError` where there is no such policy.
        """
        policy: Policy = policies.make(spec)
        far_ahead = RoundView(MOST_STEPS, 0, "gradient", "one", {"one/0"}, {"one/0"}, 0.0, {"other": 0})
        bounded = policy.sync_group != "run" and isinstance(policy.gathered(far_ahead, 0.0), Wait)
        plans = _period(policy.step)
        paced = (
            isinstance(policy, StepController)
            and isinstance(plans[0], LocalStep)
            and plans[0].average == "told"
        )
        return cls(plans, policy.sync_group, bounded, partial(policies.make, spec) if paced else None)

    @property
    def steps(self) -> int:
        """Of the period; of what is paced, 1."""
        return len(self.plans)

    @property
    def exchanges(self) -> int:
        """In which steps of the period something crosses the WAN."""
        return sum(map(crosses_wan, self.plans)) or 1

    def cohorts(self, site: Site) -> int:
        """How many of a party push over the WAN, each by itself."""
        return site.workers if self.sync_group == "worker" else 1


def _period(step: Callable[[int], StepPlan]) -> tuple[StepPlan, ...]:
    """The plans that repeat, and in which something crosses the WAN: the shortest such period."""
    count = FIRST_STEPS
    while count <= MOST_STEPS:
        plans = [step(number) for number in range(count)]
        length = _shortest_period(plans)
        if 2 * length <= count and any(map(crosses_wan, plans[:length])):
            return tuple(plans[:length])
        count *= 4
    return tuple(plans)


def _shortest_period(plans: list[StepPlan]) -> int:
    """The least p with plans[i] = plans[i + p] throughout, by the prefix function of Knuth, Morris and Pratt."""
    borders = [0] * len(plans)
    for end in range(1, len(plans)):
        border = borders[end - 1]
        while border and plans[end] != plans[border]:
            border = borders[border - 1]
        borders[end] = border + (plans[end] == plans[border])
    return len(plans) - borders[-1]


def crosses_wan(plan: StepPlan) -> bool:
    """Whether a step takes part in an exchange with the global servers."""
    if isinstance(plan, LocalStep):
        return plan.average in ("run", "told")
    return getattr(plan, "push", True) or getattr(plan, "fetch", True)
