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


def log_and_notes() -> tuple[TurnLog, list[dict[str, Any]]]:
    noted: list[dict[str, Any]] = []
    log = TurnLog(
        KnownTurns(), 30.0, 0.0, lambda name, level="", **fields: noted.append({"name": name} | fields)
    )
    return log, noted


def answer(log: TurnLog, turn: int = 1) -> None:
    log.answered("weight", Update(turn, 0, "gradient", 1.0, None, Reading()), 0, trained=1, now=5.0)


def test_the_answer_of_one_turn_leaves_the_next_one_open() -> None:
    log, noted = log_and_notes()
    log.opened(push("A/0", turn=1), "A/0", now=1.0)
    log.opened(push("A/1", turn=2), "A/1", now=2.0)
    for turn in (1, 2):
        answer(log, turn)
    told = [(fields["name"], fields["turn"], fields["seconds"]) for fields in noted]
    assert told == [("round", 1, 4.0), ("round", 2, 3.0)]


def test_a_round_tells_who_came_last_and_how_much_later() -> None:
    log, noted = log_and_notes()
    for worker, now in (("A/0", 1.0), ("B/0", 1.5), ("A/0", 2.0), ("B/0", 4.5)):  # two slices
        log.opened(push(worker, turn=1), worker, now=now)
    answer(log)
    assert [(fields["last"], fields["later_s"]) for fields in noted] == [("B/0", 2.5)]


@pytest.mark.parametrize("each", [[{"A/0": 1}], [{"A/0": 1, "A/1": 1}, {"A/1": 1, "A/0": 1}]])
def test_one_alone_is_not_last_in_whatever_order_its_workers_come(each: list[dict[str, int]]) -> None:
    log, noted = log_and_notes()
    for origins in each:
        log.opened(replace(push("A/0", turn=1), origins=origins), "A/0", now=1.0)
    answer(log)
    assert ["last" in fields for fields in noted] == [False]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("load() of file c.pt", "step()", r"If B/0 found no checkpoint, copy the file"),
        ("step()", "load() of file c.pt", r"If A/0 found no checkpoint, copy the file"),
        ("save()", "step()", r"in the same order$"),
    ],
)
def test_whoever_does_not_load_may_lack_the_file(first: str, second: str, why: str) -> None:
    log, _ = log_and_notes()
    log.opened(replace(push("A/0", turn=1), operation=first), "A/0", now=1.0)
    with pytest.raises(Disagreement, match=why):
        log.opened(replace(push("B/0", turn=1), operation=second), "B/0", now=1.0)
