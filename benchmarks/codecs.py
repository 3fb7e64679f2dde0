"""What does each codec save, and what does it cost? Bytes, and seconds on one core beside the memory's floor.

    python benchmarks/codecs.py [--parameters 10000000] [--rounds 5]

As `geomx inspect codec`, for every codec with the parameters that are worth comparing. Prints a table, and leaves its
rows in `out/bench/codecs.jsonl`. `--device cuda`: on tensors of a GPU, beside what its memory moves, after each codec's
payload has been compared with the CPU's; the rows are in `out/bench/codecs_cuda.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch
from rich.console import Console

from geomx.channels.memory import reuse_freed_blocks
from geomx.codecs.pack import native
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec, slices_wanted
from geomx.launch.inspect_codec import slices_like, table_of
from geomx.layout import Slice
from geomx.observe.costs import Memory, cost, memory_of

SPECS = (
    "dense", "bf16", "fp16", "int8", "int4", "sign", "two_bit threshold=0.001", "topk ratio=0.01",
    "bisparse ratio=0.01 values=float32", "bisparse ratio=0.01", "bisparse ratio=0.01 values=int4",
    "bisparse ratio=0.01 values=int2", "bisparse ratio=0.01 momentum=0.9", "bisparse ratio=0.001", "mpq ratio=0.01",
)  # fmt: skip
GEOMX_BYTES = 8  # what GeoMX's Bi-Sparse sends for an entry, up; down, up to that times the parties


def check_cuda(slice_: Slice) -> None:
    """Exit where there is no GPU, or where a codec gives other bytes on one."""
    if not torch.cuda.is_available():
        sys.exit("codecs: PyTorch finds no CUDA device here")
    values = 1e-3 * torch.randn(slice_.elements, generator=torch.Generator().manual_seed(0))
    for spec in SPECS:
        here, there = (make_codec(spec, RngKey()) for _ in range(2))
        for turn in range(3):
            ours = here.encode(slice_, turn, values)
            theirs = there.encode(slice_, turn, values.to("cuda"))
            if not torch.equal(ours, theirs.cpu()):
                sys.exit(f"codecs: `{spec}` gives other bytes on the GPU than on the CPU, in turn {turn}")
            if not torch.equal(here.decode(slice_, ours), there.decode(slice_, theirs).cpu()):
                sys.exit(
                    f"codecs: `{spec}` decodes to other values on the GPU than on the CPU, in turn {turn}"
                )
    print("every codec gives the same bits on the GPU as on the CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    reuse_freed_blocks()  # as every node does
    if options.device == "cuda":
        check_cuda(slices_like(options.parameters)[0])
    memories, costs, rows = [], [], []
    for spec in SPECS:
        memory = memory_of(options.device)  # anew: a neighbour may take much of it for a while
        slices = slices_like(options.parameters, slices_wanted(spec))
        each = cost(spec, slices, memory, options.rounds, options.device)
        memories.append(memory)
        costs.append(each)
        name, *parameters = each.spec.split()
        rows.append(
            {
                "codec": name,
                "parameters": " ".join(parameters),
                "slices": each.slices,
                "kernels": native.available(),
                "bytes_up": each.sent_bytes,
                "bytes_down": each.sent_bytes,
                "ratio_up": each.ratio,
                "ratio_down": each.ratio,
                "encode_s": each.encode_s,
                "decode_s": each.decode_s,
                "floor_s": each.floor_s,
                "decode_floor_s": each.decode_floor_s,
                "memory_updating_bytes_s": memory.updating,
                "memory_copying_bytes_s": memory.copying,
            }
        )
    path = Path("out/bench") / ("codecs.jsonl" if options.device == "cpu" else "codecs_cuda.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kernels = "compiled kernels" if native.available() else "torch operations alone"
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{kernels}, one core"
    median = Memory(*(statistics.median(rates) for rates in zip(*memories, strict=True)))
    title = f"{options.parameters:,} parameters; {where}\nmemory: {median}"
    Console(width=110).print(table_of(title, costs))
    entries = round(0.01 * options.parameters)
    print(
        f"GeoMX's Bi-Sparse at 1 %: {GEOMX_BYTES * entries / 1e6:.3g} MB up, up to that times the parties down"
    )


if __name__ == "__main__":
    main()
