"""What a server notes of its turns, of which two may be open at once."""

from __future__ import annotations

from typing import Any

import pytest
from driven import push
from msgspec.structs import replace

from geomx.errors import Disagreement
from geomx.rounds.turn import KnownTurns
from geomx.rounds.turn_log import TurnLog
from geomx.wire.messages import Reading, Update


def test_the_answer_of_one_turn_leaves_the_next_one_open() -> None:
    noted: list[tuple[str, dict[str, Any]]] = []
    log = TurnLog(KnownTurns(), 30.0, 0.0, lambda name, level="", **fields: noted.append((name, fields)))
    log.opened(push("A/0", turn=1), "A/0", now=1.0)
    log.opened(push("A/1", turn=2), "A/1", now=2.0)
    for turn in (1, 2):
        log.answered("weight", Update(turn, 0, "gradient", 1.0, None, Reading()), 0, trained=1, now=5.0)
    assert [(name, fields["turn"], fields["seconds"]) for name, fields in noted] == [
        ("round", 1, 4.0),
        ("round", 2, 3.0),
    ]


def log_and_notes() -> tuple[TurnLog, list[dict[str, Any]]]:
    noted: list[dict[str, Any]] = []
    return TurnLog(KnownTurns(), 30.0, 0.0, lambda name, level="", **fields: noted.append(fields)), noted


def test_a_round_tells_who_came_last_and_how_much_later() -> None:
    log, noted = log_and_notes()
    for worker, now in (("A/0", 1.0), ("B/0", 1.5), ("A/0", 2.0), ("B/0", 4.5)):  # two slices
        log.opened(push(worker, turn=1), worker, now=now)
    log.answered("weight", Update(1, 0, "gradient", 1.0, None, Reading()), 0, trained=1, now=5.0)
    assert [(fields["last"], fields["later_s"]) for fields in noted] == [("B/0", 2.5)]


def test_a_child_whose_workers_come_in_another_order_is_one() -> None:
    log, noted = log_and_notes()
    for origins in ({"A/0": 1, "A/1": 1}, {"A/1": 1, "A/0": 1}):
        log.opened(replace(push("A/0", turn=1), origins=origins), "A/0", now=1.0)
    log.answered("weight", Update(1, 0, "gradient", 1.0, None, Reading()), 0, trained=1, now=5.0)
    assert ["last" in fields for fields in noted] == [False]


def test_one_alone_is_not_last() -> None:
    log, noted = log_and_notes()
    log.opened(push("A/0", turn=1), "A/0", now=1.0)
    log.answered("weight", Update(1, 0, "gradient", 1.0, None, Reading()), 0, trained=1, now=5.0)
    assert ["last" in fields for fields in noted] == [False]


@pytest.mark.parametrize(
    ("first", "second"), [("load() of file c.pt", "step()"), ("step()", "load() of file c.pt")]
)
def test_whoever_does_not_load_may_lack_the_file(first: str, second: str) -> None:
    log, _ = log_and_notes()
    log.opened(replace(push("A/0", turn=1), operation=first), "A/0", now=1.0)
    without = "B/0" if second == "step()" else "A/0"
    with pytest.raises(Disagreement, match=rf"If {without} found no checkpoint, copy the file"):
        log.opened(replace(push("B/0", turn=1), operation=second), "B/0", now=1.0)


def test_other_calls_that_differ_lack_no_file() -> None:
    log, _ = log_and_notes()
    log.opened(replace(push("A/0", turn=1), operation="save()"), "A/0", now=1.0)
    with pytest.raises(Disagreement, match=r"in the same order$"):
        log.opened(replace(push("B/0", turn=1), operation="step()"), "B/0", now=1.0)
