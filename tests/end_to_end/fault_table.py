"""The table of faults, as `make faults` writes and prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def write_table(path: str, reporter: pytest.TerminalReporter) -> None:
    """What the rows that were played have recorded, in the order of their names."""
    rows = sorted(_rows(reporter), key=lambda row: str(row["fault"]))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps({"rows": rows}, indent=1))
    reporter.section("faults")
    width = max((len(row["fault"]) for row in rows), default=0)
    reporter.line(
        _line(width, "fault", "noticed", "trains", "again", "ended", "the run", "without", "who was named")
    )
    for row in rows:
        names = sorted({name for named in row["named"].values() for name in named})
        wrong = f"  WRONG: {'; '.join(row['wrong'])}" if row["wrong"] else ""
        seconds = ["-" if row[key] is None else f"{row[key]:.1f} s" for key in ("noticed_s", "training_s")]
        told = (
            *seconds,
            f"{row['again']}",
            f"{row['ended_s']:.1f} s",
            row["fate"],
            ", ".join(row["without"]),
            ", ".join(names),
        )
        reporter.line(_line(width, row["fault"], *told) + wrong)
    reporter.line(f"{len(rows)} rows, {sum(bool(row['wrong']) for row in rows)} wrong: {path}")


def _rows(reporter: pytest.TerminalReporter) -> list[dict[str, Any]]:
    return [
        value
        for reports in reporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == "fault"
    ]


def _line(
    width: int,
    fault: str,
    noticed: str,
    trains: str,
    again: str,
    ended: str,
    fate: str,
    without: str,
    names: str,
) -> str:
    first = f"{fault:{width}} {noticed:>8} {trains:>8} {again:>6} {ended:>8}"
    return f"{first}  {fate:8}  {without:13}  {names}"
