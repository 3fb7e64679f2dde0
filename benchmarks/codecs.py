"""What does each codec save, and what does it cost? Bytes, and seconds on one core beside the memory's floor.

    python benchmarks/codecs.py [--parameters 10000000] [--device cuda]

As `geomx inspect codec`, for every codec with the parameters that are worth comparing. `--device cuda`: on tensors of a
GPU, beside what its memory moves, after each codec's payload has been compared with the CPU's.
"""

import argparse
import sys

import torch
from rich.console import Console

from geomx.channels.memory import reuse_freed_blocks
from geomx.codecs.pack import native
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec, slices_wanted
from geomx.launch.inspect_codec import slices_like, table_of
from geomx.layout import Slice
from geomx.observe.costs import cost, memory_of

SPECS = (
    "dense", "bf16", "fp16", "int8", "int4", "sign", "two_bit threshold=0.001", "topk ratio=0.01",
    "bisparse ratio=0.01 values=float32", "bisparse ratio=0.01", "bisparse ratio=0.01 values=int4",
    "bisparse ratio=0.01 values=int2", "bisparse ratio=0.01 momentum=0.9", "bisparse ratio=0.001", "mpq ratio=0.01",
)  # fmt: skip


def check_cuda(slice_: Slice) -> None:
    """Exit where there is no GPU, or where a codec gives other bytes, or decodes to other values, on one."""
    if not torch.cuda.is_available():
        sys.exit("codecs: PyTorch finds no CUDA device here")
    values = 1e-3 * torch.randn(slice_.elements, generator=torch.Generator().manual_seed(0))
    for spec in SPECS:
        here, there = (make_codec(spec, RngKey()) for _ in range(2))
        for turn in range(3):
            ours, theirs = here.encode(slice_, turn, values), there.encode(slice_, turn, values.to("cuda"))
            decoded = here.decode(slice_, ours), there.decode(slice_, theirs).cpu()
            if not (torch.equal(ours, theirs.cpu()) and torch.equal(*decoded)):
                sys.exit(f"codecs: `{spec}` gives other bits on the GPU than on the CPU, in turn {turn}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    reuse_freed_blocks()  # as every node does
    where = f"{'compiled kernels' if native.available() else 'torch operations alone'}, one core"
    if options.device == "cuda":
        check_cuda(slices_like(options.parameters)[0])
        where = f"{torch.cuda.get_device_name()}: every codec gives the same bits as on the CPU"
    costs = []
    for spec in SPECS:
        memory = memory_of(options.device)  # anew: a neighbour may take much of it for a while
        costs.append(
            cost(spec, slices_like(options.parameters, slices_wanted(spec)), memory, device=options.device)
        )
    Console(width=110).print(table_of(f"{options.parameters:,} parameters; {where}\nmemory: {memory}", costs))


if __name__ == "__main__":
    main()
