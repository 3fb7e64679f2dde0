"""Does `geomx plan` predict what a run then measures? Seconds a round, on three emulated links.

    python benchmarks/predictions.py                         all cells: half an hour; needs no root
    python benchmarks/predictions.py --only fsa --codecs dense
    python benchmarks/predictions.py --missing               only cells that have no row yet
    python benchmarks/predictions.py --table                 the rows that there are, as a table for docs/plan.md

Two parties, A of two workers and B of one; 1,003,944 parameters; a step computes for 60 ms, most of which a worker
sleeps, so that a busy machine disturbs little. The step is measured once for each link as `geomx plan --measure` does
it, without any link; then each algorithm runs with each codec as `geomx run` does it, until it has trained for
`SECONDS`. Leaves rows in out/bench/predictions.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

import torch  # noqa: E402
from torch import nn  # noqa: E402

import geomx  # noqa: E402
from geomx.config import Run  # noqa: E402
from geomx.launch.local_run import rehearse  # noqa: E402
from geomx.launch.plan import compared  # noqa: E402
from geomx.launch.plan_facts import Sources, known  # noqa: E402
from geomx.observe.records import Record  # noqa: E402
from geomx.predict.facts import Rhythm  # noqa: E402

OUTPUT = ROOT / "out" / "bench" / "predictions.jsonl"
LINKS = {
    "50 Mbit/s, 20 ms": ["wan.link={rate_mbps = 50, delay_ms = 10}"],
    "20 Mbit/s, 100 ms": ["wan.link={rate_mbps = 20, delay_ms = 50}"],
    "20 and 10 Mbit/s, 40 ms, B three times slower": [
        "wan.link={rate_mbps = 20, delay_ms = 20}",
        "party.B.link={rate_mbps = 10, delay_ms = 20}",
        "party.B.worker_delay={factor = 3.0}",
    ],
}
ALGORITHMS = (
    "fsa", "mixed", "mixed staleness=2", "hfa k1=2 k2=4", "diloco every=8", "diloco every=8 fragments=4 overlap=1",
    "downpour",
)  # fmt: skip
CODECS = ("dense", "int8", "bisparse ratio=0.01")
WIDTH, BATCH, STEP_S = 708, 4, 0.06
SECONDS, LEAST_PERIODS, WARM_STEPS = 6.0, 3, 2
TOML = """
[run]
name = "predictions"
arguments = ["--train"]
[limits]
start_s = 600
[wan]
timeout_s = 60
[lan]
timeout_s = 60
[[party]]
name = "A"
workers = 2
[[party]]
name = "B"
workers = 1
"""


class _Slow(nn.Module):
    """Takes a third of a step forward, and two thirds backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(STEP_S / 3)
        if x.requires_grad:
            x.register_hook(lambda _: time.sleep(STEP_S / 3))
        return x


def train() -> None:
    """The script that runs train: until they are stopped."""
    torch.set_num_threads(1)
    run = geomx.join()
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), _Slow(), nn.Linear(WIDTH, WIDTH), _Slow())
    model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    x = torch.randn(BATCH, WIDTH)
    while True:
        run.weight(BATCH)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def step_times(records: Sequence[Record]) -> dict[str, list[float]]:
    """When each worker took its steps, but for the first ones."""
    times = defaultdict(list)
    for record in records:
        if record.name == "step":
            times[record.node].append(record.t)
    return {worker: each[WARM_STEPS:] for worker, each in times.items()}


def measured(run: Run, period: int) -> tuple[float, int]:
    """Mean seconds a step over all workers' steps, and how many periods of the slowest were looked at."""

    def enough(records: Sequence[Record]) -> bool:
        times = step_times(records)
        return set(times) == set(run.workers) and all(
            len(each) > LEAST_PERIODS * period and each[-1] - each[0] > SECONDS for each in times.values()
        )

    paces, periods = [], []
    for times in step_times(rehearse(run, enough)).values():
        periods.append((len(times) - 1) // period)
        paces.append((times[periods[-1] * period] - times[0]) / (periods[-1] * period))
    return len(paces) / sum(1.0 / pace for pace in paces), min(periods)


def rows_of(
    link: str, algorithms: Sequence[str], codecs: Sequence[str], known_cells: Collection[tuple[str, str, str]]
) -> Iterator[dict[str, Any]]:
    """Predict all cells of a link, then measure those that are not known; the plainest first."""
    base = Run.parse(TOML, "predictions.toml", [f'run.script="{Path(__file__).resolve()}"', *LINKS[link]])
    facts = known(base, Sources(measure=True))
    computes = {site.name: round(site.compute_s, 4) for site in facts.sites}
    predicted, _ = compared(base, facts, algorithms, [(codec, codec) for codec in codecs])
    order = [(codec, algorithm) for codec in codecs for algorithm in algorithms]
    for row in sorted(predicted, key=lambda row: order.index((row.codecs[0], row.algorithm))):
        up, down = row.codecs
        if (row.algorithm, up, link) in known_cells:
            continue
        run = base.changed([f"sync.policy={row.algorithm}", f"wan.codec_up={up}", f"wan.codec_down={down}"])
        rounds = row.prediction.round_s / row.prediction.step_s
        step_s, periods = measured(run, Rhythm.of(row.algorithm).steps)
        ratio = row.prediction.step_s / step_s
        found = {
                "link": link, "algorithm": row.algorithm, "codec": up, "predicted_s": row.prediction.round_s,
                "measured_s": step_s * rounds, "ratio": ratio, "periods": periods, "compute_s": computes,
                "load": os.getloadavg()[0],
        }  # fmt: skip
        print(f"{link:46} {row.algorithm:37} {up:20} {line(found)}", flush=True)
        yield found


def rows_kept() -> list[dict[str, Any]]:
    """What has been measured."""
    return (
        [json.loads(line) for line in OUTPUT.read_text(encoding="utf-8").splitlines()]
        if OUTPUT.exists()
        else []
    )


def line(row: dict[str, Any]) -> str:
    return f"predicted {row['predicted_s']:.3f} measured {row['measured_s']:.3f} s a round, {row['ratio'] - 1:+.0%}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line for each algorithm and codec, a column for each link."""
    links = list(dict.fromkeys(row["link"] for row in rows))
    cells = {(row["algorithm"], row["codec"], row["link"]): row for row in rows}
    lines = [f"| algorithm | codec | {' | '.join(links)} |", "|---" * 2 + "|---:" * len(links) + "|"]
    for algorithm, codec in dict.fromkeys((row["algorithm"], row["codec"]) for row in rows):
        found = [cells.get((algorithm, codec, link)) for link in links]
        shown = [
            f"{row['predicted_s']:.2f} / {row['measured_s']:.2f} ({row['ratio'] - 1:+.0%})" if row else "–"
            for row in found
        ]
        lines.append(f"| `{algorithm}` | `{codec}` | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--missing", action="store_true", help="keep what has been measured")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--links", nargs="+", type=int, default=range(len(LINKS)), help="by number, from 0")
    parser.add_argument("--only", nargs="+", default=ALGORITHMS, metavar="ALGORITHM")
    parser.add_argument("--codecs", nargs="+", default=CODECS, metavar="CODEC")
    options = parser.parse_args()
    if options.train:
        train()
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    if not (options.table or options.missing):
        OUTPUT.write_text("")
    cells = {(row["algorithm"], row["codec"], row["link"]) for row in rows_kept()}
    for link in () if options.table else [list(LINKS)[place] for place in options.links]:
        for row in rows_of(link, options.only, options.codecs, cells):
            with OUTPUT.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    kept = rows_kept()
    order = {name: place for place, name in enumerate((*ALGORITHMS, *CODECS))}
    kept.sort(key=lambda row: (order.get(row["algorithm"], 99), order.get(row["codec"], 99)))
    print(table(kept))


if __name__ == "__main__":
    main()
