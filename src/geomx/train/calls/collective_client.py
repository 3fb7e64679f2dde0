"""A worker's side of the collective calls: contributions go out, arrivals come in.

Turns number the collective calls of a cohort; see `geomx.wire.messages`. A slice is *outstanding* from its
contribution until the update of that turn has arrived. Everything here runs on the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from geomx.errors import Unsupported
from geomx.layout import Layout
from geomx.node.port import Allowed, Arrived, Away, Contribution, Fetched, Left, Port, Ready
from geomx.optim.contract import SliceState
from geomx.tree import EVERYONE
from geomx.wire.messages import Hyperparameters, Kind, Of, Place, Reached, Value

Packed = tuple[torch.Tensor | None, bytes | None]  # values, and which parts are present
STEP = "step()"  # the operation of every contribution to a step


class CollectiveClient:
    """See the module's text. Its owner sets what it calls.

    `receive` is given every arrival that is accounted for; `moved` is called when this worker, which was cut off, has
    what the others have made meanwhile.
    """

    def __init__(self, port: Port, name: str) -> None:
        self.port = port
        self.name = name
        self.turns: dict[str, int] = {EVERYONE: 0}  # by cohort: the turn that comes next
        self.next_step = 0  # of the policy, when this worker attached
        # As this worker was told when it came back: how many passes over the data the run had ended, and how many steps
        # it had taken in the next.
        self.passes = self.into_pass = 0
        self.away: frozenset[str] = frozenset()  # the workers that take no part, as far as is known
        self.goes_on = (
            False  # it has joined a run that had made calls behind attach, and has made none itself
        )
        self.place: Place | None = None  # where the script goes on that was started again; None: at its start
        self.outstanding: dict[
            int, tuple[str, int]
        ] = {}  # slice -> the cohort and turn whose update it waits for
        self.receive: Callable[[Arrived], None] = lambda _: None
        self.moved: Callable[[], None] = lambda: None  # this worker takes part again, in later turns
        self._cohort, self._stepped, self._whole = EVERYONE, frozenset[int](), False  # as `attach` was told
        self._is_whole = self._is_attached = False
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
        self._is_moving = False  # the run has gone on without this worker: it waits for what that has made
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
        self._cohort, self._stepped, self._whole = cohort, frozenset(stepped), whole
        self._is_whole = is_whole
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
        if not _has_begun(self._ready):
            return True  # whoever was here before may have given some of them
        self._is_moving = False
        self.wait()
        self.place = place_in(self._ready.reached, self.turns, self.next_step, self._ready.ended)
        if self._ready.begins and self._is_whole:
            self.place = self._place_beside(self._ready)
        self.goes_on = self.turn > 1 or self.next_step > 0
        return False

    def _place_beside(self, ready: Ready) -> Place:
        """Where the others are, whose steps this worker has missed."""
        told = next((each for each in reversed(ready.reached) if each.step >= 0), None)
        before, missed = Place(steps=self.next_step), 0
        if told is not None:
            before, missed = told.behind, max(0, self.next_step - told.step - 1)
        return Place(self.passes, (self.into_pass,), before.steps + missed, before.weight, before.first_loss)

    def _go_on(self, ready: Ready) -> None:
        """Where a run stands that this worker joins: in the last step of which something has closed.

        The worker that was here before may have contributed to it in part. What has closed is not pushed again, so the
        step is taken once more; unless a call that is no step has come behind it, before which all of it was closed.
        Whoever was let in again begins with turns that nobody has closed.
        """
        closed = ready.turns
        last = max((step for _, step, _ in closed.values()), default=-1)
        self.next_step = last + 1
        if ready.begins:
            self._begin_with(ready)
            return
        for name, (count, step, turn) in closed.items():
            again = step == last >= 0 and turn == count - 1
            self.turns[name] = count - again
            if again:
                self.next_step = last

    def _begin_with(self, ready: Ready) -> None:
        """Take part from the turns on that are named, with what was made before."""
        self.next_step = max(self.next_step, ready.pace)
        if self._is_whole:
            self.passes, last = ready.passes.get(self._cohort, (0, -1))
            self.into_pass = max(0, self.next_step - last - 1)
        self.turns = {name: self.turns[name] for name in {EVERYONE, self._cohort}} | ready.begins
        self._have = {key: turn for key, turn in self._have.items() if turn < self.turns.get(key[1], 0)}
        self._again = None
        self._given_up |= self._open
        cohort = self._cohort
        last = -1  # the turn of a step that others close in all slices
        if self._is_whole and cohort == EVERYONE:
            _, _, last = ready.turns.get(cohort, (0, -1, -1))
        self.outstanding = {}
        for index, (own, everyones) in ready.by_slice.items():
            before = last if index in self._stepped and last < self.turns[cohort] else -1
            if max(own, before) >= 0:
                self.outstanding[index] = cohort, max(own, before)
            elif everyones >= 0:
                self.outstanding[index] = EVERYONE, everyones
        self._is_moving = True

    def _once_more(self, ready: Ready) -> None:
        """No step is taken once more that has closed in all slices: its answers are on their way."""
        cohort = self._cohort
        count, step, turn = ready.turns.get(cohort, (0, -1, -1))
        if ready.begins or self.next_step != step or turn != count - 1:
            return
        if any(ready.by_slice[index][0] < turn for index in self._stepped):
            self._again = (cohort, turn) if self._whole else None
            return
        self.turns[cohort], self.next_step = count, step + 1
        self.outstanding |= dict.fromkeys(self._stepped, (cohort, turn))

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
        ended: bool = False,
        state: SliceState | None = None,
        relative_loss: float | None = None,
        together: bytes = b"",
    ) -> None:
        """Push one slice in the cohort's current turn, unless the run has closed that round already."""
        self._check_open()
        turn = self.turns.setdefault(cohort, 0)
        self._open.add(cohort)
        if self._is_moving:
            self._given_up.add(cohort)
        if cohort in self._given_up or self._have.get((index, cohort), -1) >= turn:
            return
        values, present = packed
        self._pushed[index, cohort] = turn
        self.outstanding[index] = cohort, turn
        contribution = Contribution.of(
            turn, index, kind, operation, weight, values, present, hyper,
            ended=ended, cohort=cohort, step=step, state=state, relative_loss=relative_loss, together=together,
        )  # fmt: skip
        self.port.call("contribute", contribution)

    def skip_to(self, turn: int) -> None:
        """Go on with a later turn of the whole run; every worker must, with the same."""
        self.turns[EVERYONE] = max(self.turn, turn)

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

    def wait(self, slices: Collection[int] | None = None) -> None:
        """Return when none of `slices` is outstanding; None: none at all, but for those of a turn still open."""
        self._check_open()
        if slices is None:
            slices = [
                index for index, (cohort, turn) in self.outstanding.items() if turn < self.turns[cohort]
            ]
        waited = set(slices)
        if not waited.isdisjoint(self.outstanding):
            self.port.wait(lambda: waited.isdisjoint(self.outstanding), lambda: self._whom(waited))
        self._end_moving()

    def poll(self) -> None:
        """Hear what has come meanwhile; waits only where the run has gone on without this worker."""
        self.port.poll()
        self._end_moving()

    def _end_moving(self) -> None:
        """Where the run has gone on without this worker, return when that has all that the others have."""
        while self._is_moving:
            self.port.wait(
                lambda: not self.outstanding, lambda: "what the others have made without this worker"
            )
            self._is_moving = False
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
                lambda: turn in self._allowed or self._is_moving,
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

    def leave(self) -> None:
        """Take no part in turns to come; returns when the run knows, and this worker's node has said its last word.

        What a backward() without a step() has pushed is answered before: it cannot be taken back.
        """
        self.wait(tuple(self.outstanding))
        self.port.call("leave", {cohort: turn - 1 for cohort, turn in self.turns.items()})
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

    def _check_open(self) -> None:
        if self._closed:
            raise Unsupported("this run is closed: make every call before run.close()")

    def _hear(self, item: Any) -> None:
        if isinstance(item, Arrived):
            update = item.update
            key = update.slice, update.cohort
            is_known = (
                update.kind == "assign" and update.turn <= self._have.get(key, -1) and not self._is_moving
            )
            is_early = (update.cohort, update.turn) == self._again and key in self._have
            self._have[key] = max(update.turn, self._have.get(key, -1))
            cohort, turn = self.outstanding.get(update.slice, (update.cohort, update.turn + 1))
            if cohort == update.cohort and turn <= update.turn:
                del self.outstanding[update.slice]
            if is_early:
                self._early.append(item)
            elif not (is_known and self._is_attached):
                self.receive(item)
        elif isinstance(item, Allowed):
            self._allowed[item.turn] = item.steps
        elif isinstance(item, Fetched):
            self._states[item.slice] = item.state
        elif isinstance(item, Away):
            self.away = item.out
        elif isinstance(item, Ready):
            self._ready, self.away = item, item.out
            if self._is_attached:
                self._come_back(item)
            elif _has_begun(item):
                self._go_on(item)
                self._once_more(item)
        elif isinstance(item, Left):
            self._left = True

    def _come_back(self, ready: Ready) -> None:
        """This worker was cut off. It goes on where it is, unless the run has gone on without it."""
        self._ask()
        begins = ready.begins
        ahead = any(turn > self.turns.get(name, 0) for name, turn in begins.items())
        for index, (cohort, turn) in self.outstanding.items():
            first = begins.get(cohort, turn + 1)
            # What another process of this worker had contributed, nobody sends again; and where all of a cohort were
            # away, nobody closes what was left of their turn.
            is_not_its = turn >= first and self._pushed.get((index, cohort)) != turn
            ahead = ahead or is_not_its or (cohort != EVERYONE and turn < begins.get(cohort, turn))
        if ahead or (ready.begins and not self._whole):
            _, step, _ = max(ready.turns.values(), key=lambda closed: closed[1], default=(0, -1, -1))
            self.next_step = step + 1
            self._begin_with(ready)

    def _whom(self, waited: set[int]) -> str:
        left = [turn for index, (_, turn) in self.outstanding.items() if index in waited]
        turn = min(left, default=self.turn)
        return f"the others in turn {turn} ({len(left)} of {len(waited)} slices are to come)"


def _has_begun(ready: Ready) -> bool:
    """Whether a run has first values of every slice."""
    return bool(ready.by_slice) and all(everyones >= 0 for _, everyones in ready.by_slice.values())


def place_in(
    reached: Sequence[Reached], turns: Mapping[str, int], step: int, ended: Collection[str]
) -> Place | None:
    """Where a script goes on that was started again; None: it had not come to any step.

    `reached`: what it had told, the newest last. `turns`: by cohort, the turn that comes next. `step`: of the policy,
    likewise. `ended`: the cohorts of which everybody was at the end of the data in the last step that has closed.
    """
    for told in reversed(reached):
        if told.turn < turns.get(told.cohort, 0):
            behind = told.behind
            if told.step < 0 or told.cohort not in ended:
                return behind
            return Place(behind.epoch + 1, (), behind.steps, behind.weight, behind.first_loss)
        if told.step == step:  # it is taken once more
            return told.before
    return None
