"""What does a codec save, and what does it cost? Bytes, and seconds on one core beside the memory's floor.

    python benchmarks/codecs.py [--parameters 10000000] [--rounds 5]

Encodes and decodes a model's gradients, slice by slice, as a node does, with random numbers for gradients. `floor_s` is
what one core needs to move the bytes that an encoding with a residual must touch: values and residual read, the
residual written (12 bytes an element in float32), and the payload written, at a bandwidth measured in the same run.
Prints a table, and leaves its rows in `out/bench/codecs.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from geomx.channels.memory import reuse_freed_blocks
from geomx.codecs import native
from geomx.codecs.noise import Stream
from geomx.codecs.spec import make_codec
from geomx.layout import Layout, Slice, Tensor

SPECS = (
    "dense", "bf16", "fp16", "int8", "int4", "sign", "two_bit threshold=0.001", "topk ratio=0.01",
    "bisparse ratio=0.01 values=float32", "bisparse ratio=0.01", "bisparse ratio=0.01 values=int4",
    "bisparse ratio=0.01 values=int2", "bisparse ratio=0.001", "mpq ratio=0.01",
)  # fmt: skip
GEOMX_BYTES = 8  # what GeoMX's Bi-Sparse sends for an entry, up; down, up to that times the parties


def bandwidth() -> float:
    """Bytes a second that one core moves in `a += b`: two reads and a write."""
    a, b = torch.ones(1 << 25), torch.ones(1 << 25)
    seconds = timed(lambda: a.add_(b), 5)
    return 3 * a.nbytes / seconds


def timed(work: Callable[[], Any], rounds: int) -> float:
    """The median of the seconds that `work` takes."""
    work()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measured(spec: str, slices: tuple[Slice, ...], rounds: int, bytes_per_s: float) -> dict[str, Any]:
    """One codec's row."""
    codec = make_codec(spec, Stream())
    values = [1e-3 * torch.randn(piece.elements) for piece in slices]
    turn = 0

    def encode() -> list[torch.Tensor]:
        nonlocal turn
        turn += 1
        return [codec.encode(piece, turn, flat) for piece, flat in zip(slices, values, strict=True)]

    encode_s = timed(encode, rounds)
    payloads = encode()
    decode_s = timed(
        lambda: [codec.decode(p, data) for p, data in zip(slices, payloads, strict=True)], rounds
    )
    elements = sum(piece.elements for piece in slices)
    sent = sum(payload.numel() for payload in payloads)
    name, *parameters = spec.split()
    touched = 0 if codec.lossless else 12 * elements + sent
    return {
        "codec": name,
        "parameters": " ".join(parameters),
        "bytes_up": sent,
        "bytes_down": sent,
        "ratio_up": 4 * elements / sent,
        "ratio_down": 4 * elements / sent,
        "encode_s": encode_s,
        "decode_s": decode_s,
        "floor_s": touched / bytes_per_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reuse_freed_blocks()  # as every node does
    slices = Layout((Tensor("weights", (options.parameters,), "float32"),)).slices
    bytes_per_s = bandwidth()
    rows = [measured(spec, slices, options.rounds, bytes_per_s) for spec in SPECS]
    path = Path("out/bench/codecs.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kernels = "compiled kernels" if native.available() else "torch operations alone"
    title = f"{options.parameters:,} parameters, {kernels}; memory {bytes_per_s / 1e9:.1f} GB/s on one core"
    table = Table(title=title, title_justify="left")
    for column in ("codec", "MB", "of dense", "encode ms", "floor ms", "decode ms"):
        table.add_column(column, justify="left" if column == "codec" else "right")
    for row in rows:
        figures = (row["encode_s"], row["floor_s"], row["decode_s"])
        table.add_row(
            f"{row['codec']} {row['parameters']}".strip(),
            f"{row['bytes_up'] / 1e6:.3g}",
            f"1/{row['ratio_up']:.4g}",
            *(f"{1e3 * seconds:.3g}" for seconds in figures),
        )
    Console().print(table)
    entries = round(0.01 * options.parameters)
    print(
        f"GeoMX's Bi-Sparse at 1 %: {GEOMX_BYTES * entries / 1e6:.3g} MB up, up to that times the parties down"
    )


if __name__ == "__main__":
    main()
