"""Measures tables over loopback: FTRL on ten million hashed features, two shards, two parties of a worker each.

    python benchmarks/row_tables.py              two minutes; every row is a run of its own

Prints rows pulled and pushed a second, bytes of a step that a worker sends, and the loss on clicks that nobody has
seen, for values, filters, key caching and staleness. A dense push of the table has 40 MB. Then a row server comes in
the middle and goes again: the same, the rows of each server while it is there, and the longest step. `--worker` is what
each process of it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from tables import BATCH, FEATURES, drawn, loss_of

STEPS, EPOCHS = 60, 2  # the same batches in each pass, as a training set has
COMES, GOES, LONG = 60, 240, 300  # steps of the run with a row server
ROWS = {
    "float32": "",
    "bf16": "values=bf16",
    "bf16, zeros": "values=bf16 filter=zeros",
    "bf16, significant": "values=bf16 filter=significant,threshold=1.0",
    "bf16, random-skip": "values=bf16 filter=random-skip,probability=0.5",
    "bf16, no key cache": "values=bf16 lists=0",
    "bf16, staleness 0": "values=bf16 staleness=0",
    "bf16, staleness 8": "values=bf16 staleness=8",
    "bf16, eventual": "values=bf16 staleness=none",
}
DESCRIPTION = """
[run]
script = "{script}"
arguments = ["--worker", "{how}"]
shards = 2
secret_file = "secret"
[global]
addresses = ["127.0.0.1:{one}", "127.0.0.1:{other}"]
[[party]]
name = "A"
workers = 1
[[party]]
name = "B"
workers = 1
"""


def worker(how: str) -> None:
    """What one of two measures; the first prints. `how`: one of `ROWS`."""
    torch.set_num_threads(1)
    import geomx  # noqa: PLC0415
    from geomx.tables import keys as lists  # noqa: PLC0415

    given = dict(each.split("=", 1) for each in how.split())
    if "lists" in given:
        lists.SentLists.name = lambda self, digest: True  # as if none had been sent before
    staleness = given.get("staleness", "2")
    run = geomx.join()
    table = run.table(
        "clicks",
        FEATURES,
        rule="ftrl alpha=0.2 l1=0.2",
        staleness=None if staleness == "none" else int(staleness),
        values=given.get("values", "float32"),
        filters=[given["filter"].replace(",", " ")] if "filter" in given else [],
    )
    place = run.workers.index(run.name)
    batches = [drawn(np.random.default_rng([place, step]), BATCH) for step in range(STEPS)]
    held_out = drawn(np.random.default_rng(999), 20_000)
    run.barrier()
    begin, before, rows = time.perf_counter(), table.sent_bytes, 0
    took, told, was_away_s, at = [], {}, 0.0, begin
    steps = LONG if "long" in given else EPOCHS * STEPS
    for step in range(steps):
        keys, clicks = batches[step % STEPS]
        weights = table.pull(keys).requires_grad_()
        loss_of(weights, clicks).backward()
        table.push(keys, weights.grad * BATCH)
        rows += len(np.unique(keys))
        took.append(time.perf_counter() - at)
        at = time.perf_counter()
        if run.is_first and "long" in given and step in (COMES, GOES):
            told[step] = table.counts()
            print(f"AT {step}", flush=True)
            was_away_s, at = was_away_s + time.perf_counter() - at, time.perf_counter()
    table.pull([0])
    seconds, sent = time.perf_counter() - begin - was_away_s, table.sent_bytes - before
    table.flush()
    run.barrier()
    loss = float(loss_of(table.pull(held_out[0]), held_out[1]))
    if run.is_first:
        result = {
            "rows": rows / seconds,
            "kilobytes": sent / steps / 1e3,
            "loss": loss,
            "counts": [*told.values(), table.counts()],
            "longest_s": max(took),
            "median_s": float(np.median(took)),
            "pushes": table.pushes(),
        }
        print(f"RESULT {json.dumps(result)}", flush=True)
    run.close()


def measured(how: str) -> dict[str, Any]:
    """What the first worker has printed; a row server comes and goes where it says so."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "tables.toml"
        one, other = (free_port() for _ in range(2))
        path.write_text(DESCRIPTION.format(script=Path(__file__).resolve(), how=how, one=one, other=other))
        geomx = [sys.executable, "-m", "geomx"]
        subprocess.run(
            [*geomx, "secret", str(path.with_name("secret"))], check=True, stdout=subprocess.DEVNULL
        )
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = stack.enter_context(
            subprocess.Popen(
                [*geomx, "run", str(path), "--plain"], stdout=subprocess.PIPE, text=True, env=env
            )
        )
        rows, result = None, {}
        assert run.stdout is not None
        for line in run.stdout:
            if f"AT {COMES}" in line and "long=2" in how:
                command = [*geomx, "serve", str(path), "--role", "rows"]
                rows = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env))
            elif f"AT {GOES}" in line and rows is not None:
                rows.send_signal(signal.SIGTERM)
            elif "RESULT " in line:
                result = json.loads(line.split("RESULT ")[1])
        if run.wait() or not result:
            raise SystemExit(f"{how}: the run has failed")
    return result


def free_port() -> int:
    """One that nobody listens at now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker")
    chosen = parser.parse_args()
    if chosen.worker is not None:
        worker(chosen.worker)
        return
    for name, how in ROWS.items():
        print(f"{name:22s}{told_of(measured(how))}", flush=True)
    for name, how in {"calm": "values=bf16 long=1", "a row server comes": "values=bf16 long=2"}.items():
        result = measured(how)
        print(f"{name:22s}{told_of(result)}   longest step {result['longest_s']:.2f} s")
        print(f"{'':22s}rows by server: {result['counts']}", flush=True)


def told_of(result: dict[str, Any]) -> str:
    """A row of the table."""
    rate, kilobytes, loss = (result[key] for key in ("rows", "kilobytes", "loss"))
    return f"{rate:9,.0f} rows/s   {kilobytes:7.1f} kB up a step   loss {loss:.4f}"


if __name__ == "__main__":
    main()
