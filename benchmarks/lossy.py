"""What does geomx make of links that lose packets? Seconds and bytes a round, or seconds to an accuracy.

    python benchmarks/lossy.py                                          every system of lossy.toml over every network
    python benchmarks/lossy.py --networks 20mbit-100ms-1loss --systems "TCP bbr" "TCP cubic" --turns 2
    python benchmarks/lossy.py --train --networks 20mbit-100ms-1loss --seeds 0 1 2
    python benchmarks/lossy.py --table                                  what has been measured, in Markdown

Needs root and /dev/net/tun, for the networks. Over each network all systems take turns. A turn ends after `--rounds`
rounds or `--seconds`, whichever is first. Adds rows to out/bench/lossy.jsonl, a turn each, with the seconds of every
round of every worker. Bytes and losses are the router's, in the time in which all workers were measured: `up_bytes` and
`down_bytes` are `Lab.wire_bytes` of the parties (what was lost counts as sent), a round and party. `stalled` is the
share of that time in which some process of the machine waited for a core, `late` that of packets which the router
handed over more than 1 ms late. Do not believe turns in which they are large: `--quiet` waits for a machine that others
leave alone, and `--table` leaves out turns in which they did not.

With `--train`, a turn lasts until the first worker reaches `--target` on the test images of Fashion-MNIST.
"""

import signal
import statistics
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # `benchmarks` and `lab` are packages there

from benchmarks import sweep
from benchmarks.cells import OK, Cell
from benchmarks.grounds import Ground, network_of
from benchmarks.measures import Turn, looks, measured_span, percentile, reached, round_times
from benchmarks.sitting import commit_here, machine_here
from benchmarks.suites import WORKLOADS
from benchmarks.systems.adapters import SYSTEMS
from benchmarks.turn import run_turn
from geomx.errors import ConfigError
from lab import awake
from lab.control import Control
from lab.describe import Network, describe
from lab.errors import LabError
from lab.lab import Lab
from lab.system import missing_here

TABLE = sweep.table_of("lossy")
LOOK_S = 0.25
QUIET_S = 5.0
BEGIN_S = 30.0  # until all workers have begun, about, over a link that is slow for the first weights
COUNTED = ("offered_segments", "offered_bytes", "delivered_bytes", "lost_segments", "overflowed_segments")
WAYS = ("up", "down")


class WireMeter(threading.Thread):
    """Looks at the router's counters again and again, from the beginning of its context to the end."""

    def __init__(self, owner: str, cell: Cell) -> None:
        super().__init__(daemon=True)
        self._control, self._cell = Control(owner), cell
        self._over = threading.Event()
        self._samples: list[tuple[float, dict[str, float]]] = []

    def __enter__(self) -> "WireMeter":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self._control.close()

    def run(self) -> None:
        while True:
            self._samples.append((time.monotonic(), self._counts()))
            if self._over.wait(LOOK_S):
                return

    def _counts(self) -> dict[str, float]:
        """Of all parties together; and of the machine."""
        counts = {f"{way}_{what}": 0.0 for way in WAYS for what in COUNTED}
        status = self._control.ask("status")
        counts |= {what: status["router"][what] for what in ("handed", "late")}
        counts["stalled_s"] = _stalled_s()
        for link in status["links"]:
            for way, end in zip(WAYS, ("from", "to"), strict=True):
                if link[end] in self._cell.sites:
                    for what in COUNTED:
                        counts[f"{way}_{what}"] += link["counters"].get(
                            what, 0
                        )  # those that are 0 are left out
        return counts

    def between(self, begin: float, end: float) -> dict[str, float]:
        """What was counted from one moment of the monotonic clock to another."""
        earlier, later = self._at(begin), self._at(end)
        return {key: later[key] - earlier[key] for key in later}

    def _at(self, moment: float) -> dict[str, float]:
        """Between two looks, counters grow evenly."""
        place = bisect_left(self._samples, moment, key=lambda sample: sample[0])
        if place in (0, len(self._samples)):
            return self._samples[min(place, len(self._samples) - 1)][1]
        (before, a), (after, b) = self._samples[place - 1 : place + 1]
        share = (moment - before) / (after - before)
        return {key: a[key] + share * (b[key] - a[key]) for key in a}


def _stalled_s(pressure: Path = Path("/proc/pressure/cpu")) -> float:
    """For how long so far some process of the machine was ready and had no core; 0 where the kernel does not tell."""
    first = pressure.read_text().partition("\n")[0] if pressure.exists() else ""
    return int(first.rpartition("total=")[2] or 0) / 1e6


def wait_until_quiet(limit_s: float, most_stalled: float) -> None:
    """Until others want little of this machine, but no longer than that."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        before = _stalled_s()
        time.sleep(QUIET_S)
        if _stalled_s() - before < most_stalled * QUIET_S:
            return


def network_with(cell: Cell, seed: int) -> Network:
    """The network of a cell; `seed`: of what it loses."""
    network = network_of(cell)
    return describe({**network.table, "seed": seed}, network.source)


def taken(lab: Lab, cell: Cell, options: Mapping[str, Any], keep: bool) -> sweep.Row:
    """One turn of one system; what came of it."""
    system = replace(SYSTEMS["geomx"], configs={cell.config: dict(options)})
    with WireMeter(lab.owner, cell) as meter:
        turn = run_turn(cell, system, Ground(lab), Path(sys.executable), keep)
    row: sweep.Row = {"at": turn.at, "load": turn.load, "state": turn.state}
    return row | (_trained(turn, cell) if cell.target_accuracy is not None else _measured(turn, cell, meter))


def _measured(turn: Turn, cell: Cell, meter: WireMeter) -> sweep.Row:
    """A turn that was stopped has figures as well, of the rounds that it had."""
    times, span = round_times(turn.steps, cell), measured_span(turn.steps, cell)
    row: sweep.Row = {
        "seconds": [round(each, 4) for each in times],
        "rounds": len(times) // len(cell.worker_names),
    }
    if span is None or not times:
        return row
    counts = meter.between(*span)
    seconds = span[1] - span[0]
    rounds = cell.parties * seconds / statistics.fmean(times)
    row |= {
        "up_bytes": counts["up_offered_bytes"] / rounds,
        "down_bytes": counts["down_delivered_bytes"] / rounds,
    }
    for way in WAYS:
        offered = counts[f"{way}_offered_segments"]
        for what in ("lost", "overflowed"):
            row[f"{way}_{what}"] = counts[f"{way}_{what}_segments"] / offered if offered else 0.0
    row |= {"late": counts["late"] / max(counts["handed"], 1), "stalled": counts["stalled_s"] / seconds}
    return row | {"busy_cores": {node: used / seconds for node, used in turn.cpu_s.items()}}


def _trained(turn: Turn, cell: Cell) -> sweep.Row:
    found = reached(turn.steps, cell)
    row: sweep.Row = {"best_accuracy": max((line["accuracy"] for line in looks(turn.steps)), default=None)}
    if found is not None:
        row |= {"accuracy": found.accuracy, "to_target_s": found.seconds, "wan_bytes": found.wan_bytes}
    return row


# -- tables ---------------------------------------------------------------------------------------

ROUNDS_HEAD = (
    *("network", "system", "codec", "rounds", "median s", "p95 s", "p99 s"),
    *("MB up", "MB down", "lost up", "overflowed up", "overflowed down", "stalled", "late"),
)

TRAINED_HEAD = (
    *("network", "system", "codec", "seeds", "reached", "median s", "least", "most", "accuracy", "MB"),
)


def table(rows: Iterable[sweep.Row]) -> str:
    """Markdown: a line for each system over each network, rounds pooled over turns and workers; then trained runs."""
    groups: dict[tuple[Any, ...], list[sweep.Row]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("kind", "workload", "shape", "network", "system", "codec"))
        groups.setdefault(key, []).append(row)
    measured = [_line(key, of_key) for key, of_key in groups.items() if key[0] == "rounds"]
    trained = [_trained_line(key, of_key) for key, of_key in groups.items() if key[0] == "train"]
    text = _markdown(ROUNDS_HEAD, sorted(measured)) if measured else []
    if trained:
        text += ["", *_markdown(TRAINED_HEAD, sorted(trained))]
    return "\n".join(text).strip()


def _line(key: tuple[Any, ...], rows: list[sweep.Row]) -> tuple[str, ...]:
    times = [each for row in rows for each in row["seconds"]]
    counted = [row for row in rows if "up_bytes" in row]
    if not times or not counted:
        return (*key[3:], "0", *("–" for _ in ROUNDS_HEAD[4:]))
    shares = (0.5, 0.95, 0.99)
    figures = [
        f"{statistics.median(times) if share == 0.5 else percentile(times, share):.3f}" for share in shares
    ]
    megabytes = [f"{_mean(counted, each) / 1e6:.2f}" for each in ("up_bytes", "down_bytes")]
    lost = [f"{_mean(counted, each):.2%}" for each in ("up_lost", "up_overflowed", "down_overflowed")]
    quiet = [f"{_mean(counted, each):.0%}" for each in ("stalled", "late")]
    return (*key[3:], str(sum(row["rounds"] for row in rows)), *figures, *megabytes, *lost, *quiet)


def _trained_line(key: tuple[Any, ...], rows: list[sweep.Row]) -> tuple[str, ...]:
    good = [row for row in rows if "to_target_s" in row]
    seeds, times = ", ".join(str(row["seed"]) for row in rows), [row["to_target_s"] for row in good]
    if not good:
        return (*key[3:], seeds, f"0 of {len(rows)}", "–", "–", "–", "–", "–")
    seconds = (f"{each:.1f}" for each in (statistics.median(times), min(times), max(times)))
    return (*key[3:], seeds, f"{len(good)} of {len(rows)}", *seconds, f"{_mean(good, 'accuracy'):.2%}",
            f"{_mean(good, 'wan_bytes') / 1e6:.1f}")  # fmt: skip


def _mean(rows: list[sweep.Row], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def _markdown(head: Iterable[str], lines: Iterable[Iterable[str]]) -> list[str]:
    head = list(head)
    ruled = "|---|---|---|" + "---:|" * (len(head) - 3)
    return [f"| {' | '.join(head)} |", ruled, *(f"| {' | '.join(line)} |" for line in lines)]


# -- the command ----------------------------------------------------------------------------------


def cell_of(network: str, system: str, options: Any) -> Cell:
    """One system over one network."""
    parties, workers = map(int, options.shape.split("x"))
    keys = {**WORKLOADS[options.workload]}
    if options.workload == "synthetic":
        keys["parameters"] = options.parameters
    cell = Cell("geomx", system, options.workload, network=network, parties=parties, workers=workers, **keys)
    cell.limit_s = options.seconds + BEGIN_S
    if options.train:
        return replace(
            cell, rounds_a_turn=options.steps, warmup=0, target_accuracy=options.target, evaluate_every=20
        )
    return replace(cell, rounds_a_turn=options.rounds, warmup=options.warmup)


def measure(network: str, options: Any, known: list[sweep.Row], machine: dict[str, Any]) -> None:
    """All systems over one network, in turn."""
    points = [(seed, turn) for seed in options.seeds for turn in range(1, options.turns + 1)]
    for seed, turn in points:
        cells = [cell_of(network, system, options) for system in options.systems]
        with Lab(network_with(cells[0], seed + 1000 * turn)) as lab:
            for cell in cells:
                row: sweep.Row = {"kind": "train" if options.train else "rounds", "network": network}
                row |= {"system": cell.config, "codec": options.codec, "workload": cell.workload}
                row |= {"parameters": cell.parameters, "shape": options.shape, "seed": seed, "turn": turn}
                if options.missing and any(row.items() <= old.items() for old in known):
                    continue
                wait_until_quiet(options.quiet, options.most_stalled)
                keys = {"wan.codec_up": options.codec, "wan.codec_down": options.codec, "seed": seed}
                row |= {"options": keys | TABLE["systems"][cell.config]}
                row |= machine | taken(lab, cell, row["options"], options.keep)
                sweep.keep(options.out, [row])
                print(f"  {network}  {cell.config}: {told(row)}", flush=True)


def told(row: sweep.Row) -> str:
    """One line for the terminal."""
    stopped = "" if row["state"] == OK else f"; {row['state']}"
    if "to_target_s" in row:
        return f"{row['accuracy']:.1%} after {row['to_target_s']:.1f} s"
    if not row.get("seconds"):
        return f"no figures{stopped}"
    figures = f"{statistics.median(row['seconds']):.3f} s a round, {row['rounds']} rounds"
    return f"{figures}, {row.get('stalled', 0.0):.0%} stalled{stopped}"


def main() -> int:
    """Run it; gives the exit status."""
    parser = sweep.parser_of(__doc__, "lossy")
    add = parser.add_argument
    add("--table", action="store_true", help="print what the file of rows holds")
    add("--networks", nargs="+", default=TABLE["networks"], metavar="NAME")
    add("--systems", nargs="+", default=list(TABLE["systems"]), metavar="NAME", choices=TABLE["systems"])
    add("--rounds", type=int, default=60, help="measured in a turn")
    add("--warmup", type=int, default=2, help="rounds before them, that are not measured")
    add("--seconds", type=float, default=120.0, help="after which a turn is stopped")
    add("--turns", type=int, default=1)
    add("--shape", default="2x1", metavar="PARTIESxWORKERS")
    add("--workload", choices=WORKLOADS, help="synthetic, or with --train cnn-179k, if it is not given")
    add("--parameters", type=int, default=1_068_490, help="of the synthetic workload")
    add("--codec", default="fp16", help="both ways, where a system says nothing else")
    add("--train", action="store_true", help="Fashion-MNIST until --target, in place of rounds")
    add("--target", type=float, default=0.85)
    add("--steps", type=int, default=2000, help="with --train: the most")
    add(
        "--seeds", type=int, nargs="+", default=[0], help="of the weights, of the data's order, and of losses"
    )
    add("--keep", action="store_true", help="keep the folders of turns, with what processes printed")
    add(
        "--quiet",
        type=float,
        default=0.0,
        metavar="S",
        help="wait so long for a quiet machine, before each turn",
    )
    add("--most-stalled", type=float, default=0.5, metavar="SHARE", help="of a quiet machine")
    add("--let-cores-sleep", action="store_true", help="they are kept awake else: see lab/awake.py")
    options = parser.parse_args()
    options.workload = options.workload or ("cnn-179k" if options.train else "synthetic")
    if options.train and not options.workload.startswith("cnn"):
        parser.error("--train needs one of the CNNs as its --workload")
    known = sweep.rows_of(options.out)
    if options.table:
        print(table(row for row in known if row.get("stalled", 0.0) <= options.most_stalled))
        return 0
    if missing := missing_here():
        print("lossy: networks cannot be had here: " + "; ".join(missing), file=sys.stderr)
        return 1
    machine: dict[str, Any] = {
        "commit": commit_here(),
        **machine_here(),
        "day": datetime.now(UTC).date().isoformat(),
    }
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # what has been started is ended, as after Ctrl-C
    try:
        with nullcontext(False) if options.let_cores_sleep else awake.cores() as machine["awake"]:
            for network in options.networks:
                measure(network, options, known, machine)
    except (LabError, ConfigError) as error:
        print(f"lossy: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"stopped; what had been measured is in {options.out}", file=sys.stderr)
        return 130
    print(f"the figures are in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
