"""Trains each algorithm of `geomx.learn` over three unequal parties of unlike rows, beside one machine and a reference.

    python benchmarks/learn.py                 all, over 100 Mbit/s and 30 ms; out/learn.json
    python benchmarks/learn.py k-means GBDT    some; rows of others stay as they are
    python benchmarks/learn.py --alone         quality on one machine only

Each is trained by the reference on all rows, by ours on all rows, and by ours in a run of three parties of one worker
each, who have a sixth, a third and a half of the rows, mostly of other labels. Quality is on rows that nobody has
trained on. `learning/cases.py` says what each is compared with. `--worker` is what each process of a run is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # `benchmarks` is a package there

import numpy as np
import torch

from benchmarks.learning.cases import CASES

OUT = Path("out/learn.json")
DESCRIPTION = """
[run]
script = {script}
arguments = ["--worker", "{name}"]
calls = {calls}
[wan]
link = {{ rate_mbps = 100, delay_ms = 30 }}
[[party]]
name = "A"
workers = 1
[[party]]
name = "B"
workers = 1
[[party]]
name = "C"
workers = 1
"""


def worker(name: str) -> None:
    """One of three; the first tells how good the model is."""
    import geomx  # noqa: PLC0415

    case = CASES[name]
    known, asked = case.load()
    model, run = case.ours(), geomx.join()
    begin = time.perf_counter()
    case.fit_part(model, known, run, run.workers.index(run.name))
    seconds = time.perf_counter() - begin
    run.barrier()
    quality = case.over_all(model, asked, run)
    run.barrier()
    if run.is_first:
        print(f"RESULT {json.dumps({'parties': quality, 'seconds': seconds})}", flush=True)
    run.close()


def measured(name: str, alone_only: bool) -> dict[str, Any]:
    """A row of the table."""
    case = CASES[name]
    known, asked = case.load()
    row: dict[str, Any] = {"algorithm": name, "data": case.data, "metric": case.metric}
    row["reference"] = case.quality(case.fit(case.reference(), known), asked)
    rows = np.concatenate(case.parts(known))  # as they lie in the run
    row["alone"] = case.quality(case.fit(case.ours(), known.some(rows)), asked)
    if alone_only:
        return row
    with tempfile.TemporaryDirectory() as folder:
        path, report = Path(folder) / "learn.toml", Path(folder) / "report.json"
        script, calls = json.dumps(str(Path(__file__).resolve())), json.dumps(case.network)
        path.write_text(DESCRIPTION.format(script=script, name=name, calls=calls))
        command = [sys.executable, "-m", "geomx", "run", str(path), "--plain", "--report", str(report)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if done.returncode:
            sys.exit(f"{name} over three parties: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        told = json.loads(report.read_text())
    (line,) = [line for line in done.stdout.splitlines() if "RESULT " in line]
    row |= json.loads(line.split("RESULT ")[1])
    row["wan_bytes"] = told["wan_bytes_up"] + told["wan_bytes_down"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("algorithms", nargs="*")
    parser.add_argument("--alone", action="store_true", help="on one machine only; nothing is written")
    parser.add_argument("--worker", choices=CASES, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if unknown := set(chosen.algorithms) - set(CASES):
        parser.error(f"{', '.join(sorted(unknown))}: allowed are {', '.join(CASES)}")
    if chosen.worker:
        worker(chosen.worker)
        return
    rows = {row["algorithm"]: row for row in json.loads(OUT.read_text())["rows"]} if OUT.exists() else {}
    for name in chosen.algorithms or CASES:
        row = measured(name, chosen.alone)
        told = "  ".join(f"{key} {row[key]:.4f}" for key in ("reference", "alone", "parties") if key in row)
        traffic = (
            f"{row['wan_bytes'] / 1e6:.2f} MB over the WAN in {row['seconds']:.1f} s"
            if "seconds" in row
            else ""
        )
        print(f"{name:20s} {row['data']:18s} {row['metric'][:18]:18s} {told}  {traffic}", flush=True)
        if not chosen.alone:
            rows[name] = row
            OUT.parent.mkdir(exist_ok=True)
            every = [rows[each] for each in CASES if each in rows]
            OUT.write_text(json.dumps({"rows": every}, indent=2) + "\n")


if __name__ == "__main__":
    main()
