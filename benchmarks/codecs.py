"""What does each codec save, and what does it cost? Bytes, and seconds on one core beside the memory's floor.

    python benchmarks/codecs.py [--parameters 10000000] [--rounds 5]

As `geomx inspect codec`, for every codec with the parameters that are worth comparing. Prints a table, and leaves its
rows in `out/bench/codecs.jsonl`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console

from geomx.channels.memory import reuse_freed_blocks
from geomx.codecs import native
from geomx.launch.inspect_codec import slices_like, table_of
from geomx.observe.costs import bandwidth, cost

SPECS = (
    "dense", "bf16", "fp16", "int8", "int4", "sign", "two_bit threshold=0.001", "topk ratio=0.01",
    "bisparse ratio=0.01 values=float32", "bisparse ratio=0.01", "bisparse ratio=0.01 values=int4",
    "bisparse ratio=0.01 values=int2", "bisparse ratio=0.001", "mpq ratio=0.01",
)  # fmt: skip
GEOMX_BYTES = 8  # what GeoMX's Bi-Sparse sends for an entry, up; down, up to that times the parties


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reuse_freed_blocks()  # as every node does
    slices = slices_like(options.parameters)
    bytes_per_s = bandwidth()
    costs = [cost(spec, slices, bytes_per_s, options.rounds) for spec in SPECS]
    rows = []
    for each in costs:
        name, *parameters = each.spec.split()
        rows.append(
            {
                "codec": name,
                "parameters": " ".join(parameters),
                "kernels": native.available(),
                "bytes_up": each.sent_bytes,
                "bytes_down": each.sent_bytes,
                "ratio_up": each.ratio,
                "ratio_down": each.ratio,
                "encode_s": each.encode_s,
                "decode_s": each.decode_s,
                "floor_s": each.floor_s,
            }
        )
    path = Path("out/bench/codecs.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kernels = "compiled kernels" if native.available() else "torch operations alone"
    title = f"{options.parameters:,} parameters, {kernels}; memory {bytes_per_s / 1e9:.1f} GB/s on one core"
    Console(width=110).print(table_of(title, costs))
    entries = round(0.01 * options.parameters)
    print(
        f"GeoMX's Bi-Sparse at 1 %: {GEOMX_BYTES * entries / 1e6:.3g} MB up, up to that times the parties down"
    )


if __name__ == "__main__":
    main()
