"""Runs a suite of benchmarks: system × workload × network. Needs root and /dev/net/tun, for the networks.

    python benchmarks/run.py quick                       at most ten minutes
    python benchmarks/run.py full                        everything; hours
    python benchmarks/run.py dense --only geomx raw      some systems of a suite
    python benchmarks/run.py full --missing              the rest, after it was stopped, at the same commit
    python benchmarks/run.py full --sittings 7 8         two of its sittings, by the numbers that it prints
    python benchmarks/run.py --synthetic 2000000 --step-ms 5 --only geomx ddp

Writes JSON lines to out/bench/SUITE.jsonl, sitting by sitting; those of the same cells give way.
`benchmarks/page.py` makes the page of them.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # `benchmarks` and `lab` are packages there

from benchmarks import systems, venvs  # noqa: E402
from benchmarks.cells import Cell, read_results, synthetic, write_results  # noqa: E402
from benchmarks.sitting import Facts, Sitting, sittings  # noqa: E402
from benchmarks.suites import EACH_STEP, FAST, RAW, SUITES, Suite, base, cells_of  # noqa: E402
from lab import awake  # noqa: E402
from lab import system as machine  # noqa: E402
from lab.errors import LabError  # noqa: E402

OUT = ROOT / "out" / "bench"


def main() -> int:
    """Run it; gives the exit status."""
    options = _arguments()
    suite = _suite(options)
    cells = [cell for cell in suite.cells if _is_wanted(cell, options)]
    if any(cell.where == "lab" for cell in cells) and (missing := machine.missing_here()):
        print("benchmarks: networks cannot be had here: " + "; ".join(missing), file=sys.stderr)
        return 1
    path = options.out or OUT / f"{options.suite or 'synthetic'}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    groups = dict(enumerate(sittings(cells), start=1))
    if options.sittings:
        groups = {number: group for number, group in groups.items() if number in options.sittings}
    facts = Facts.here()
    if options.missing:
        known = {result.identity for result in read_results(path) if result.commit == facts.commit}
        groups = {n: group for n, group in groups.items() if not {cell.identity for cell in group} <= known}
    # What has been started is ended, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with nullcontext(False) if options.let_cores_sleep else awake.cores() as are_awake:
            facts.machine["awake"] = "yes" if are_awake else "no"
            _run(groups, options.turns or suite.turns, path, facts, options.keep)
    except LabError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; what had been measured is in {path}", file=sys.stderr)
        return 130
    print(f"the figures are in {path}")
    return _page() if options.page else 0


def _is_wanted(cell: Cell, options: argparse.Namespace) -> bool:
    is_there = options.network is None or cell.network == options.network
    is_asked = not options.only or cell.system in options.only
    return is_there and is_asked and (not options.configs or cell.config in options.configs)


def _run(groups: Mapping[int, Sequence[Cell]], turns: int, path: Path, facts: Facts, keep: bool) -> None:
    """Sitting after sitting, each of whose results are written when it has ended, or been stopped."""
    started = time.monotonic()
    for number, group in groups.items():
        cell = group[0]
        minutes = (time.monotonic() - started) / 60
        print(
            f"[{minutes:5.1f} min] sitting {number}: {cell.workload.name} "
            f"({cell.workload.parameters:,} parameters), {cell.network}, {cell.congestion}, {cell.shape}",
            flush=True,
        )
        sitting = Sitting(group, facts)
        try:
            sitting.take(turns, keep)
        finally:
            write_results(path, sitting.results())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("suite", nargs="?", choices=sorted(SUITES), help="what to run")
    add("--only", nargs="+", choices=systems.NAMES, metavar="SYSTEM", help="of " + ", ".join(systems.NAMES))
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
        parser.error(f"name a suite ({', '.join(sorted(SUITES))}), or give --synthetic PARAMS")
    return options


def _suite(options: argparse.Namespace) -> Suite:
    if options.suite is not None:
        suite = SUITES[options.suite]()
    else:
        parties, workers = map(int, options.shape.split("x"))
        workload = synthetic(options.synthetic, options.step_ms)
        here = base(workload, options.network or FAST, parties, workers, options.congestion)
        suite = Suite(tuple(cells_of((RAW, *EACH_STEP), here)), 2, "synthetic gradients")
    changes = {key: value for key in ("rounds", "where") if (value := getattr(options, key)) is not None}
    return replace(suite, cells=tuple(replace(cell, **changes) for cell in suite.cells))


def _page() -> int:
    import subprocess  # noqa: PLC0415 (only for the page)

    python = venvs.python_of("page", ROOT / "benchmarks" / "requirements.txt")
    return subprocess.run([str(python), str(ROOT / "benchmarks" / "page.py")], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
