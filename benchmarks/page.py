"""Makes docs/benchmarks.md and its pictures from what lies in out/bench.

    python benchmarks/page.py [--results FOLDER] [--docs FOLDER]

Needs matplotlib; `run.py --page` calls it in an environment that has it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks import tables  # noqa: E402
from benchmarks.cells import Result, read_results  # noqa: E402
from benchmarks.learned import Learned, read_learned  # noqa: E402
from benchmarks.unequal import Unequal, read_unequal  # noqa: E402

HEAD = """# Benchmarks

<!-- Made by benchmarks/page.py from out/bench: run `make bench-quick` or `make bench` to make it anew. -->

geomx beside the systems that do a similar job, each as its users start it, over data centers that are emulated on one
machine: a network namespace for each, and between each two of them a link of the rate, delay and loss that is named.
Nothing here was measured between real data centers.

**A step** is one batch on every worker; **a round** is the steps between two synchronisations, one where nothing else
is said. Seconds are medians. **MB up and down** are what crosses the WAN in a round, of each party, counted by its
namespace. **The floor** is the shortest time in which dense float32 gradients can go to a server and the new weights
come back: the bytes at the link's rate, both directions at once, and one round trip. Headers and loss are not in it,
so raw sockets that move the same bytes stand beside it. Compression goes below it. **× geomx** compares with geomx's
dense rounds in the same sitting: systems of a sitting ran in turn (A B A B).
"""

SUITES: dict[str, str] = {
    "quick": "At a glance",
    "dense": "Ten million parameters, dense",
    "accuracy": "Time and bytes to 85 % on Fashion-MNIST",
    "scale": "From one party to a thousand",
    "fallback": "Links imitated without root",
    "full": "Everything",
    "synthetic": "Synthetic gradients",
}
NETWORKS = {
    "100mbit-30ms": "100 Mbit/s, 30 ms",
    "20mbit-100ms-0.1loss": "20 Mbit/s, 100 ms, 0.1 % loss",
    "1gbit-10ms": "1 Gbit/s, 10 ms",
    "unequal": "100, 20 and 5 Mbit/s",
    "10mbit-150ms-1loss": "10 Mbit/s, 150 ms, 1 % loss",
}


def main() -> int:
    """Write the page; 1 where there is nothing to write it from."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "out" / "bench")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    suites = {
        name: results for name in SUITES if (results := read_results(options.results / f"{name}.jsonl"))
    }
    learned = read_learned(options.results / "codec_accuracy.jsonl")
    unequal = read_unequal(options.results / "algorithms.jsonl")
    if not (suites or learned or unequal):
        print(f"page: no results in {options.results}: run benchmarks/run.py first", file=sys.stderr)
        return 1
    path = options.docs / "benchmarks.md"
    path.write_text(page(suites, learned, unequal, options.docs / "pictures"), encoding="utf-8")
    print(f"the page is {path}")
    return 0


def page(
    suites: dict[str, list[Result]], learned: Sequence[Learned], unequal: Sequence[Unequal], pictures: Path
) -> str:
    """The whole text; the pictures are drawn on the way."""
    lines = [HEAD]
    if suites:
        lines += machine([result for results in suites.values() for result in results])
    for name, results in suites.items():
        lines += ["", f"## {SUITES[name]}", ""]
        section = SECTIONS.get(name, rounds)
        lines += section(name, results, pictures)
    if learned:
        lines += ["", "## What codecs cost in accuracy", "", *codecs(learned, pictures)]
    if unequal:
        lines += ["", "## Sync policies where sites are unequal", "", *policies(unequal, pictures)]
    return "\n".join(lines).rstrip() + "\n"


def machine(results: Sequence[Result]) -> list[str]:
    """Where and when the figures were taken, and of which versions."""
    loads = [float(turn["load"]) for result in results for turn in result.turns]
    dates = sorted(str(turn["at"])[:10] for result in results for turn in result.turns)
    facts = results[0].versions
    lines = [
        f"**The machine**: {facts.get('cores', '?')} cores, Linux {facts.get('kernel', '?')}, "
        f"geomx at commit {', '.join(sorted({result.commit for result in results}))}."
    ]
    if loads:
        span = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        lines += [f"Measured on {span}, the load before each turn from {min(loads):.1f} to {max(loads):.1f}."]
    versions: dict[str, dict[str, str]] = {}
    for result in results:
        packages = {k: v for k, v in result.versions.items() if k not in ("cores", "kernel")}
        versions.setdefault(result.system, packages)
    rows = [
        [tables.TITLES[system], ", ".join(f"{name} {version}" for name, version in packages.items())]
        for system, packages in sorted(versions.items())
        if packages and system != "raw"
    ]
    return [*lines, "", *tables.markdown(("system", "versions"), rows)]


# -- sections -------------------------------------------------------------------------------------------------


def rounds(name: str, results: Sequence[Result], pictures: Path) -> list[str]:
    """A table for each sitting; the congestion controls of one network share a picture."""
    lines: list[str] = []
    for key in dict.fromkeys((r.workload, r.parameters, r.network, r.parties, r.workers) for r in results):
        workload, parameters, network, parties, workers = key
        same = [r for r in results if (r.workload, r.parameters, r.network, r.parties, r.workers) == key]
        where = f"{NETWORKS.get(network, network)}, {parties} parties × {workers}"
        lines += [f"### {where}: {what(workload, parameters)}", ""]
        panels = []
        for congestion in dict.fromkeys(result.congestion for result in same):
            panels.append((f"{where}, {congestion}", [r for r in same if r.congestion == congestion]))
        picture = pictures / f"bench-{name}-{workload}-{parameters}-{network}-{parties}x{workers}"
        lines += drawn(picture, partial(_pictures().rounds, panels))
        for title, sitting in panels:
            lines += [f"**{title.rpartition(', ')[2]}**. {floors(sitting)}", "", *tables.rounds(sitting), ""]
    return lines


def accuracy(name: str, results: Sequence[Result], pictures: Path) -> list[str]:
    """A table and a picture for each network."""
    first = results[0]
    lines = [
        f"GeoMX's CNN, {first.parties} parties × {first.workers}, batches of {first.batch}, Adam, {first.congestion}. "
        "The first worker looks at the 10,000 test images now and then. Every other process of the system stands still "
        "meanwhile, and so does the clock, which stops at the first look that sees the target. Bytes under way go on.",
        "",
    ]
    for network in dict.fromkeys(result.network for result in results):
        same = [result for result in results if result.network == network]
        lines += [f"### To 85 %: {NETWORKS.get(network, network)}", ""]
        lines += drawn(pictures / f"bench-{name}-{network}", partial(_pictures().accuracy, same))
        lines += [*tables.accuracy(same), ""]
    return lines


def scale(name: str, results: Sequence[Result], pictures: Path) -> list[str]:
    """Real parties as far as the machine carries, the simulator beside them and beyond."""
    first = results[0]
    lines = [
        f"One worker a party, {first.parameters:,} synthetic parameters, {NETWORKS.get(first.network, first.network)} "
        "between each party and the global server. The simulator runs the same nodes on a virtual clock, each on a "
        "processor of its own.",
        "",
    ]
    lines += drawn(pictures / f"bench-{name}", partial(_pictures().scale, results))
    return lines + tables.scale(results)


def fallback(_name: str, results: Sequence[Result], _pictures: Path) -> list[str]:
    """Whether one may trust a run whose links geomx imitates itself."""
    lines = [
        "Median seconds of a dense round, two parties × 1. `[wan] link = { rate_mbps = ..., delay_ms = ... }` imitates "
        "a link in the process, without root. TCP's own dynamics are not imitated: two connections that fill a link in "
        "both directions hold each other up, in the lab as in the world. At 1 Gbit/s both are as fast as this machine.",
        "",
    ]
    return lines + tables.fallback(results)


def codecs(learned: Sequence[Learned], pictures: Path) -> list[str]:
    """A table for each model, and one picture: accuracy against bytes."""
    lines = [
        "Fashion-MNIST, 2 parties × 2 workers, batches of 32, a learning rate that falls to 0, means over seeds. "
        "Optimizers run on the global server; where the codec has momentum, SGD has none. MB are of one party in a "
        "round. `python benchmarks/codec_accuracy.py`.",
        "",
    ]
    lines += drawn(pictures / "bench-codec-accuracy", partial(_pictures().learned, learned))
    for model in dict.fromkeys(each.model for each in learned):
        mine = [each for each in learned if each.model == model]
        seeds = sorted({len(each.accuracies) for each in mine})
        counted = " to ".join(str(count) for count in {seeds[0]: None, seeds[-1]: None})
        head = f"**A CNN of {mine[0].parameters:,} parameters**, {mine[0].rounds} rounds, {counted} seeds"
        lines += [head, "", *tables.learned(mine), ""]
    return lines


def policies(unequal: Sequence[Unequal], pictures: Path) -> list[str]:
    """A table for each scenario, and one picture: time against bytes."""
    lines = [
        "GeoMX's CNN on Fashion-MNIST, batches of 32, Adam (Downpour: Adagrad), a step of 50 ms, links of 100 Mbit/s "
        "and 30 ms to the global server. Real nodes and gradients on the simulator's virtual clock: the seconds are "
        "what a machine for each node would take. Medians over seeds; MB are of all parties, both ways. `python "
        "benchmarks/algorithms.py`.",
        "",
    ]
    lines += drawn(pictures / "bench-algorithms", partial(_pictures().unequal, unequal))
    for scenario in dict.fromkeys(each.scenario for each in unequal):
        mine = [each for each in unequal if each.scenario == scenario]
        seeds = sorted({each.seeds for each in mine})
        counted = " to ".join(str(count) for count in {seeds[0]: None, seeds[-1]: None})
        text = UNEQUAL.get(scenario, "")
        lines += [
            f"**{scenario}**: {text} {counted} seed{'s' if seeds[-1] > 1 else ''}.",
            "",
            *tables.unequal(mine),
            "",
        ]
    return lines


UNEQUAL = {
    "equal": "2 parties × 2 workers, all alike.",
    "slow party": "2 × 2, a step takes party B four times as long.",
    "slow link": "2 × 2, party B's link has 10 Mbit/s.",
    "six unequal": "2 × 3, a step takes two workers of party B 49 times as long.",
}
SECTIONS: dict[str, Callable[[str, Sequence[Result], Path], list[str]]] = {
    "accuracy": accuracy,
    "scale": scale,
    "fallback": fallback,
}


def what(workload: str, parameters: int) -> str:
    """`a CNN of 1,068,490 parameters`."""
    kind = {"cnn": "a CNN of", "gpt": "a GPT of"}.get(workload.partition("-")[0], "synthetic gradients of")
    return f"{kind} {parameters:,} parameters"


def floors(results: Sequence[Result]) -> str:
    """How often each was run, the formula's floor, and what raw sockets took."""
    floor = next((result.floor_s for result in results if result.floor_s), None)
    raw = next((result.raw_floor_s for result in results if result.raw_floor_s), None)
    turns = max(len(result.turns) for result in results)
    told = f"{turns} turn{'s' if turns > 1 else ''} of each. The floor is {tables.seconds(floor)} s"
    return told + (f"; raw sockets took {tables.seconds(raw)} s." if raw else ".")


def drawn(path: Path, draw: Callable[[Path], None]) -> list[str]:
    """Draw a picture; the lines that show it, none where it had nothing to show."""
    draw(path)
    shown = path.with_name(path.name + ".svg")
    return [f"![{path.name.replace('-', ' ')}](pictures/{shown.name})", ""] if shown.exists() else []


def _pictures() -> Any:
    from benchmarks import pictures  # noqa: PLC0415 (it needs matplotlib, which the tables do without)

    return pictures


if __name__ == "__main__":
    sys.exit(main())
