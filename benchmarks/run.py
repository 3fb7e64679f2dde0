"""Runs a suite of benchmarks: system × workload × network. Needs root and /dev/net/tun, for the networks.

    python benchmarks/run.py quick                       at most ten minutes
    python benchmarks/run.py full                        everything; hours
    python benchmarks/run.py dense --only geomx raw      some systems of a suite
    python benchmarks/run.py full --missing              the rest, after it was stopped, at the same commit
    python benchmarks/run.py full --sittings 7 8         two of its sittings, by the numbers that it prints
    python benchmarks/run.py --synthetic 2000000 --step-ms 5 --only geomx ddp

Writes JSON lines to out/bench/SUITE.jsonl, sitting by sitting; those of the same cells give way.
`benchmarks/page.py` takes them over into docs/data and writes docs/benchmarks.md.
"""

import argparse
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # `benchmarks` and `lab` are packages there

from benchmarks import data, sweep
from benchmarks.cells import Cell, read_results
from benchmarks.sitting import commit_here, machine_here, sit, sittings
from benchmarks.suites import SUITES, cells_of_suite
from benchmarks.systems.adapters import SYSTEMS, refused
from geomx.errors import ConfigError
from lab import awake
from lab.errors import LabError
from lab.system import missing_here

NAMES = sorted(SUITES.keys() - {"synthetic"})


def main() -> int:
    """Run it; gives the exit status."""
    options = _arguments()
    name = options.suite or "synthetic"
    cells = _cells(name, options)
    if any(cell.where == "lab" for cell in cells) and (missing := missing_here()):
        print("benchmarks: networks cannot be had here: " + "; ".join(missing), file=sys.stderr)
        return 1
    if any(cell.workload in data.DENSE and cell.where != "simulator" for cell in cells):
        try:
            for split in ("train", "test"):
                data.fashion_mnist(split)
        except data.DataMissingError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 2
    path = options.out or sweep.OUT / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    commit, machine, groups = commit_here(), machine_here(), dict(enumerate(sittings(cells), start=1))
    if options.sittings:
        groups = {number: group for number, group in groups.items() if number in options.sittings}
    if options.missing:
        known = {result.identity for result in read_results(path) if result.commit == commit}
        groups = {n: group for n, group in groups.items() if not {cell.identity for cell in group} <= known}
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # what has been started is ended, as after Ctrl-C
    try:
        with nullcontext(False) if options.let_cores_sleep else awake.cores() as are_awake:
            machine["awake"] = "yes" if are_awake else "no"
            started = time.monotonic()
            for number, group in groups.items():
                minutes, what = (time.monotonic() - started) / 60, ", ".join(map(str, group[0].sitting))
                print(f"[{minutes:5.1f} min] sitting {number}: {what}", flush=True)
                sit(group, options.turns or SUITES[name]["turns"], path, commit, machine, options.keep)
    except (LabError, ConfigError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; what had been measured is in {path}", file=sys.stderr)
        return 130
    print(f"the figures are in {path}")
    measured = {cell.identity for group in groups.values() for cell in group if refused(cell) is None}
    failed = [
        f"{result}: {result.state}"
        for result in read_results(path)
        if result.commit == commit and result.identity in measured and not result.is_ok
    ]
    if failed:
        print("rows without figures, so no page is written:", *failed, sep="\n  ", file=sys.stderr)
        return 1
    if not options.page:
        return 0
    page = Path(__file__).with_name("page.py")
    return subprocess.run([sys.executable, str(page)], check=False).returncode


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("suite", nargs="?", choices=NAMES, help="what to run")
    add("--only", nargs="+", choices=SYSTEMS, metavar="SYSTEM", help="of " + ", ".join(SYSTEMS))
    add("--configs", nargs="+", metavar="CONFIG", help="some configurations alone: dense, fp16, ...")
    add("--turns", type=int, help="how often each cell is run, in turn")
    add("--synthetic", type=int, metavar="PARAMS", help="instead of a suite: gradients without a model")
    add("--step-ms", type=float, default=0.0, help="how long a synthetic step computes")
    add("--network", metavar="NAME", help="one alone: a file of lab/networks without its ending")
    add("--missing", action="store_true", help="only sittings without results of this commit")
    add("--sittings", type=int, nargs="+", metavar="N", help="some alone, by the numbers that it prints")
    add("--shape", default="2x1", metavar="PARTIESxWORKERS", help="of a synthetic run")
    add("--congestion", default="bbr", choices=("bbr", "cubic"), help="of a synthetic run")
    add("--rounds", type=int, help="measured in each turn")
    add("--where", choices=("lab", "loopback"), help="loopback: without networks and root, to try things out")
    add("--let-cores-sleep", action="store_true", help="they are kept awake else: see lab/awake.py")
    add("--out", type=Path, help="the file of JSON lines")
    add("--page", action="store_true", help="make the page when all is measured")
    add("--keep", action="store_true", help="keep the folders of turns, with what processes printed")
    options = parser.parse_args()
    if (options.suite is None) == (options.synthetic is None):
        parser.error(f"name a suite ({', '.join(NAMES)}), or give --synthetic PARAMS")
    return options


def _cells(suite: str, options: argparse.Namespace) -> list[Cell]:
    """Those that are asked for."""
    keys = {}
    if suite == "synthetic":
        parties, workers = map(int, options.shape.split("x"))
        keys = {
            "parameters": options.synthetic,
            "step_ms": options.step_ms,
            "parties": parties,
            "workers": workers,
        }
        keys |= {"congestion": options.congestion, "network": options.network or "100mbit-30ms"}
    cells = list(cells_of_suite(suite, **keys))
    for cell in cells:
        cell.rounds_a_turn, cell.where = options.rounds or cell.rounds_a_turn, options.where or cell.where
    asked = {"network": [options.network], "system": options.only, "config": options.configs}
    asked = {key: values for key, values in asked.items() if values and values != [None]}
    return [cell for cell in cells if all(getattr(cell, key) in values for key, values in asked.items())]


if __name__ == "__main__":
    sys.exit(main())
