"""One failure, told once: who is named, why, and how to go on."""

from __future__ import annotations

import pytest

from geomx.errors import NodeLost, Refused, RunFailed, SameData, Stalled, Unsupported, WaitTimeout
from geomx.launch.local.child import Ended
from geomx.launch.local.processes import Outcome
from geomx.launch.verdict import (
    AGAIN,
    CHANGED,
    EVERYWHERE,
    PATIENCE,
    VANISHED,
    blames,
    by_hand,
    first_failure,
    follows,
    lost_link,
    status_of,
)
from geomx.observe.records import Record


def failed(t: float, by: str, node: str, error: str, reason: str) -> Record:
    return Record(t, by, "failed", "error", {"node": node, "error": error, "reason": reason})


def test_a_script_that_raised_is_named_though_others_ended_before_it() -> None:
    outcome = Outcome((Ended("global/0", 1), Ended("A", 1), Ended("A/1", 1, ("ValueError: boom",))), False)
    records = [
        failed(1.0, "A/1", "A/1", "RunFailed", "ValueError: boom"),
        failed(1.1, "A", "A/1", "RunFailed", "ValueError: boom"),
        failed(1.2, "global/0", "A/1", "RunFailed", "ValueError: boom"),
    ]
    error = first_failure(outcome, records)
    assert error.node == "A/1"
    what = "it ended with status 1: ValueError: boom"
    assert error.reason == f"{what}; its last lines:\n  ValueError: boom\n  {AGAIN}"
    shown = first_failure(outcome, records, shown=True)
    assert shown.reason == f"{what} (what it printed is above)\n  {AGAIN}"


@pytest.mark.parametrize(
    ("status", "told"), [(3, "its script ended with status 3"), (-15, "it was asked to end (SIGTERM)")]
)
def test_a_status_or_a_signal_is_told_once(status: int, told: str) -> None:
    records = [failed(1.0, "A/1", "A/1", "RunFailed", told)]
    error = first_failure(Outcome((Ended("A", 1), Ended("A/1", status)), False), records)
    assert error.reason == f"{told}\n  {AGAIN}"


def test_a_killed_process_is_named_though_another_told_first() -> None:
    outcome = Outcome((Ended("A/0", 1), Ended("A", -9)), False)
    error = first_failure(outcome, [failed(1.0, "A/0", "A", "NodeLost", "silent for 5 s")])
    assert (error.node, error.reason.splitlines()[0]) == ("A", "it was killed by SIGKILL")
    assert "out of memory" in error.reason


@pytest.mark.parametrize(
    ("well", "reason"), [((), "silent for 5 s; its process was still running"), (("A/1",), VANISHED)]
)
def test_a_node_that_fell_silent_is_named_with_what_is_known_of_its_process(
    well: tuple[str, ...], reason: str
) -> None:
    outcome = Outcome((Ended("A", 1), Ended("A/0", 1)), False, well=frozenset(well))
    error = first_failure(outcome, [failed(1.0, "A", "A/1", "NodeLost", "silent for 5 s")])
    assert (error.node, error.reason.splitlines()[0]) == ("A/1", reason)


def test_what_is_told_while_nodes_are_stopped_says_nothing() -> None:
    """But what they told before does, whether their processes have ended or not."""
    records = [
        failed(1.0, "global/0", "global/0", "RunFailed", "it was asked to end (SIGTERM)"),
        failed(1.1, "A", "global/0", "RunFailed", "it was asked to end (SIGTERM)"),
        failed(6.1, "A/0", "A/0", "RunFailed", "it was asked to end (SIGINT)"),
    ]
    error = first_failure(Outcome((Ended("A", 1),), False, stopped_at=6.0), records)
    assert (error.node, error.reason) == ("global/0", f"it was asked to end (SIGTERM)\n  {AGAIN}")
    assert first_failure(Outcome((Ended("A", 1),), False, stopped_at=0.5), records).node == "A"


def test_of_a_cut_link_neither_end_is_the_culprit() -> None:
    ended = tuple(Ended(name, 1) for name in ("A", "A/0", "global/0", "B"))
    records = [
        failed(1.0, "A", "global/0", "NodeLost", "A has heard nothing from it"),
        failed(1.1, "A/0", "global/0", "NodeLost", "A has heard nothing from it"),
        failed(1.2, "global/0", "A", "NodeLost", "global/0 has heard nothing from it"),
        failed(1.3, "B", "A", "NodeLost", "global/0 has heard nothing from it"),
    ]
    error = first_failure(Outcome(ended, False), records)
    assert error.node == "A and global/0"
    assert error.reason.startswith("the link between the two is lost: both kept running")
    assert PATIENCE in error.reason


def test_who_has_failed_itself_is_named_before_a_link() -> None:
    outcome = Outcome((Ended("A", 1), Ended("global/0", 1), Ended("B/0", 1)), False)
    records = [
        failed(1.0, "A", "global/0", "NodeLost", "nothing heard"),
        failed(1.0, "global/0", "A", "NodeLost", "nothing heard"),
        failed(1.2, "B/0", "B/0", "RunFailed", "ValueError: boom"),
    ]
    assert first_failure(outcome, records).node == "B/0"


def test_without_any_word_the_first_that_ended_is_named() -> None:
    error = first_failure(Outcome((Ended("B/0", 2, ("no such file",)), Ended("B", 1)), False), [])
    assert error.node == "B/0"
    assert error.reason.startswith("it ended with status 2; its last lines:\n  no such file\n")


def test_a_script_that_never_joined_is_named_with_what_it_lacks() -> None:
    lack = "without joining the run: train.py did not call geomx.join()"
    error = first_failure(Outcome((Ended("A/0", 0, lack=lack), Ended("A", 0, overdue=True)), False), [])
    assert str(error).splitlines()[0] == f"the run failed at A/0: it ended {lack}"


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [
        (NodeLost("A", "silent"), True),
        (RunFailed("A/1", "boom"), True),
        (RunFailed("A/0", "it was asked to end"), False),
        (WaitTimeout("nobody came"), False),
        (ValueError("boom"), False),
    ],
)
def test_what_came_about_elsewhere_is_told_apart(error: Exception, elsewhere: bool) -> None:
    assert follows(error, "A/0") is elsewhere


def test_who_stood_still_is_named_and_blames_nobody() -> None:
    """It lost the others because it heard nothing itself; its peers have lost it."""
    records = [
        Record(1.0, "global/0", "slept", "warning", {"seconds": 3.8}),
        failed(1.1, "global/0", "B", "NodeLost", "global/0 has heard nothing from it for 3 s"),
        failed(1.2, "B", "global/0", "NodeLost", "B has heard nothing from it for 3 s"),
    ]
    outcome = Outcome((Ended("global/0", 1), Ended("B", 1)), False)
    error = first_failure(outcome, records)
    assert error.node == "global/0"
    assert "link" not in error.reason
    assert lost_link(blames(records)) is None
    itself = failed(1.1, "global/0", "global/0", "NodeLost", "it did not run for 60 s")
    assert lost_link(blames([records[0], itself])) is None


def test_who_was_lost_is_not_who_made_the_run_fail_later() -> None:
    lost = (Ended("A/1", -9), Ended("B/0", 1))
    records = [
        failed(1.0, "B/0", "B", "NodeLost", "silent for 5 s"),
        failed(9.0, "A/0", "A/0", "RunFailed", "ValueError: boom"),
    ]
    outcome = Outcome((Ended("A", 1), Ended("A/0", 1)), False, lost=lost)
    assert first_failure(outcome, records).node == "A/0"
    assert first_failure(outcome, records[:1]).node == "A"


def test_who_was_lost_and_did_not_come_back_is_named_with_how_it_ended() -> None:
    outcome = Outcome((Ended("A", 1), Ended("A/0", 1)), False, lost=(Ended("A/1", -9),))
    records = [
        failed(t, by, "A/1", "NodeLost", "not back within 60 s") for t, by in ((1.0, "A"), (1.1, "A/0"))
    ]
    error = first_failure(outcome, records)
    assert str(error).startswith("the run failed at A/1: it was killed by SIGKILL: not back within 60 s\n")


@pytest.mark.parametrize("kind", ["Unsupported", "Refused", "Fenced", "SameData"])
def test_what_was_refused_is_not_to_be_started_again_unchanged(kind: str) -> None:
    """Also where others tell of it."""
    own = failed(1.0, "A/0", "A/0", kind, f"{kind}: do it so")
    error = first_failure(Outcome((Ended("A/0", 1, ("do it so",)), Ended("A", 1)), False), [own])
    assert error.reason.endswith(f"\n  {CHANGED}")
    assert AGAIN not in error.reason
    assert CHANGED in first_failure(Outcome((Ended("A", 1),), False), [own]).reason
    assert by_hand(RunFailed("A/0", "do it so", kind)) == f"the run failed at A/0: do it so\n  {CHANGED}"


def test_by_hand_every_node_is_started_again_unless_who_refuses_says_itself_what_to_do() -> None:
    for error in (NodeLost("A", "silent"), RunFailed("A/1", "boom"), Stalled("nobody moves")):
        assert by_hand(error) == f"{error}\n  {EVERYWHERE}"
    for refusal in (Unsupported("do it so"), Refused("do it so"), SameData("do it so")):
        assert by_hand(refusal) == "do it so"


@pytest.mark.parametrize(
    ("error", "may_return", "status"),
    [
        (NodeLost("A", "silent", may_return=True), True, 75),
        (NodeLost("A", "silent", may_return=True), False, 1),
        (NodeLost("A", "the run has ended"), True, 1),
        (ValueError("its script"), True, 1),
    ],
)
def test_only_who_was_cut_off_ends_with_the_status_by_which_it_is_started_again(
    error: Exception, may_return: bool, status: int
) -> None:
    assert status_of(error, may_return) == status
