"""Measures tables over loopback: FTRL on ten million hashed features, two shards, two parties of a worker each.

    python benchmarks/row_tables.py              two minutes; every row is a run of its own

Prints rows pulled and pushed a second, bytes of a step that a worker sends, and the loss on clicks that nobody has
seen, for values, filters, key caching and staleness. A dense push of the table has 40 MB. `--worker` is what each
process of it runs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from tables import BATCH, FEATURES, drawn, loss_of

STEPS, EPOCHS = 60, 2  # the same batches in each pass, as a training set has
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
    for _ in range(EPOCHS):
        for keys, clicks in batches:
            weights = table.pull(keys).requires_grad_()
            loss_of(weights, clicks).backward()
            table.push(keys, weights.grad * BATCH)
            rows += len(np.unique(keys))
    table.pull([0])
    seconds, sent = time.perf_counter() - begin, table.sent_bytes - before
    table.flush()
    run.barrier()
    loss = float(loss_of(table.pull(held_out[0]), held_out[1]))
    if run.is_first:
        steps = EPOCHS * STEPS
        print(f"RESULT {rows / seconds:.0f} {sent / steps / 1e3:.1f} {loss:.4f}", flush=True)
    run.close()


def measured(how: str) -> tuple[float, float, float]:
    """Rows a second of one worker, kB it sends in a step, the loss."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tables.toml"
        path.write_text(DESCRIPTION.format(script=Path(__file__).resolve(), how=how))
        command = [sys.executable, "-m", "geomx", "run", str(path), "--plain"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        output = subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout
    (line,) = [line for line in output.splitlines() if "RESULT " in line]
    return tuple(map(float, line.split("RESULT ")[1].split()))  # type: ignore[return-value]


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
        rows, kilobytes, loss = measured(how)
        print(f"{name:20s} {rows:9,.0f} rows/s   {kilobytes:7.1f} kB up a step   loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
