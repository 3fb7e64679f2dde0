"""Flows that share the links of a graph: shares by hand, times, order, faults."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st
from trees import Loop, assert_well, layout_of, start, topology_of

from benchmarks import netstorm
from geomx.errors import ConfigError
from geomx.simulate.graph import Graph, both_ways, fair_shares
from geomx.simulate.network import SimulatedLink
from geomx.simulate.simulator import Network, Simulator

MB = 1_000_000  # a second of 8 Mbit/s
ROW = both_ways({("1", "2"): (8, 10), ("2", "3"): (8, 10)})


class Sends:
    """Messages between nodes that are named as their sites in small letters, and when each has arrived."""

    def __init__(self, graph: Graph, seed: int = 0, chunk_bytes: int = 64 << 10) -> None:
        self.simulator = Simulator(seed, graph=graph, chunk_bytes=chunk_bytes)
        self.arrived: dict[str, float] = {}

    def link(self, way: str) -> SimulatedLink:
        source, target = way.split(">")
        return self.simulator._connections.link(source, target)

    def put(self, way: str, size_bytes: int = MB, at: float = 0.0, priority: int = 0, name: str = "") -> None:
        def arrive() -> None:
            self.arrived[name or way] = self.simulator.now

        self.simulator.at(at, lambda: self.link(way).put(size_bytes, priority, arrive, True))

    def run(self, until: float = inf) -> dict[str, float]:
        self.simulator.run(until)
        return self.arrived


def sends(links: Any, **more: Any) -> Sends:
    return Sends(Graph(links, {f"n{site}": site for link in links for site in link}), **more)


# -- shares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rates", "ways", "shares"),
    [
        ([8], [[0], [0]], [4, 4]),
        ([8, 8], [[0], [1], [0, 1]], [4, 4, 4]),  # a parking lot
        ([10, 8, 4], [[0], [1], [2], [0, 1, 2]], [8, 6, 2, 2]),  # of three links
        ([10, 3], [[0], [0], [0, 1]], [3.5, 3.5, 3]),  # the third is limited elsewhere
        ([12, 2, 3], [[0, 1], [0, 2], [0]], [2, 3, 7]),
        ([inf, 5], [[0], [0, 1]], [inf, 5]),
        ([5], [], []),
    ],
)
def test_shares_are_those_found_by_hand(rates: Any, ways: Any, shares: Any) -> None:
    assert fair_shares(rates, ways) == pytest.approx(shares)


@examples(100)
@given(st.integers(0, 2**32))
def test_each_flow_has_a_full_link_on_which_none_has_more(seed: int) -> None:
    """What makes shares max-min fair, by Bertsekas and Gallager."""
    chance = random.Random(seed)
    rates = [chance.choice([chance.uniform(1, 100), 10.0]) for _ in range(chance.randint(1, 8))]
    ways = [
        chance.sample(range(len(rates)), chance.randint(1, len(rates))) for _ in range(chance.randint(1, 12))
    ]
    shares = fair_shares(rates, ways)
    on = [
        [share for share, way in zip(shares, ways, strict=True) if link in way] for link in range(len(rates))
    ]
    assert all(sum(on[link]) <= rate * (1 + 1e-9) for link, rate in enumerate(rates))
    for share, way in zip(shares, ways, strict=True):
        full = [link for link in way if sum(on[link]) >= rates[link] * (1 - 1e-9)]
        assert any(share >= max(on[link]) * (1 - 1e-9) for link in full)


# -- times ----------------------------------------------------------------------------------------


def test_a_message_alone_takes_the_narrowest_link_and_the_sum_of_the_delays() -> None:
    net = sends(both_ways({("1", "2"): (8, 10), ("2", "3"): (4, 25)}))
    net.put("n1>n3")
    assert net.run() == {"n1>n3": pytest.approx(2.0 + 0.035)}


def test_flows_share_and_take_what_others_leave() -> None:
    net = sends(ROW)
    net.put("n1>n2", MB // 2)
    net.put("n2>n3", 2 * MB)
    net.put("n1>n3", MB)
    # 4 Mbit/s each until 1 s; then n1>n3 and n2>n3 still share the second link, until 2 s; 8 Mbit/s for n2>n3
    times = {"n1>n2": 1.01, "n1>n3": 2.02, "n2>n3": 3.01}
    assert net.run() == pytest.approx(times)


def test_the_way_back_and_other_nodes_of_a_site_are_flows_of_their_own() -> None:
    nodes = {"a": "1", "b": "1", "c": "2"}
    net = Sends(Graph(ROW, nodes, local=Network(80, 1)))
    net.put("a>c")
    net.put("b>c")
    net.put("c>a")
    net.put("a>b")
    assert net.run() == pytest.approx({"a>b": 0.101, "c>a": 1.01, "a>c": 2.01, "b>c": 2.01})


def test_a_site_with_an_access_link() -> None:
    graph = Graph.of_access({"1": (8, 8, 5), "2": (4, 80, 5), "3": (80, 80, 5)}, {f"n{s}": s for s in "123"})
    net = Sends(graph)
    net.put("n2>n1")  # 4 of the 8 Mbit/s into site 1
    net.put("n3>n1")
    net.put("n1>n3")  # the other direction
    assert net.run() == pytest.approx({"n1>n3": 1.01, "n2>n1": 2.01, "n3>n1": 2.01})


def test_a_rate_that_changes_in_the_middle_of_a_message_applies_at_once() -> None:
    net = sends(ROW, chunk_bytes=4 * MB)
    traffic = net.simulator.traffic
    net.put("n1>n3", 2 * MB)
    net.simulator.at(0.5, lambda: traffic.change("2", "3", 4))
    net.simulator.at(1.5, lambda: traffic.change("3", "2", 80, both=True))
    assert net.run() == pytest.approx({"n1>n3": 1.5 + 1.0 + 0.02})  # 0.5 MB at 8, at 4, and 1 MB at 8 Mbit/s
    assert traffic.rate_mbps("2", "3") == 80


def test_links_without_a_rate_pass_at_once() -> None:
    net = sends({("1", "2"): (0, 10)})
    net.put("n1>n2")
    assert net.run() == {"n1>n2": pytest.approx(0.01)}


def test_a_more_urgent_message_overtakes_between_chunks() -> None:
    net = sends(ROW, chunk_bytes=MB // 4)
    net.put("n1>n2", MB, priority=1, name="late")
    net.put("n1>n2", MB // 4, at=0.3, name="urgent")
    assert net.run() == pytest.approx({"urgent": 0.75 + 0.01, "late": 1.25 + 0.01})


def test_one_flow_on_one_link_is_as_on_a_link_of_its_own() -> None:
    def times(simulator: Simulator) -> list[float]:
        link, chance = simulator._connections.link("n1", "n2"), random.Random(1)
        found = list[float]()
        for _ in range(200):
            put = functools.partial(
                link.put,
                chance.randint(1, MB),
                chance.randint(0, 3),
                lambda: found.append(simulator.now),
                True,
            )
            simulator.at(chance.uniform(0, 80), put)
        simulator.run()
        return found

    graph = Graph(ROW, {"n1": "1", "n2": "2"})
    assert times(Simulator(graph=graph)) == pytest.approx(times(Simulator(0, Network(8, 10))))


# -- ways -----------------------------------------------------------------------------------------


def sites_on(graph: Graph, source: str, target: str) -> str:
    return source + "".join(other for _, other in graph.way(source, target))


def test_ways_have_the_fewest_hops_then_the_least_delay_then_the_first_names() -> None:
    far = {("1", "5"): (1, 99), ("1", "4"): (1, 1), ("4", "6"): (1, 1), ("6", "5"): (1, 1)}
    assert sites_on(Graph(far, {}), "1", "5") == "15"
    two = {("1", "3"): (1, 2), ("3", "5"): (1, 2), ("1", "2"): (1, 2), ("2", "5"): (1, 3)}
    assert sites_on(Graph(two, {}), "1", "5") == "135"
    assert sites_on(Graph(two | {("2", "5"): (1, 2)}, {}), "1", "5") == "125"


def test_what_a_graph_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match=r'nodes.A: found "4"; allowed: a site that has a link: 2, 1, 3'):
        Graph(ROW, {"A": "4"})
    with pytest.raises(ConfigError, match="no way from 2 to 1"):
        Graph({("1", "2"): (8, 1)}, {}).way("2", "1")
    with pytest.raises(ConfigError, match="link: found 1 to 3"):
        Simulator(graph=Graph(ROW, {})).traffic.change("1", "3", 8)


# -- NetStorm's network ---------------------------------------------------------------------------


def test_rates_of_netstorm_are_drawn_anew_each_180_s() -> None:
    first = netstorm.static({}).links
    assert len(first) == 26
    assert list(first)[:5] == [("1", "2"), ("1", "3"), ("2", "1"), ("2", "3"), ("2", "5")]
    chance = random.Random(1)
    draws = [{way: chance.randint(20, 155) for way in first} for _ in range(4)]
    assert {way: rate for way, (rate, _) in first.items()} == draws[0]
    net = Sends(netstorm.changing({"n1": "1", "n2": "2"}))
    netstorm.redraw(net.simulator)
    rate = functools.partial(net.simulator.traffic.rate_mbps, "1", "2")
    assert rate() == 150
    net.put("n1>n2", MB, at=170.0, name="before")
    net.put("n1>n2", MB, at=600.0, name="after")  # three draws have passed
    net.put(
        "n1>n2", int(125_000 * (draws[2]["1", "2"] * 60 + draws[3]["1", "2"] * 60)), at=660.0, name="over"
    )
    arrived = net.run(790.0)
    assert arrived["before"] == pytest.approx(170 + 8 / 150)
    assert arrived["after"] == pytest.approx(600 + 8 / draws[2]["1", "2"])
    assert arrived["over"] == pytest.approx(780.0)
    assert rate() == draws[3]["1", "2"]


# -- whole runs -----------------------------------------------------------------------------------


def trained(faults: Callable[[Simulator], None] = lambda simulator: None) -> tuple[Any, ...]:
    """Two parties and a server in a row of sites; when all that arrived at workers did."""
    topology = topology_of([2, 1], 1)
    nodes = {"global/0": "1", "A": "2", "A/0": "2", "A/1": "2", "B": "3", "B/0": "3"}
    loop = Loop(layout_of(3), topology.tree.workers, 20)
    simulator = Simulator(1, Network(0.001), graph=Graph(ROW, nodes))
    programs = start(simulator, topology, loop)
    faults(simulator)
    simulator.run(600.0)
    assert_well(simulator, topology, programs)
    return loop.arrived, simulator.sent_bytes("B", "global/0"), simulator.events, simulator.now


def test_a_run_is_a_function_of_its_seed() -> None:
    assert trained() == trained()


@pytest.mark.parametrize("reset", [False, True])
def test_a_run_goes_on_after_a_cut(reset: bool) -> None:
    cut = trained(lambda simulator: simulator.at(1.0, lambda: simulator.cut("B", "global/0", 2.0, reset)))
    assert cut[-1] > trained()[-1]


def test_a_pair_that_is_cut_leaves_its_share_to_others_and_resumes() -> None:
    net = sends(ROW, chunk_bytes=MB // 4)
    simulator, healthy = net.simulator, net.simulator.traffic.graph.network("n1", "n3")
    net.put("n1>n3", MB)
    net.put("n2>n3", 2 * MB)
    simulator.at(
        0.4, lambda: simulator.link("n1", "n3", Network(cut=True))
    )  # behind its first chunk, at 0.5 s
    simulator.at(1.5, lambda: simulator.link("n1", "n3", healthy))
    assert net.run() == pytest.approx({"n1>n3": 3.0 + 0.02, "n2>n3": 3.0 + 0.01})


def test_what_is_said_of_a_pair_limits_its_flow_and_sets_its_delay() -> None:
    net = sends(ROW)
    net.simulator.link("n1", "n3", Network(2, 100))
    net.put("n1>n3", MB // 4)
    net.put("n2>n3", 3 * MB // 4)
    assert net.run() == pytest.approx({"n1>n3": 1.1, "n2>n3": 1.01})
    net.simulator.link("n1", "n3", Network(0, 100))
    net.put("n1>n3", MB, at=2.0)
    assert net.run()["n1>n3"] == pytest.approx(3.1)
