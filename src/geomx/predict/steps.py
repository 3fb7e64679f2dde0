"""From facts, a rhythm and codecs to seconds and bytes: the steps of a policy, taken one after the other.

The policy itself says what each step does; here stands when it has ended. Time is a number for each party; what an
exchange takes stands in `exchange.py`. No policy's name is known here, so a user's own is predicted as well. In a
steady state ours come to this, with c seconds of computing a step, b of them while gradients leave, n slices, and T and
E as in `exchange.py`:

    policy                          seconds of a round                                               steps in it
    fsa                             c + E, less up to (1 − 1/n) · min(b, T): backward overlaps       1
    fsa, clip_norm on the servers   c + E with 2 T for T + T/n: no answer before everything is up    1
    fsa, overlap = "forward"        the forward is a stage as well, which weights pass               1
    mixed                           as fsa, each party by itself                                     1
    mixed staleness=s               that of the slowest party, for all                               1
    hfa                             k1 · k2 · c + (k2 − 1) · E(LAN) + E                              k1 · k2
    diloco                          every · c + E                                                    every
    diloco fragments=P overlap=o    every/P · c + max(0, E(1/P of the model) − o · c)                every/P
    esync                           what the policy itself says, and E of the slowest                by party
    downpour                        n_push · c + E, with W · T where W workers share a link          n_push = n_fetch

c is the slowest worker's among those who wait for each other.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from geomx.predict.exchange import Exchanges, Streams
from geomx.predict.facts import CLIPPED_PASSES, STEPPED_PASSES, Codecs, Facts, Rhythm, Site, crosses_wan
from geomx.predict.formulas import PassTimes, link_bytes, through
from geomx.sync.contract import AccumulateStep, GradientStep, LocalStep, StepController, StepPlan

Times = dict[str, float]  # by party: seconds

LEAST_STEPS = 16  # until parties that wait for each other are in step
PACED_ROUNDS = 32


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one algorithm with one pair of codecs. Bytes are those of a step and a party, on the WAN, on average.

    `step_s`: the mean over all workers' steps. `round_s`: from one exchange over the WAN to the next, which `steps_of`
    says how many steps each party takes. `computing`: the share of time in which workers compute. `staleness`: updates
    of others that a gradient misses on average: with c cohorts, whatever their paces, c − 1.
    """

    step_s: float
    round_s: float
    step_s_of: Mapping[str, float]
    steps_of: Mapping[str, float]
    bytes_up: float
    bytes_down: float
    computing: float
    staleness: int


def predict(facts: Facts, rhythm: Rhythm, codecs: Codecs) -> Prediction:
    """What a run will come to, after its first rounds."""
    exchanges = Exchanges(facts, codecs, alone=rhythm.sync_group == "worker")
    steps_of = dict.fromkeys((site.name for site in facts.sites), rhythm.steps / rhythm.exchanges)
    if rhythm.step_controller is not None:
        paces, steps_of = _paced(facts, rhythm.step_controller(), exchanges)
    elif rhythm.sync_group == "run":
        paces = _walked(facts, rhythm, exchanges, facts.sites)
    else:
        paces = {}
        for site in facts.sites:
            paces |= _walked(facts, rhythm, exchanges, (site,))
        paces = _shared(facts, rhythm, exchanges, paces)
    if rhythm.bounded:
        paces = dict.fromkeys(paces, max(paces.values()))
    sent = _sent(facts, rhythm, codecs, steps_of)
    workers = sum(site.workers for site in facts.sites)
    return Prediction(
        step_s=_mean(facts.sites, paces),
        round_s=_mean(facts.sites, {name: pace * steps_of[name] for name, pace in paces.items()}),
        step_s_of=paces,
        steps_of=steps_of,
        bytes_up=fmean(up for up, _ in sent),
        bytes_down=fmean(down for _, down in sent),
        computing=sum(
            site.workers * _computing_s(facts, rhythm, site) / paces[site.name] for site in facts.sites
        )
        / workers,
        staleness=0 if rhythm.sync_group == "run" else sum(map(rhythm.cohorts, facts.sites)) - 1,
    )


def _computing_s(facts: Facts, rhythm: Rhythm, site: Site) -> float:
    """Of a step: what its worker computes."""
    return site.compute_s if isinstance(rhythm.plans[0], GradientStep) else facts.local_step_s(site)


def _mean(sites: Sequence[Site], seconds: Times) -> float:
    """How long each would take if all workers took as long, and did as much together."""
    return sum(site.workers for site in sites) / sum(site.workers / seconds[site.name] for site in sites)


def _sent(
    facts: Facts, rhythm: Rhythm, codecs: Codecs, steps_of: Mapping[str, float]
) -> list[tuple[float, float]]:
    """Bytes up and down in a step, of each that hangs on the global servers."""
    sent = []
    links = {region.name: region.wan for region in facts.regions} | {
        site.name: site.wan for site in facts.sites
    }
    below: dict[str, list[Site]] = {}
    for site in facts.sites:
        below.setdefault(facts.below_top(site), []).append(site)
    for name, sites in below.items():
        up = down = 0.0
        for plan in filter(crosses_wan, rhythm.plans):
            part = 1.0 / plan.fragment[1] if isinstance(plan, LocalStep) else 1.0
            carrying = plan.push if isinstance(plan, AccumulateStep) else True
            messages, link = max(1, round(part * codecs.slices)), links[name]
            sent_up = facts.wan_up.sent_bytes(carrying * part * codecs.wan.up.sent_bytes, link)
            up += link_bytes(sent_up, messages)
            down += link_bytes(facts.wan_down.sent_bytes(part * codecs.wan.down.sent_bytes, link), messages)
        each = [rhythm.cohorts(site) / rhythm.exchanges / steps_of[site.name] for site in sites]
        times = (
            fmean(each) if rhythm.sync_group == "run" else sum(each)
        )  # one sum of all, or one of each cohort
        sent.append((times * up, times * down))
    return sent


# -- time ----------------------------------------------------------------------------------------------------------


def _walked(facts: Facts, rhythm: Rhythm, exchanges: Exchanges, sites: Sequence[Site]) -> Times:
    """Seconds a step for parties that move in step, or for one by itself; as if others took nothing from it."""
    walk = _Walk(facts, exchanges, sites)
    periods = 2 + LEAST_STEPS // rhythm.steps
    began: Times = {}
    for period in range(periods):
        if period == periods // 2:
            began = dict(walk.now)
        for number, plan in enumerate(rhythm.plans, start=period * rhythm.steps):
            walk.step(number, plan)
    steps = (periods - periods // 2) * rhythm.steps
    return {name: (walk.now[name] - began[name]) / steps for name in walk.now}


class _Walk:
    """Parties that move in step. `now`: when each has ended its last step."""

    def __init__(self, facts: Facts, exchanges: Exchanges, sites: Sequence[Site]) -> None:
        self._facts = facts
        self._exchanges = exchanges
        self._sites = sites
        self.now: Times = dict.fromkeys((site.name for site in sites), 0.0)
        self._weights = {site.name: PassTimes(0.0, 0.0) for site in sites}  # as they come to the next forward
        self._due: deque[tuple[int, Streams]] = deque()  # behind which step answers are taken in

    def step(self, number: int, plan: StepPlan) -> None:
        if isinstance(plan, GradientStep):
            self._gradient()
            return
        for site in self._sites:
            self.now[site.name] += self._facts.local_step_s(site)
        if isinstance(plan, LocalStep):
            self._local(number, plan)
        elif plan.push or plan.fetch:
            self._accrued(plan)

    def _gradient(self) -> None:
        """Forward, as weights come; backward, in which gradients leave; and the exchange."""
        facts, slices, gradients = self._facts, self._exchanges.slices, {}
        for site in self._sites:
            forward = through(self._weights[site.name], site.compute_s - site.backward_s, slices).last
            leaving = through(PassTimes(forward, forward), site.backward_s, slices)
            gradients[site.name] = leaving if facts.in_backward else PassTimes(leaving.last, leaving.last)
        answers = self._exchanges.run(self._sites, gradients, gradients=True)
        stepped_s = facts.passes_s(STEPPED_PASSES + CLIPPED_PASSES * facts.clips) if facts.on_workers else 0.0
        self.now = {name: answer.last + stepped_s for name, answer in answers.items()}
        self._weights = {name: PassTimes(end, end) for name, end in self.now.items()}
        if facts.overlap:
            # What the next forward needs first is complete last in backward, and overtakes the rest from there on.
            ends = {name: PassTimes(leaving.last, leaving.last) for name, leaving in gradients.items()}
            soonest = self._exchanges.run(self._sites, ends, gradients=True)
            for name, answer in answers.items():
                first = min(max(answer.first, soonest[name].first), answer.last)
                self._weights[name] = PassTimes(first, answer.last)

    def _local(self, number: int, plan: LocalStep) -> None:
        if plan.average == "party":
            self._below(plan.tier)
        elif plan.average == "run":
            answers = self._exchanges.run(self._sites, self._leaving(), part=1.0 / plan.fragment[1])
            self._due.append((number + plan.overlap, answers))
        while self._due and self._due[0][0] <= number:
            self._wait_for(self._due.popleft()[1])

    def _below(self, tier: int) -> None:
        """A mean over each party, or over what is below the same server so many tiers up."""
        leaving = self._leaving()
        groups: dict[str, list[Site]] = {}
        for site in self._sites:
            groups.setdefault(self._facts.cohorts(site, tier)[-1], []).append(site)
        for sites in groups.values():
            if len(sites) > 1 or sites[0].workers > 1:
                for name, stream in self._exchanges.inside(sites, leaving, tier).items():
                    self.now[name] = stream.last

    def _accrued(self, plan: AccumulateStep) -> None:
        while self._due:  # one push of a slice at a time
            self._wait_for(self._due.popleft()[1])
        answers = self._exchanges.run(self._sites, self._leaving(), carrying=plan.push)
        if plan.fetch:
            self._wait_for(answers)
        else:
            self._due.append((0, answers))

    def _leaving(self) -> Streams:
        return {name: PassTimes(now, now) for name, now in self.now.items()}

    def _wait_for(self, answers: Streams) -> None:
        for name, answer in answers.items():
            self.now[name] = max(self.now[name], answer.last)


def _paced(facts: Facts, step_controller: StepController, exchanges: Exchanges) -> tuple[Times, Times]:
    """Seconds a step, and steps a round, where a policy says while a round goes on how many steps each may take.

    It is asked as a shard asks it; one worker stands for those of its party, and news takes no time.
    """
    sites = {site.name: site for site in facts.sites}
    taking_s = {site.name: facts.local_step_s(site) for site in facts.sites}
    now, began = dict.fromkeys(sites, 0.0), dict.fromkeys(sites, 0.0)
    told: dict[str, int] = {}
    taken: Counter[str] = Counter()
    for turn in range(PACED_ROUNDS):
        if turn == PACED_ROUNDS // 2:
            began, taken = dict(now), Counter()
        allowed = dict.fromkeys(sites, 1) | told
        ends = [(now[name] + taking_s[name], name, 1) for name in sites]
        heapq.heapify(ends)
        while ends:
            end, name, steps = heapq.heappop(ends)
            seconds = taking_s[name]
            allowed |= step_controller.stepped(name, turn, steps, seconds, end)
            taken[name] += 1
            now[name] = end
            if steps < allowed[name]:
                heapq.heappush(ends, (end + seconds, name, steps + 1))
        leaving = {name: PassTimes(end, end) for name, end in now.items()}
        come = exchanges.up(facts.sites, leaving)
        for top, stream in sorted(come.items(), key=lambda item: item[1].last):
            step_controller.contributed(
                [site.name for site in facts.sites if facts.below_top(site) == top], turn, stream.last
            )
        told = step_controller.closed(turn, max(stream.last for stream in come.values()))
        now = {name: answer.last for name, answer in exchanges.run(facts.sites, leaving).items()}
    rounds = PACED_ROUNDS - PACED_ROUNDS // 2
    paces = {name: (now[name] - began[name]) / taken[name] for name in sites}
    return paces, {name: taken[name] / rounds for name in sites}


def _shared(facts: Facts, rhythm: Rhythm, exchanges: Exchanges, paces: Times) -> Times:
    """Parties that do not wait for each other still share the global servers: no more than all of their time."""
    pushes_a_s = (
        sum(rhythm.cohorts(site) / paces[site.name] for site in facts.sites) * rhythm.exchanges / rhythm.steps
    )
    busy = pushes_a_s * exchanges.root_s(1)
    return {name: pace * max(1.0, busy) for name, pace in paces.items()}
