"""The tables of the page, in Markdown, and its parts: each is a table of figures, with what they were measured on.

All parts lie in docs/data/benchmarks.jsonl, one a line, with every row and column that was ever printed; the page shows
a choice of them. Cells are text, as they are printed, so that no figure changes between the file and the page.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cells import Result
from benchmarks.grounds import ways_of
from benchmarks.measures import ratio_to_floor
from benchmarks.sweep import Row
from benchmarks.systems.adapters import SYSTEMS

Columns = list[tuple[str, Callable[[Any], str]]]  # their names, and what stands in them of a row
NOTHING = "–"
STANDS = {"none": NOTHING, "own site": "own site", "A": "party A"}  # by hub
SERVERS = {"none": "", "own site": ", servers in a site of their own", "A": ", servers in party A"}
TARGETS = (0.80, 0.88)  # of `virtual.py algorithms`


@dataclass(slots=True)
class Table:
    """Figures as they are printed: the cells of a row stand below `columns`. `missing`: who has none, and why."""

    columns: list[str]
    rows: list[list[str]]
    missing: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, columns: Columns, rows: Iterable[Any], missing: Sequence[str] = ()) -> Table:
        """What the columns make of these rows."""
        cells = [[cell(row) for _, cell in columns] for row in rows]
        return cls([name for name, _ in columns], cells, list(missing))

    def lines(self) -> list[str]:
        """In Markdown: numbers are set to the right, and names are not broken into lines."""
        sides = ["---", *("---" if any(map(_is_text, cells)) else "---:" for cells in self._columns()[1:])]
        lines = [f"| {' | '.join(self.columns)} |", f"|{'|'.join(sides)}|"]
        for name, *numbers in self.rows:
            cells = [name.replace(" ", "\N{NO-BREAK SPACE}"), *numbers]
            lines.append(f"| {' | '.join(cells)} |")
        if self.missing:
            lines += ["", "Not measured, or not wholly:", "", *(f"- {reason}" for reason in self.missing)]
        return lines

    def _columns(self) -> list[tuple[str, ...]]:
        return list(zip(*self.rows, strict=True)) or [()] * len(self.columns)

    def chosen(self, columns: Sequence[str] = (), rows: Sequence[str] = ()) -> Table:
        """Some columns, and the rows of some names, in the order that they have here; all where none are named.

        A row's name is its first cell, or its first two with a semicolon between them.
        """
        places = [place for place, name in enumerate(self.columns) if not columns or name in columns]
        mine = [row for row in self.rows if not rows or _is_of(row, rows)]
        starts = {name.partition(";")[0] for name in rows}
        reasons = [reason for reason in self.missing if not rows or _who(reason) in starts]
        return Table([self.columns[p] for p in places], [[row[p] for p in places] for row in mine], reasons)

    def cell(self, name: str, column: str) -> str:
        """Of a row by its name; NOTHING where there is no such row."""
        place = self.columns.index(column)
        return next((row[place] for row in self.rows if _is_of(row, [name])), NOTHING)


def _is_text(cell: str) -> bool:
    return cell[:1].isalpha() or cell.startswith("`")


def _is_of(row: list[str], names: Sequence[str]) -> bool:
    return row[0] in names or "; ".join(row[:2]) in names


def _who(reason: str) -> str:
    """The name of the row that a reason stands for."""
    return reason.partition(": ")[0].partition(", servers in")[0]


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


def conditions(*texts: str) -> list[str]:
    """A line, and an empty one; none where nothing is told."""
    told = " ".join(text for text in texts if text)
    return [told, ""] if told else []


Parts = dict[tuple[str, str], Part]  # by section and title


def read_parts(path: Path) -> Parts:
    """Those of a file, if there is one, in its order."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    parts = [Part(**row | {"table": Table(**row["table"])}) for row in rows]
    return {part.key: part for part in parts}


def write_parts(path: Path, parts: Iterable[Part]) -> None:
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
        yield from (*conditions(part.told, part.measured), *part.table.lines(), "")


def title(result: Result) -> str:
    """A system and its configuration, as people say it."""
    if result.system == "raw":
        return "raw sockets (floor, measured)"
    return f"{SYSTEMS[result.system].title}, {result.config}"


def seconds(value: float | None) -> str:
    """To three figures."""
    return NOTHING if value is None else f"{value:#.3g}" if value < 100 else f"{value:,.0f}"


def number(value: float | None, unit: float = 1.0) -> str:
    """To three figures, without zeros behind them, in units of `unit`."""
    if value is None:
        return NOTHING
    return f"{value / unit:,.0f}" if value / unit >= 100 else f"{value / unit:.3g}"


megabytes = partial(number, unit=1e6)


def times(above: float | None, below: float | None, figures: str = ".2f") -> str:
    """How many times as large one is as the other."""
    return f"{above / below:{figures}}" if above and below else NOTHING


def apart(one: float | None, other: float | None) -> str:
    """How much longer one takes than the other."""
    return f"{one / other - 1:+.0%}" if one and other else NOTHING


def rounds(results: list[Result]) -> Table:
    """The systems of one sitting, the fastest first."""
    dense = next((r.step_s for r in results if (r.system, r.config) == ("geomx", "dense")), None)

    def cpu_s(r: Result) -> float | None:  # 0: the workers were not at work at the same time
        return sum(r.cpu_s.values()) / r.rounds or None if r.rounds else None

    columns: Columns = [
        ("system", title),
        ("servers in", lambda r: STANDS[r.hub]),
        ("seconds a step", lambda r: seconds(r.step_s)),
        ("p95 of a round", lambda r: seconds(r.round_s_p95)),
        ("× floor", lambda r: times(ratio_to_floor(r, ways_of(r).values()), 1.0)),
        ("× raw", lambda r: times(r.round_s_median, r.raw_floor_s)),
        ("× geomx", lambda r: times(r.step_s if r.system != "raw" else None, dense)),
        ("MB up", lambda r: megabytes(r.wan_bytes_up)),
        ("MB down", lambda r: megabytes(r.wan_bytes_down)),
        ("samples/s", lambda r: number(r.samples_per_s if r.system != "raw" else None)),
        ("CPU s a round", lambda r: seconds(cpu_s(r))),
        ("MB, all nodes", lambda r: number(sum(r.rss_mb.values()) or None)),
    ]
    good = sorted((r for r in results if r.is_ok), key=lambda r: r.step_s or math.inf)
    return Table.of(columns, good, missing(results))


def missing(results: list[Result]) -> list[str]:
    """Who has no figures, or not all of them, and why."""
    reasons = [(r, r.state.rstrip(".")) for r in results if not r.is_ok]
    reasons += [(r, r.note) for r in results if r.is_ok and r.note]
    return [f"{title(result)}{SERVERS[result.hub]}: {reason}" for result, reason in reasons]


def accuracy(results: list[Result]) -> Table:
    """Time and bytes to the target, the fastest first, beside the baseline that GeoMX measures itself by."""
    reached = [result for result in results if result.to_accuracy_s is not None]
    reached.sort(key=lambda result: result.to_accuracy_s)
    base = next((r for r in reached if (r.system, r.config) == ("mxnet", "dist_sync")), None)

    def beside(key: str, r: Result) -> str:
        return number(getattr(base, key) / getattr(r, key) if base and getattr(r, key) else None)

    columns: Columns = [
        ("system", title),
        ("servers in", lambda r: STANDS[r.hub]),
        ("seconds", lambda r: number(r.to_accuracy_s)),
        ("MB over the WAN", lambda r: megabytes(r.to_accuracy_wan_bytes)),
        ("accuracy then", lambda r: f"{r.accuracy:.1%}"),
        ("× as fast as MXNet dist_sync", partial(beside, "to_accuracy_s")),
        ("× fewer bytes", partial(beside, "to_accuracy_wan_bytes")),
    ]
    return Table.of(columns, reached, missing([r for r in results if r.to_accuracy_s is None]))


def scale(results: list[Result]) -> Table:
    """Seconds a round and the global server's CPU, by the number of parties."""
    good = {(result.parties, result.system): result for result in results if result.is_ok}
    took = {place: result.round_s_median for place, result in good.items()}

    def cpu_s(parties: int) -> float | None:
        real = good.get((parties, "geomx"))
        return real.cpu_s["global/0"] / real.rounds if real and "global/0" in real.cpu_s else None

    columns: Columns = [
        ("parties", lambda n: f"{n:,}"),
        ("geomx", lambda n: seconds(took.get((n, "geomx")))),
        ("simulated", lambda n: seconds(took.get((n, "simulated")))),
        ("difference", lambda n: apart(took.get((n, "geomx")), took.get((n, "simulated")))),
        ("raw sockets", lambda n: seconds(took.get((n, "raw")))),
        ("CPU s a round of the global server", lambda n: seconds(cpu_s(n))),
    ]
    return Table.of(columns, sorted({result.parties for result in results}), missing(results))


def fallback(results: list[Result]) -> Table:
    """The lab's links beside those that geomx imitates itself."""
    places = dict.fromkeys((r.network, r.parameters, r.parties) for r in results)
    took = {(r.network, r.parameters, r.parties, r.where): r.round_s_median for r in results if r.is_ok}
    columns: Columns = [
        ("network", lambda place: f"{place[0]}, {place[1]:,} parameters"),
        ("parties", lambda place: str(place[2])),
        ("in the lab", lambda place: seconds(took.get((*place, "lab")))),
        ("in the process", lambda place: seconds(took.get((*place, "loopback")))),
        ("difference", lambda place: apart(took.get((*place, "loopback")), took.get((*place, "lab")))),
    ]
    return Table.of(columns, places, missing(results))


def mean(rows: list[Row], *keys: str) -> float:
    """Over rows, the sum of these."""
    return sum(statistics.fmean(row[key] for row in rows) for key in keys)


def learned(seeds: dict[str, list[Row]]) -> Table:
    """Of each configuration's rows, one a seed: accuracy beside the dense run with the same optimizer, and bytes."""
    dense = {rows[0]["optimizer"]: rows for config, rows in seeds.items() if config.startswith("dense")}
    both = ("wan_bytes_up", "wan_bytes_down")

    def points(rows: list[Row]) -> str:
        base = dense.get(rows[0]["optimizer"])
        return f"{100 * (mean(rows, 'accuracy') - mean(base, 'accuracy')):+.2f}" if base else NOTHING

    def smaller(rows: list[Row]) -> str:
        base = dense.get(rows[0]["optimizer"])
        return times(mean(base, *both), mean(rows, *both), ".3g") if base else NOTHING

    columns: Columns = [
        ("codecs", lambda rows: rows[0]["config"]),
        ("accuracy", lambda rows: f"{mean(rows, 'accuracy'):.2%}"),
        ("least", lambda rows: f"{min(row['accuracy'] for row in rows):.2%}"),
        ("most", lambda rows: f"{max(row['accuracy'] for row in rows):.2%}"),
        ("points from dense", points),
        ("MB up", lambda rows: megabytes(mean(rows, "wan_bytes_up"))),
        ("MB down", lambda rows: megabytes(mean(rows, "wan_bytes_down"))),
        ("times smaller", smaller),
    ]
    return Table.of(columns, seeds.values())


def median(rows: list[Row], target: float, what: str) -> float | None:
    """Seconds (`s`) or `wan_bytes` to a target, over seeds; None where most of them never came there."""
    found = [row[key] for row in rows if row[key := f"to_{target:.0%}_{what}"] is not None]
    return statistics.median(found) if 2 * len(found) > len(rows) else None


def unequal(seeds: dict[str, list[Row]]) -> Table:
    """Of one scenario, each policy's rows: the fastest to the last target first; × is beside FSA's time."""
    fsa = seeds.get("FSA", [])
    columns: Columns = [("policy", lambda rows: rows[0]["algorithm"])]
    for target in TARGETS:
        took, moved = (
            partial(median, target=target, what="s"),
            partial(median, target=target, what="wan_bytes"),
        )
        columns += [
            (f"s to {target:.0%}", lambda rows, took=took: seconds(took(rows))),
            ("× FSA", lambda rows, took=took: times(took(fsa), took(rows))),
            ("MB", lambda rows, moved=moved: megabytes(moved(rows))),
        ]

    def last(rows: list[Row]) -> list[float]:
        return [median(rows, target, "s") or math.inf for target in reversed(TARGETS)]

    return Table.of(columns, sorted(seeds.values(), key=last))
