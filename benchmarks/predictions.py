"""Does `geomx plan` predict what a run then measures? Seconds a round, on three emulated links.

    python benchmarks/predictions.py                         all cells: half an hour; needs no root
    python benchmarks/predictions.py --only fsa --codecs dense
    python benchmarks/predictions.py --missing               only cells that have no row yet
    python benchmarks/predictions.py --table                 the rows that there are, as a table for docs/plan.md

`predictions.toml` says what is compared, and how. Leaves rows in out/bench/predictions.jsonl.
"""

import itertools
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import nn

import geomx
from benchmarks import sweep
from geomx.config import Run
from geomx.launch.local_run import rehearse
from geomx.launch.plan import compared
from geomx.launch.plan_facts import Sources, known
from geomx.observe.records import Record
from geomx.predict.facts import Rhythm

TABLES = sweep.table_of("predictions")
LINKS, ALGORITHMS, CODECS = TABLES["links"], TABLES["algorithms"], TABLES["codecs"]
WIDTH, BATCH, STEP_S = 708, 4, 0.06
SECONDS, LEAST_PERIODS, WARM_STEPS = 6.0, 3, 2


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
    link: str, algorithms: list[str], codecs: list[str], known_cells: set[tuple[str, ...]]
) -> Iterator[sweep.Row]:
    """Predict all cells of a link, then measure those that are not known; the plainest first."""
    script = f'run.script="{Path(__file__).resolve()}"'
    base = Run.parse(TABLES["run"], "predictions.toml", [script, *LINKS[link]])
    facts = known(base, Sources(measure=True))
    computes = {site.name: round(site.compute_s, 4) for site in facts.sites}
    predicted, _ = compared(base, facts, algorithms, [(codec, codec) for codec in codecs])
    cells = {(row.codecs[0], row.algorithm): row.prediction for row in predicted}
    for codec, algorithm in itertools.product(codecs, algorithms):
        prediction = cells.get((codec, algorithm))
        if prediction is None or (algorithm, codec, link) in known_cells:
            continue
        codec_keys = [f"wan.codec_up={codec}", f"wan.codec_down={codec}"]
        run = base.changed([f"sync.policy={algorithm}", *codec_keys])
        step_s, periods = measured(run, Rhythm.of(algorithm).steps)
        measured_s = step_s * prediction.round_s / prediction.step_s
        row = {"link": link, "algorithm": algorithm, "codec": codec, "predicted_s": prediction.round_s}
        row |= {"measured_s": measured_s, "ratio": prediction.step_s / step_s, "periods": periods}
        yield row | {"compute_s": computes, "load": os.getloadavg()[0]}


def table(rows: list[sweep.Row]) -> str:
    """Markdown: a line for each algorithm and codec, a column for each link."""
    links = list(dict.fromkeys(row["link"] for row in rows))
    shown = {(row["algorithm"], row["codec"], row["link"]): shown_as(row) for row in rows}
    lines = [f"| algorithm | codec | {' | '.join(links)} |", "|---" * 2 + "|---:" * len(links) + "|"]
    for cell in dict.fromkeys((row["algorithm"], row["codec"]) for row in rows):
        names = [f"`{name}`" for name in cell]
        lines.append(f"| {' | '.join(names + [shown.get((*cell, link), '–') for link in links])} |")
    return "\n".join(lines)


def shown_as(row: sweep.Row) -> str:
    return f"{row['predicted_s']:.2f} / {row['measured_s']:.2f} ({row['ratio'] - 1:+.0%})"


def main() -> None:
    parser = sweep.parser_of(__doc__, "predictions")
    parser.add_argument("--train", action="store_true", help="what the runs that are measured do")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--links", nargs="+", type=int, default=range(len(LINKS)), help="by number, from 0")
    parser.add_argument("--only", nargs="+", default=ALGORITHMS, metavar="ALGORITHM")
    parser.add_argument("--codecs", nargs="+", default=CODECS, metavar="CODEC")
    options = parser.parse_args()
    if options.train:
        train()
    if not (options.table or options.missing):
        sweep.keep(options.out, [], "w")
    cells = {(row["algorithm"], row["codec"], row["link"]) for row in sweep.rows_of(options.out)}
    for link in () if options.table else [list(LINKS)[place] for place in options.links]:
        for row in rows_of(link, options.only, options.codecs, cells):
            sweep.keep(options.out, [row])
            print(f"{link:46} {row['algorithm']:37} {row['codec']:20} {shown_as(row)} s a round", flush=True)
    order = {name: place for place, name in enumerate((*ALGORITHMS, *CODECS))}
    kept = sweep.rows_of(options.out)
    kept.sort(key=lambda row: (order.get(row["algorithm"], 99), order.get(row["codec"], 99)))
    print(table(kept))


if __name__ == "__main__":
    main()
