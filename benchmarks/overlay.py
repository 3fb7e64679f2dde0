"""What overlays save on links that are shared: seconds of a round by the star and by each, in turn.

    python benchmarks/overlay.py [--network access|unequal|two] [--overlay trees ...] [--codec dense|int4] [--turns N]
    python benchmarks/overlay.py --network unequal --target 0.85 --turns 3     a CNN on Fashion-MNIST, a seed a turn

`access`: eight parties of one worker and a hub, each with one access link of 20 Mbit/s in either direction (100 Mbit/s
would be more than two cores carry in the lab), 30 ms there and back. `unequal`: four parties, of which one has 5 Mbit/s
to the hub; all other links have 60. `two`: two parties, 20 Mbit/s each. FSA, synthetic gradients.
Needs root, as the lab does. Leaves rows in out/bench/overlay.jsonl.
"""

import argparse
import statistics
import sys
import time
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # `benchmarks` and `lab` are packages there

from benchmarks import sweep
from benchmarks.cells import HUB_SITE, OK, Cell
from benchmarks.grounds import Ground
from benchmarks.measures import percentile, reached, round_times
from benchmarks.suites import cells_of
from benchmarks.systems.adapters import SYSTEMS, Desk, Nodes, System
from benchmarks.turn import run_turn
from lab import awake
from lab.describe import describe
from lab.lab import Lab

EXCHANGE = "exchange"
MBPS, SLOW_MBPS, UNEQUAL_MBPS, ROUND_TRIP_MS = 20, 5, 60, 30
PARTIES = {"access": 8, "unequal": 4, "two": 2}
QUEUE_MS = 60
MOST_STEPS = 1000


def access(sites: list[str]) -> dict[str, Any]:
    """Every site has one link, to an exchange that is never full."""
    default = {"rate_mbps": 1000, "delay_ms": ROUND_TRIP_MS / 4, "queue_ms": QUEUE_MS}
    links = [{"from": site, "to": EXCHANGE, "both": True, "rate_mbps": MBPS, "fair": True} for site in sites]
    routes = [{"from": one, "to": other, "over": EXCHANGE} for one, other in permutations(sites, 2)]
    names = [{"name": site} for site in (*sites, EXCHANGE)]
    return {"site": names, "default": default, "link": links, "route": routes}


def unequal(sites: list[str]) -> dict[str, Any]:
    """Each two sites have a link of their own; A's to the hub is slow."""
    default = {"rate_mbps": UNEQUAL_MBPS, "delay_ms": ROUND_TRIP_MS / 2, "queue_ms": QUEUE_MS}
    slow = {"from": "A", "to": HUB_SITE, "both": True, "rate_mbps": SLOW_MBPS}
    return {"site": [{"name": site} for site in sites], "default": default, "link": [slow]}


def with_overlay(overlay: str, seed: int) -> System:
    """geomx, whose description has it."""
    system = SYSTEMS["geomx"]
    configs = {name: options | {"seed": seed} for name, options in system.configs.items()}
    system = replace(system, configs=configs)

    def nodes(desk: Desk) -> Nodes:
        started = system.nodes(desk)
        description, lines = desk.folder / "bench.toml", []
        for line in description.read_text().splitlines():
            lines.append(line)
            if line.startswith("name = "):
                address = desk.endpoint(line.split('"')[1])
                lines.append(f'address_wan = "{address}"')
        description.write_text("\n".join([f'run.overlay = "{overlay}"', *lines]) + "\n")
        return started

    return system if overlay == "star" else replace(system, nodes=nodes)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=PARTIES, default="access")
    parser.add_argument("--overlay", nargs="+", default=["trees"])
    parser.add_argument("--codec", choices=("dense", "int4"), default="dense")
    parser.add_argument("--parameters", type=int, default=2_000_000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6, help="of a turn, behind the warm-up")
    parser.add_argument(
        "--warmup", type=int, default=8, help="rounds in which an overlay gets to know the network"
    )
    parser.add_argument("--out", type=Path, default=sweep.OUT / "overlay.jsonl")
    parser.add_argument(
        "--target", type=float, help="accuracy on Fashion-MNIST, until which a CNN is trained"
    )
    options = parser.parse_args()
    if options.target:
        workload = {"workload": "cnn-179k", "target_accuracy": options.target, "evaluate_every": 20}
        options.rounds, options.warmup = MOST_STEPS, 0
    else:
        workload = {"workload": "synthetic", "parameters": options.parameters}
    (cell,) = cells_of(
        [f"geomx: {options.codec}"],
        **workload,
        network="100mbit-30ms",
        parties=PARTIES[options.network],
        workers=1,
        rounds_a_turn=options.rounds,
        warmup=options.warmup,
        limit_s=900.0,
        congestion="cubic",
    )
    sides = ["star", *options.overlay]
    times: dict[str, list[float]] = {side: [] for side in sides}
    steps: dict[str, list[int]] = {side: [] for side in sides}
    with Lab(describe(network_of(options.network, cell), options.network)) as lab, awake.cores():
        ground = Ground(lab)
        for turn in range(options.turns):
            for side in sides[:: 1 if turn % 2 else -1]:
                done = run_turn(cell, with_overlay(side, turn), ground, Path(sys.executable))
                there = reached(done.steps, cell)
                if done.state != OK or (options.target and there is None):
                    print(f"overlay: {side}: {done.state}", file=sys.stderr)
                    return 2
                times[side] += [there.seconds] if there is not None else round_times(done.steps, cell)
                steps[side].append(done.steps[cell.worker_names[0]][-1]["step"])
                print(
                    f"{side}, turn {turn}: {sweep.told(times[side][-1])} s, step {steps[side][-1]}",
                    flush=True,
                )
    star_s = statistics.median(times["star"])
    for side, seconds in times.items():
        row: sweep.Row = {"network": options.network, "codec": options.codec, "overlay": side}
        row |= {
            "workload": cell.workload,
            "parameters": cell.parameters,
            "median_s": statistics.median(seconds),
        }
        row |= {"times_the_star": star_s / row["median_s"], "of": len(seconds)}
        row |= {"p95_s": percentile(seconds, 0.95), "steps": steps[side], "at": time.time()}
        sweep.keep(options.out, [row])
        what = f"to {100 * options.target:g} %, steps {steps[side]}" if options.target else "a round"
        told = (
            f"95th percentile {row['p95_s']:.3f} s of {len(seconds)}; {row['times_the_star']:.2f} × as fast"
        )
        print(f"{side:14}{row['median_s']:8.3f} s {what}, {told} as the star")
    return 0


def network_of(name: str, cell: Cell) -> dict[str, Any]:
    """A description for the lab."""
    sites = [*cell.sites, HUB_SITE]
    return unequal(sites) if name == "unequal" else access(sites)


if __name__ == "__main__":
    raise SystemExit(main())
