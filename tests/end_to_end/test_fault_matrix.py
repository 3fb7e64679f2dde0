"""The table of faults: each ends in progress, or in an end of all nodes that names who is to blame, and nobody else.

With `run.on_loss = "continue"` rows go on without whoever is lost, who takes part again where it comes back. Those who
come to the run's end then have the same weights and the same ledger, which says what each has given.

`make faults` plays all rows and writes what was seen to `out/faults.json`; of some, every test run does.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from fault_play import play
from fault_rows import CONTINUE, PATIENT, REPLICAS, STORE, Row, What, When
from launched_runs import LAUNCHER

pytestmark = pytest.mark.processes

NODES = ("A/1", "A", "global/0")
MOMENTS = ("joining", "middle", "end")
LINKS = ("A-global/0", "A/1-A")
REJOIN = ("run.on_loss=wait", "run.wait_s=60")
INSIDE, JOB = ("party.A.inside=collective",), ("collective",)
END_OF_DATA = {"A/0": ("steps=20",), "A/1": ("steps=20",), "B/0": ("steps=9999",)}

ROWS = [
    *(Row(what, whom, when) for what, whom, when in product(("kill", "stop", "term"), NODES, MOMENTS)),
    *(Row(what, "A/1", "left", "goes on") for what in ("kill", "stop", "term")),
    *(Row("sleep", whom, when, for_s=5) for whom, when in product(NODES, ("middle", "end"))),
    *(Row("sleep", whom, "joining", for_s=5) for whom in ("A/1", "A")),
    # Nobody has reached it yet, and start_s is longer.
    Row("sleep", "global/0", "joining", "goes on", for_s=5),
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
        Row(what, "A/1", when, settings=INSIDE, words=JOB, note=JOB[0])
        for what, when in product(("kill", "stop"), ("joining", "middle"))
    ),
    Row("stop", "B/0", after="step 40", words=("shard",), note="end of data", only=END_OF_DATA),
]

# With `run.on_loss = "continue"`. Whoever is cut off tries for `wait_s` to come back; in the end it finds nobody.
BRIEF = ("run.wait_s=5", "limits.start_s=12")
BELOW_A = ("A/0", "A/1")
A = ("A", *BELOW_A)
STRUCK = ("kill", "stop")
BACK = ("restart", "sleep")


def on(what: What, whom: str, when: When = "middle", *lost: str, **more: Any) -> Row:
    """A row whose run goes on; `lost`: who does not come to its end."""
    more["settings"] = (*CONTINUE, *more.get("settings", ()))
    return Row(what, whom, when, "goes on", lost=lost, **more)


LOSSES = [
    # Before all have their first values, nobody is left out.
    *(
        Row(what, whom, "joining", settings=(*CONTINUE, *BRIEF))
        for what, whom in product(STRUCK, ("A/0", "A/1", "A", "B/0", "global/0"))
    ),
    # SIGTERM has a node leave in order, as soon as it has come; the run ends with a global server.
    *(on("term", whom, "joining", whom) for whom in ("A/0", "A/1", "B/0")),
    *(on("term", "A", when, *A) for when in ("joining", "middle")),
    on("term", "A", "end", "A", "A/1"),
    Row("term", "global/0", "joining", settings=(*CONTINUE, *BRIEF)),
    Row("absent", "A/1", "joining", settings=(*CONTINUE, *BRIEF)),
    *(on(what, whom, "middle", whom) for what, whom in product(STRUCK, ("A/0", "A/1", "B/0"))),
    *(on(what, "A/1", "end", "A/1") for what in STRUCK),
    *(on(what, "A", "middle", *A, settings=BRIEF) for what in STRUCK),
    *(on(what, "A", "end", "A", "A/1", settings=BRIEF) for what in STRUCK),
    *(on(what, "B+B/0", "middle", "B", "B/0") for what in STRUCK),
    *(Row(what, "global/0", settings=(*CONTINUE, *BRIEF)) for what in STRUCK),
    *(on(what, "global/0", "end", settings=BRIEF) for what in STRUCK),  # those below it have done their work
    Row("kill", "global/0", "end", settings=(*REJOIN, "run.wait_s=5"), note="wait"),
    *(on("term", "A/1", when, "A/1") for when in ("middle", "end")),
    *(Row("term", "global/0", when, settings=(*CONTINUE, *BRIEF)) for when in ("middle", "end")),
    Row("kill", "A/1", settings=(*CONTINUE, *BRIEF, "run.least_workers=3"), note="least_workers"),
    Row("kill", "B/0", settings=(*CONTINUE, *BRIEF, "run.least_parties=2"), note="least_parties"),
    *(
        Row(what, whom, shards=2, settings=(*CONTINUE, *BRIEF), note="2 shards")
        for what, whom in product(STRUCK, ("global/0", "global/1"))
    ),
    *(on(what, "A/1", launched=True) for what in ("kill", "stop", "term", "restart")),
    *(on(what, "A", "middle", *BELOW_A, settings=BRIEF, launched=True) for what in STRUCK),
    *(Row("kill", whom, settings=(*CONTINUE, *BRIEF), launched=True) for whom in ("global/0", LAUNCHER)),
    *(
        on(what, whom, "middle", *lost, settings=(*BRIEF, *INSIDE), words=JOB, note=JOB[0])
        for what in STRUCK
        for whom, lost in (("A/1", ("A/0", "A/1")), ("A", A))
    ),
]

# Who takes part again, and ends as the others do.
OTHERS = {
    "diloco": ("sync.policy=diloco every=6",),
    "diloco overlap": ("sync.policy=diloco every=6 fragments=2 overlap=2",),
    "hfa": ("sync.policy=hfa k1=3 k2=2",),
    "mixed": ("sync.policy=mixed", "wan.codec_up=bisparse ratio=0.1", "wan.codec_down=bisparse ratio=0.1"),
    "downpour": ("sync.policy=downpour n_push=2 n_fetch=2",),
    "esync": ("sync.policy=esync",),
    "int8": ("wan.codec_up=int8", "wan.codec_down=int8"),
    "dgt": ("wan.channel=dgt adaptive=false", "run.secret_file=secret"),
    "overlap": ("worker.overlap=forward",),
}
RETURNS = [
    *(
        on("restart", whom, when, for_s=for_s)
        for whom, when, for_s in product(("A/0", "A/1", "B/0", "A", "B"), ("joining", "middle"), (0, 8))
    ),
    *(on("restart", "B+B/0", for_s=for_s) for for_s in (0, 8)),
    *(
        on("sleep", whom, when, for_s=8)
        for whom, when in product(("A/0", "A/1", "A", "B/0", "global/0"), ("joining", "middle"))
    ),
    *(on("sleep", whom, for_s=8) for whom in ("B", "B+B/0")),
    on("restart", "global/0", "joining", for_s=1),
    *(Row("restart", "global/0", when, for_s=1, settings=(*CONTINUE, *BRIEF)) for when in ("middle", "end")),
    on("restart", "A/1", "end", "A/1", for_s=8, settings=BRIEF, named=("A",)),
    on("restart", "A", "end", "A", "A/1", for_s=8, settings=BRIEF[1:], named=("A/0", "global/0")),
    on("sleep", "A/1", "end", "A/1", for_s=8, settings=BRIEF, named=("A",)),
    on("sleep", "A", "end", for_s=8, either=("A/1",)),  # as it leaves, it may hear that it has been out
    on("sleep", "global/0", "end", for_s=8),
    *(on("cut", whom, for_s=for_s) for whom, for_s in product(LINKS, (2, 10, 30))),
    *(on("reset", whom, for_s=for_s) for whom, for_s in product(LINKS, (0, 10))),
    *(on(what, whom, for_s=10) for what, whom in product(("up", "down"), LINKS)),
    on("cut", "A-global/0", "middle", *A, for_s=20, settings=BRIEF, note="longer than wait_s"),
    on("cut", "A/1-A", "middle", "A/1", for_s=20, settings=BRIEF, note="longer than wait_s"),
    on("restart", "A/1", for_s=8, settings=("run.least_workers=3",), note="least_workers"),
    *(on(what, whom, for_s=8, shards=2, note="2 shards") for what, whom in product(BACK, ("A/1", "A"))),
    *(
        on(what, whom, for_s=8, settings=settings, note=note)
        for note, settings in OTHERS.items()
        for what, whom in product(BACK, ("A/1", "A", "B/0"))
    ),
    *(
        on("restart", whom, for_s=8, settings=INSIDE, words=JOB, note=JOB[0])
        for whom in ("A/0+A/1", "A+A/0+A/1")
    ),
    on("sleep", "A/1", "middle", *BELOW_A, for_s=8, settings=(*BRIEF, *INSIDE), words=JOB, note=JOB[0]),
]

# A global server that has a store is started again, and nobody else ends.
DURABLE = [
    *(on("restart", "global/0", when, for_s=for_s, settings=STORE, note="store")
      for when, for_s in product(("joining", "middle", "end"), (0, 3))),
    *(on("restart", whom, when, for_s=3, shards=2, settings=STORE, note="store, 2 shards")
      for whom, when in (*product(("global/0", "global/1"), ("joining", "middle", "end")),
                         *product(("global/0+global/1",), ("joining", "middle")))),
    *(on("restart", "global/0", for_s=3, settings=(*STORE, *settings), note=f"store, {note}")
      for note, settings in OTHERS.items() if note != "dgt"),
    *(on(what, "global/0", when, for_s=for_s, shards=shards, settings=(*STORE, *OTHERS[policy]),
         note=f"store, {policy}, {shards} shards")
      for (what, for_s), when, (policy, shards) in product(
          (("restart", 0), ("sleep", 20)), ("joining", "middle", "end"),
          (("hfa", 2), ("diloco", 2), ("esync", 1), ("mixed", 2)))),
    *(on("cut", "A-global/0", for_s=10, settings=(*STORE, *OTHERS[policy]), note=f"store, {policy}")
      for policy in ("hfa", "diloco", "esync", "mixed")),
    on("restart", "global/0+A", for_s=3, settings=STORE, note="store"),
    on("restart", "global/1", for_s=3, shards=2, settings=STORE, words=("clip",), note="store, clip_norm"),
    on("restart", "global/0", for_s=3, shards=2, settings=STORE, words=("clip",), note="store, clip_norm"),
    on("sleep", "global/0", for_s=8, settings=STORE, note="store"),
    *(on("restart", whom, when, for_s=3, shards=2, settings=(*REPLICAS, *OTHERS.get(policy, ())),
         note=f"replicas, {policy}")
      for whom, when, policy in product(("global/0", "global/1"), ("joining", "middle", "end"), ("fsa", "diloco"))),
    on("sleep", "global/1", for_s=8, shards=2, settings=REPLICAS, note="replicas"),
    on("restart", "global/1", for_s=3, shards=3, settings=REPLICAS, note="replicas, 3 shards"),
    on("restart", "global/0", for_s=3, shards=2, settings=REPLICAS, words=("clip",), note="replicas, clip_norm"),
    *(on(what, "global/0", launched=True, settings=STORE, note="store") for what in ("kill", "term")),
]  # fmt: skip

EVERY = (*ROWS, *WAITS, *LOSSES, *RETURNS, *DURABLE)

# Played by CI as well: one of each kind of fault, and of what is done about it. Others are played by each test run:
# `test_real_faults.py` starts a killed worker again, `test_standby.py` has a server sleep, `test_durable.py` one die.
IN_CI = {
    "stop global/0 middle", "cut 5 s A-global/0 middle", "idle A/1 middle (a round, turn_s)",
    "kill A/1 middle (continue)", "restart 0 s B+B/0 middle (continue)", "cut 10 s A-global/0 middle (continue)",
    "term A/1 middle (continue, geomx run)", "kill global/0 middle (continue, geomx run, store)",
    "restart 3 s global/1 middle (continue, store, 2 shards)",
    "restart 3 s global/1 middle (continue, replicas, 3 shards)",
}  # fmt: skip


def marked(row: Row) -> Any:
    marks = [pytest.mark.matrix, *([pytest.mark.faults] if str(row) in IN_CI else [])]
    return pytest.param(row, id=str(row), marks=marks)


def test_the_rows_of_ci_are_rows_of_the_table() -> None:
    assert {str(row) for row in EVERY} > IN_CI


@pytest.mark.parametrize("row", [marked(row) for row in EVERY])
def test_row(row: Row, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    seen = play(row, tmp_path)
    record_property("fault", seen.as_json())
    assert not seen.wrong, f"{row}: {'; '.join(seen.wrong)}\n{seen.said}"
