"""Which sync policy serves when? Time and WAN bytes to an accuracy, where parties or links are unequal.

    python benchmarks/algorithms.py                          every algorithm, three seeds; hours on two cores
    python benchmarks/algorithms.py --seeds 1 --only FSA HFA

GeoMX's CNN on Fashion-MNIST, 2 parties × 2 workers, batches of 32, Adam. Real nodes and gradients on the simulator's
virtual clock: a step takes 50 ms, on the workers of a slow party four times as long; a link has 100 Mbit/s and 15 ms
each way, a slow one 10 Mbit/s. "six unequal": 2 parties × 3 workers, two of which take 49 times as long:
33 × 6 steps fit into one of theirs, which is the throughput that ESync's paper reports, beside synchronous SGD's. The
weights that count are the global server's: they are shown the test images whenever the first worker of the first party
has taken 25 steps, in no time. Leaves rows in out/bench/algorithms.jsonl. Those that the page was made of lie in
docs/data: copied to out/bench, `--missing` adds to them.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

import torch  # noqa: E402

from benchmarks import training, virtual, workloads  # noqa: E402
from benchmarks.unequal import TARGETS  # noqa: E402
from geomx.node.topology import Topology  # noqa: E402
from geomx.simulate.simulator import Network, Simulator  # noqa: E402
from geomx.sync.contract import policies  # noqa: E402
from geomx.train import Settings  # noqa: E402

OUTPUT = ROOT / "out" / "bench" / "algorithms.jsonl"
MODEL = "cnn-179k"
STEP_S, JITTER = 0.05, 0.1
WAN, SLOW_WAN, LAN = Network(100.0, 15.0), Network(10.0, 15.0), Network(1000.0, 0.1)
LOOK_EVERY, MOST_STEPS = 25, 3000


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A policy, and what makes up for old gradients. `optimizer`: of torch.optim, with its rate."""

    policy: str
    compensation: str = ""
    optimizer: str = "Adam"
    lr: float = training.RATE


ALGORITHMS = {
    "FSA": Algorithm("fsa"),
    "MixedSync": Algorithm("mixed"),
    "MixedSync, DC-ASGD": Algorithm("mixed", "dcasgd"),
    "MixedSync, at most 4 ahead": Algorithm("mixed staleness=4"),
    "HFA (20, 10)": Algorithm("hfa k1=20 k2=10"),
    "HFA (10, 2)": Algorithm("hfa k1=10 k2=2"),
    "DiLoCo, every 50": Algorithm("diloco every=50"),
    "streaming DiLoCo, every 50": Algorithm("diloco every=50 fragments=5 overlap=5"),
    "ESync": Algorithm("esync"),
    "ESync, 10 steps or more": Algorithm("esync least=10"),
    "Downpour": Algorithm("downpour", optimizer="Adagrad", lr=0.01),
    "Downpour, every 10": Algorithm("downpour n_push=10 n_fetch=10", optimizer="Adagrad", lr=0.01),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """How often as long a step takes on some workers, and what link party B has."""

    slower: dict[str, float] = field(default_factory=dict)
    wan_of_b: Network = WAN
    parties: dict[str, tuple[str, ...]] = field(default_factory=lambda: virtual.PARTIES)


SIX = {party: tuple(f"{party}/{rank}" for rank in range(3)) for party in ("A", "B")}
SCENARIOS = {
    "equal": Scenario(),
    "slow party": Scenario(slower=dict.fromkeys(virtual.PARTIES["B"], 4.0)),
    "slow link": Scenario(wan_of_b=SLOW_WAN),
    "six unequal": Scenario(slower=dict.fromkeys(("B/1", "B/2"), 49.0), parties=SIX),
}


def trained(name: str, scenario: str, seed: int) -> dict[str, Any]:
    """One run; its row."""
    algorithm, unequal = ALGORITHMS[name], SCENARIOS[scenario]
    plan = Topology(
        "algorithms", unequal.parties, policy=algorithm.policy, compensation=algorithm.compensation
    )
    simulator = Simulator(seed, LAN)
    simulator.link("A", "global/0", WAN)
    simulator.link("B", "global/0", unequal.wan_of_b)
    reached: dict[float, tuple[float, float]] = {}
    seen = {"accuracy": 0.0, "steps": 0}

    def loop(seat: virtual.Seat) -> None:
        run, task, program = seat.run, seat.task, seat.program
        chance = random.Random(f"{seed} {run.name}")
        slower = unequal.slower.get(run.name, 1.0)
        kind = getattr(torch.optim, algorithm.optimizer)
        shown = copy.deepcopy(task.model)
        model, optimizer = run.attach(task.model, kind(task.model.parameters(), lr=algorithm.lr))
        for step in range(1, MOST_STEPS + 1):
            optimizer.zero_grad()
            loss = task.loss(model)
            program.sleep(STEP_S * slower * (1.0 + JITTER * chance.uniform(-1.0, 1.0)))
            loss.backward()
            optimizer.step()
            if run.is_first and step % LOOK_EVERY == 0:
                seat.copy_global(shown)
                accuracy = workloads.accuracy_of(shown)
                seen["accuracy"], seen["steps"] = max(seen["accuracy"], accuracy), step
                for target in TARGETS:
                    if accuracy >= target and target not in reached:
                        reached[target] = program.now, sum(virtual.wan_bytes(plan, simulator))

    started = time.monotonic()
    settings = Settings(weight="equal", seed=seed, policy=policies.make(algorithm.policy))
    virtual.train(plan, simulator, settings, MODEL, seed, loop, lambda: len(reached) < len(TARGETS))
    row: dict[str, Any] = {"algorithm": name, "policy": algorithm.policy, "scenario": scenario, "seed": seed}
    for target in TARGETS:
        seconds, moved = reached.get(target, (None, None))
        row |= {f"to_{target:.0%}_s": seconds, f"to_{target:.0%}_wan_bytes": moved}
    return row | {"best": seen["accuracy"], "steps": seen["steps"], "took_s": time.monotonic() - started}


def summary(row: dict[str, Any]) -> str:
    """One line."""
    times = "  ".join(
        f"{target:.0%}: {row[f'to_{target:.0%}_s'] or math.nan:7.1f} s "
        f"{1e-6 * (row[f'to_{target:.0%}_wan_bytes'] or math.nan):7.1f} MB"
        for target in TARGETS
    )
    return f"{row['scenario']:10} {row['algorithm']:28} seed {row['seed']}  {times}  ({row['took_s']:.0f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, metavar="ALGORITHM")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--missing", action="store_true", help="only runs that have no row yet")
    parser.add_argument("--out", type=Path, default=OUTPUT)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if not (options.missing and options.out.exists()):
        options.out.write_text("")
    rows = map(json.loads, options.out.read_text(encoding="utf-8").splitlines())
    known = {(row["algorithm"], row["scenario"], row["seed"]) for row in rows}
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = [
            pool.submit(trained, name, scenario, seed)
            for seed in range(options.seeds)
            for scenario in options.scenarios
            for name in options.only or ALGORITHMS
            if (name, scenario, seed) not in known
        ]
        for run in as_completed(runs):
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(run.result()) + "\n")
            print(summary(run.result()), flush=True)


if __name__ == "__main__":
    main()
