"""A worker's side of the collective calls: contributions go out, arrivals come in.

Turns number the collective calls of a cohort; see `geomx.wire.messages`. A slice is *outstanding* from its
contribution until the update of that turn has arrived. Everything here runs on the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

import torch

from geomx.errors import RunFailed, Unsupported
from geomx.layout import Layout
from geomx.node.port import Allowed, Arrived, Asked, Away, Contribution, Departs, Fetched, Left, Port, Ready
from geomx.node.requests import Responded
from geomx.node.slices.devices import Queued
from geomx.optim.contract import SliceState
from geomx.train.calls.joining import StepsBegun, comes_back, has_begun, joins, place_beside, place_in
from geomx.train.calls.runs_data import RunsData
from geomx.tree import EVERYONE
from geomx.wire.messages import UNREAD, Hyperparameters, Kind, Of, Place, Reached, Reading, Value

Packed = tuple[torch.Tensor | Queued | None, bytes | None]  # values, and which parts are present, of a step
STEP = "step()"  # the operation of every contribution to a step


class CollectiveClient:
    """See the module's text. Its owner sets what it calls.

    `receive` is given every arrival that is accounted for, `responded` what shards have answered to `ask`; `moved` is
    called when this worker, which was cut off, has what the others have made meanwhile.
    """

    def __init__(self, port: Port, name: str) -> None:
        self.port = port
        self.name = name
        self.turns: dict[str, int] = {EVERYONE: 0}  # by cohort: the turn that comes next
        self.next_step = 0  # of the policy, when this worker attached
        self.data = RunsData()
        self.unread = 0  # batches of the running pass, by who was here before, and missed since
        self.asked = False  # to leave
        self.goes_on = (
            False  # it has joined a run that had made calls behind attach, and has made none itself
        )
        self.place: Place | None = None  # where the script goes on that was started again; None: at its start
        self.outstanding: dict[
            int, tuple[str, int]
        ] = {}  # slice -> the cohort and turn whose update it waits for
        self.receive: Callable[[Arrived], None] = lambda _: None
        self.responded: Callable[[Responded], None] = lambda _: None
        self.moved: Callable[[], None] = lambda: None  # this worker takes part again, in later turns
        self._steps = StepsBegun()
        self._is_attached = False
        self._again: tuple[str, int] | None = None  # cohort and turn of a step that is taken once more
        self._early: list[Arrived] = []  # its answers, until it has been taken
        self._have: dict[tuple[int, str], int] = {}  # slice, cohort -> the last turn whose update has arrived
        self._pushed: dict[
            tuple[int, str], int
        ] = {}  # slice, cohort -> the last turn to which it has contributed
        self._ready: Ready | None = None
        self._states: dict[int, SliceState] = {}
        self._ask: Callable[[], None] = lambda: None  # once more for the states that are to come
        self._allowed: dict[int, int] = {}  # by turn: how many steps may be taken in it
        self._left = self._closed = False
        self._open: set[str] = set()  # cohorts to whose turn something has been contributed, and more may be
        self._given_up: set[str] = (
            set()
        )  # those of them whose turn was not this worker's any more, halfway through it
        self.absences = 0  # how often the run has gone on without this worker
        self.is_moving = False  # it has done so, and this worker waits for what that has made
        self._renews = False  # see `wait`
        port.listen(self._hear)

    @property
    def turn(self) -> int:
        """The turn of the whole run that comes next."""
        return self.turns[EVERYONE]

    def attach(
        self,
        layout: Layout,
        settings: dict[str, Value],
        cohort: str,
        stepped: Collection[int],
        whole: bool = False,
        is_whole: bool = False,
    ) -> bool:
        """Tell the run the model, and wait until it has taken it. True: first values are still to be given.

        Else it was running: the current values of every slice have come, and the next turns are set. `cohort`: the one
        in which this worker takes its steps. `stepped`: the slices that take part in a step of the whole model.
        `whole`: a step that is taken once more begins with the weights of before it, where they come. `is_whole`: every
        step that exchanges anything exchanges all of these slices.
        """
        self._check_open()
        self.turns.setdefault(cohort, 0)
        self.data.cohort = cohort
        self._steps = StepsBegun(cohort, frozenset(stepped), whole, is_whole)
        self.port.call("attach", layout, settings)
        self.port.wait(lambda: self._ready is not None, lambda: "the servers to accept the model")
        assert self._ready is not None
        by_slice = self._ready.by_slice
        known = {index for index, (own, everyones) in by_slice.items() if max(own, everyones) >= 0}
        self.port.wait(
            lambda: known <= {index for index, name in self._have if name in (cohort, EVERYONE)},
            lambda: "the weights of a run that has begun",
        )
        self._is_attached = True
        if not has_begun(self._ready):
            return True  # whoever was here before may have given some of them
        self.is_moving = False
        self.wait()
        told = self._ready.reached
        self.place = place_in(told, self.turns, self.next_step, self._ready.standings)
        if self._ready.begins or self.place is None:  # others went on without it, or all were started again
            self.data.caught_up(self.next_step)
            if self.data.is_known:
                self.place, self.unread = place_beside(told, self.data.reading)
        self.goes_on = self.turn > 1 or self.next_step > 0
        return False

    def reached(self, cohort: str, step: int, before: Place, behind: Place) -> None:
        """Tell how far the script is, before what it contributes to the cohort's current turn; see `Reached`."""
        self._check_open()
        turn = self.turns.setdefault(cohort, 0)
        self.port.call("reached", Reached(self.name, cohort, turn, step, before, behind))

    def contribute(
        self,
        index: int,
        kind: Kind,
        operation: str,
        weight: float,
        packed: Packed,
        *,
        cohort: str = EVERYONE,
        step: int = -1,
        hyper: Hyperparameters | None = None,
        reading: Reading = UNREAD,
        state: SliceState | None = None,
        relative_loss: float | None = None,
        together: bytes = b"",
        awaits: bool = False,
    ) -> None:
        """Push one slice in the cohort's current turn, unless the run has closed that round already."""
        self._check_open()
        turn = self.turns.setdefault(cohort, 0)
        self._open.add(cohort)
        if self.is_moving:
            self._given_up.add(cohort)
        if cohort in self._given_up or self._have.get((index, cohort), -1) >= turn:
            return
        values, present = packed
        self._pushed[index, cohort] = turn
        self.outstanding[index] = cohort, turn
        contribution = Contribution.of(
            turn, index, kind, operation, weight, values, present, hyper,
            reading=reading, cohort=cohort, step=step, state=state, relative_loss=relative_loss, together=together,
            awaits=awaits,
        )  # fmt: skip
        self.port.call("contribute", contribution)

    def catch_up(self, cohort: str = EVERYONE) -> bool:
        """Where turns close without this worker, contribute next to the first that is open; whether it was behind.

        What it has contributed before is answered first. If the run has gone on without this worker meanwhile, what it
        would contribute is given up.
        """
        absences = self.absences
        self.wait([index for index, (name, _) in self.outstanding.items() if name == cohort])
        if self.absences != absences:
            self._given_up.add(cohort)
            return False
        newest = max((turn for (_, name), turn in self._have.items() if name == cohort), default=-1)
        is_behind = newest >= self.turns.get(cohort, 0)
        if is_behind:
            self.skip_to(newest + 1, cohort)
        return is_behind

    def skip_to(self, turn: int, cohort: str = EVERYONE) -> None:
        """Go on with a later turn of a cohort; every worker of it must, with the same."""
        self.turns[cohort] = max(self.turns.get(cohort, 0), turn)

    def next_turn(self, cohort: str = EVERYONE) -> None:
        """Everything of this turn has been contributed."""
        self._open.discard(cohort)
        if cohort in self._given_up:
            self._given_up.discard(cohort)
            return
        self.turns[cohort] += 1
        self.goes_on = False
        if self._again is not None and self._again[0] == cohort:
            early, self._again, self._early = self._early, None, []
            for item in early:
                self.receive(item)

    def wait(self, slices: Collection[int] | None = None, renews: bool = False) -> None:
        """Return when none of `slices` is outstanding; None: none at all, but for those of a turn still open.

        `renews`: whoever calls uses no weights meanwhile. So what a server that was started again sends of slices that
        it had answered takes their place: it may have lost something else on the way down than its former self.
        """
        self._check_open()
        if slices is None:
            slices = [
                index for index, (cohort, turn) in self.outstanding.items() if turn < self.turns[cohort]
            ]
        waited = set(slices)
        if not waited.isdisjoint(self.outstanding):
            self._renews = renews
            self.port.wait(lambda: waited.isdisjoint(self.outstanding), lambda: self._whom(waited))
            self._renews = False
        self._end_moving()

    def wait_for_any(self, groups: Sequence[Collection[int]]) -> list[int]:
        """Return when all slices of one of the groups are answered: the places of those that are.

        What the others have contributed to their turn was of none, and is not awaited any more.
        """
        self._check_open()

        def answered() -> list[int]:
            return [place for place, group in enumerate(groups) if self.outstanding.keys().isdisjoint(group)]

        self.port.wait(lambda: bool(answered()), lambda: self._whom(set().union(*groups)))
        found = answered()
        for place, group in enumerate(groups):
            for index in group if place not in found else ():
                self.outstanding.pop(index, None)
        return found

    def poll(self) -> None:
        """Hear what has come meanwhile; waits only where the run has gone on without this worker."""
        self.port.poll()
        self._end_moving()

    def _end_moving(self) -> None:
        """Where the run has gone on without this worker, return when that has all that the others have."""
        while self.is_moving:
            self.port.wait(
                lambda: not self.outstanding, lambda: "what the others have made without this worker"
            )
            self.is_moving = False
            self.data.caught_up(self.next_step)
            self.moved()

    def fetch(
        self, slices: Iterable[int], of: Of | Literal["worker"], server: str = ""
    ) -> dict[int, SliceState]:
        """What belongs in a checkpoint of these slices, as it is now.

        `of`, `server`: see `Fetch`, or this worker's own.
        """
        self._check_open()
        self._states = {}
        wanted = set(slices)

        def ask() -> None:
            for index in sorted(wanted - self._states.keys()):
                self.port.call("fetch", index, of, server)

        self._ask = ask
        ask()
        self.port.wait(
            lambda: wanted <= self._states.keys(),
            lambda: f"the state of {len(wanted - self._states.keys())} slices ({server or of})",
        )
        states, self._states = self._states, {}
        self._ask = lambda: None
        self._end_moving()
        return states

    def ask(self, shard: int, number: int, what: bytes, payload: torch.Tensor | None) -> None:
        """Ask a shard something, see `geomx.node.requests`."""
        self._check_open()
        self.port.call("ask", shard, number, what, payload)

    def stepped(self, steps: int, seconds: float, wait: bool) -> int:
        """Tell that a step has been taken, the `steps`-th of this turn; returns how many may be taken in it.

        `wait`: for the answer; else as far as is known, 0 where nothing is.
        """
        self._check_open()
        turn = self.turn
        self._allowed = {
            of: count for of, count in self._allowed.items() if of > turn or (of == turn and not wait)
        }
        self.port.call("stepped", turn, steps, seconds)
        if wait:
            self._ask = lambda: self.port.call("stepped", turn, steps, seconds)
            self.port.wait(
                lambda: turn in self._allowed or self.is_moving,
                lambda: f"the first global server to say how many steps it may take in turn {turn}",
            )
            self._ask = lambda: None
        self.poll()
        return self._allowed.get(turn, 0)

    def paced(self, steps: int) -> None:
        """Tell how many of the policy's steps this worker has taken; it hears what has come meanwhile."""
        self.port.call("paced", steps)
        self.poll()

    def sampled(self, digests: dict[int, bytes]) -> None:
        """Tell the run digests of the samples that the script begins with, by their places in the party's data."""
        self._check_open()
        self.port.call("sampled", digests)

    def hand_over(self, index: int, operation: str, weight: float, packed: Packed) -> None:
        """As this worker leaves early: what it has not shared of a slice counts without it; see `Push.drains`."""
        (values, present), cohort = packed, self._steps.cohort
        contribution = Contribution.of(
            self.turns[cohort] - 1,
            index,
            "gradient",
            operation,
            weight,
            values,
            present,
            cohort=cohort,
            drains=True,
        )
        self.port.call("contribute", contribution)

    def leave(self, early: bool = False) -> None:
        """Take no part in turns to come; returns when the run knows, and this worker's node has said its last word.

        What a backward() without a step() has pushed is answered before: it cannot be taken back. `early`: this worker
        was asked to leave.
        """
        self.wait(tuple(self.outstanding))
        self.port.call("leave", {cohort: turn - 1 for cohort, turn in self.turns.items()}, early)
        self._closed = True
        self.port.wait(lambda: self._left, lambda: "the servers to confirm that it leaves")
        self.port.end()

    def fail(self, reason: str, refusal: str = "") -> None:
        """Tell the run that this worker's script has raised. `refusal`: see `geomx.errors.refusal_of`."""
        if not self._closed:
            self._closed = True
            self.port.call("fail", reason, refusal)

    def give_up(self, reason: str) -> None:
        """This worker cannot go on, and the run can."""
        if not self._closed:
            self._closed = True
            self.port.call("give_up", reason)

    def given_up(self, reason: str, remedy: str) -> RunFailed:
        """The same, as an error for this worker's script."""
        self.give_up(reason)
        return RunFailed(self.name, f"{reason}; {remedy}")

    def _check_open(self) -> None:
        if self._closed:
            raise Unsupported("this run is closed: make every call before run.close()")

    def _hear(self, item: Any) -> None:
        if isinstance(item, Arrived):
            self._arrived(item)
        elif isinstance(item, Ready):
            self._joins(item)
        elif isinstance(item, Allowed):
            self._allowed[item.turn] = item.steps
        elif isinstance(item, Fetched):
            self._states[item.slice] = item.state
        elif isinstance(item, Responded):
            self.responded(item)
        elif isinstance(item, Away):
            self.data.changes(item.roster)
        elif isinstance(item, Departs):
            self.data.absences.departs(item.workers, item.last)
        elif isinstance(item, Asked):
            self.asked = True
        elif isinstance(item, Left):
            self._left = True

    def _arrived(self, item: Arrived) -> None:
        update = item.update
        self.data.answered(update)
        key = update.slice, update.cohort
        have = self._have.get(key, -1)
        is_known = update.kind == "assign" and update.turn <= have and not self.is_moving
        is_renewed = self._renews and update.turn == have
        is_early = (update.cohort, update.turn) == self._again and key in self._have
        self._have[key] = max(update.turn, have)
        cohort, turn = self.outstanding.get(update.slice, (update.cohort, update.turn + 1))
        if cohort == update.cohort and turn <= update.turn:
            del self.outstanding[update.slice]
        if is_early:
            self._early.append(item)
        elif is_renewed or not (is_known and self._is_attached):
            self.receive(item)

    def _joins(self, ready: Ready) -> None:
        self._ready = ready
        self.data.told(ready)
        if self._is_attached:
            self._ask()
            there = comes_back(ready, self._steps, self.turns, self.outstanding, self._pushed)
        else:
            there = joins(ready, self._steps, self.turns) if has_begun(ready) else None
        if there is None:
            return
        self.turns, self.next_step, self._again = there.turns, there.step, there.again
        if there.is_new:
            self._have = {key: turn for key, turn in self._have.items() if turn < self.turns.get(key[1], 0)}
            self._given_up |= self._open
            self.outstanding = {}
            self.is_moving = True
            self.absences += 1
        self.outstanding |= there.awaited

    def _whom(self, waited: set[int]) -> str:
        left = [turn for index, (_, turn) in self.outstanding.items() if index in waited]
        turn = min(left, default=self.turn)
        return f"the others in turn {turn} ({len(left)} of {len(waited)} slices are to come)"
