"""What does a codec cost in accuracy? The same training with each of them, round for round, over seeds.

    python benchmarks/codec_accuracy.py                      both models, three seeds; hours on two cores
    python benchmarks/codec_accuracy.py --missing            the rest, after it was stopped
    python benchmarks/codec_accuracy.py --models cnn-179k --seeds 1 --only "int4 both ways"

Fashion-MNIST, 2 parties × 2 workers, batches of 32. The nodes are the real ones, on the simulator's virtual clock: a
codec's accuracy does not depend on the network, and bytes are counted as they would leave for it. The learning rate
falls to 0 over the run. Leaves rows in out/bench/codec_accuracy.jsonl; `benchmarks/page.py` makes a table and a plot.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

import torch  # noqa: E402

from benchmarks import training, virtual, workloads  # noqa: E402
from geomx.node.topology import Edge, Topology  # noqa: E402
from geomx.simulate.simulator import Network, Simulator  # noqa: E402
from geomx.train import Settings  # noqa: E402

OUTPUT = ROOT / "out" / "bench" / "codec_accuracy.jsonl"
IDENTITY = ("config", "model", "rounds", "seed")
MOMENTUM = 0.9
NETWORK = Network(rate_mbps=10_000.0, delay_ms=0.1)  # its times are not reported


@dataclass(frozen=True, slots=True)
class Recipe:
    """Codecs of the WAN, and the optimizer that goes with them."""

    up: str
    down: str
    optimizer: str = "Adam"


RECIPES: dict[str, Recipe] = {
    "dense": Recipe("dense", "dense"),
    "fp16 both ways": Recipe("fp16", "fp16"),
    "int8 both ways": Recipe("int8", "int8"),
    "int4 both ways": Recipe("int4", "int4"),
    "sign up, int4 down": Recipe("sign", "int4"),
    "MPQ 1 % both ways": Recipe("mpq ratio=0.01", "mpq ratio=0.01"),
    "Bi-Sparse 1 % both ways": Recipe("bisparse ratio=0.01", "bisparse ratio=0.01"),
    "Bi-Sparse 1 % int4 both ways": Recipe(
        "bisparse ratio=0.01 values=int4", "bisparse ratio=0.01 values=int4"
    ),
    "Bi-Sparse 1 % int4 up, int4 down": Recipe("bisparse ratio=0.01 values=int4", "int4"),
    "dense, SGD": Recipe("dense", "dense", "SGD"),
    "2-bit up, int4 down, SGD": Recipe("two_bit threshold=0.001", "int4", "SGD"),
    "MPQ 1 % both ways, SGD": Recipe("mpq ratio=0.01 momentum=0.9", "mpq ratio=0.01", "SGD"),
    "Bi-Sparse 1 % both ways, SGD": Recipe("bisparse ratio=0.01 momentum=0.9", "bisparse ratio=0.01", "SGD"),
    "Bi-Sparse 1 % int4 both ways, SGD": Recipe(
        "bisparse ratio=0.01 momentum=0.9 values=int4", "bisparse ratio=0.01 values=int4", "SGD"
    ),
    "Bi-Sparse 1 % int2 both ways, SGD": Recipe(
        "bisparse ratio=0.01 momentum=0.9 values=int2", "bisparse ratio=0.01 values=int2", "SGD"
    ),
    "Bi-Sparse 0.8 % int2 both ways, SGD": Recipe(
        "bisparse ratio=0.008 momentum=0.9 values=int2", "bisparse ratio=0.008 values=int2", "SGD"
    ),
}


def optimizer_of(recipe: Recipe, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Adam, or SGD with momentum: where the codec has it (Deep Gradient Compression), the optimizer has none."""
    if recipe.optimizer == "Adam":
        return torch.optim.Adam(model.parameters(), lr=training.RATE)
    momentum = 0.0 if "momentum" in recipe.up else MOMENTUM
    return torch.optim.SGD(model.parameters(), lr=training.SGD_RATE, momentum=momentum)


def trained(name: str, recipe: Recipe, model_name: str, rounds: int, seed: int) -> dict[str, Any]:
    """One run; its row."""
    plan = Topology("codecs", virtual.PARTIES, wan=Edge(recipe.up, recipe.down))
    simulator, found = Simulator(seed, NETWORK), dict[str, Any]()

    def loop(seat: virtual.Seat) -> None:
        task = seat.task
        model, optimizer = seat.run.attach(task.model, optimizer_of(recipe, task.model))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, rounds)
        for _ in range(rounds):
            optimizer.zero_grad()
            task.loss(model).backward()
            optimizer.step()
            schedule.step()
        if seat.run.is_first and task.accuracy is not None:
            found["accuracy"] = task.accuracy()

    started = time.monotonic()
    virtual.train(plan, simulator, Settings(weight="equal", seed=seed), model_name, seed, loop)
    up, down = (moved / rounds / len(plan.parties) for moved in virtual.wan_bytes(plan, simulator))
    return {
        "config": name,
        "codec_up": recipe.up,
        "codec_down": recipe.down,
        "optimizer": recipe.optimizer,
        "model": model_name,
        "parameters": sum(p.numel() for p in workloads.cnn(model_name).parameters()),
        "rounds": rounds,
        "seed": seed,
        "accuracy": found["accuracy"],
        "wan_bytes_up": up,
        "wan_bytes_down": down,
        "took_s": time.monotonic() - started,
    }


def summary(row: Mapping[str, Any]) -> str:
    """One line."""
    return (
        f"{row['model']:9} {row['config']:36} seed {row['seed']} {100 * row['accuracy']:6.2f} %"
        f"  {1e-3 * row['wan_bytes_up']:8.1f} kB up {1e-3 * row['wan_bytes_down']:8.1f} kB down  {row['took_s']:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["cnn-179k", "cnn-1m"])
    parser.add_argument("--rounds", type=int, default=940, help="940 are two epochs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=RECIPES, metavar="CONFIG")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--missing", action="store_true", help="only runs that have no row yet")
    parser.add_argument("--out", type=Path, default=OUTPUT)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if not (options.missing and options.out.exists()):
        options.out.write_text("")
    text = options.out.read_text(encoding="utf-8")
    known = {tuple(json.loads(line)[key] for key in IDENTITY) for line in text.splitlines()}
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = [
            pool.submit(trained, name, RECIPES[name], model, options.rounds, seed)
            for model in options.models
            for name in options.only or RECIPES
            for seed in range(options.seeds)
            if (name, model, options.rounds, seed) not in known
        ]
        for run in as_completed(runs):
            row = run.result()
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(summary(row), flush=True)


if __name__ == "__main__":
    main()
