"""What a report says of overlays."""

from __future__ import annotations

from typing import Any

from geomx.config import Run
from geomx.observe.overlays import OverlayTotals, overlay_lines
from geomx.observe.records import Record

RUN = Run.parse(
    'run.overlay = "trees"\n[[party]]\nname = "a"\nworkers = 1\n[[party]]\nname = "b"\nworkers = 1\n',
    "run.toml",
)


def totals_of(*said: tuple[str, str, dict[str, Any]]) -> OverlayTotals:
    totals = OverlayTotals(RUN)
    for node, name, fields in said:
        if name == "usage":
            totals.use(node, fields)
        elif name == "clock":
            totals.start(node)
        else:
            totals.take(Record(0.0, node, name, "info", fields))
    return totals


def test_without_an_overlay_nothing_is_said() -> None:
    totals = totals_of(("a", "usage", {"sent": {"global/0": 9, "a/0": 9}}))
    assert totals.told() is None
    assert overlay_lines(None) == ""


def test_bytes_between_parties_are_of_all_processes_of_a_name() -> None:
    totals = totals_of(
        ("global/0", "overlay", {"state": "used", "table": 1, "ways": 2, "relays": "a"}),
        ("a", "usage", {"sent": {"global/0": 9, "b": 1_000_000}}),
        ("a", "clock", {}),
        ("a", "usage", {"sent": {"b": 500_000}}),
        ("b", "usage", {"sent": {"a": 250_000}}),
        ("global/0", "overlay", {"state": "void", "table": 1, "reason": "b begins anew"}),
    )
    told = totals.told()
    assert told is not None
    assert told["between"] == {"a": {"b": 1_500_000}, "b": {"a": 250_000}}
    assert told["tables"] == {"used": 1, "void": 1, "left": 0, "star": 0}
    assert overlay_lines(told) == "1 table, 1 void\n1.75 MB for each other: a → b 1.5 MB, b → a 0.25 MB"


def test_why_there_was_no_table() -> None:
    totals = totals_of(("global/0", "overlay", {"state": "star", "table": 1, "reason": "no table is faster"}))
    assert overlay_lines(totals.told()) == "no table: no table is faster"
