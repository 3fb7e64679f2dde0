"""The table of faults: each ends in progress, or in an end of all nodes that names who is to blame, and nobody else.

`make faults` plays all rows and writes what was seen to `out/faults.json`; of some, every test run does.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fault_rows import PATIENT, Row, play
from launched_runs import LAUNCHER

pytestmark = pytest.mark.processes

NODES = ("A/1", "A", "global/0")
MOMENTS = ("joining", "middle", "end")
LINKS = ("A-global/0", "A/1-A")
REJOIN = ("run.on_loss=wait", "run.wait_s=60")
INSIDE = ("party.A.inside=collective",)

ROWS = [
    *(Row(what, whom, when) for what, whom, when in product(("kill", "stop", "term"), NODES, MOMENTS)),
    *(Row(what, "A/1", "left", "goes on") for what in ("kill", "stop", "term")),
    *(Row("sleep", whom, when, for_s=5) for whom, when in product(NODES, ("middle", "end"))),
    *(Row("sleep", whom, "joining", for_s=5) for whom in ("A/1", "A")),
    Row(
        "sleep", "global/0", "joining", "goes on", for_s=5
    ),  # nobody has reached it yet, and start_s is longer
    # A server that is started again has forgotten everything; before it knew anything, that harms nobody.
    *(Row("restart", whom, "joining", "goes on", for_s=1) for whom in NODES),
    *(Row("restart", whom, when, for_s=1) for whom, when in product(("A", "global/0"), ("middle", "end"))),
    *(
        Row("restart", "A/1", when, "goes on", for_s=1, settings=REJOIN, words=("resume",))
        for when in ("middle", "end")
    ),
    *(Row("cut", whom, for_s=for_s) for whom, for_s in product(LINKS, (5, 20, 60))),
    *(
        Row("cut", whom, fate="goes on", for_s=for_s, settings=PATIENT, note="patient")
        for whom, for_s in product(LINKS, (5, 20, 60))
    ),
    *(Row("reset", whom, for_s=5) for whom in LINKS),
    *(Row("reset", whom, fate="goes on", for_s=5, settings=PATIENT, note="patient") for whom in LINKS),
    *(Row("up", whom, for_s=60) for whom in LINKS),
    *(Row("down", whom, for_s=60) for whom in LINKS),
    *(Row(what, whom, launched=True) for what, whom in product(("kill", "stop", "term"), NODES)),
    *(Row(what, LAUNCHER, launched=True) for what in ("kill", "interrupt", "term")),
]

# Who waits for whom, and what bounds it; see the table of that name in docs/architecture.md.
WAITS = [
    *(Row("absent", whom, "joining", note="a start") for whom in NODES),
    *(Row(what, "A/0", "joining", without=("A/1",), note="another to come") for what in ("kill", "stop")),
    Row("kill", "B/0", "joining", without=("A/1",), note="another to come"),
    Row("idle", "A/1", "joining", settings=("limits.turn_s=4",), note="attach, turn_s"),
    Row("stop", "A/1", "middle", settings=("sync.policy=esync",), note="esync"),
    Row("stop", "global/0", "middle", settings=("sync.policy=esync wait=true",), note="esync wait=true"),
    Row("stop", "global/1", "middle", words=("clip",), shards=2, note="clip_norm"),
    Row("stop", "global/0", "middle", words=("clip",), shards=2, note="clip_norm"),
    Row("stop", "A", "middle", settings=("worker.overlap=forward",), note="overlap"),
    Row("idle", "A/1", "middle", settings=("limits.turn_s=4",), note="a round, turn_s"),
    *(
        Row(what, "A/1", when, settings=INSIDE, words=("collective",), note="collective")
        for what, when in product(("kill", "stop"), ("joining", "middle"))
    ),
    Row(
        "stop",
        "B/0",
        after="step 40",
        words=("shard",),
        note="end of data",
        only={"A/0": ("steps=20",), "A/1": ("steps=20",), "B/0": ("steps=9999",)},
    ),
]


# Played by CI as well: one of each kind of fault, and of what is done about it.
IN_CI = {
    "kill A joining", "stop global/0 middle", "term A/1 end", "sleep 5 s A middle", "restart 1 s A/1 middle",
    "restart 1 s global/0 middle", "cut 5 s A-global/0 middle", "idle A/1 middle (a round, turn_s)",
}  # fmt: skip


def marked(row: Row) -> Any:
    marks = [pytest.mark.matrix, *([pytest.mark.faults] if str(row) in IN_CI else [])]
    return pytest.param(row, id=str(row), marks=marks)


def test_the_rows_of_ci_are_rows_of_the_table() -> None:
    assert {str(row) for row in (*ROWS, *WAITS)} > IN_CI


@pytest.mark.parametrize("row", [marked(row) for row in (*ROWS, *WAITS)])
def test_row(row: Row, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    seen = play(row, tmp_path)
    record_property("fault", seen.as_json())
    assert not seen.wrong, f"{row}: {'; '.join(seen.wrong)}\n{seen.said}"
