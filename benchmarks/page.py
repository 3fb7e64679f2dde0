"""Renews docs/benchmarks.md and its pictures from what lies in out/bench.

    python benchmarks/page.py [--results FOLDER] [--docs FOLDER]

A part whose cells were not measured here stays as it stands. Needs matplotlib; `run.py --page` calls it in an
environment that has it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks import systems, tables  # noqa: E402
from benchmarks.cells import Result, read_results  # noqa: E402
from benchmarks.learned import Learned, read_learned  # noqa: E402
from benchmarks.unequal import Unequal, read_unequal  # noqa: E402

HEAD = """# Benchmarks

<!-- Made by benchmarks/page.py. `make bench-quick` and `make bench` renew the parts that they measure. -->

geomx beside the systems that do a similar job, each as its users start it, over data centers that are emulated on one
machine: a network namespace for each, and between each two of them a link of the rate, delay and loss that is named.
Nothing here was measured between real data centers.

**A step** is one batch on every worker; **a round** is the steps between two synchronisations, one where nothing else
is said, with their computing. Seconds are medians; where workers do not wait for each other, the median worker's.
**Servers in** says where the global server stands: in a site of its own, or in party A's, whose bytes then do not
cross the WAN. **MB up and down** are what crosses the WAN in a round, of each party, counted on its namespace's
devices, where a large packet has one header: up to 3.5 % less than on the link. **samples/s**, **CPU s** and **MB, all
nodes** (peak memory) are sums over all processes. **The floor** is the shortest time in which dense float32 gradients
can go to a server and the new weights come back: the bytes at the link's rate, both directions at once, and one round
trip. Headers and loss are not in it, so raw sockets that move the same bytes stand beside it. Compression goes below
it. **× floor** and **× raw** are of a round, **× geomx** compares a step with geomx's dense one in the same sitting:
systems of a sitting ran in turn (A B A B), **a turn** being one run of each.

Congestion control is TCP BBR for every system, cubic where it is said. Each part names the commit that it was measured
at; where two parts have figures of one cell, the newer commit's count. Cores **kept awake** have a process each that
is busy while nobody else is, as a virtual machine's may wake up late; it counts in the load.
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
CODECS, POLICIES = "What codecs cost in accuracy", "Sync policies where sites are unequal"
ORDER = (*SUITES.values(), CODECS, POLICIES)
BESIDE_KEYS = {
    "pace": "`party.pace_mbps`: {:.0%} of the link",
    "in_process": "`wan.link`: as the network is",
    "optimizer": "{} in place of Adam",
}
Lines = list[str]
Parts = dict[
    tuple[str, str], Lines
]  # by the section's title and the part's own, "" for a section's first words
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
    parts: Parts = {}
    for name in SUITES:
        if results := read_results(options.results / f"{name}.jsonl"):
            parts |= SECTIONS.get(name, rounds)(name, results, options.docs / "pictures")
    if learned := read_learned(options.results / "codec_accuracy.jsonl"):
        parts |= codecs(learned, options.docs / "pictures")
    if unequal := read_unequal(options.results / "algorithms.jsonl"):
        parts |= policies(unequal, options.docs / "pictures")
    if not parts:
        print(f"page: no results in {options.results}: run benchmarks/run.py first", file=sys.stderr)
        return 1
    path = options.docs / "benchmarks.md"
    old = parts_of(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(page(old | parts), encoding="utf-8")
    kept = len(old.keys() - parts.keys())
    print(f"{path}: {len(parts)} parts are new, {kept} stay as they stood")
    return 0


def page(parts: Parts) -> str:
    """The whole text."""
    lines = [HEAD, *versions(), "", "What geomx's configurations set, beside the defaults:", "", *settings()]
    for section in ORDER:
        mine = {title: part for (where, title), part in parts.items() if where == section}
        if mine:
            lines += ["", f"## {section}"]
        if first := mine.pop("", []):
            lines += ["", *first]
        for title, part in mine.items():
            lines += ["", f"### {title}", "", *part]
    return "\n".join(lines).rstrip() + "\n"


def parts_of(text: str) -> Parts:
    """The parts of a page, as they stand; what comes before the first section is no part."""
    parts: Parts = {}
    lines: Lines = []
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
            lines = parts[section, ""] = []
        elif line.startswith("### "):
            lines = parts[section, line.removeprefix("### ")] = []
        else:
            lines.append(line)
    return {key: part for key, lines in parts.items() if (part := "\n".join(lines).strip("\n").splitlines())}


def versions() -> Lines:
    """Of the systems, as their environments pin them."""
    rows = []
    for name, title in tables.TITLES.items():
        requirements = systems.FOLDER / name / "requirements.txt"
        if requirements.exists():
            pins = (line.partition("#")[0].strip() for line in requirements.read_text().splitlines())
            rows.append([title, ", ".join(pin.replace("==", " ") for pin in pins if pin)])
    return tables.markdown(("system", "versions"), rows)


def settings() -> Lines:
    """What a configuration of geomx stands for, in the keys of a run's description."""
    rows = []
    for name, options in systems.find("geomx").configs.items():
        told = [f"`{key} = {json.dumps(value)}`" for key, value in options.items() if "." in key]
        told += [words.format(options[key]) for key, words in BESIDE_KEYS.items() if key in options]
        if told:
            rows.append([name, ", ".join(told)])
    return tables.markdown(("configuration", "settings"), rows)


def measured(results: Sequence[Result]) -> str:
    """When figures were taken, of which commit, on what machine and how quiet it was."""
    loads = [float(turn["load"]) for result in results for turn in result.turns]
    dates = sorted({str(turn["at"])[:10] for result in results for turn in result.turns})
    facts = next((r.versions for r in results if r.system == "geomx"), results[0].versions)
    commits = ", ".join(sorted({result.commit for result in results}))
    awake = " kept awake" if facts.get("awake") == "yes" else ""
    told = (
        f"{facts.get('cores', '?')} cores{awake}, Linux {facts.get('kernel', '?')}, geomx at commit {commits}"
    )
    told += "".join(f", {name} {facts[name]}" for name in ("python", "torch") if name in facts)
    if loads:
        span = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        told = f"{span}: {told}, load before a turn {min(loads):.1f} to {max(loads):.1f}"
    return f"Measured {told}."


# -- sections -------------------------------------------------------------------------------------------------


def rounds(name: str, results: Sequence[Result], pictures: Path) -> Parts:
    """A part for each sitting: a picture and a table."""
    parts: Parts = {}
    for sitting in dict.fromkeys(result.sitting for result in results):
        same = [result for result in results if result.sitting == sitting]
        first = same[0]
        where = f"{NETWORKS.get(first.network, first.network)}, {first.parties} parties × {first.workers}"
        picture = f"bench-{name}-{first.workload}-{first.parameters}-{first.network}-{first.parties}x{first.workers}"
        if first.congestion != "bbr":
            where, picture = f"{where}, {first.congestion}", f"{picture}-{first.congestion}"
        title = f"{where}: {what(first.workload, first.parameters)}"
        parts[SUITES[name], title] = [
            *drawn(pictures / picture, partial(_pictures().rounds, where, same)),
            f"{floors(same)} {measured(same)}",
            "",
            *tables.rounds(same),
        ]
    return parts


def accuracy(name: str, results: Sequence[Result], pictures: Path) -> Parts:
    """A table and a picture for each network."""
    first = results[0]
    parts: Parts = {
        (SUITES[name], ""): [
            f"GeoMX's CNN, {first.parties} parties × {first.workers}, batches of {first.batch}, {first.congestion}. "
            "Adam, but for geomx's Bi-Sparse both ways (SGD, with the momentum in the codec) and where SGD is said. "
            "MXNet's 2-bit has the threshold of its documents, 0.5. One run of each, with one seed: small differences "
            "mean nothing. The clock starts when the last worker begins its first step, the first weights at hand. "
            "The first worker looks at the 10,000 test images now and then. Every other process of the system stands "
            "still meanwhile, and so does the clock, which stops at the first look that sees the target. Bytes under "
            "way go on."
        ]
    }
    for network in dict.fromkeys(result.network for result in results):
        same = [result for result in results if result.network == network]
        parts[SUITES[name], f"To 85 %: {NETWORKS.get(network, network)}"] = [
            *drawn(pictures / f"bench-{name}-{network}", partial(_pictures().accuracy, same)),
            measured(same),
            "",
            *tables.accuracy(same),
        ]
    return parts


def scale(name: str, results: Sequence[Result], pictures: Path) -> Parts:
    """Real parties as far as the machine carries, the simulator beside them and beyond."""
    first = results[0]
    lines = [
        f"One worker a party, {first.parameters:,} synthetic parameters, {NETWORKS.get(first.network, first.network)} "
        "between each party and the global server. The simulator runs the same nodes on a virtual clock, each on a "
        "processor of its own; the real ones share this machine's, which are the limit from eight parties on. "
        f"{measured(results)}",
        "",
        *drawn(pictures / f"bench-{name}", partial(_pictures().scale, results)),
        *tables.scale(results),
    ]
    return {(SUITES[name], ""): lines}


def fallback(name: str, results: Sequence[Result], _pictures: Path) -> Parts:
    """Whether one may trust a run whose links geomx imitates itself."""
    lines = [
        "Median seconds of a dense round, one worker a party. `[wan] link = { rate_mbps = ..., delay_ms = ... }` "
        "imitates a link in the process, without root. TCP's own dynamics are not imitated: two connections that fill "
        "a link in both directions hold each other up, in the lab as in the world. At 1 Gbit/s with two parties the "
        "processors are the limit, not the link, and the lab's router takes a part of them. "
        f"{measured(results)}",
        "",
        *tables.fallback(results),
    ]
    return {(SUITES[name], ""): lines}


def codecs(learned: Sequence[Learned], pictures: Path) -> Parts:
    """For each model a picture, accuracy against bytes, and a table."""
    parts: Parts = {
        (CODECS, ""): [
            "Fashion-MNIST, 2 parties × 2 workers, batches of 32, a learning rate that falls to 0, means over seeds. "
            "Optimizers run on the global server; where the codec has momentum, SGD has none. MB are of one party in "
            "a round, with its share of the first weights, which cross once. `python benchmarks/codec_accuracy.py`."
        ]
    }
    for model in dict.fromkeys(each.model for each in learned):
        mine = [each for each in learned if each.model == model]
        parts[CODECS, f"A CNN of {mine[0].parameters:,} parameters"] = [
            *drawn(pictures / f"bench-codec-accuracy-{model}", partial(_pictures().learned, model, mine)),
            f"{mine[0].rounds} rounds, {_seeds([len(each.accuracies) for each in mine])}.",
            "",
            *tables.learned(mine),
        ]
    return parts


def policies(unequal: Sequence[Unequal], pictures: Path) -> Parts:
    """For each scenario a picture, time against bytes, and a table."""
    parts: Parts = {
        (POLICIES, ""): [
            "GeoMX's CNN on Fashion-MNIST, batches of 32, Adam (Downpour: Adagrad), a step of 50 ms, links of 100 "
            "Mbit/s and 30 ms to the global server. Real nodes and gradients on the simulator's virtual clock: the "
            "seconds are what a machine for each node would take. The weights that count are the global server's, "
            "looked at whenever the first worker has taken 25 steps. Medians over seeds; MB are of all parties, both "
            "ways. `python benchmarks/algorithms.py`."
        ]
    }
    for scenario in dict.fromkeys(each.scenario for each in unequal):
        mine = [each for each in unequal if each.scenario == scenario]
        picture = pictures / f"bench-algorithms-{scenario.replace(' ', '-')}"
        parts[POLICIES, UNEQUAL.get(scenario, scenario)] = [
            *drawn(picture, partial(_pictures().unequal, scenario, mine)),
            f"{_seeds([each.seeds for each in mine])}.",
            "",
            *tables.unequal(mine),
        ]
    return parts


def _seeds(counts: Sequence[int]) -> str:
    told = " to ".join(str(count) for count in dict.fromkeys((min(counts), max(counts))))
    return f"{told} seed{'s' if max(counts) > 1 else ''}"


UNEQUAL = {
    "equal": "Equal: 2 parties × 2 workers, all alike",
    "slow party": "A slow party: 2 × 2, a step takes party B four times as long",
    "slow link": "A slow link: 2 × 2, party B's link has 10 Mbit/s",
    "six unequal": "Six unequal: 2 × 3, a step takes two workers of party B 49 times as long",
}
SECTIONS: dict[str, Callable[[str, Sequence[Result], Path], Parts]] = {
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
