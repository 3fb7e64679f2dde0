"""The rounds of a server: which are open, for whom they wait, and when the policy closes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from itertools import product
from typing import Any

from geomx.bits import is_in
from geomx.errors import Disagreement, ProtocolError
from geomx.layout import Slice
from geomx.rounds.losses import EVERYBODY, Quorum
from geomx.rounds.membership import Members
from geomx.rounds.round import Round
from geomx.rounds.turn import KnownTurns, Turn
from geomx.sync.contract import Policy, RoundView, Wait
from geomx.tree import EVERYONE
from geomx.wire.messages import Push
from geomx.wire.roster_messages import MOST_TURNS

Wake = Callable[[str, float, Callable[[float], None]], None]


class Gathering:
    """Of all slices and cohorts of one server.

    `close`: takes each round that the policy has closed. `wake(key, at, then)`: calls `then(now)` at a time; a key that
    is set again moves. `agrees(cohort, turn, together)`: whether a turn that counts as a whole, and is complete here,
    may close now; else `named` is called later. `quorum`: with how many of those awaited such a turn closes. `owed`:
    with an overlay, of a slice's round some are owing, see `Round`.
    """

    def __init__(
        self,
        policy: Policy,
        members: Members,
        close: Callable[[Slice, Round], None],
        wake: Wake,
        agrees: Callable[[str, int, bytes], bool] = lambda *_: True,
        quorum: Quorum = EVERYBODY,
        owed: Callable[[int, Round], None] | None = None,
    ) -> None:
        self._owed = owed
        self._agrees = agrees
        self._quorum = quorum
        self._policy = policy
        self._members = members
        self._close = close
        self._wake = wake
        self._cohorts = tuple(
            dict.fromkeys(members.tree.cohort(leaf, policy.sync_group) for leaf in members.order)
        )
        self._slices: dict[int, Slice] = {}
        self.turns = KnownTurns(nests=owed is not None)
        self._calls = dict.fromkeys(self._cohorts, -1)  # the last of the whole run to which each has come
        self._incarnations: dict[str, int] = {}  # of those that have contributed to a step
        self._restarts: dict[str, int] = {}  # the step to which a later incarnation has contributed first
        self._holders: set[str] = set()  # nothing closes for as long as there are any

    def begin(self, slices: Iterable[Slice]) -> None:
        """These slices are gathered here."""
        self._slices = {slice_.index: slice_ for slice_ in slices}

    def check(self, push: Push) -> None:
        """Raise ProtocolError where a push cannot be of its cohort.

        Steps are of the policy's cohorts, means of any; all else is everybody's.
        """
        if not push.origins.keys() <= self._members.of(push.cohort):
            raise ProtocolError(
                f"a push of {', '.join(push.origins)} for the cohort {push.cohort!r}, to which not all belong"
            )
        fits = push.cohort == EVERYONE or push.kind == "mean" or push.cohort in self._cohorts
        if push.kind in ("assign", "call"):
            fits = push.cohort == EVERYONE
        elif push.kind == "gradient":
            fits = push.cohort in self._cohorts
        if push.together:
            fits = fits and push.kind != "assign" and is_in(push.slice, push.together)
        if (
            not fits
            or push.turn >= MOST_TURNS
            or not 0 <= min(push.reading) <= max(push.reading) < MOST_TURNS
        ):
            raise ProtocolError(
                f"a push of kind {push.kind} for the cohort {push.cohort!r} in turn {push.turn}"
            )

    def add(self, slice_: Slice, push: Push, payload: Any, now: float) -> None:
        """Count a contribution, and ask the policy."""
        if push.step >= 0:
            self._notice_restarts(push)
        known = self.turns.get(push.cohort, push.turn)
        if known is not None and known.is_promised and push.slice in known.rounds:
            return
        round_ = self.turns.add(push, payload, self._members.first(push.origins), now, self._restarts)
        if self._policy.lockstep:
            self.turns.check_one_open(slice_.index, push.cohort)
        if push.cohort == EVERYONE and self._policy.sync_group != "run":
            self.at_barrier(push.origins.keys(), push.turn, now)
        if round_ is None:
            return
        self._ask_again(slice_.index, round_)
        if push.together:
            turn = self.turns.begin(push.cohort, push.turn)
            turn.unite(push, self._slices.keys())
            self._close_together(turn, now)
        else:
            self._decide(slice_, round_, now)

    def named(self, cohort: str, number: int, now: float) -> None:
        """A turn that counts as a whole is complete everywhere."""
        turn = self.turns.get(cohort, number)
        if turn is not None and turn.together:
            turn.is_named = True
            self._close_together(turn, now)

    def promise(self, cohort: str, number: int) -> dict[int, Round]:
        """What has come of a turn stays as it is, unless others take part in it; gives its rounds, by slice."""
        turn = self.turns.begin(cohort, number)
        turn.is_promised = True
        return {index: turn.rounds[index] for index in sorted(turn.needed & turn.rounds.keys())}

    def promised(self, slice_: Slice, round_: Round) -> None:
        """Such a round, as it was before this server was started again."""
        turn = self.turns.begin(round_.cohort, round_.turn)
        turn.rounds[slice_.index], turn.is_promised = round_, True
        for _, push, _ in round_.contributions:
            turn.unite(push, self._slices.keys())

    def changes(self, from_turns: Mapping[str, int]) -> None:
        """Others take part from these turns of their cohorts on: nothing is promised of them."""
        for turn in self.turns:
            if turn.number >= from_turns.get(turn.cohort, turn.number + 1):
                turn.is_promised = False

    @property
    def is_held(self) -> bool:
        """Whether nothing closes."""
        return bool(self._holders)

    def _close_together(self, turn: Turn, now: float) -> None:
        """Ask the policy of all its slices, once all have come from everybody; of a turn of nobody, forget them."""
        members = self._members.expected(turn.number, turn.cohort)
        if not members:  # all who have contributed go on behind it
            for index in turn.needed & turn.rounds.keys():
                del turn.rounds[index]
            turn.separate()
            self.turns.tidy(turn)
            return
        company = members
        if not turn.is_whole(members) and self._quorum.share < 1.0:
            company = self._company(turn, members, now)
        may_close = not self._holders and (company is not members or turn.is_whole(members))
        if may_close and not turn.is_named:
            agrees = self._agrees(turn.cohort, turn.number, turn.together)
            turn.is_named = may_close = agrees or turn.is_named  # it may be named meanwhile
        for index in sorted(turn.needed & turn.rounds.keys()):
            if (round_ := turn.rounds.get(index)) is None:  # closing another may have answered it
                continue
            if may_close:
                if company is not members:
                    round_.missed = members - company
                    round_.drop(frozenset(round_.origins) - company)
                self._decide(self._slices[index], round_, now, company)
            else:
                round_.waits_for = tuple(sorted(members - round_.origins.keys()))

    def _company(self, turn: Turn, members: frozenset[str], now: float) -> frozenset[str]:
        """With whom a turn closes that is not whole: all members, if it does not by now."""
        company = turn.company()
        if turn.awaits_all or len(company & members) < self._quorum.needs(len(members)):
            return members
        if turn.quorum_at is None:
            turn.quorum_at = now + self._quorum.grace_s
        if now >= turn.quorum_at:
            return company

        def look(now: float) -> None:
            if (known := self.turns.get(turn.cohort, turn.number)) is not None and known.together:
                self._close_together(known, now)

        self._wake(f"quorum {turn.cohort}", turn.quorum_at, look)
        return members

    def _notice_restarts(self, push: Push) -> None:
        for name, incarnation in push.origins.items():
            if incarnation > self._incarnations.setdefault(name, incarnation):
                self._incarnations[name] = incarnation
                self._restarts[name] = push.step

    def at_barrier(self, members: Set[str], turn: int, now: float) -> None:
        """These have come to a call of the whole run. They make no step before all have: no bound waits for them."""
        behind = [cohort for cohort, call in self._calls.items() if call < turn]
        come = [cohort for cohort in behind if self._members.present(self._members.of(cohort)) <= members]
        if come:
            self._calls |= dict.fromkeys(come, turn)
            for slice_ in self._slices.values():
                self._look_again(slice_, now)

    def answered(self, slice_: Slice, cohort: str, turn: int, now: float, were_missed: bool = False) -> None:
        """A slice has gone down, for which complete rounds of other cohorts may have waited.

        Where those above did not wait for this server, the round may be open here, or not have begun. It closes with
        whatever is in it: nobody else can come into it, since all have been told whether they did. `were_missed`: they
        were told that they were not, and contribute what is in it to another.
        """
        for earlier in self.turns.of(cohort):
            if earlier.number < turn:
                earlier.separate()
        overtaken = self.turns.close(slice_.index, cohort, turn)
        if overtaken is not None and not were_missed:
            self._close(slice_, overtaken)
        if not self._policy.lockstep:
            self._look_again(slice_, now)

    def look(self, now: float) -> None:
        """Others take part than before: open rounds may have waited for those who no longer do."""
        for turn in self.turns:
            if turn.together and turn.rounds:
                self._close_together(turn, now)
            for index, round_ in list(turn.rounds.items()):
                if index not in turn.needed and index in turn.rounds:  # closing another may have answered it
                    self._decide(self._slices[index], round_, now)

    def hold(self, holder: str = "roster") -> None:
        """Close nothing from now on, for as long as this holder wants it."""
        self._holders.add(holder)

    def resume(self, now: float, holder: str = "roster") -> None:
        """Close what is due, and go on, if no other holds."""
        self._holders.discard(holder)
        self.look(now)

    def drop(
        self, names: Set[str], from_turns: Mapping[str, int], spoils: Callable[[Push], bool] = lambda _: False
    ) -> None:
        """These take no part from these turns of their cohorts on: what they have contributed to them is forgotten.

        `spoils`: see `Round.drop`.
        """
        for turn in self.turns:
            if turn.number < from_turns.get(turn.cohort, turn.number + 1):
                continue
            for index, round_ in list(turn.rounds.items()):
                if not round_.drop(names, spoils):
                    del turn.rounds[index]
                self._ask_again(index, round_)
            turn.forget(names)
            self.turns.tidy(turn)

    def _ask_again(self, index: int, round_: Round) -> None:
        if round_.owing and self._owed is not None:
            if (turn := self.turns.get(round_.cohort, round_.turn)) is not None:
                turn.forget(round_.owing)
            self._owed(index, round_)
            round_.owing.clear()

    def forget(self) -> None:
        """All rounds, of whoever was cut off from the run: what has closed there comes with the values."""
        self.turns.forget()

    def sent_by_former(self, names: Set[str]) -> None:
        """Whoever has sent what has come of these begins anew."""
        for turn in self.turns:
            for round_ in turn.rounds.values():
                round_.former |= names & round_.origins.keys()

    def came_back(self, names: Set[str]) -> None:
        """These take part again: whole cohorts of them have come to the calls that are over."""
        last = max((self.closed(index, EVERYONE) for index in self._slices), default=-1)
        for cohort, call in self._calls.items():
            if self._members.present(self._members.of(cohort)) <= names:
                self._calls[cohort] = max(call, last)

    def passed(self, cohort: str, turn: int) -> None:
        """Some have gone on behind a turn: what had come of it before this server was started again is over."""
        for index in self._slices:
            self.turns.passed(index, cohort, turn)

    def is_common(self, cohort: str) -> bool:
        """Whether its turns are counted by all servers; else they are a party's or region's means, and steps count."""
        return cohort == EVERYONE or cohort in self._cohorts

    def newest(self, cohort: str) -> int:
        """The last turn of a cohort that is open, or -1."""
        return max((turn.number for turn in self.turns.of(cohort) if turn.rounds), default=-1)

    def last_closed(self, names: Iterable[str]) -> dict[str, int]:
        """By cohort of any of these: the last turn of which a slice has closed, -1 where none has."""
        of = set(names)
        turns = {name: -1 for name in (EVERYONE, *self._cohorts) if not of.isdisjoint(self._members.of(name))}
        for cohort, turn in self.all_closed().items():
            if cohort in turns or not of.isdisjoint(self._members.of(cohort)):
                turns[cohort] = turn
        return turns

    def slowest(self) -> int:
        """The last turn of the slowest cohort that trains, where cohorts do not move in step; -1: none."""
        there = [cohort for cohort in self._cohorts if self._members.present(self._members.of(cohort))]
        if self._policy.lockstep or not there:
            return -1
        closed = self.all_closed()
        return min(max(closed.get(cohort, -1), self._members.begin_of(cohort) - 1) for cohort in there)

    def closed(self, index: int, cohort: str) -> int:
        """The last turn of a slice in a cohort, or -1."""
        return self.turns.closed.get((index, cohort), -1)

    def all_closed(self) -> dict[str, int]:
        """By cohort that has come to any turn: the last of which a slice has closed, -1 where none has."""
        turns: dict[str, int] = {}
        for (_, cohort), turn in self.turns.closed.items():
            turns[cohort] = max(turns.get(cohort, -1), turn)
        return turns

    def check_calls(self) -> None:
        """Raise `Disagreement` where some wait in a call of the whole run for others, who wait in a step for them."""
        calls: list[tuple[str, set[str], set[str]]] = []  # of each open turn: who is in it, and who is not
        steps: list[tuple[str, str, set[str], set[str]]] = []
        for turn in self.turns:
            if not turn.rounds:
                continue
            rounds = turn.rounds.values()
            operation = next(iter(rounds)).contributions[0][1].operation
            come = {name for round_ in rounds for name in round_.origins}
            expected = self._members.expected(turn.number, turn.cohort)
            missing = {name for round_ in rounds for name in expected - round_.origins.keys()}
            if turn.cohort == EVERYONE:
                calls.append((operation, come, missing))
            else:
                steps.append((turn.cohort, operation, come, missing))
        for (call, callers, others), (cohort, step, steppers, missing) in product(calls, steps):
            if callers & missing and steppers & others:
                here, there = ", ".join(sorted(callers & missing)), ", ".join(sorted(steppers & others))
                raise Disagreement(
                    f"{here} called {call}, which waits for the whole run, and {there} called {step}, which waits for "
                    f"all of {cohort}; every worker must make the same calls in the same order"
                )

    def missing(self, cohort: str, turn: int) -> list[str]:
        """For whom a turn waits: members in the order of the run, then the cohorts for which the policy does."""
        known = self.turns.get(cohort, turn)
        whom = {name for round_ in (known.rounds.values() if known else ()) for name in round_.waits_for}
        order = self._members.order
        return sorted(whom, key=lambda name: (order.get(name, len(order)), name))

    def _decide(
        self, slice_: Slice, round_: Round, now: float, company: frozenset[str] | None = None
    ) -> None:
        """`company`: who is awaited; None: everybody that takes part."""
        members = self._members.expected(round_.turn, round_.cohort) if company is None else company
        progress = {} if self._policy.lockstep else self._progress(slice_.index, round_.cohort)
        origins = round_.origins.keys()
        view = RoundView(
            round_.turn, slice_.index, round_.kind, round_.cohort, origins, members, round_.opened, progress
        )
        plan = self._policy.gathered(view, now)
        if self._holders and not isinstance(plan, Wait):
            round_.waits_for = ()
            return
        if isinstance(plan, Wait):
            round_.waits_for, round_.waits_until = plan.whom, plan.until
            self._look_at(slice_, round_.cohort, now)
            return
        if (closed := self.turns.close(slice_.index, round_.cohort, round_.turn)) is not None:
            self._close(slice_, closed)

    def _look_at(self, slice_: Slice, cohort: str, now: float) -> None:
        """Ask the policy again when the first time comes until which it waits."""
        times = [round_.waits_until for round_ in self.turns.rounds(slice_.index, cohort)]
        due_at = min((at for at in times if at is not None and at > now), default=None)
        if due_at is not None:
            self._wake(f"round {slice_.index} {cohort}", due_at, partial(self._is_due, slice_, cohort))

    def _is_due(self, slice_: Slice, cohort: str, now: float) -> None:
        for round_ in self.turns.rounds(slice_.index, cohort):
            if round_.waits_until is not None and round_.waits_until <= now:
                self._decide(slice_, round_, now)
        self._look_at(slice_, cohort, now)

    def _progress(self, index: int, cohort: str) -> dict[str, int]:
        """The last closed turn of every other cohort that has not left, and waits in no call for others."""
        there = [other for other in self._cohorts if self._members.present(self._members.of(other))]
        answered = min((self._calls[other] for other in there), default=-1)
        return {
            other: max(self.closed(index, other), self._members.begin_of(other) - 1)
            for other in there
            if other != cohort and self._calls[other] <= answered
        }

    def _look_again(self, slice_: Slice, now: float) -> None:
        for cohort in self._cohorts:
            for round_ in self.turns.rounds(slice_.index, cohort):
                if self._members.expected(round_.turn, cohort) <= round_.origins.keys():
                    self._decide(slice_, round_, now)
