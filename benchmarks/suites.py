"""The suites that `suites.toml` describes: which cells are run, how often in turn."""

import itertools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell
from benchmarks.grounds import round_s, ways_of
from benchmarks.systems.adapters import SYSTEMS

TABLES = tomllib.loads(Path(__file__).with_name("suites.toml").read_text("utf-8"))
SUITES, WORKLOADS, NETWORK_NAMES = TABLES["suites"], TABLES["workloads"], TABLES["names"]
MEASURED_S, FEWEST, MOST = 6.0, 2, 12


def cells_of_suite(suite: str, **more: Any) -> Iterator[Cell]:
    """Those of a suite, in the order in which they are run; what `more` says stands before what the file says."""
    for table in SUITES[suite]["cells"]:
        keys = {**SUITES[suite].get("shared", {}), **table, **more}
        entries = keys.pop("of")
        values = [value if isinstance(value, list) else [value] for value in keys.values()]
        for point in itertools.product(*values):
            yield from cells_of(entries, **dict(zip(keys, point, strict=True)))


def cells_of(entries: Iterable[str], steps: int = 0, **keys: Any) -> Iterator[Cell]:
    """One for each of the configurations, and for each place of their servers."""
    base = base_of(keys)
    for entry in entries:
        if entry in TABLES["groups"]:
            yield from cells_of(TABLES["groups"][entry], steps, **keys)
            continue
        name, beside_a, _ = entry.partition(" + A")
        system, _, config = name.partition(": ")
        options = SYSTEMS[system].configs[config]
        every, faster = options.get("every", 1), options.get("faster", 1)
        rounds, warmup = base.rounds_a_turn, base.warmup
        if every > 1:
            rounds, warmup = max(3, rounds // every), 1
        cell = replace(
            base,
            system=system,
            config=config,
            every=every,
            where=options.get("where", base.where),
            evaluate_every=max(base.evaluate_every, every) if base.evaluate_every else 0,
            rounds_a_turn=steps // every if steps else rounds * faster,
            warmup=warmup * faster,
        )
        for hub in (SYSTEMS[system].hub, *(["A"] if beside_a else [])):
            yield replace(cell, hub=hub)


def base_of(keys: Mapping[str, Any]) -> Cell:
    """A cell without a system. Where a round takes long, there are fewer of them: `MEASURED_S` at the floor's pace."""
    cell = Cell("", "", **{**WORKLOADS[keys["workload"]], **keys})
    floor_s = round_s(cell.size_bytes, ways_of(cell).values())
    rounds = min(max(round(MEASURED_S / floor_s), FEWEST), MOST)
    paced = {
        "rounds_a_turn": rounds,
        "warmup": 1 if rounds < 6 else 2,
        "limit_s": 120 + 20 * rounds * floor_s,
    }
    return replace(cell, **paced | keys)
