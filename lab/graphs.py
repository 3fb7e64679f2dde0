"""`lab graphs`: what TCP makes of links that several ways share, beside the simulator's max-min fair shares.

Each network is a graph whose sites pass packets on. Some sites send to others at once. The seconds until the last byte
of each transfer has come stand beside those that the simulator finds for the same bytes with their headers.

With fair queues, cubic must be within 10 %. Where all packets wait in one queue, TCP is not max-min fair: a connection
that crosses two full links gets less than one that crosses one of them. These rows show by how much, and nothing is
demanded of them. Round trips of a network are equal, so the ways back of the first and the last are others than those
there. Acknowledgements take little of them; the simulator has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from random import Random
from typing import Any

from geomx.channels.emulation.shaping import HEADERS
from geomx.simulate.graph import Direction, Graph, GraphLink
from geomx.simulate.simulator import Simulator
from lab import awake
from lab.describe import Pair, describe
from lab.lab import Lab
from lab.measure import Transfer, transfers

TOLERANCE = 0.1
JUDGED = "cubic, fair"
QUEUES = {
    JUDGED: ("cubic", True),
    "bbr, fair": ("bbr", True),
    "cubic": ("cubic", False),
    "bbr": ("bbr", False),
}
_CONNECTIONS = 4  # of each transfer, so that a loss is a small event
_CHUNK_BYTES = 64 << 10
_QUEUE_MS = 60.0


@dataclass(frozen=True)
class Case:
    """Transfers, in megabytes, at once on a graph. The nodes of the graph are its sites."""

    name: str
    links: Mapping[Direction, GraphLink | tuple[float, float]]
    megabytes: Mapping[Pair, float]

    @property
    def graph(self) -> Graph:
        """For the simulator."""
        return Graph(self.links, {site: site for link in self.links for site in link})

    def table(self, congestion: str, *, fair: bool) -> dict[str, Any]:
        """The same network, for the lab."""
        graph = self.graph
        links = [
            {"from": a, "to": b, "rate_mbps": rate, "delay_ms": ms}
            for (a, b), (rate, ms) in graph.links.items()
        ]
        ways = {pair: graph.way(*pair) for pair in permutations(graph.nodes, 2)}
        routes = [{"from": a, "to": b, "over": way[0][1]} for (a, b), way in ways.items() if len(way) > 1]
        default = {"rate_mbps": 1000, "delay_ms": 1, "queue_ms": _QUEUE_MS, "fair": fair}
        sites = [{"name": site} for site in graph.nodes]
        return {"site": sites, "default": default, "link": links, "route": routes, "congestion": congestion}

    def simulated_s(self, part: float = 1.0) -> dict[Pair, float]:
        """The seconds that each transfer takes in the simulator; `part`: of its bytes."""
        graph, found = self.graph, dict[Pair, float]()
        simulator = Simulator(graph=graph)

        def came(pair: Pair) -> None:
            found[pair] = simulator.now

        for pair, megabytes in self.megabytes.items():
            flow = simulator.traffic.flow(*pair, graph.network(*pair), Random(0), _CHUNK_BYTES)
            flow.put(round(megabytes * 1e6 * part * HEADERS), 0, partial(came, pair), surely=True)
        simulator.run()
        return found

    def measured_s(self, congestion: str, *, fair: bool, part: float = 1.0) -> dict[Pair, float]:
        """The seconds that each transfer takes in the lab; `part`: of its bytes."""
        wanted = [
            Transfer(pair, round(megabytes * 1e6 * part), _CONNECTIONS)
            for pair, megabytes in self.megabytes.items()
        ]
        with Lab(describe(self.table(congestion, fair=fair), self.name)) as lab:
            return dict(zip(self.megabytes, transfers(lab, wanted, congestion), strict=True))


_BACK = {("B", "A"): (100.0, 25.0), ("C", "B"): (100.0, 25.0), ("C", "A"): (100.0, 20.0)}
PARKING_LOT = Case(
    "parking lot",
    {("A", "B"): (20.0, 5.0), ("B", "C"): (20.0, 5.0), **_BACK},
    {("A", "B"): 8.0, ("B", "C"): 8.0, ("A", "C"): 8.0},
)
CASES = (
    PARKING_LOT,
    Case(
        "star",
        Graph.of_access(
            {"A": (40, 20, 7.5), "B": (5, 40, 7.5), "C": (40, 40, 7.5), "D": (40, 30, 7.5)}, {}
        ).links,
        {("B", "A"): 4.0, ("C", "A"): 6.0, ("D", "A"): 6.0, ("C", "D"): 10.0},
    ),
    Case(
        "slow detour",
        {("A", "B"): (20.0, 5.0), ("B", "C"): (6.0, 5.0), **_BACK},
        {("A", "B"): 12.0, ("B", "C"): 2.5, ("A", "C"): 2.5},
    ),
)


def rows(times: int) -> Iterator[tuple[str, str, Pair, float, float]]:
    """As they are measured: network, queues, pair, seconds in the lab and in the simulator."""
    for case in CASES:
        simulated = case.simulated_s()
        for name, (congestion, fair) in QUEUES.items():
            for _ in range(times):
                measured = case.measured_s(congestion, fair=fair)
                for pair, took_s in measured.items():
                    yield case.name, name, pair, took_s, simulated[pair]


def compare(times: int, show: Callable[[str], None]) -> bool:
    """Print the table line by line; whether all that is judged is within `TOLERANCE`."""
    failed = 0
    show(f"{'network':<14}{'TCP, queues':<14}{'transfer':<10}{'measured':>10}{'simulated':>11}{'ratio':>7}")
    with awake.cores():
        for network, queues, (a, b), measured, simulated in rows(times):
            ratio = measured / simulated
            ok = abs(ratio - 1.0) <= TOLERANCE
            verdict = "" if queues != JUDGED else "ok" if ok else "NOT ok"
            failed += verdict == "NOT ok"
            seconds = f"{measured:>8.2f} s{simulated:>9.2f} s{ratio:>7.2f}"
            show(f"{network:<14}{queues:<14}{f'{a} to {b}':<10}{seconds}  {verdict}".rstrip())
    return not failed
