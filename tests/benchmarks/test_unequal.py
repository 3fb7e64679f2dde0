"""Medians of algorithms over seeds, and their table."""

from __future__ import annotations

from typing import Any

from benchmarks import sweep, tables


def row(algorithm: str, seed: int, to_80: float | None, to_88: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"algorithm": algorithm, "scenario": "slow party", "seed": seed}
    for target, seconds in (("80%", to_80), ("88%", to_88)):
        found |= {f"to_{target}_s": seconds, f"to_{target}_wan_bytes": seconds and 2e6 * seconds}
    return found


def test_medians_over_seeds_the_fastest_first() -> None:
    rows = [
        *(row("FSA", seed, 30.0 + seed, 200.0) for seed in range(3)),
        *(row("Downpour", seed, 100.0, None) for seed in range(3)),
        *(row("ESync", seed, 15.0, 100.0 if seed else None) for seed in range(3)),
    ]
    seeds = sweep.grouped(rows, "algorithm")
    assert {algorithm: len(mine) for algorithm, mine in seeds.items()} == {
        "FSA": 3,
        "Downpour": 3,
        "ESync": 3,
    }
    assert tables.median(seeds["Downpour"], 0.88, "s") is None
    table = tables.unequal(seeds).lines()
    assert [line.split("|")[1].strip() for line in table[2:]] == ["ESync", "FSA", "Downpour"]
    assert table[2] == "| ESync | 15.0 | 2.07 | 30 | 100 | 2.00 | 200 |"
    assert table[4] == "| Downpour | 100 | 0.31 | 200 | – | – | – |"
