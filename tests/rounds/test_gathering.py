"""When the rounds of a server close."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from trees import members_of

from geomx.layout import Layout, Slice, Tensor
from geomx.rounds.gathering import Gathering
from geomx.rounds.round import Round
from geomx.sync import policies
from geomx.sync.contract import Apply, RoundView, Wait
from geomx.sync.fsa import FSA
from geomx.wire.messages import Push, Reading

LAYOUT = Layout((Tensor("w", (4,), "float32"),))


def never(key: str, at: float, then: Callable[[float], None]) -> None:
    raise AssertionError("this policy knows no time")


def push(turn: int, cohort: str, *origins: str) -> Push:
    return Push(
        turn,
        0,
        "gradient",
        "step()",
        1.0,
        dict.fromkeys(origins, 1),
        None,
        b"",
        Reading(),
        cohort,
        turn,
        size=16,
    )


def test_a_bound_on_staleness_waits_no_longer_for_a_cohort_of_which_all_have_come_to_a_call() -> None:
    closed: list[tuple[str, int]] = []

    def close(_: Slice, round_: Round) -> None:
        closed.append((round_.cohort, round_.turn))

    gathering = Gathering(policies.make("mixed staleness=0"), members_of(["A/0", "A/1", "B/0"]), close, never)
    (slice_,) = LAYOUT.slices
    gathering.begin([slice_])
    for turn in range(2):
        gathering.add(slice_, push(turn, "B", "B/0"), None, 0.0)
        gathering.answered(slice_, "B", 0, 0.0)
    before = list(closed)
    gathering.at_barrier({"A/0"}, 9, 1.0)
    assert closed == before  # A/1 may still step
    gathering.at_barrier({"A/0", "A/1"}, 9, 2.0)
    assert len(closed) > len(before)


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
    closed: list[tuple[int, tuple[str, ...]]] = []
    clock = Clock()
    gathering = Gathering(
        Patient(2.0),
        members_of(["A/0", "B/0"]),
        lambda _, round_: closed.append((round_.turn, tuple(round_.origins))),
        clock.wake,
    )
    (slice_,) = LAYOUT.slices
    gathering.begin([slice_])
    gathering.add(slice_, push(0, "", "A/0"), None, 10.0)
    clock.run(11.9)
    assert not closed
    assert gathering.missing("", 0) == ["B/0"]
    clock.run(12.0)
    assert closed == [(0, ("A/0",))]
    gathering.add(slice_, push(1, "", "A/0"), None, 20.0)
    gathering.add(slice_, push(1, "", "B/0"), None, 20.5)
    assert gathering.missing("", 1) == []
    clock.run(20.9)
    assert len(closed) == 1
    clock.run(30.0)
    assert closed[1:] == [(1, ("A/0", "B/0"))]
    assert not clock.due


def test_of_several_open_rounds_each_is_decided_at_its_own_time() -> None:
    closed: list[int] = []
    clock = Clock()
    policy = Patient(2.0)
    policy.lockstep = False
    gathering = Gathering(
        policy, members_of(["A/0", "B/0"]), lambda _, round_: closed.append(round_.turn), clock.wake
    )
    (slice_,) = LAYOUT.slices
    gathering.begin([slice_])
    gathering.add(slice_, push(0, "", "A/0"), None, 0.0)
    gathering.add(slice_, push(1, "", "A/0"), None, 1.0)
    clock.run(2.5)
    assert closed == [0]
    clock.run(3.5)
    assert closed == [0, 1]


def test_a_round_that_was_answered_from_above_closes_with_whatever_is_in_it() -> None:
    """Those above did not wait for this server; nobody may come into the round behind its answer."""
    closed: list[tuple[int, tuple[str, ...]]] = []
    policy = Patient(2.0)
    policy.lockstep = False
    gathering = Gathering(
        policy,
        members_of(["A/0", "A/1"]),
        lambda _, round_: closed.append((round_.turn, tuple(round_.origins))),
        Clock().wake,
    )
    (slice_,) = LAYOUT.slices
    gathering.begin([slice_])
    gathering.add(slice_, push(0, "", "A/0"), None, 0.0)
    gathering.answered(slice_, "", 0, 0.5)
    assert closed == [(0, ("A/0",))]
    gathering.add(slice_, push(0, "", "A/1"), None, 0.6)
    gathering.answered(slice_, "", 1, 1.0)  # before anybody has come
    gathering.add(slice_, push(1, "", "A/0"), None, 1.1)
    gathering.add(slice_, push(1, "", "A/1"), None, 1.2)
    assert len(closed) == 1
    gathering.add(slice_, push(2, "", "A/0"), None, 2.0)
    gathering.add(slice_, push(2, "", "A/1"), None, 5.0)
    assert closed[1:] == [(2, ("A/0", "A/1"))]


def test_what_is_held_closes_when_it_goes_on() -> None:
    closed: list[int] = []
    gathering = Gathering(
        FSA(), members_of(["A/0", "B/0"]), lambda _, round_: closed.append(round_.turn), never
    )
    (slice_,) = LAYOUT.slices
    gathering.begin([slice_])
    gathering.hold()
    for name in ("A/0", "B/0"):
        gathering.add(slice_, push(0, "", name), None, 0.0)
    assert closed == []
    gathering.resume(1.0)
    assert closed == [0]


def test_of_whoever_is_out_only_turns_before_keep_what_has_come() -> None:
    members = members_of(["A/0", "B/0", "C/0"])
    closed: list[tuple[int, list[str]]] = []
    gathering = Gathering(
        policies.make("mixed"),
        members,
        lambda _, round_: closed.append((round_.turn, sorted(round_.origins))),
        never,
    )
    layout = Layout(
        (Tensor("w", (4,), "float32"), Tensor("v", (5,), "float32")), slice_elements=5, pack_below=0
    )
    one, other = layout.slices
    gathering.begin(layout.slices)
    gathering.add(one, push(3, "", "A/0"), None, 0.0)
    gathering.add(one, push(4, "", "A/0"), None, 0.0)
    gathering.add(one, push(4, "", "B/0"), None, 0.0)
    assert gathering.last_closed(["A/0"]) == {"": -1, "A": -1}
    members.enroll(["A/0"], {})
    torn = gathering.drop(frozenset({"A/0"}), {"": 4})
    assert torn == []  # A/0 has contributed to all that is open of turn 3
    gathering.add(other, replace(push(3, "", "B/0"), slice=other.index), None, 0.0)
    for turn in (3, 4):
        for name in ("B/0", "C/0"):
            gathering.add(one, push(turn, "", name), None, 1.0)
    assert closed == [(3, ["A/0", "B/0", "C/0"]), (4, ["B/0", "C/0"])]
    assert gathering.last_closed(["A/0"]) == {"": 4, "A": -1}
    members.enroll(["A/0", "C/0"], {})
    assert gathering.drop(frozenset({"C/0"}), {"": 5}) == [("", 3)]
    gathering.look(2.0)
    assert closed[-1] == (3, ["B/0"])
