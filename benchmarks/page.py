"""Makes docs/benchmarks.md and its pictures. The figures lie in docs/data/benchmarks.jsonl.

    python benchmarks/page.py                    take over what out/bench has, then write the page
    python benchmarks/page.py --table            print every table, with all rows and columns
    python benchmarks/page.py --table gpt        those with "gpt" in their headings

`page.md` has the words, `page.toml` which tables, rows and columns the page shows. A table whose cells were not
measured here stays as it is. Pictures of new figures need matplotlib: `pip install -e ".[benchmarks]"`.
"""

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import sweep, tables
from benchmarks.cells import Result, read_results
from benchmarks.suites import NETWORK_NAMES, SUITES
from benchmarks.systems.adapters import ROOT, SYSTEMS, requirements_of
from benchmarks.tables import Part, Parts, Table
from benchmarks.venvs import pins_in

Made = tuple[Part, Callable[[Path], None] | None]  # with how its picture is drawn, at a path without ending
CODECS, POLICIES = "What codecs cost in accuracy", "Sync policies where sites are unequal"
TEMPLATE = Path(__file__).with_name("page.md").read_text("utf-8")
SHOWN = tomllib.loads(Path(__file__).with_name("page.toml").read_text("utf-8"))
SHOWN["table"] = {
    name: SHOWN["table"].get(table.pop("like", ""), {}) | table for name, table in SHOWN["table"].items()
}
PLACE = re.compile(r"^\{([a-z0-9-]+)\}$", re.MULTILINE)  # of the template: a line for a table
WORKLOADS = {"cnn": "a CNN of", "gpt": "a GPT of", "synthetic": "synthetic gradients of"}
BESIDE_KEYS = {
    "pace": "`party.pace_mbps`: {:.0%} of the link",
    "in_process": "`wan.link`: as the network is",
    "optimizer": "{} in place of Adam",
}


def main() -> int:
    """Write the page, or print tables; 1 where there are no figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--results", type=Path, default=sweep.OUT, help="the folder that run.py and its kin write to")
    add("--docs", type=Path, default=ROOT / "docs", help="the folder of the page")
    add("--table", nargs="?", const="", metavar="TEXT", help="print tables whose headings have TEXT in them")
    options = parser.parse_args()
    data = options.docs / "data" / "benchmarks.jsonl"
    known = tables.read_parts(data)
    if options.table is not None:
        return show(known, options.table)
    made = list(made_of(options.results))
    known |= {part.key: part for part, _ in made}
    if not known:
        print(f"page: no results in {options.results}: run benchmarks/run.py first", file=sys.stderr)
        return 1
    if made:
        tables.write_parts(data, in_order(known))
    shown = {tuple(table["part"]) for table in SHOWN["table"].values() if table.get("picture")}
    shown |= {
        (table["section"], title)
        for table in SHOWN["across"].values()
        if table.get("picture")
        for title in table["parts"].values()
    }
    for part, draw in made:
        if draw and part.key in shown:
            draw(options.docs / "pictures" / part.picture)
    path = options.docs / "benchmarks.md"
    path.write_text(page(known), encoding="utf-8")
    print(f"{path}: {len(known)} tables, of which {len(made)} are new")
    return 0


def show(known: Parts, text: str) -> int:
    """Print whole tables; 1 where no heading has the text in it."""
    lines = list(tables.printed(known.values(), text))
    if not lines:
        print(f"page: no heading has {text!r} in it; without a text, --table prints all", file=sys.stderr)
        return 1
    if not text:
        lines += ["## What geomx's configurations set", "", *settings().lines()]
    print("\n".join(lines))
    return 0


def made_of(results: Path) -> Iterator[Made]:
    """The parts that a folder of results gives."""
    for name in SUITES:
        if found := read_results(results / f"{name}.jsonl"):
            yield from SECTIONS.get(name, rounds)(name, found)
    if rows := sweep.rows_of(results / "codec_accuracy.jsonl"):
        yield from codecs(rows)
    if rows := sweep.rows_of(results / "algorithms.jsonl"):
        yield from policies(rows)


def in_order(known: Parts) -> list[Part]:
    """By section, as the suites stand in their file."""
    sections = [*(suite["title"] for suite in SUITES.values()), CODECS, POLICIES]
    return sorted(known.values(), key=lambda part: sections.index(part.section))


def page(known: Parts) -> str:
    """The whole text: the template with tables in their places."""

    def filled(place: re.Match[str]) -> str:
        name = place[1]
        if name in SHOWN["table"]:
            lines = one(known, **SHOWN["table"][name])
        elif name in SHOWN["across"]:
            lines = across(known, **SHOWN["across"][name])
        else:
            lines = {"versions": versions, "settings": settings_shown}[name]().lines()
        return "\n".join(lines)

    return re.sub(r"\n{3,}", "\n\n", PLACE.sub(filled, TEMPLATE))


def one(
    known: Parts,
    part: list[str],
    columns: Sequence[str] = (),
    rows: Sequence[str] = (),
    picture: bool = False,
) -> list[str]:
    """The lines of one part's choice; none where it has not been measured."""
    found = known.get((part[0], part[1]))
    if found is None:
        return []
    shown = [shown_picture(found), ""] if picture else []
    conditions = tables.conditions(found.told, shortly(found.measured))
    return [*shown, *conditions, *found.table.chosen(columns, rows).lines()]


def across(
    known: Parts,
    section: str,
    figures: list[str],
    rows: list[str],
    parts: dict[str, str],
    picture: bool = False,
    servers: bool = False,
) -> list[str]:
    """Figures of several parts: columns for each, and below the table what they were measured on.

    `servers`: a column for where the servers stand, which the rows' names then have behind a semicolon.
    """
    found = {name: known[section, title] for name, title in parts.items() if (section, title) in known}
    columns = [(name, part.table, figure) for name, part in found.items() for figure in figures]
    heads = [name if len(figures) == 1 else f"{name}: {figure}" for name, _, figure in columns]
    cells = []
    for row in rows:
        name, _, where = row.partition("; ")
        cells.append([name, *([where] * servers), *(table.cell(row, figure) for _, table, figure in columns)])
    conditions: dict[str, list[str]] = {}
    for name, part in found.items():
        conditions.setdefault(shortly(part.measured), []).append(name)
    told = [f"- {'; '.join(names)}: {measured}" for measured, names in conditions.items()]
    pictures = [line for part in found.values() for line in (shown_picture(part), "")] if picture else []
    return [*pictures, *Table(["system", *(["servers in"] * servers), *heads], cells).lines(), "", *told]


def shown_picture(part: Part) -> str:
    return f"![{part.picture.replace('-', ' ')}](pictures/{part.picture}.svg)"


def shortly(measured: str) -> str:
    """The date, the cores and the commits: the rest is for those who print whole tables."""
    return re.sub(r", (Linux|python|torch|load before a turn) [^,]*?(?=,|\.?$)", "", measured)


def versions() -> Table:
    """Of the systems, as their environments pin them."""
    pins = {system.title: pins_in(requirements_of(name)) for name, system in SYSTEMS.items()}
    told = [(title, ", ".join(map(" ".join, mine.items()))) for title, mine in pins.items() if mine]
    return Table.of([("system", itemgetter(0)), ("versions", itemgetter(1))], told)


def settings() -> Table:
    """What a configuration of geomx stands for, in the keys of a run's description."""
    told = []
    for name, options in SYSTEMS["geomx"].configs.items():
        keys = [f"`{key} = {json.dumps(value)}`" for key, value in options.items() if "." in key]
        keys += [say.format(options[key]) for key, say in BESIDE_KEYS.items() if key in options]
        told += [(name, ", ".join(keys))] if keys else []
    return Table.of([("configuration", itemgetter(0)), ("settings", itemgetter(1))], told)


def settings_shown() -> Table:
    """Those of the configurations that the page shows."""
    names = [name for kind in SHOWN.values() for table in kind.values() for name in table.get("rows", [])]
    mine = {name.partition(";")[0].removeprefix("geomx, ") for name in names if name.startswith("geomx, ")}
    return settings().chosen(rows=sorted(mine))


def measured(results: list[Result]) -> str:
    """When figures were taken, of which commit, on what machine and how quiet it was."""
    facts = next((r.versions for r in results if r.system == "geomx"), results[0].versions)
    cores = f"{facts.get('cores', '?')} cores{' kept awake' if facts.get('awake') == 'yes' else ''}"
    commits = ", ".join(sorted({result.commit for result in results}))
    told = f"{cores}, Linux {facts.get('kernel', '?')}, geomx at commit {commits}"
    told += "".join(f", {name} {facts[name]}" for name in ("python", "torch") if name in facts)
    turns = [turn for result in results for turn in result.turns]
    if turns:
        loads = sorted(turn["load"] for turn in turns)
        dates = from_to(turn["at"][:10] for turn in turns)
        told = f"{dates}: {told}, load before a turn {loads[0]:.1f} to {loads[-1]:.1f}"
    return f"Measured {told}."


def from_to(values: Iterable[Any]) -> str:
    """The least and the most of them, once where they are one."""
    ordered = sorted(values)
    return " to ".join(str(value) for value in dict.fromkeys((ordered[0], ordered[-1])))


def floors(results: list[Result]) -> str:
    """How often each was run, the formula's floor, and what raw sockets took."""
    floor = next((result.floor_s for result in results if result.floor_s), None)
    raw = next((result.raw_floor_s for result in results if result.raw_floor_s), None)
    turns = max(len(result.turns) for result in results)
    told = f"{turns} turn{'s' if turns > 1 else ''} of each. The floor is {tables.seconds(floor)} s"
    return told + (f"; raw sockets took {tables.seconds(raw)} s." if raw else ".")


def rounds(name: str, results: list[Result]) -> Iterator[Made]:
    """A part for each sitting."""
    for sitting in dict.fromkeys(result.sitting for result in results):
        same = [result for result in results if result.sitting == sitting]
        first = same[0]
        where = f"{NETWORK_NAMES[first.network]}, {first.parties} parties × {first.workers}"
        picture = f"bench-{name}-{first.workload}-{first.parameters}-{first.network}"
        picture += f"-{first.parties}x{first.workers}"
        if first.congestion != "bbr":
            where, picture = f"{where}, {first.congestion}", f"{picture}-{first.congestion}"
        what = f"{WORKLOADS[first.workload.partition('-')[0]]} {first.parameters:,} parameters"
        key = SUITES[name]["title"], f"{where}: {what}"
        part = Part(*key, tables.rounds(same), floors(same), measured(same), picture)
        yield part, drawing("rounds", where, same)


def accuracy(name: str, results: list[Result]) -> Iterator[Made]:
    """A part for each network."""
    for network in dict.fromkeys(result.network for result in results):
        same = [result for result in results if result.network == network]
        key = SUITES[name]["title"], f"To 85 %: {NETWORK_NAMES[network]}"
        part = Part(*key, tables.accuracy(same), "", measured(same), f"bench-{name}-{network}")
        yield part, drawing("accuracy", same)


def scale(name: str, results: list[Result]) -> Iterator[Made]:
    """One part, by the number of parties."""
    first = results[0]
    told = f"One worker a party, {first.parameters:,} synthetic parameters, {NETWORK_NAMES[first.network]}."
    yield Part(SUITES[name]["title"], "", tables.scale(results), told, measured(results)), None


def fallback(name: str, results: list[Result]) -> Iterator[Made]:
    """One part, by networks."""
    told = "Median seconds of a dense round, one worker a party."
    yield Part(SUITES[name]["title"], "", tables.fallback(results), told, measured(results)), None


SECTIONS = {"accuracy": accuracy, "scale": scale, "fallback": fallback}


def codecs(rows: list[sweep.Row]) -> Iterator[Made]:
    """For each model: accuracy against bytes."""
    for model, mine in sweep.grouped(rows, "model").items():
        seeds = sweep.grouped(mine, "config")
        told = f"{mine[0]['rounds']} rounds, {seeds_of(seeds)}."
        key = CODECS, f"A CNN of {mine[0]['parameters']:,} parameters"
        part = Part(*key, tables.learned(seeds), told, "", f"bench-codec-accuracy-{model}")
        yield part, drawing("learned", model, seeds)


def policies(rows: list[sweep.Row]) -> Iterator[Made]:
    """For each scenario: time against bytes."""
    scenarios = sweep.table_of("virtual")["algorithms"]["scenarios"]
    for scenario, mine in sweep.grouped(rows, "scenario").items():
        seeds = sweep.grouped(mine, "algorithm")
        key = POLICIES, scenarios[scenario]["title"]
        picture = f"bench-algorithms-{scenario.replace(' ', '-')}"
        part = Part(*key, tables.unequal(seeds), f"{seeds_of(seeds)}.", "", picture)
        yield part, drawing("unequal", scenario, seeds)


def seeds_of(seeds: dict[str, list[sweep.Row]]) -> str:
    counts = [len(rows) for rows in seeds.values()]
    return f"{from_to(counts)} seed{'s' if max(counts) > 1 else ''}"


def drawing(kind: str, *what: Any) -> Callable[[Path], None]:
    """How a picture is drawn, when a path is given."""

    def draw(path: Path) -> None:
        from benchmarks import pictures  # noqa: PLC0415 (it needs matplotlib, which the tables do without)

        getattr(pictures, kind)(*what, path)

    return draw


if __name__ == "__main__":
    sys.exit(main())
