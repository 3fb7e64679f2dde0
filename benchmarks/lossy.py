"""What does geomx make of links that lose packets? Seconds and bytes a round.

    python benchmarks/lossy.py                                          every system of lossy.toml over every network
    python benchmarks/lossy.py --networks 20mbit-100ms-1loss --systems "TCP bbr" "TCP cubic" --turns 2
    python benchmarks/lossy.py --table                                  what has been measured

Needs root and /dev/net/tun, for the networks. Over each network all systems take turns. A turn ends after `--rounds`
rounds or `--seconds`, whichever is first. Adds rows to out/bench/lossy.jsonl, a turn each, with the seconds of every
round of every worker. Bytes are the router's, a round and party, in the time in which all workers were measured; what
was lost up counts as sent. `stalled` is the share of that time in which some process of the machine waited for a core,
`late` that of packets which the router handed over more than 1 ms late: do not believe turns in which they are large.
`--table` leaves out turns that were stalled for more than half of the time.
"""

import signal
import statistics
import sys
import threading
import time
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # `benchmarks` and `lab` are packages there

import numpy as np

from benchmarks import sweep
from benchmarks.cells import Cell
from benchmarks.grounds import Ground, network_of
from benchmarks.measures import measured_span, percentile, round_times
from benchmarks.sitting import commit_here, machine_here
from benchmarks.systems.adapters import SYSTEMS
from benchmarks.turn import run_turn
from lab import awake
from lab.control import Control
from lab.describe import describe
from lab.lab import Lab
from lab.system import missing_here

TABLE = sweep.table_of("lossy")
LOOK_S, MOST_STALLED = 0.25, 0.5
BEGIN_S = 30.0  # until all workers have begun, about, over a link that is slow for the first weights
PRESSURE = Path("/proc/pressure/cpu")  # does not exist on every kernel


class WireMeter(threading.Thread):
    """Looks at the router's counters of all parties, and at the machine, as long as its context lasts."""

    def __init__(self, owner: str, cell: Cell) -> None:
        super().__init__(daemon=True)
        self._control, self._sites, self._over = Control(owner), cell.sites, threading.Event()
        self._moments: list[float] = []
        self._counts: list[dict[str, float]] = []

    def __enter__(self) -> "WireMeter":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self._control.close()

    def run(self) -> None:
        while not self._over.wait(LOOK_S):
            self._moments.append(time.monotonic())
            status = self._control.ask("status")  # counters that are 0 are left out
            counts = {key: status["router"][key] for key in ("handed", "late")} | {
                "up": 0,
                "down": 0,
                "stalled_s": 0.0,
            }
            for link in status["links"]:
                counts["up"] += link["counters"].get("offered_bytes", 0) * (link["from"] in self._sites)
                counts["down"] += link["counters"].get("delivered_bytes", 0) * (link["to"] in self._sites)
            if PRESSURE.exists():
                counts["stalled_s"] = 1e-6 * int(
                    PRESSURE.read_text().partition("\n")[0].rpartition("total=")[2]
                )
            self._counts.append(counts)

    def between(self, begin: float, end: float) -> dict[str, float]:
        """What was counted between moments of the monotonic clock; between two looks counters grow evenly."""
        grown = {key: [counts[key] for counts in self._counts] for key in self._counts[0]}
        return {
            key: float(np.diff(np.interp((begin, end), self._moments, all_))[0])
            for key, all_ in grown.items()
        }


def taken(lab: Lab, cell: Cell, options: sweep.Row, keep: bool) -> sweep.Row:
    """One turn of one system; a turn that was stopped has figures as well, of the rounds that it had."""
    with WireMeter(lab.owner, cell) as meter:
        turn = run_turn(
            cell,
            replace(SYSTEMS["geomx"], configs={cell.config: options}),
            Ground(lab),
            Path(sys.executable),
            keep,
        )
    times, span = round_times(turn.steps, cell), measured_span(turn.steps, cell)
    row: sweep.Row = {"at": turn.at, "load": turn.load, "state": turn.state}
    row |= {"seconds": [round(each, 4) for each in times], "rounds": len(times) // len(cell.worker_names)}
    if span is not None and times:
        counts, seconds = meter.between(*span), span[1] - span[0]
        rounds = cell.parties * seconds / statistics.fmean(times)
        row |= {"up_bytes": counts["up"] / rounds, "down_bytes": counts["down"] / rounds}
        row |= {"late": counts["late"] / max(counts["handed"], 1), "stalled": counts["stalled_s"] / seconds}
        row |= {"busy_cores": {node: used / seconds for node, used in turn.cpu_s.items()}}
    return row


def pooled(rows: list[sweep.Row]) -> list[sweep.Row]:
    """A line for each system over each network: rounds pooled over turns and workers, means of the rest."""
    lines = []
    for key in dict.fromkeys((row["network"], row["system"], row["codec"]) for row in rows):
        same = [row for row in rows if (row["network"], row["system"], row["codec"]) == key]
        times, counted = (
            [each for row in same for each in row["seconds"]],
            [r for r in same if "up_bytes" in r],
        )
        line = dict(zip(("network", "system", "codec"), key, strict=True))
        line |= {"rounds": sum(row["rounds"] for row in same)}
        line |= dict.fromkeys(("median s", "p95 s", "p99 s", "MB up", "MB down", "stalled", "late"), "–")
        if times and counted:
            line |= {"median s": statistics.median(times)}
            line |= {"p95 s": percentile(times, 0.95), "p99 s": percentile(times, 0.99)}
            mean = {key: statistics.fmean(row[key] for row in counted) for key in ("up_bytes", "down_bytes")}
            line |= {"MB up": 1e-6 * mean["up_bytes"], "MB down": 1e-6 * mean["down_bytes"]}
            line |= {
                key: f"{statistics.fmean(row[key] for row in counted):.0%}" for key in ("stalled", "late")
            }
        lines.append(line)
    return lines


def measure(network: str, turn: int, options: Namespace, known: list[sweep.Row], machine: sweep.Row) -> None:
    """Each system over one network."""
    parties, workers = map(int, options.shape.split("x"))
    cell = Cell("geomx", "", "synthetic", options.parameters, network, parties, workers)
    cell = replace(cell, limit_s=options.seconds + BEGIN_S, rounds_a_turn=options.rounds)
    told = network_of(cell)
    with Lab(describe({**told.table, "seed": 1000 * turn}, told.source)) as lab:
        for system in options.systems:
            row: sweep.Row = {
                "network": network,
                "system": system,
                "codec": options.codec,
                "shape": options.shape,
            }
            row |= {"workload": "synthetic", "parameters": options.parameters, "turn": turn}
            if options.missing and any(row.items() <= old.items() for old in known):
                continue
            row["options"] = {"wan.codec_up": options.codec, "wan.codec_down": options.codec}
            row["options"] |= TABLE["systems"][system]
            row |= machine | taken(lab, replace(cell, config=system), row["options"], options.keep)
            sweep.keep(options.out, [row])
            figures = f"median {statistics.median(row['seconds']):.3f} s" if row["seconds"] else "no figures"
            print(f"  {network}  {system}: {figures}, {row['rounds']} rounds; {row['state']}", flush=True)


def main() -> None:
    parser = sweep.parser_of(__doc__, "lossy")
    add = parser.add_argument
    add("--missing", action="store_true", help="only what has no row yet")
    add("--table", action="store_true", help="print what the file of rows holds")
    add("--networks", nargs="+", default=TABLE["networks"], metavar="NAME")
    add("--systems", nargs="+", default=list(TABLE["systems"]), metavar="NAME", choices=TABLE["systems"])
    add("--rounds", type=int, default=60, help="measured in a turn")
    add("--seconds", type=float, default=120.0, help="after which a turn is stopped")
    add("--turns", type=int, default=1)
    add("--shape", default="2x1", metavar="PARTIESxWORKERS")
    add("--parameters", type=int, default=1_068_490)
    add("--codec", default="fp16", help="both ways, where a system says nothing else")
    add("--keep", action="store_true", help="keep the folders of turns, with what processes printed")
    add("--let-cores-sleep", action="store_true", help="they are kept awake else: see lab/awake.py")
    options = parser.parse_args()
    known = sweep.rows_of(options.out)
    if options.table:
        sweep.show("Lossy links", pooled([row for row in known if row.get("stalled", 0.0) <= MOST_STALLED]))
        return
    if missing := missing_here():
        sys.exit("lossy: networks cannot be had here: " + "; ".join(missing))
    machine = {"commit": commit_here(), **machine_here(), "day": datetime.now(UTC).date().isoformat()}
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # what has been started is ended, as after Ctrl-C
    with nullcontext(False) if options.let_cores_sleep else awake.cores() as machine["awake"]:
        for network in options.networks:
            for turn in range(1, options.turns + 1):
                measure(network, turn, options, known, machine)


if __name__ == "__main__":
    main()
