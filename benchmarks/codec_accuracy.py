"""What does a codec cost in accuracy? The same training with each of them, round for round, over seeds.

    python benchmarks/codec_accuracy.py                      both models, three seeds; hours on two cores
    python benchmarks/codec_accuracy.py --missing            the rest, after it was stopped
    python benchmarks/codec_accuracy.py --models cnn-179k --seeds 1 --only "int4 both ways"

`codec_accuracy.toml` says what is compared, and how. Leaves rows in out/bench/codec_accuracy.jsonl.
"""

import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import sweep, training, virtual, workloads
from geomx.node.topology import Edge, Topology
from geomx.simulate.simulator import Network, Simulator
from geomx.train import Settings

NETWORK = Network(rate_mbps=10_000.0, delay_ms=0.1)  # its times are not reported
RECIPES = sweep.table_of("codec_accuracy")


def optimizer_of(name: str, codec_up: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Adam, or SGD with momentum: where the codec has it (Deep Gradient Compression), the optimizer has none."""
    if name == "Adam":
        return torch.optim.Adam(model.parameters(), lr=training.RATE)
    momentum = 0.0 if "momentum" in codec_up else 0.9
    return torch.optim.SGD(model.parameters(), lr=training.SGD_RATE, momentum=momentum)


def trained(config: str, model: str, rounds: int, seed: int) -> dict[str, Any]:
    """One run; its row."""
    codec_up, codec_down = RECIPES[config]["up"], RECIPES[config]["down"]
    name = RECIPES[config].get("optimizer", "Adam")
    row = {"config": config, "codec_up": codec_up, "codec_down": codec_down, "optimizer": name}
    return row | run_of(Edge(codec_up, codec_down), name, NETWORK, model, rounds, seed)


def run_of(wan: Edge, optimizer: str, network: Network, model: str, rounds: int, seed: int) -> dict[str, Any]:
    """Train over such a WAN; what came of it. `optimizer`: "Adam" or "SGD"."""
    plan = Topology.of_parties("codecs", virtual.parties(), wan=wan)
    simulator, found = Simulator(seed, network), dict[str, Any]()

    def loop(seat: virtual.Seat) -> None:
        task = seat.task
        attached, stepped = seat.run.attach(task.model, optimizer_of(optimizer, wan.codec_up, task.model))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(stepped, rounds)
        for _ in range(rounds):
            stepped.zero_grad()
            task.loss(attached).backward()
            stepped.step()
            schedule.step()
        if seat.run.is_first and task.accuracy is not None:
            found["accuracy"] = task.accuracy()

    started = time.monotonic()
    virtual.train(plan, simulator, Settings(weight="equal", seed=seed), model, loop)
    up, down = (moved / rounds / len(plan.tree.parties) for moved in virtual.wan_bytes(plan, simulator))
    parameters = sum(p.numel() for p in workloads.cnn(model).parameters())
    row = {"model": model, "parameters": parameters, "rounds": rounds, "seed": seed, **found}
    return row | {"wan_bytes_up": up, "wan_bytes_down": down, "took_s": time.monotonic() - started}


def main() -> None:
    parser = sweep.parser_of(__doc__, "codec_accuracy")
    parser.add_argument("--models", nargs="+", default=["cnn-179k", "cnn-1m"])
    parser.add_argument("--rounds", type=int, default=940, help="940 are two epochs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=RECIPES, metavar="CONFIG")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    grid = {
        "model": options.models,
        "config": options.only,
        "rounds": [options.rounds],
        "seed": range(options.seeds),
    }
    sweep.run(trained, grid, options)


if __name__ == "__main__":
    main()
