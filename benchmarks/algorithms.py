"""Which sync policy serves when? Time and WAN bytes to an accuracy, where parties or links are unequal.

    python benchmarks/algorithms.py                          every algorithm, three seeds; hours on two cores
    python benchmarks/algorithms.py --seeds 1 --only FSA HFA

`algorithms.toml` says what is compared, and how. Leaves rows in out/bench/algorithms.jsonl. Those that the page was
made of lie in docs/data: copied to out/bench, `--missing` adds to them.
"""

import copy
import random
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import sweep, training, virtual, workloads
from benchmarks.tables import TARGETS
from geomx.node.topology import Topology
from geomx.simulate.simulator import Network, Simulator
from geomx.sync import policies
from geomx.train import Settings

STEP_S, JITTER = 0.05, 0.1
MBPS, DELAY_MS, LAN = 100.0, 15.0, Network(1000.0, 0.1)
LOOK_EVERY, MOST_STEPS = 25, 3000
TABLES = sweep.table_of("algorithms")
ALGORITHMS, SCENARIOS = TABLES["algorithms"], TABLES["scenarios"]


def trained(algorithm: str, scenario: str, seed: int) -> dict[str, Any]:
    """One run; its row."""
    chosen, unequal = ALGORITHMS[algorithm], SCENARIOS[scenario]
    policy, parties = chosen["policy"], virtual.parties(unequal.get("workers", 2))
    plan = Topology.of_parties(
        "algorithms", parties, policy=policy, compensation=chosen.get("compensation", "")
    )
    simulator = Simulator(seed, LAN)
    simulator.link("A", "global/0", Network(MBPS, DELAY_MS))
    simulator.link("B", "global/0", Network(unequal.get("mbps_of_b", MBPS), DELAY_MS))
    reached: dict[float, tuple[float, float]] = {}
    seen = {"best": 0.0, "steps": 0}

    def loop(seat: virtual.Seat) -> None:
        run, task, program = seat.run, seat.task, seat.program
        chance, slower = random.Random(f"{seed} {run.name}"), unequal.get("slower", {}).get(run.name, 1.0)
        shown = copy.deepcopy(task.model)
        kind, lr = getattr(torch.optim, chosen.get("optimizer", "Adam")), chosen.get("lr", training.RATE)
        model, optimizer = run.attach(task.model, kind(task.model.parameters(), lr=lr))
        for step in range(1, MOST_STEPS + 1):
            optimizer.zero_grad()
            loss = task.loss(model)
            program.sleep(STEP_S * slower * (1.0 + JITTER * chance.uniform(-1.0, 1.0)))
            loss.backward()
            optimizer.step()
            if run.is_first and step % LOOK_EVERY == 0:
                seat.copy_global(shown)
                accuracy = workloads.accuracy_of(shown)
                seen.update(best=max(seen["best"], accuracy), steps=step)
                for target in TARGETS:
                    if accuracy >= target and target not in reached:
                        reached[target] = program.now, sum(virtual.wan_bytes(plan, simulator))

    started = time.monotonic()
    settings = Settings(weight="equal", seed=seed, policy=policies.make(policy))
    virtual.train(plan, simulator, settings, "cnn-179k", loop, lambda: len(reached) < len(TARGETS))
    row: dict[str, Any] = {
        "algorithm": algorithm,
        "policy": policy,
        "scenario": scenario,
        "seed": seed,
    }
    for target in TARGETS:
        seconds, moved = reached.get(target, (None, None))
        row |= {f"to_{target:.0%}_s": seconds, f"to_{target:.0%}_wan_bytes": moved}
    return row | seen | {"took_s": time.monotonic() - started}


def main() -> None:
    parser = sweep.parser_of(__doc__, "algorithms")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=ALGORITHMS, metavar="ALGORITHM")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    options = parser.parse_args()
    grid = {"seed": range(options.seeds), "scenario": options.scenarios, "algorithm": options.only}
    sweep.run(trained, grid, options)


if __name__ == "__main__":
    main()
