"""How long does a round take by each overlay on NetStorm's nine sites? Real nodes on a virtual clock, without values.

    python benchmarks/overlay_sim.py                     all rows: minutes on two cores
    python benchmarks/overlay_sim.py --overlay star trees --parameters 11e6 --network static --site 4
    python benchmarks/overlay_sim.py --table             the rows that there are, means over sites

One worker and one local server at each site, a global server at one of them; the sites' links are in `netstorm.py`.
Gradients are dense float32 of a model in 192 slices or more, and computing takes no time: what is measured are links.
`mxnet` is a star in which all is pushed before anything is pulled; `star` answers each slice as soon as all have
pushed it.

Leaves rows in out/bench/overlay-sim.jsonl: the median seconds of a round behind the first `--warm`, and beside them the
bounds of the network at that time: `floor_s` by the least cut, `optimum_s` by the linear program with roots anywhere.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import netstorm, sweep
from benchmarks.overlay_floors import least_cut, optimum
from geomx.layout import LARGEST_SLICE, Layout, Tensor
from geomx.node.factory import make_node
from geomx.node.port import Arrived, Contribution, Ready
from geomx.node.topology import Topology
from geomx.simulate.simulator import Simulator
from geomx.wire.presence import pack
from geomx.wire.session import Patience

OVERLAYS = ("mxnet", "star", "ts", "trees", "ring", "binary-blocks", "ps")
SLICES = 192  # at least; none is larger than a run's are
CHUNK_BYTES = 1 << 20
CHANGING_S = 180.0, 900.0  # when rounds are measured where rates change: during four draws
SGD = {"lr": 0.1}
DELAY_MS = 5.0  # of each link, one way
PATIENCE = Patience(heartbeat_s=5.0, timeout_s=600.0)  # a slow link is no loss


class Loop:
    """A training loop without values that computes in no time."""

    def __init__(
        self, simulator: Simulator, name: str, layout: Layout, is_first: bool, rounds: int, whole: bool
    ) -> None:
        self.simulator, self.name, self.layout, self.is_first = simulator, name, layout, is_first
        self.rounds, self.turn, self.missing = rounds, 0, set[int]()
        every = [slice_.index for slice_ in layout.slices]
        self.together = (
            sum(1 << index for index in every).to_bytes(len(every) // 8 + 1, "little") if whole else b""
        )
        simulator.listen(name, self)

    def __call__(self, item: Any) -> None:
        if isinstance(item, Ready):
            self.push()
        elif isinstance(item, Arrived) and item.update.turn == self.turn:
            self.missing.discard(item.update.slice)
            if not self.missing:
                self.turn += 1
                if self.turn > self.rounds:
                    self.simulator.call(self.name, "leave", {"": self.rounds})
                else:
                    self.push()

    def push(self) -> None:
        self.missing = {slice_.index for slice_ in self.layout.slices}
        for slice_ in self.layout.slices:
            values = torch.empty(slice_.elements, device="meta")
            if self.turn:
                mine = Contribution.of(
                    self.turn,
                    slice_.index,
                    "gradient",
                    "step()",
                    1.0,
                    values,
                    None,
                    SGD,
                    together=self.together,
                )
            elif self.is_first:
                mine = Contribution.of(0, slice_.index, "assign", "attach()", 0.0, values)
            else:
                mine = Contribution.of(0, slice_.index, "assign", "attach()", 0.0, None, pack([False]))
            self.simulator.call(self.name, "contribute", mine)


def measured(overlay: str, parameters: float, network: str, site: str, rounds: int, warm: int) -> sweep.Row:
    """One run; its row."""
    started = time.monotonic()
    largest = min(LARGEST_SLICE, -(-int(parameters) // SLICES))
    layout = Layout((Tensor("weights", (int(parameters),), "float32"),), slice_elements=largest)
    parties = {f"s{each}": [f"s{each}/0"] for each in netstorm.SITES}
    nodes = {"global/0": site} | {
        node: each for each in netstorm.SITES for node in (f"s{each}", f"s{each}/0")
    }
    is_adaptive, is_static = overlay in ("ts", "trees"), network == "static"
    topology = Topology.of_parties(
        "sim",
        parties,
        overlays={} if overlay in ("star", "mxnet") else {"": overlay},
        neighbours=neighbours(site) if is_adaptive else {},
    ).with_patience(PATIENCE)
    graph = (netstorm.static if is_static else netstorm.changing)(nodes, DELAY_MS)
    simulator = Simulator(0, graph=graph, memory_bytes_per_s=1e12, chunk_bytes=CHUNK_BYTES)
    if not is_static:
        netstorm.redraw(simulator)
    for name in topology.tree.nodes:
        simulator.add(make_node(topology, name))
    loops = [
        Loop(simulator, worker, layout, not place, rounds if is_static else 1 << 30, overlay == "mxnet")
        for place, worker in enumerate(topology.tree.workers)
    ]
    simulator.run(0.5)
    for loop in loops:
        simulator.call(loop.name, "attach", layout, {"optimizer": "torch.optim.SGD"})
    until = float("inf") if is_static else CHANGING_S[1]
    simulator.run(until, while_=lambda: any(loop.turn <= rounds for loop in loops) or not is_static)
    ends = ends_of(simulator)
    if is_static:
        seconds = [ends[turn] - ends[turn - 1] for turn in range(warm + 1, rounds + 1)]
    else:
        within = [turn for turn, at in sorted(ends.items()) if CHANGING_S[0] <= at <= CHANGING_S[1]]
        seconds = [ends[turn] - ends[turn - 1] for turn in within]
    row = {"overlay": overlay, "parameters": int(parameters), "network": network, "site": site}
    row |= {
        "rounds": len(seconds),
        "round_s": statistics.median(seconds),
        "mean_s": statistics.fmean(seconds),
    }
    row |= {"rounds_an_hour": 3600.0 / statistics.fmean(seconds)}
    bounds = [bounds_of(draw) for draw in draws(is_static)]
    megabits = 32e-6 * int(parameters)
    row |= {"floor_s": megabits / statistics.fmean(least for least, _ in bounds)}
    row |= {"optimum_s": megabits / statistics.fmean(most for _, most in bounds)}
    tables = [fields["state"] for _, _, fields in simulator.noted("overlay")]
    row |= {"tables": tables.count("used"), "left": tables.count("left"), "events": simulator.events}
    return row | {"took_s": time.monotonic() - started}


def neighbours(site: str) -> dict[str, frozenset[str]]:
    """Of each party those that have a link of their own to it, and the global server where it stands."""
    near: dict[str, set[str]] = {each: set() for each in netstorm.SITES}
    for one, other in netstorm.DIRECTIONS:
        near[one].add(f"s{other}")
    near[site].add("global")
    return {f"s{each}": frozenset(names) for each, names in near.items()}


def draws(is_static: bool) -> list[dict[tuple[str, str], float]]:
    """The rates that a run meets while it is measured."""
    draw, first = netstorm.Draws(), int(CHANGING_S[0] / netstorm.REDRAWN_EVERY_S)
    met = [draw() for _ in range(int(CHANGING_S[1] / netstorm.REDRAWN_EVERY_S))]
    return met[:1] if is_static else met[first - 1 : -1]


def bounds_of(draw: dict[tuple[str, str], float]) -> tuple[float, float]:
    """Mbit/s by the least cut, and by the linear program."""
    rates = [[draw.get((one, other), 0.0) for other in netstorm.SITES] for one in netstorm.SITES]
    return least_cut(rates), optimum(rates)


def ends_of(simulator: Simulator) -> dict[int, float]:
    """When the last slice of each turn has come to the last of all workers."""
    ends: dict[int, float] = {}
    for at, _, fields in simulator.noted("round"):
        ends[fields["turn"]] = max(at, ends.get(fields["turn"], 0.0))
    return ends


def main() -> None:
    parser = sweep.parser_of(__doc__, "overlay-sim")
    parser.add_argument("--overlay", nargs="+", default=list(OVERLAYS))
    parser.add_argument("--parameters", nargs="+", type=float, default=[11e6, 60e6])
    parser.add_argument("--network", nargs="+", default=["static", "changing"])
    parser.add_argument(
        "--site", nargs="+", default=list(netstorm.SITES), help="where the global server stands"
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--warm", type=int, default=5, help="rounds that are not counted")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once")
    parser.add_argument("--missing", action="store_true", help="only what has no row yet")
    parser.add_argument("--table", action="store_true", help="run nothing")
    options = parser.parse_args()
    grid = {key: getattr(options, key) for key in ("overlay", "parameters", "network", "site")}
    if not options.table:
        sweep.run(measured, grid | {"rounds": [options.rounds], "warm": [options.warm]}, options)
    rows = sweep.rows_of(options.out)
    keys = ("network", "parameters", "overlay")
    lines = []
    for point in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        same = [row for row in rows if tuple(row[key] for key in keys) == point]
        line = dict(zip(keys, point, strict=True)) | {"sites": len(same)}
        for key in ("round_s", "rounds_an_hour", "floor_s", "optimum_s"):
            found = [row[key] for row in same if key in row]
            line[key] = statistics.fmean(found) if found else "–"
        lines.append(line)
    sweep.show("seconds a round, means over the sites of the global server", lines)


if __name__ == "__main__":
    main()
