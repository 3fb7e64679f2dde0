"""What does looking for NaN and Inf cost? A run of one, with 10 million parameters: rounds with and without, in turn.

    python benchmarks/finite.py [--parameters 10000000] [--rounds 60] [--dtype float64]

With GEOMX_NATIVE=0: without the compiled kernels.

A run of one has a worker and a root in this process, and no network, so that its rounds are the shortest that there
are. A round is `step()` with gradients that lie there already. Without: the same operations of torch that were there
before anybody looked. Prints the median of wall-clock and of processor time for each, and what the rounds with the
check take more, as a share. Pairs of rounds are beside each other, so that what disturbs the machine disturbs both.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch import nn

import geomx
from geomx.codecs.measure import Measured
from geomx.layout import Slice

WARM_UP = 5


def scaled(x: torch.Tensor, weight: float, out: torch.Tensor) -> float:
    """As it was: nobody looks."""
    if weight == 1.0:
        out.copy_(x)
    else:
        torch.mul(x, weight, out=out)
    return 0.0


def summed(values: Sequence[torch.Tensor]) -> Measured:
    """As it was."""
    if len(values) == 1:
        return Measured(values[0].clone(), 0.0)
    total = torch.add(values[0], values[1])
    for other in values[2:]:
        total.add_(other)
    return Measured(total, 0.0)


def copied(_: Slice, values: torch.Tensor) -> torch.Tensor:
    """As it was."""
    return values.clone()


@contextmanager
def unchecked() -> Iterator[None]:
    """Within it nobody looks."""
    with ExitStack() as stack:
        for name, instead in (
            ("geomx.train.model.model_slices.scaled", scaled),
            ("geomx.node.slices.accumulate.summed", summed),
            ("geomx.node.root.copied_if_finite", copied),
        ):
            stack.enter_context(patch(name, instead))
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--weight", type=float, default=32.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with geomx.join() as run:
        model = nn.Linear(options.parameters // 1000, 1000, bias=False, dtype=getattr(torch, options.dtype))
        model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=1e-3), push_at="step")
        model.weight.grad = 1e-3 * torch.randn_like(model.weight)

        def step() -> tuple[float, float]:
            run.weight(options.weight)
            wall, cpu = time.perf_counter(), time.process_time()
            optimizer.step()
            return time.perf_counter() - wall, time.process_time() - cpu

        for number in range(-WARM_UP, options.rounds):
            for checks in (True, False) if number % 2 else (False, True):
                if checks:
                    taken = step()
                else:
                    with unchecked():
                        taken = step()
                if number >= 0:
                    seconds[checks].append(taken)
    for place, what in enumerate(("wall clock", "processor")):
        ours, theirs = ([each[place] for each in seconds[checks]] for checks in (True, False))
        more = statistics.median(a / b - 1 for a, b in zip(ours, theirs, strict=True))
        print(
            f"{what}: {1e3 * statistics.median(ours):.1f} ms with, {1e3 * statistics.median(theirs):.1f} ms without; "
            f"{100 * more:+.1f} % (median of {options.rounds} pairs)"
        )


if __name__ == "__main__":
    main()
