"""When the rounds of a server close."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from trees import members_of

from geomx.layout import Layout, Slice, Tensor
from geomx.rounds.gathering import Gathering
from geomx.rounds.round import Round
from geomx.sync import policies
from geomx.sync.contract import Apply, Policy, RoundView, Wait
from geomx.sync.fsa import FSA
from geomx.wire.messages import Push, Reading

LAYOUT = Layout((Tensor("w", (4,), "float32"),))


def never(key: str, at: float, then: Callable[[float], None]) -> None:
    raise AssertionError("this policy knows no time")


def push(turn: int, cohort: str, *origins: str) -> Push:
    who = dict.fromkeys(origins, 1)
    return Push(turn, 0, "gradient", "step()", 1.0, who, None, b"", Reading(), cohort, turn, size=16)


class Gathered:
    """What one server gathers of one slice or more, and in which turns it has closed, with whom."""

    def __init__(
        self, policy: Policy, names: str, wake: Callable[..., None] = never, layout: Layout = LAYOUT
    ) -> None:
        self.closed: list[tuple[int, list[str]]] = []
        self.slice, self.members = layout.slices[0], members_of(names.split())
        self.gathering = Gathering(policy, self.members, self._close, wake)
        self.gathering.begin(layout.slices)

    def _close(self, _: Slice, round_: Round) -> None:
        self.closed.append((round_.turn, sorted(round_.origins)))

    def add(self, turn: int, name: str, now: float, cohort: str = "") -> None:
        self.gathering.add(self.slice, push(turn, cohort, name), None, now)


def test_a_bound_on_staleness_waits_no_longer_for_a_cohort_of_which_all_have_come_to_a_call() -> None:
    server = Gathered(policies.make("mixed staleness=0"), "A/0 A/1 B/0")
    for turn in range(2):
        server.add(turn, "B/0", 0.0, "B")
        server.gathering.answered(server.slice, "B", 0, 0.0)
    before = list(server.closed)
    server.gathering.at_barrier({"A/0"}, 9, 1.0)
    assert server.closed == before  # A/1 may still step
    server.gathering.at_barrier({"A/0", "A/1"}, 9, 2.0)
    assert len(server.closed) > len(before)


class Patient(FSA):
    """Waits for everybody, but no longer than `grace_s`, and no less than half of it."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        missing = tuple(sorted(view.members - view.origins))
        until = view.opened + (self._grace_s if missing else self._grace_s / 2)
        return Apply() if now >= until else Wait(missing, until)


class Clock:
    """Wakes whoever has asked, in the order of time."""

    def __init__(self) -> None:
        self.due: dict[str, tuple[float, Callable[[float], None]]] = {}

    def wake(self, key: str, at: float, then: Callable[[float], None]) -> None:
        self.due[key] = at, then

    def run(self, until: float) -> None:
        while self.due and min(self.due.values(), key=lambda due: due[0])[0] <= until:
            key = min(self.due, key=lambda key: self.due[key][0])
            at, then = self.due.pop(key)
            then(at)


def test_a_policy_that_waits_until_a_time_is_asked_again_then() -> None:
    clock = Clock()
    server = Gathered(Patient(2.0), "A/0 B/0", clock.wake)
    server.add(0, "A/0", 10.0)
    clock.run(11.9)
    assert not server.closed
    assert server.gathering.missing("", 0) == ["B/0"]
    clock.run(12.0)
    assert server.closed == [(0, ["A/0"])]
    server.add(1, "A/0", 20.0)
    server.add(1, "B/0", 20.5)
    assert server.gathering.missing("", 1) == []
    clock.run(20.9)
    assert len(server.closed) == 1
    clock.run(30.0)
    assert server.closed[1:] == [(1, ["A/0", "B/0"])]
    assert not clock.due


def test_of_several_open_rounds_each_is_decided_at_its_own_time() -> None:
    clock, policy = Clock(), Patient(2.0)
    policy.lockstep = False
    server = Gathered(policy, "A/0 B/0", clock.wake)
    server.add(0, "A/0", 0.0)
    server.add(1, "A/0", 1.0)
    clock.run(2.5)
    assert server.closed == [(0, ["A/0"])]
    clock.run(3.5)
    assert server.closed[1:] == [(1, ["A/0"])]


def test_a_round_that_was_answered_from_above_closes_with_whatever_is_in_it() -> None:
    """Those above did not wait for this server; nobody may come into the round behind its answer."""
    policy = Patient(2.0)
    policy.lockstep = False
    server = Gathered(policy, "A/0 A/1", Clock().wake)
    server.add(0, "A/0", 0.0)
    server.gathering.answered(server.slice, "", 0, 0.5)
    assert server.closed == [(0, ["A/0"])]
    server.add(0, "A/1", 0.6)
    server.gathering.answered(server.slice, "", 1, 1.0)  # before anybody has come
    server.add(1, "A/0", 1.1)
    server.add(1, "A/1", 1.2)
    assert len(server.closed) == 1
    server.add(2, "A/0", 2.0)
    server.add(2, "A/1", 5.0)
    assert server.closed[1:] == [(2, ["A/0", "A/1"])]


def test_what_is_held_closes_when_it_goes_on() -> None:
    server = Gathered(FSA(), "A/0 B/0")
    server.gathering.hold()
    for name in ("A/0", "B/0"):
        server.add(0, name, 0.0)
    assert server.closed == []
    server.gathering.resume(1.0)
    assert server.closed == [(0, ["A/0", "B/0"])]


def test_of_whoever_is_out_only_turns_before_keep_what_has_come() -> None:
    layout = Layout((*LAYOUT.tensors, Tensor("v", (5,), "float32")), slice_elements=5, pack_below=0)
    server, other = Gathered(policies.make("mixed"), "A/0 B/0 C/0", layout=layout), layout.slices[1]
    gathering, members, closed = server.gathering, server.members, server.closed
    for turn, name in ((3, "A/0"), (4, "A/0"), (4, "B/0")):
        server.add(turn, name, 0.0)
    assert gathering.last_closed(["A/0"]) == {"": -1, "A": -1}
    members.enroll(["A/0"], {})
    gathering.drop(frozenset({"A/0"}), {"": 4})
    gathering.add(other, replace(push(3, "", "B/0"), slice=other.index), None, 0.0)
    for turn in (3, 4):
        for name in ("B/0", "C/0"):
            server.add(turn, name, 1.0)
    assert closed == [(3, ["A/0", "B/0", "C/0"]), (4, ["B/0", "C/0"])]
    assert gathering.last_closed(["A/0"]) == {"": 4, "A": -1}
    members.enroll(["A/0", "C/0"], {})
    gathering.drop(frozenset({"C/0"}), {"": 5})
    gathering.look(2.0)
    assert closed[-1] == (3, ["B/0"])
