"""The parts of the benchmark page: each is a table of figures, with what they were measured on.

All parts lie in docs/data/benchmarks.jsonl, one a line, with every row and column that was ever printed; the page shows
a choice of them. Cells are text, as they are printed, so that no figure changes between the file and the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.tables import Table


@dataclass(slots=True)
class Part:
    """One table. `told`: how it was measured; `measured`: when, and on what. `picture`: a file's name, or ""."""

    section: str
    title: str
    table: Table
    told: str = ""
    measured: str = ""
    picture: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.section, self.title

    def conditions(self) -> str:
        return " ".join(text for text in (self.told, self.measured) if text)

    def lines(self) -> list[str]:
        """All of it, in Markdown, without a heading."""
        conditions = self.conditions()
        return [*([conditions, ""] if conditions else []), *self.table.lines()]


Parts = dict[tuple[str, str], Part]  # by section and title


def read(path: Path) -> Parts:
    """Those of a file, if there is one, in its order."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    parts = [Part(**row | {"table": Table(**row["table"])}) for row in rows]
    return {part.key: part for part in parts}


def write(path: Path, parts: Iterable[Part]) -> None:
    """Put them into a file, in the place of what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(part), ensure_ascii=False) + "\n" for part in parts]
    path.write_text("".join(lines), encoding="utf-8")


def printed(parts: Iterable[Part], text: str = "") -> Iterator[str]:
    """The lines of whole tables whose section or title has the text in it, with headings."""
    section = ""
    for part in parts:
        if text.lower() not in f"{part.section}: {part.title}".lower():
            continue
        if part.section != section:
            section = part.section
            yield from (f"## {section}", "")
        yield from ([f"### {part.title}", ""] if part.title else [])
        yield from (*part.lines(), "")
