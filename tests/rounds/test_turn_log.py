"""What a server notes of its turns, of which two may be open at once."""

from __future__ import annotations

from typing import Any

from driven import push

from geomx.rounds.turn_log import TurnLog
from geomx.wire.messages import Update


def test_the_answer_of_one_turn_leaves_the_next_one_open() -> None:
    noted: list[tuple[str, dict[str, Any]]] = []
    log = TurnLog(30.0, 0.0, lambda name, level="", **fields: noted.append((name, fields)))
    log.opened(push("A/0", turn=1), now=1.0)
    log.opened(push("A/1", turn=2), now=2.0)
    for turn in (1, 2):
        log.answered("weight", Update(turn, 0, "gradient", 1.0, None, False), 0, trained=1, now=5.0)
    assert [(name, fields["turn"], fields["seconds"]) for name, fields in noted] == [
        ("round", 1, 4.0),
        ("round", 2, 3.0),
    ]
