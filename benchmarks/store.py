"""What a store costs: seconds of a round with `store.url`, and without, in turn; or what `run.replicas` does.

    python benchmarks/store.py [--replicas] [--parameters N] [--turns N]

Two parties of two workers, dense FSA, in the lab's namespaces over 100 Mbit/s and 30 ms; the store is a folder of this
machine, and a cut is taken every 10 s. With `--replicas`, two global servers beside each other keep each other's logs.
Needs root, as the lab does.
"""

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # `benchmarks` and `lab` are packages there

from benchmarks.cells import OK
from benchmarks.grounds import Grounds
from benchmarks.measures import percentile, round_times
from benchmarks.suites import cells_of
from benchmarks.systems.adapters import SYSTEMS, Desk, Nodes, System
from benchmarks.turn import run_turn
from lab import awake

CUT_EVERY_S = 10


def main() -> int:
    """Measure both, and print medians, 95th percentiles and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10, help="of a turn")
    parser.add_argument("--replicas", action="store_true", help="of run.replicas, with two global servers")
    options = parser.parse_args()
    (cell,) = cells_of(
        ["geomx: dense, 2 shards" if options.replicas else "geomx: dense"],
        workload="synthetic",
        parameters=options.parameters,
        network="100mbit-30ms",
        rounds_a_turn=options.rounds,
        limit_s=600.0,
    )
    kept = "replicas" if options.replicas else "a store"
    sides = {"without": SYSTEMS["geomx"], f"with {kept}": _durable(options.replicas)}
    times: dict[str, list[float]] = {name: [] for name in sides}
    with Grounds() as grounds, awake.cores():
        for turn in range(options.turns):
            for name in list(sides)[:: 1 if turn % 2 else -1]:
                done = run_turn(cell, sides[name], grounds.of(cell), Path(sys.executable))
                if done.state != OK:
                    print(f"store: {name}: {done.state}", file=sys.stderr)
                    return 2
                times[name] += round_times(done.steps, cell)
    for name, seconds in times.items():
        median, most = statistics.median(seconds), percentile(seconds, 0.95)
        print(f"{name:14}{median:8.3f} s a round, 95th percentile {most:.3f} s, of {len(seconds)}")
    ratio = statistics.median(times[f"with {kept}"]) / statistics.median(times["without"])
    print(f"ratio of the medians {ratio:.3f}")
    return 0


def _durable(has_replicas: bool) -> System:
    system = SYSTEMS["geomx"]

    def nodes(desk: Desk) -> Nodes:
        started = system.nodes(desk)
        description = desk.folder / "bench.toml"
        url = "" if has_replicas else f'url = "file://{desk.folder}/store", '
        more = f'run.on_loss = "wait"\nstore = {{{url}every_s = {CUT_EVERY_S}}}\n'
        description.write_text(more + "run.replicas = 1\n" * has_replicas + description.read_text())
        return started

    return replace(system, nodes=nodes)


if __name__ == "__main__":
    sys.exit(main())
