"""Records as nodes make them, and reports as people see them, for tests."""

from __future__ import annotations

import io

from rich.console import Console

from geomx.observe.records import Record
from geomx.observe.report import Report, closing_table

TWO = """
[run]
name = "two"
shards = 2
[[party]]
name = "A"
workers = 1
[[party]]
name = "B"
workers = 1
"""


def record(node: str, name: str, **fields: object) -> Record:
    return Record(0.0, node, name, "debug", fields)


def usage(
    node: str, sent: dict[str, int], received: dict[str, int], cpu_s: float = 1.0, rss_mb: float = 80.0
) -> Record:
    return record(node, "usage", sent=sent, received=received, cpu_s=cpu_s, rss_mb=rss_mb)


def first_step(node: str, sent: dict[str, int], received: dict[str, int]) -> Record:
    return record(node, "first_step", sent=sent, received=received)


def finished(
    node: str,
    sha256: str | None = "ab" * 32,
    ledger: list[int] | None = None,
    train_s: float = 4.0,
    cohort: str = "",
    rewritten: bool = False,
) -> Record:
    return record(
        node, "finished", parameters_sha256=sha256, parameters=10, samples=64, steps=3, train_s=train_s,
        cohort=cohort, ledger=ledger, contributions=3, rewritten=rewritten,
    )  # fmt: skip


def roster(
    t: float, out: str = "", joined: str = "", members: int = 1, node: str = "global/0", **more: object
) -> Record:
    """Who takes part from turn 7 on."""
    fields: dict[str, object] = {"number": 1, "out": out, "joined": joined, "members": members}
    return Record(t, node, "roster", "info", fields | {"lost": {}, "awaited": {}, "turns": {"": 7}} | more)


def shown(report: Report, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(closing_table(report))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
