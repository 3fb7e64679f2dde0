"""The rounds of a server: which are open, for whom they wait, and when the policy closes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from itertools import product
from typing import Any

from geomx.bits import is_in
from geomx.errors import Disagreement, ProtocolError
from geomx.layout import Slice
from geomx.rounds.membership import Members
from geomx.rounds.round import Round, Rounds
from geomx.rounds.together import TurnTogether
from geomx.sync.contract import Policy, RoundView, Wait
from geomx.tree import EVERYONE
from geomx.wire.messages import Push
from geomx.wire.roster_messages import MOST_TURNS

Wake = Callable[[str, float, Callable[[float], None]], None]


class Gathering:
    """Of all slices and cohorts of one server.

    `close`: takes each round that the policy has closed. `wake(key, at, then)`: calls `then(now)` at a time; a key that
    is set again moves. `agrees(cohort, turn, together)`: whether a turn that counts as a whole, and is complete here,
    may close now; else `named` is called later.
    """

    def __init__(
        self,
        policy: Policy,
        members: Members,
        close: Callable[[Slice, Round], None],
        wake: Wake,
        agrees: Callable[[str, int, bytes], bool] = lambda *_: True,
    ) -> None:
        self._agrees = agrees
        self._together: dict[tuple[str, int], TurnTogether] = {}
        self._policy = policy
        self._members = members
        self._close = close
        self._wake = wake
        self._cohorts = tuple(
            dict.fromkeys(members.tree.cohort(leaf, policy.sync_group) for leaf in members.order)
        )
        self._slices: dict[int, Slice] = {}
        self._rounds: dict[tuple[int, str], Rounds] = {}  # by slice and cohort
        self._calls = dict.fromkeys(self._cohorts, -1)  # the last of the whole run to which each has come
        self._incarnations: dict[str, int] = {}  # of those that have contributed to a step
        self._restarts: dict[str, int] = {}  # the step to which a later incarnation has contributed first
        self._is_held = False  # nothing closes

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
        if push.kind == "assign":
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
        rounds = self._rounds.setdefault((slice_.index, push.cohort), Rounds())
        round_ = rounds.add(push, payload, self._members.first(push.origins), now, self._restarts)
        if self._policy.lockstep:
            rounds.check_one_open()
        if push.cohort == EVERYONE and self._policy.sync_group != "run":
            self.at_barrier(push.origins.keys(), push.turn, now)
        if round_ is None:
            return
        if push.together:
            key = push.cohort, push.turn
            turn = self._together.setdefault(key, TurnTogether(push.together, frozenset(self._slices)))
            if turn.bitmap != push.together:
                raise Disagreement(
                    f"turn {push.turn}: {', '.join(push.origins)} and others exchange different parts of the model; "
                    "every worker must make the same calls in the same order"
                )
            turn.came(push.origins, push.slice)
            self._close_together(push.cohort, push.turn, now)
        else:
            self._decide(slice_, round_, now)

    def named(self, cohort: str, turn: int, now: float) -> None:
        """A turn that counts as a whole is complete everywhere."""
        if (together := self._together.get((cohort, turn))) is not None:
            together.is_named = True
            self._close_together(cohort, turn, now)

    def _close_together(self, cohort: str, turn: int, now: float) -> None:
        """Ask the policy of all its slices, once all have come from everybody; of a turn of nobody, forget them."""
        together = self._together[cohort, turn]
        if not self._members.expected(turn, cohort):  # all who have contributed go on behind it
            del self._together[cohort, turn]
            for index in together.needed & {index for index, of in self._rounds if of == cohort}:
                self._rounds[index, cohort].open.pop(turn, None)
            return
        whole = together.has_all_of(self._members.expected(turn, cohort)) and self._is_of_one_company(
            cohort, turn, together.needed
        )
        may_close = whole and not self._is_held
        if may_close and (together.is_named or self._agrees(cohort, turn, together.bitmap)):
            together.is_named = True
        else:
            may_close = False
        for index in sorted(together.needed):
            rounds = self._rounds.get((index, cohort))
            round_ = None if rounds is None else rounds.open.get(turn)
            if round_ is None:
                continue
            if may_close:
                self._decide(self._slices[index], round_, now)
            else:
                missing = self._members.expected(turn, cohort) - round_.origins.keys()
                round_.waits_for = tuple(sorted(missing))

    def _is_of_one_company(self, cohort: str, turn: int, slices: Iterable[int]) -> bool:
        """Whether all of these have come from the same workers: a server may have died in the middle of its sums."""
        rounds = (self._rounds.get((index, cohort)) for index in slices)
        open_ = (each.open[turn] for each in rounds if each is not None and turn in each.open)
        return len({frozenset(round_.origins) for round_ in open_}) <= 1

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

    def answered(self, slice_: Slice, cohort: str, turn: int, now: float) -> None:
        """A slice has gone down, for which complete rounds of other cohorts may have waited.

        Where those above did not wait for this server, the round may be open here, or not have begun. It closes with
        whatever is in it: nobody else can come into it, since all have been told whether they did.
        """
        for key in [key for key in self._together if key[0] == cohort and key[1] < turn]:
            del self._together[key]
        overtaken = self._rounds.setdefault((slice_.index, cohort), Rounds()).overtaken(turn)
        if overtaken is not None:
            self._close(slice_, overtaken)
        if not self._policy.lockstep:
            self._look_again(slice_, now)

    def look(self, now: float) -> None:
        """Others take part than before: open rounds may have waited for those who no longer do."""
        for (index, _), rounds in list(self._rounds.items()):
            for round_ in list(rounds.open.values()):
                if round_.turn not in rounds.open:  # closing another may have answered it
                    continue
                if (round_.cohort, round_.turn) in self._together:
                    self._close_together(round_.cohort, round_.turn, now)
                else:
                    self._decide(self._slices[index], round_, now)

    def hold(self) -> None:
        """Close nothing from now on."""
        self._is_held = True

    def resume(self, now: float) -> None:
        """Close what is due, and go on."""
        self._is_held = False
        self.look(now)

    def drop(self, names: Set[str], from_turns: Mapping[str, int]) -> list[tuple[str, int]]:
        """These take no part from these turns of their cohorts on: what they have contributed to them is forgotten.

        Returns the cohorts and turns before in which others close over the rest.
        """
        torn: dict[tuple[str, int], None] = {}
        for (_, cohort), rounds in self._rounds.items():
            first = from_turns.get(cohort)
            for turn, round_ in list(rounds.open.items()):
                if first is None or turn < first:
                    if not names.isdisjoint(self._members.of(cohort) - round_.origins.keys()):
                        torn[cohort, turn] = None
                elif not round_.drop(names):
                    del rounds.open[turn]
        for (cohort, turn), together in self._together.items():
            if turn >= from_turns.get(cohort, turn + 1):
                together.forget(names)
        return list(torn)

    def forget(self) -> None:
        """All rounds, of whoever was cut off from the run: what has closed there comes with the values."""
        self._rounds.clear()
        self._together.clear()

    def sent_by_former(self, names: Set[str]) -> None:
        """Whoever has sent what has come of these begins anew."""
        for rounds in self._rounds.values():
            for round_ in rounds.open.values():
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
            rounds = self._rounds.setdefault((index, cohort), Rounds())
            rounds.closed = max(rounds.closed, turn)

    def is_common(self, cohort: str) -> bool:
        """Whether its turns are counted by all servers; else they are a party's or region's means, and steps count."""
        return cohort == EVERYONE or cohort in self._cohorts

    def newest(self, cohort: str) -> int:
        """The last turn of a cohort that is open, or -1."""
        return max(
            (max(r.open, default=-1) for (_, of), r in self._rounds.items() if of == cohort), default=-1
        )

    def last_closed(self, names: Iterable[str]) -> dict[str, int]:
        """By cohort of any of these: the last turn of which a slice has closed, -1 where none has."""
        of = set(names)
        turns = {name: -1 for name in (EVERYONE, *self._cohorts) if not of.isdisjoint(self._members.of(name))}
        for (_, cohort), rounds in self._rounds.items():
            if cohort in turns or not of.isdisjoint(self._members.of(cohort)):
                turns[cohort] = max(turns.get(cohort, -1), rounds.closed)
        return turns

    def slowest(self) -> int:
        """The last turn of the slowest cohort that trains, where cohorts do not move in step; -1: none."""
        there = [cohort for cohort in self._cohorts if self._members.present(self._members.of(cohort))]
        if self._policy.lockstep or not there:
            return -1
        turns = dict.fromkeys(there, -1)
        for (_, cohort), rounds in self._rounds.items():
            if cohort in turns:
                turns[cohort] = max(turns[cohort], rounds.closed)
        return min(max(turn, self._members.begin_of(cohort) - 1) for cohort, turn in turns.items())

    def closed(self, index: int, cohort: str) -> int:
        """The last turn of a slice in a cohort, or -1."""
        rounds = self._rounds.get((index, cohort))
        return -1 if rounds is None else rounds.closed

    def all_closed(self) -> dict[str, int]:
        """By cohort that has come to any turn: the last of which a slice has closed, -1 where none has."""
        turns: dict[str, int] = {}
        for (_, cohort), rounds in self._rounds.items():
            turns[cohort] = max(turns.get(cohort, -1), rounds.closed)
        return turns

    def check_calls(self) -> None:
        """Raise `Disagreement` where some wait in a call of the whole run for others, who wait in a step for them."""
        # By cohort and turn: its call, who is in it, and who is not.
        turns: dict[tuple[str, int], tuple[str, set[str], set[str]]] = {}
        for (_, cohort), rounds in self._rounds.items():
            for round_ in rounds.open.values():
                operation = round_.contributions[0][1].operation
                _, come, missing = turns.setdefault((cohort, round_.turn), (operation, set(), set()))
                come.update(round_.origins)
                missing.update(self._members.expected(round_.turn, cohort) - round_.origins.keys())
        calls = [turn for (cohort, _), turn in turns.items() if cohort == EVERYONE]
        steps = [(cohort, *turn) for (cohort, _), turn in turns.items() if cohort != EVERYONE]
        for (call, callers, others), (cohort, step, steppers, missing) in product(calls, steps):
            if callers & missing and steppers & others:
                here, there = ", ".join(sorted(callers & missing)), ", ".join(sorted(steppers & others))
                raise Disagreement(
                    f"{here} called {call}, which waits for the whole run, and {there} called {step}, which waits for "
                    f"all of {cohort}; every worker must make the same calls in the same order"
                )

    def missing(self, cohort: str, turn: int) -> list[str]:
        """For whom a turn waits: members in the order of the run, then the cohorts for which the policy does."""
        whom = {
            name
            for (_, other), rounds in self._rounds.items()
            if other == cohort and turn in rounds.open
            for name in rounds.open[turn].waits_for
        }
        order = self._members.order
        return sorted(whom, key=lambda name: (order.get(name, len(order)), name))

    def _decide(self, slice_: Slice, round_: Round, now: float) -> None:
        members = self._members.expected(round_.turn, round_.cohort)
        progress = {} if self._policy.lockstep else self._progress(slice_.index, round_.cohort)
        origins = round_.origins.keys()
        view = RoundView(
            round_.turn, slice_.index, round_.kind, round_.cohort, origins, members, round_.opened, progress
        )
        plan = self._policy.gathered(view, now)
        if self._is_held and not isinstance(plan, Wait):
            round_.waits_for = ()
            return
        if isinstance(plan, Wait):
            round_.waits_for, round_.waits_until = plan.whom, plan.until
            self._look_at(slice_, round_.cohort, now)
            return
        self._close(slice_, self._rounds[slice_.index, round_.cohort].close(round_.turn))

    def _look_at(self, slice_: Slice, cohort: str, now: float) -> None:
        """Ask the policy again when the first time comes until which it waits."""
        times = [round_.waits_until for round_ in self._rounds[slice_.index, cohort].open.values()]
        due_at = min((at for at in times if at is not None and at > now), default=None)
        if due_at is not None:
            self._wake(f"round {slice_.index} {cohort}", due_at, partial(self._is_due, slice_, cohort))

    def _is_due(self, slice_: Slice, cohort: str, now: float) -> None:
        for round_ in list(self._rounds[slice_.index, cohort].open.values()):
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
            rounds = self._rounds.get((slice_.index, cohort))
            for round_ in list(rounds.open.values()) if rounds else ():
                if self._members.expected(round_.turn, cohort) <= round_.origins.keys():
                    self._decide(slice_, round_, now)
