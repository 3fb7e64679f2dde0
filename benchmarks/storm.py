"""What does a run keep of its pace while machines die and come back? The same training without faults, and with them.

    python benchmarks/storm.py                              both systems, six minutes each without faults and with
    python benchmarks/storm.py --systems diloco --schedule workers
    python benchmarks/storm.py --parties 3 --seconds 90 --schedule short
    python benchmarks/storm.py --only calm --on-loss none   without faults, and without the key `run.on_loss`
    python benchmarks/storm.py --table                      the rows that there are

Eight parties of one worker each, with a local server each, and one global server: 17 processes with one thread each, on
loopback, on the cores that there are. `storm_train.py` says what is trained, `storm.toml` the systems and the faults,
`storm_figures.py` what the figures mean. On both tiers heartbeats are 1 s apart and the time-out is 4 s. All workers
train until one moment, so many seconds behind the first round; faults count from that round, too. The links that are
to be cut pass through a relay in both runs. Leaves a row of each run in out/bench/storm.jsonl.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import sweep
from benchmarks.sitting import commit_here, machine_here
from benchmarks.storm_faults import Fault, faults_of
from benchmarks.storm_figures import figures, loss_at
from benchmarks.storm_nodes import Nodes
from benchmarks.storm_train import held_out_loss, weights_path

TABLE = sweep.table_of("storm")
CALM, STORM = "calm", "storm"
PARTIES = "ABCDEFGH"


def run_of(system: str, kind: str, faults: list[Fault], options: Any) -> sweep.Row:
    """One run; its row."""
    folder = Path(tempfile.mkdtemp(prefix="geomx-storm-"))
    at, load = datetime.now(UTC).isoformat(timespec="seconds"), os.getloadavg()[0]
    parties = PARTIES[: options.parties]
    relayed = {fault.party for fault in faults if fault.what == "cut link"}
    made = faults if kind == STORM else []
    on_loss = "" if options.on_loss == "none" else options.on_loss
    print(f"  {system}, {kind}", flush=True)
    try:
        table, settings = TABLE["systems"][system], options.set
        seen = Nodes(folder, table, parties, made, relayed, options.seconds, on_loss, settings).run()
        row = {"system": system, "kind": kind, "schedule": options.schedule, "seconds": options.seconds}
        row |= {"parties": len(parties), "on_loss": on_loss, "settings": settings, **figures(seen)}
        row |= {"load": load, "at": at} | judged(folder, seen.workers)
    finally:
        if options.keep:
            print(f"  kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return row


def judged(folder: Path, workers: list[str]) -> sweep.Row:
    """The loss on what is held out, of the first worker that came to the end."""
    for worker in workers:
        if weights_path(folder, worker).exists():
            return {"held_out_loss": held_out_loss(weights_path(folder, worker)), "judged": worker}
    return {"held_out_loss": None, "judged": None}


def beside(row: sweep.Row, calm: sweep.Row | None) -> sweep.Row:
    """A run's figures as shares of those of the run without faults, and both losses at equal samples."""
    if calm is None:
        return {}
    samples = min(row["samples"], calm["samples"])
    return {
        "rounds_share": row["rounds"] / calm["rounds"] if calm["rounds"] else None,
        "contributions_share": row["contributions"] / calm["contributions"]
        if calm["contributions"]
        else None,
        "equal_samples": samples,
        "loss_at_equal": loss_at(row["curve"], samples),
        "calm_loss_at_equal": loss_at(calm["curve"], samples),
    }


# -- tables -----------------------------------------------------------------------------------------------------


def percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def pace_cells(row: sweep.Row) -> sweep.Row:
    """A run's line in the first table."""
    return {
        "system": row["system"],
        "run": row["kind"],
        "rounds": row["rounds"],
        "of calm": percent(row.get("rounds_share")),
        "contributions": round(row["contributions"], 1),
        "of calm's": percent(row.get("contributions_share")),
        "of the living, mean": percent(row["living_share_mean"]),
        "least": percent(row["living_share_least"]),
        "longest gap, s": row["longest_without_round_s"],
    }


def loss_cells(row: sweep.Row) -> sweep.Row:
    """Its line in the second: training losses are of the last tenth of as many samples as both runs have."""
    return {
        "system": row["system"],
        "run": row["kind"],
        "samples": row["samples"],
        "equal samples": row.get("equal_samples"),
        "training loss": row.get("loss_at_equal"),
        "calm's": row.get("calm_loss_at_equal"),
        "held out, in the end": row["held_out_loss"],
        "ledger": {True: "exact", False: "WRONG", None: None}[row["ledger"]["exact"]],
    }


def show(rows: list[sweep.Row]) -> None:
    """Print all runs, then the faults of each storm. What is not known is a dash."""

    def dashed(cells: sweep.Row) -> sweep.Row:
        return {key: "–" if value is None else value for key, value in cells.items()}

    if rows:
        sweep.show("Rounds and contributions", [dashed(pace_cells(row)) for row in rows])
        sweep.show("Loss", [dashed(loss_cells(row)) for row in rows])
    for row in rows:
        if row["faults"]:
            shown = {"at, s": "at_s", "fault": "what", "party": "party", "noticed": "noticed_s"}
            shown |= {"others' next round": "others_next_s", "its next, from restart": "again_s"}
            shown |= {"from end of imports": "again_after_imports_s", "its first step": "trains_s"}
            cells = [dashed({head: fault[key] for head, key in shown.items()}) for fault in row["faults"]]
            sweep.show(f"{row['system']}: seconds from each fault", cells)
        if row["state"] != "ok":
            print(f"{row['system']}, {row['kind']}: {row['state']}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=sweep.OUT / "storm.jsonl")
    parser.add_argument("--systems", nargs="+", choices=TABLE["systems"], default=list(TABLE["systems"]))
    parser.add_argument("--seconds", type=float, default=360.0, help="from the first round on")
    parser.add_argument("--schedule", choices=TABLE["schedules"], default="all")
    parser.add_argument("--only", choices=(CALM, STORM), help="one of the two runs")
    parser.add_argument("--parties", type=int, choices=range(1, len(PARTIES) + 1), default=len(PARTIES))
    parser.add_argument("--on-loss", default="continue", help="of the description; none: the key is left out")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="over the description")
    parser.add_argument("--keep", action="store_true", help="each run's folder, with outputs and records")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    if options.table:
        show(sweep.rows_of(options.out))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left
    faults = faults_of(TABLE["schedules"][options.schedule], PARTIES[: options.parties], options.seconds)
    machine, rows = {"commit": commit_here(), **machine_here()}, list[sweep.Row]()
    for system in options.systems:
        calm = None
        for kind in [options.only] if options.only else [CALM, STORM]:
            row = run_of(system, kind, faults, options)
            row |= beside(row, calm) | machine
            calm = calm or row
            sweep.keep(options.out, [row])
            rows.append(row)
    show(rows)
    sys.exit(any(row["state"] != "ok" for row in rows))


if __name__ == "__main__":
    main()
