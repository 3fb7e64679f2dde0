"""Renews docs/benchmarks.md and its pictures from what lies in out/bench.

    python benchmarks/page.py [--results FOLDER] [--docs FOLDER]

`page.md` has the words. A part whose cells were not measured here stays as it stands. Needs matplotlib, which
`pip install -e ".[benchmarks]"` brings.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import sweep, tables
from benchmarks.cells import Result, read_results
from benchmarks.suites import NETWORK_NAMES, SUITES
from benchmarks.systems.adapters import ROOT, SYSTEMS, requirements_of
from benchmarks.venvs import pins_in

Parts = dict[
    tuple[str, str], list[str]
]  # by the section's title and the part's own, "" for a section's first words
CODECS, POLICIES = "What codecs cost in accuracy", "Sync policies where sites are unequal"
TEMPLATE = Path(__file__).with_name("page.md").read_text("utf-8")
WORKLOADS = {"cnn": "a CNN of", "gpt": "a GPT of", "synthetic": "synthetic gradients of"}
BESIDE_KEYS = {
    "pace": "`party.pace_mbps`: {:.0%} of the link",
    "in_process": "`wan.link`: as the network is",
    "optimizer": "{} in place of Adam",
}


def main() -> int:
    """Write the page; 1 where there is nothing to write it from."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=sweep.OUT)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    parts, pictures = Parts(), options.docs / "pictures"
    for name in SUITES:
        if results := read_results(options.results / f"{name}.jsonl"):
            parts |= SECTIONS.get(name, rounds)(name, results, pictures)
    if rows := sweep.rows_of(options.results / "codec_accuracy.jsonl"):
        parts |= codecs(rows, pictures)
    if rows := sweep.rows_of(options.results / "algorithms.jsonl"):
        parts |= policies(rows, pictures)
    if not parts:
        print(f"page: no results in {options.results}: run benchmarks/run.py first", file=sys.stderr)
        return 1
    path = options.docs / "benchmarks.md"
    old = parts_of(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(page(old | parts), encoding="utf-8")
    print(f"{path}: {len(parts)} parts are new, {len(old.keys() - parts.keys())} stay as they stood")
    return 0


def page(parts: Parts) -> str:
    """The whole text."""
    head, _, _ = TEMPLATE.partition("\n## ")
    lines = head.format(versions="\n".join(versions()), settings="\n".join(settings())).splitlines()
    for section in (*(suite["title"] for suite in SUITES.values()), CODECS, POLICIES):
        mine = {title: part for (where, title), part in parts.items() if where == section}
        if mine:
            lines += ["", f"## {section}"]
        for title in sorted(mine, key=lambda title: title != ""):
            lines += ["", *([f"### {title}", ""] if title else []), *mine[title]]
    return "\n".join(lines).rstrip() + "\n"


def parts_of(text: str) -> Parts:
    """The parts of a page, as they stand; what comes before the first section is no part."""
    parts: Parts = {}
    for section in text.split("\n## ")[1:]:
        name, _, parts_within = section.partition("\n")
        for place, part in enumerate(f"\n{parts_within}".split("\n### ")):
            title, _, body = part.partition("\n") if place else ("", "", part)
            if lines := body.strip("\n").splitlines():
                parts[name, title] = lines
    return parts


def words(section: str, **facts: Any) -> list[str]:
    """What the template says at the beginning of a section."""
    return [line.format(**facts) for line in parts_of(TEMPLATE)[section, ""]]


def versions() -> list[str]:
    """Of the systems, as their environments pin them."""
    pins = {system.title: pins_in(requirements_of(name)) for name, system in SYSTEMS.items()}
    told = [(title, ", ".join(map(" ".join, mine.items()))) for title, mine in pins.items() if mine]
    return tables.markdown([("system", itemgetter(0)), ("versions", itemgetter(1))], told)


def settings() -> list[str]:
    """What a configuration of geomx stands for, in the keys of a run's description."""
    told = []
    for name, options in SYSTEMS["geomx"].configs.items():
        keys = [f"`{key} = {json.dumps(value)}`" for key, value in options.items() if "." in key]
        keys += [say.format(options[key]) for key, say in BESIDE_KEYS.items() if key in options]
        told += [(name, ", ".join(keys))] if keys else []
    return tables.markdown([("configuration", itemgetter(0)), ("settings", itemgetter(1))], told)


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


def rounds(name: str, results: list[Result], pictures: Path) -> Parts:
    """A part for each sitting: a picture and a table."""
    parts: Parts = {}
    for sitting in dict.fromkeys(result.sitting for result in results):
        same = [result for result in results if result.sitting == sitting]
        first = same[0]
        where = f"{NETWORK_NAMES[first.network]}, {first.parties} parties × {first.workers}"
        picture = (
            f"{name}-{first.workload}-{first.parameters}-{first.network}-{first.parties}x{first.workers}"
        )
        if first.congestion != "bbr":
            where, picture = f"{where}, {first.congestion}", f"{picture}-{first.congestion}"
        what = f"{WORKLOADS[first.workload.partition('-')[0]]} {first.parameters:,} parameters"
        shown = drawn(pictures / f"bench-{picture}", "rounds", where, same)
        told = [*shown, f"{floors(same)} {measured(same)}", ""]
        parts[SUITES[name]["title"], f"{where}: {what}"] = told + tables.rounds(same)
    return parts


def accuracy(name: str, results: list[Result], pictures: Path) -> Parts:
    """A table and a picture for each network."""
    section = SUITES[name]["title"]
    parts: Parts = {(section, ""): words(section, first=results[0])}
    for network in dict.fromkeys(result.network for result in results):
        same = [result for result in results if result.network == network]
        told = [*drawn(pictures / f"bench-{name}-{network}", "accuracy", same), measured(same), ""]
        parts[section, f"To 85 %: {NETWORK_NAMES[network]}"] = told + tables.accuracy(same)
    return parts


def one_table(name: str, results: list[Result], pictures: Path) -> Parts:
    """For `scale` and `fallback`."""
    section, first = SUITES[name]["title"], results[0]
    told = words(section, first=first, network=NETWORK_NAMES[first.network], measured=measured(results))
    shown = drawn(pictures / f"bench-{name}", "scale", results) if name == "scale" else []
    return {(section, ""): [*told, "", *shown, *getattr(tables, name)(results)]}


SECTIONS = {"accuracy": accuracy, "scale": one_table, "fallback": one_table}


def codecs(rows: list[sweep.Row], pictures: Path) -> Parts:
    """For each model a picture, accuracy against bytes, and a table."""
    parts = {(CODECS, ""): words(CODECS)}
    for model, mine in sweep.grouped(rows, "model").items():
        seeds = sweep.grouped(mine, "config")
        shown = drawn(pictures / f"bench-codec-accuracy-{model}", "learned", model, seeds)
        told = [*shown, f"{mine[0]['rounds']} rounds, {seeds_of(seeds)}.", ""]
        parts[CODECS, f"A CNN of {mine[0]['parameters']:,} parameters"] = told + tables.learned(seeds)
    return parts


def policies(rows: list[sweep.Row], pictures: Path) -> Parts:
    """For each scenario a picture, time against bytes, and a table."""
    parts, scenarios = {(POLICIES, ""): words(POLICIES)}, sweep.table_of("algorithms")["scenarios"]
    for scenario, mine in sweep.grouped(rows, "scenario").items():
        seeds = sweep.grouped(mine, "algorithm")
        shown = drawn(pictures / f"bench-algorithms-{scenario.replace(' ', '-')}", "unequal", scenario, seeds)
        told = [*shown, f"{seeds_of(seeds)}.", ""]
        parts[POLICIES, scenarios[scenario]["title"]] = told + tables.unequal(seeds)
    return parts


def seeds_of(seeds: dict[str, list[sweep.Row]]) -> str:
    counts = [len(rows) for rows in seeds.values()]
    return f"{from_to(counts)} seed{'s' if max(counts) > 1 else ''}"


def drawn(path: Path, kind: str, *what: Any) -> list[str]:
    """Draw a picture; the lines that show it, none where it had nothing to show."""
    from benchmarks import pictures  # noqa: PLC0415 (it needs matplotlib, which the tables do without)

    getattr(pictures, kind)(*what, path)
    shown = path.with_name(path.name + ".svg")
    return [f"![{path.name.replace('-', ' ')}](pictures/{shown.name})", ""] if shown.exists() else []


if __name__ == "__main__":
    sys.exit(main())
