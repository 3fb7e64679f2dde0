"""Boosted trees of two parties beside LightGBM alone, and beside XGBoost's distributed mode over the same link.

    python benchmarks/trees.py                           loopback: LightGBM, then ours
    python benchmarks/trees.py --rows 50000 --rounds 10  a quick look
    python benchmarks/trees.py --lab                     two sites, 100 Mbit/s, 30 ms there and back; needs root

Each party has half of the rows, and a worker of one thread. Seconds are of binning and training, of the slower worker.
Ours is `GBDTClassifier`, with `--lab` `XGBClassifier`. LightGBM: two processes side by side, each with its half alone;
its AUC is of all rows. AUC is on rows that nobody has trained on. With `--lab` each party is a site (a network
namespace), the global server and XGBoost's tracker stand in site A, and bytes are those that the link's device in site
B has counted meanwhile. Without, they are those of the run's report, of a party. `formula`: features x 256 codes x 16
bytes x leaves, of a tree and way. `--worker` is what each process is. Adds rows to out/bench/trees.jsonl.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # `benchmarks` and `lab` are packages there

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks import sweep, training
from benchmarks.cells import Cell
from benchmarks.grounds import Ground, network_of
from benchmarks.processes import Meter
from benchmarks.sitting import commit_here, machine_here
from benchmarks.systems import adapters
from benchmarks.systems.adapters import Desk, Node
from benchmarks.turn import THREADS
from lab.lab import Lab
from lab.system import missing_here

FEATURES, BINS, RATE, SEED, MEET_S, LOOK_S = 28, 255, 0.1, 7, 600, 0.1
HELD_OUT, HELD_OUT_ROWS = 2, 100_000
PARTIES = "".join(f'[[party]]\nname = "{name}"\nworkers = 1\n' for name in "AB")
Options = argparse.Namespace
Fitted = tuple[Callable[[np.ndarray], np.ndarray], float]  # what scores rows, and leaves of a tree
Fit = Callable[[], Fitted]


def drawn(place: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows and labels of party 0 or 1, or those that are held out."""
    linear = np.random.default_rng(SEED).standard_normal(FEATURES) / FEATURES**0.5
    random = np.random.default_rng([SEED, place])
    x = random.standard_normal((rows, FEATURES))
    chance = 1.0 / (1.0 + np.exp(-(x @ linear + x[:, 0] * x[:, 1])))
    return x, (random.random(rows) < chance).astype(np.int64)


def ours(options: Options, run: Any, x: np.ndarray, y: np.ndarray) -> Fitted:
    from geomx.learn import GBDTClassifier, XGBClassifier  # noqa: PLC0415

    model: GBDTClassifier = XGBClassifier(options.rounds, learning_rate=RATE, max_bins=BINS)
    if not options.lab:
        model = GBDTClassifier(options.rounds, learning_rate=RATE, max_leaves=options.leaves, max_bins=BINS)
    model.fit(x, y, run=run)
    leaves = statistics.fmean(int((tree.feature < 0).sum()) for made in model.trees_ for tree in made)
    return lambda rows: model.predict_proba(rows)[:, 1], leaves


def lightgbm(options: Options, threads: int, x: np.ndarray, y: np.ndarray) -> Fitted:
    import lightgbm as library  # noqa: PLC0415

    how = {"objective": "binary", "num_leaves": options.leaves, "learning_rate": RATE, "max_bin": BINS}
    how |= {"num_threads": threads, "verbosity": -1}
    model = library.train(how, library.Dataset(x, y, params=how), options.rounds)
    return model.predict, statistics.fmean(tree["num_leaves"] for tree in model.dump_model()["tree_info"])


def xgboost(options: Options, x: np.ndarray, y: np.ndarray) -> Fitted:
    import xgboost as library  # noqa: PLC0415

    how = {"objective": "binary:logistic", "tree_method": "hist", "max_bin": BINS, "max_depth": 6}
    how |= {"learning_rate": RATE, "nthread": 1}
    model = library.train(how, library.QuantileDMatrix(x, y, max_bin=BINS, nthread=1), options.rounds)
    return model.inplace_predict, statistics.fmean(text.count("leaf=") for text in model.get_dump())


def worker(options: Options) -> None:
    """One of two."""
    place, run = options.place, None
    if options.worker == "ours":
        import geomx  # noqa: PLC0415

        run = geomx.join()
        place = run.workers.index(run.name)
    x, y = drawn(place, options.rows // 2)
    if run is not None:
        tell(place, run.barrier, partial(ours, options, run, x, y))
        run.barrier()
        run.close()
    elif options.worker == "lightgbm":
        halves = zip((x, y), drawn(1, len(y)), strict=True)
        of_all = partial(lightgbm, options, len(os.sched_getaffinity(0)), *map(np.concatenate, halves))
        training.publish(Path(f"{place}.ready"), "")
        other_is = partial(training.wait_for, Path(f"{1 - place}.ready"), MEET_S)
        tell(place, other_is, partial(lightgbm, options, 1, x, y), of_all)
    else:
        from xgboost import collective  # noqa: PLC0415

        with collective.CommunicatorContext(dmlc_task_id=str(place), **json.loads(options.tracker)):
            all_are = partial(collective.allreduce, np.ones(1), collective.Op.SUM)
            tell(place, all_are, partial(xgboost, options, x, y))


def tell(place: int, ready: Callable[[], Any], fit: Fit, judged: Fit | None = None) -> None:
    """Print seconds and bytes of a fit that begins once both are ready; the first one's AUC, or that of `judged`."""
    ready()
    before, begin = training.wan_counters(), time.perf_counter()
    scores, leaves = fit()
    seconds, after = time.perf_counter() - begin, training.wan_counters()
    row: sweep.Row = {"seconds": seconds, "up": after[0] - before[0], "down": after[1] - before[1]}
    if place == 0:
        scores, leaves = judged() if judged else (scores, leaves)
        x, y = drawn(HELD_OUT, HELD_OUT_ROWS)
        row |= {"auc": float(roc_auc_score(y, scores(x))), "leaves": leaves}
    print(f"RESULT {json.dumps(row)}", flush=True)


def command_of(system: str, options: Options, *more: object) -> tuple[str, ...]:
    """Of a worker."""
    given = ("--rows", options.rows, "--rounds", options.rounds, "--leaves", options.leaves, *more)
    given += ("--lab",) if options.lab else ()
    return sys.executable, str(Path(__file__).resolve()), "--worker", system, *map(str, given)


def told_by(ground: Ground, nodes: Sequence[Node], folder: Path) -> sweep.Row:
    """What two workers tell: seconds of the slower, bytes of B. Whatever happens, no process is left."""
    meter, running = Meter(folder.name), []
    outputs = [folder / f"{number}.out" for number in range(len(nodes))]
    try:
        for node, path in zip(nodes, outputs, strict=True):
            env = {**os.environ, **THREADS, **meter.mark(node.name), **node.env}
            with path.open("wb") as out:
                pipes = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
                running.append(ground.start(node.site, node.argv, env=env, cwd=folder, **pipes))
        works = [process for process, node in zip(running, nodes, strict=True) if not node.serves]
        while not all(process.poll() == 0 for process in works):
            if bad := [place for place, process in enumerate(running) if process.poll()]:
                raise SystemExit(f"{nodes[bad[0]].name} has failed:\n{outputs[bad[0]].read_text()[-2000:]}")
            time.sleep(LOOK_S)
        lines = (line for path in outputs for line in path.read_text().splitlines() if "RESULT " in line)
        told = [json.loads(line.partition("RESULT ")[2]) for line in lines]
        first, second = sorted(told, key=lambda row: "auc" not in row)
        return {**first, **second, "seconds": max(row["seconds"] for row in told)}
    finally:
        meter.end_all()
        for process in running:
            process.wait()


def lightgbm_beside(options: Options, folder: Path) -> sweep.Row:
    nodes = [Node(f"{n}", "A", command_of("lightgbm", options, "--place", n)) for n in range(2)]
    return told_by(Ground(), nodes, folder) | {"up": 0, "down": 0}


def ours_on_loopback(options: Options, folder: Path) -> sweep.Row:
    path, report = folder / "trees.toml", folder / "report.json"
    _, script, *arguments = command_of("ours", options)
    path.write_text(f"[run]\nscript = {json.dumps(script)}\narguments = {json.dumps(arguments)}\n{PARTIES}")
    run = (sys.executable, "-m", "geomx", "run", str(path), "--plain", "--report", str(report))
    row, told = told_by(Ground(), [Node("run", "A", run)], folder), json.loads(report.read_text())
    return row | {"up": told["wan_bytes_up"] / 2, "down": told["wan_bytes_down"] / 2}


def ours_over(lab: Lab, cell: Cell, options: Options, folder: Path) -> sweep.Row:
    """As the benchmark of training starts geomx, with this script for workers."""
    desk = Desk(cell, Ground(lab), Path(sys.executable), folder, {})
    nodes, own = adapters.geomx(desk)[0], command_of("ours", options)
    for at, node in enumerate(nodes):
        if not node.serves:
            nodes[at] = replace(node, argv=(*node.argv[: node.argv.index("--") + 1], *own))
    return told_by(desk.ground, nodes, folder)


def xgboost_over(lab: Lab, cell: Cell, options: Options, folder: Path) -> sweep.Row:
    from xgboost.tracker import RabitTracker  # noqa: PLC0415

    with lab.inside("A"):  # its sockets stay there
        tracker = RabitTracker(n_workers=2, host_ip=lab.address("A"), sortby="task")
        tracker.start()
    given = ("--tracker", json.dumps(tracker.worker_args()), "--place")
    nodes = [Node(at, at, command_of("xgboost", options, *given, n)) for n, at in enumerate(cell.sites)]
    return told_by(Ground(lab), nodes, folder)


def show(title: str, rows: Sequence[sweep.Row]) -> None:
    """A line for each system: the median of its seconds over turns, and its ratio to the first's."""
    lines, groups = [], sweep.grouped(rows, "system")
    medians = {name: statistics.median(row["seconds"] for row in same) for name, same in groups.items()}
    for system, (row, *_) in groups.items():
        line = {"system": system, "seconds": medians[system], "AUC": f"{row['auc']:.4f}"}
        line |= {"ratio": medians[system] / next(iter(medians.values())), "leaves": row["leaves"]}
        line |= {f"MB {way}": row[way] / 1e6 for way in ("up", "down")}
        line |= {f"MB {way} a tree": row[way] / 1e6 / row["rounds"] for way in ("up", "down")}
        lines.append(line | {"formula": FEATURES * 256 * 16 * row["leaves"] / 1e6})
    sweep.show(title, lines)


def main() -> None:
    parser = sweep.parser_of(__doc__, "trees")
    add = parser.add_argument
    add("--lab", action="store_true", help="over an emulated link, beside XGBoost")
    add("--network", default="100mbit-30ms", metavar="NAME", help="a file of lab/networks, for --lab")
    add("--rows", type=int, default=1_000_000, help="of both parties together")
    add("--rounds", type=int, default=100)
    add(
        "--leaves",
        type=int,
        default=31,
        help="on loopback; over the lab trees have a depth of 6, so up to 64",
    )
    add("--turns", type=int, default=1, help="systems take turns")
    add("--worker", choices=("ours", "lightgbm", "xgboost"), help=argparse.SUPPRESS)
    add("--place", type=int, default=0, help=argparse.SUPPRESS)
    add("--tracker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return
    if options.lab and (missing := missing_here()):
        sys.exit("trees: networks cannot be had here: " + "; ".join(missing))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what has been started is ended
    network = options.network if options.lab else "loopback"
    told = {"network": network, "rows": options.rows, "rounds": options.rounds}
    cell, rows = Cell("geomx", "", "trees", 0, options.network, 2, 1, "A"), []
    with Lab(network_of(cell)) if options.lab else nullcontext() as lab:
        systems = {"LightGBM, halves alone": lightgbm_beside, "geomx": ours_on_loopback}
        if lab is not None:
            systems = {"XGBoost": partial(xgboost_over, lab, cell), "geomx": partial(ours_over, lab, cell)}
        for system in options.turns * list(systems):
            row: sweep.Row = {"system": system, **told, "load": os.getloadavg()[0]}
            with tempfile.TemporaryDirectory(prefix="geomx-bench-") as folder:
                rows.append(row | systems[system](options, Path(folder)))
            print(f"  {system}: {rows[-1]['seconds']:.2f} s", flush=True)
            sweep.keep(options.out, [rows[-1] | {"commit": commit_here(), **machine_here()}])
    show(f"{options.rows:,} rows, {options.rounds} rounds, {network}", rows)


if __name__ == "__main__":
    main()
