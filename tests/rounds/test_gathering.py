"""When the rounds of a server close."""

from __future__ import annotations

from geomx.layout import Layout, Slice, Tensor
from geomx.rounds.gathering import Gathering
from geomx.rounds.membership import Members
from geomx.rounds.round import Round
from geomx.sync import policies
from geomx.wire.messages import Push

LAYOUT = Layout((Tensor("w", (4,), "float32"),))


def push(turn: int, cohort: str, *origins: str) -> Push:
    return Push(
        turn, 0, "gradient", "step()", 1.0, dict.fromkeys(origins, 1), None, b"", False, cohort, turn, size=16
    )


def test_a_bound_on_staleness_waits_no_longer_for_a_cohort_of_which_all_have_come_to_a_call() -> None:
    closed: list[tuple[str, int]] = []

    def close(_: Slice, round_: Round) -> None:
        closed.append((round_.cohort, round_.turn))

    gathering = Gathering(policies.make("mixed staleness=0"), Members(["A/0", "A/1", "B/0"]), close)
    (slice_,) = LAYOUT.slices
    gathering.begin([slice_])
    for turn in range(2):
        gathering.add(slice_, push(turn, "B", "B/0"), None, 0.0)
        gathering.answered(slice_, 0.0)
    before = list(closed)
    gathering.at_barrier({"A/0"}, 9, 1.0)
    assert closed == before  # A/1 may still step
    gathering.at_barrier({"A/0", "A/1"}, 9, 2.0)
    assert len(closed) > len(before)
