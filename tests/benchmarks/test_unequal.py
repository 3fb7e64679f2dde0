"""Medians of algorithms over seeds, and their table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import tables
from benchmarks.unequal import read_unequal


def row(algorithm: str, seed: int, to_80: float | None, to_88: float | None) -> dict[str, Any]:
    found: dict[str, Any] = {"algorithm": algorithm, "scenario": "slow party", "seed": seed}
    for target, seconds in (("80%", to_80), ("88%", to_88)):
        found |= {f"to_{target}_s": seconds, f"to_{target}_wan_bytes": seconds and 2e6 * seconds}
    return found


def test_medians_over_seeds_the_fastest_first(tmp_path: Path) -> None:
    path = tmp_path / "algorithms.jsonl"
    rows = [
        *(row("FSA", seed, 30.0 + seed, 200.0) for seed in range(3)),
        *(row("Downpour", seed, 100.0, None) for seed in range(3)),
        *(row("ESync", seed, 15.0, 100.0 if seed else None) for seed in range(3)),
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    results = read_unequal(path)
    assert [(each.algorithm, each.seeds) for each in results] == [("FSA", 3), ("Downpour", 3), ("ESync", 3)]
    assert results[1].reached[0.88] is None
    table = tables.unequal(results)
    assert [line.split("|")[1].strip() for line in table[2:]] == ["ESync", "FSA", "Downpour"]
    assert table[2] == "| ESync | 15.0 | 2.07 | 30 | 100 | 2.00 | 200 |"
    assert table[4] == "| Downpour | 100 | 0.31 | 200 | – | – | – |"


def test_no_results_no_rows(tmp_path: Path) -> None:
    assert read_unequal(tmp_path / "none.jsonl") == []
