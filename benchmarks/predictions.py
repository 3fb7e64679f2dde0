"""Does `geomx plan` predict what a run then measures? Seconds a round, over emulated links.

    python benchmarks/predictions.py                         a model that mostly sleeps: half an hour; needs no root
    python benchmarks/predictions.py --only fsa              of one algorithm alone
    python benchmarks/predictions.py --missing               only cells that have no row yet
    python benchmarks/predictions.py --table                 the rows that there are

`predictions.toml` says what is compared, and how. Leaves rows in out/bench/predictions.jsonl.
"""

import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import nn

import geomx
from benchmarks import sweep
from geomx.config import Run
from geomx.launch.local.local_run import rehearse
from geomx.launch.planning.plan import compared
from geomx.launch.planning.plan_facts import Sources, known
from geomx.observe.records import Record
from geomx.predict.facts import Rhythm

TABLE = sweep.table_of("predictions")
WIDTH, BATCH, STEP_S = 708, 4, 0.06
LEAST_PERIODS, WARM_STEPS = 3, 2
Cell = tuple[str, str, str]  # algorithm, codecs up and down


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
    steps = sweep.grouped(({"t": r.t, "node": r.node} for r in records if r.name == "step"), "node")
    return {worker: [step["t"] for step in each[WARM_STEPS:]] for worker, each in steps.items()}


def measured(run: Run, period: int, seconds: float) -> tuple[float, int]:
    """Mean seconds a step over all workers' steps, and how many periods of the slowest were looked at."""

    def enough(records: Sequence[Record]) -> bool:
        times = step_times(records)
        return set(times) == set(run.workers) and all(
            len(each) > LEAST_PERIODS * period and each[-1] - each[0] > seconds for each in times.values()
        )

    found = list(step_times(rehearse(run, enough)).values())
    periods = [(len(times) - 1) // period for times in found]
    spans = zip(found, (count * period for count in periods), strict=True)
    paces = [(times[steps] - times[0]) / steps for times, steps in spans]
    return statistics.harmonic_mean(paces), min(periods)


def cells_of() -> list[Cell]:
    """The plainest codecs first."""
    return [(algorithm, codec, codec) for codec in TABLE["codecs"] for algorithm in TABLE["algorithms"]]


def rows_of(link: str, cells: list[Cell], known_cells: set[tuple[str, ...]]) -> Iterator[sweep.Row]:
    """Predict all cells of a link, then measure those that are not known."""
    keys = [f'run.script="{Path(__file__)}"', *TABLE["links"][link]]
    base = Run.parse(TABLE["run"], "predictions.toml", keys)
    facts = known(base, Sources(measure=True), local=True)
    computes = {site.name: round(site.compute_s, 4) for site in facts.sites}
    steps = {site.name: site.local_step_s and round(site.local_step_s, 4) for site in facts.sites}
    algorithms, codecs = ([*dict.fromkeys(each)] for each in ((c[0] for c in cells), (c[1:] for c in cells)))
    predicted, refused = compared(base, facts, algorithms, codecs)
    predictions = {(row.algorithm, *row.codecs): row.prediction for row in predicted}
    for cell in cells:
        prediction = predictions.get(cell)
        if prediction is None or (link, *cell) in known_cells:
            print(f"{link:46} {' '.join(cell)}: {refused.get(cell[0], 'has a row')}", flush=True)
            continue
        algorithm, up, down = cell
        run = base.changed([f"sync.policy={algorithm}", f"wan.codec_up={up}", f"wan.codec_down={down}"])
        step_s, periods = measured(run, Rhythm.of(algorithm).steps, TABLE["seconds"])
        row = {"link": link, "algorithm": algorithm, "codec_up": up, "codec_down": down}
        row |= {
            "predicted_s": prediction.round_s,
            "measured_s": step_s * prediction.round_s / prediction.step_s,
        }
        row |= {"ratio": prediction.step_s / step_s, "periods": periods, "compute_s": computes}
        yield row | {"local_step_s": steps, "load": os.getloadavg()[0]}


def table(rows: list[sweep.Row]) -> list[sweep.Row]:
    """A line for each algorithm and its codecs, a column for each link: predicted / measured, and how far apart."""
    links = dict.fromkeys(row["link"] for row in rows)
    found = {(*cell_of(row), row["link"]): shown_as(row) for row in rows}
    return [
        {"algorithm": cell[0], "codecs": "; ".join(dict.fromkeys(cell[1:]))}
        | {link: found.get((*cell, link), "–") for link in links}
        for cell in dict.fromkeys(map(cell_of, rows))
    ]


def cell_of(row: sweep.Row) -> Cell:
    return row["algorithm"], row["codec_up"], row["codec_down"]


def shown_as(row: sweep.Row) -> str:
    return f"{row['predicted_s']:.2f} / {row['measured_s']:.2f} ({row['ratio'] - 1:+.0%})"


def main() -> None:
    parser = sweep.parser_of(__doc__, "predictions")
    parser.add_argument("--missing", action="store_true", help="only what has no row yet")
    parser.add_argument("--train", action="store_true", help="what the runs that are measured do")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--links", nargs="+", type=int, help="by number, from 0")
    parser.add_argument("--only", nargs="+", default=(), metavar="ALGORITHM")
    options = parser.parse_args()
    if options.train:
        train()
    if not (options.table or options.missing):
        sweep.keep(options.out, [], "w")
    known_cells = {(row["link"], *cell_of(row)) for row in sweep.rows_of(options.out)}
    cells, links = cells_of(), list(TABLE["links"])
    asked = [cell for cell in cells if not options.only or cell[0] in options.only]
    for link in () if options.table else [links[place] for place in options.links or range(len(links))]:
        for row in rows_of(link, asked, known_cells):
            sweep.keep(options.out, [row])
            print(f"{link:46} {' '.join(cell_of(row)):60} {shown_as(row)} s a round", flush=True)
    if kept := [row for row in sweep.rows_of(options.out) if cell_of(row) in cells]:
        sweep.show("Seconds a round", table(sorted(kept, key=lambda row: cells.index(cell_of(row)))))


if __name__ == "__main__":
    main()
