"""TCP on links that several ways share, beside the simulator's shares."""

import pytest
from labs_up import in_a_lab

from lab import graphs
from lab.describe import describe


@pytest.mark.parametrize("case", graphs.CASES, ids=lambda case: case.name)
def test_the_lab_has_the_graph_s_links_and_ways(case):
    network, graph = describe(case.table("cubic", fair=True), case.name), case.graph
    for pair, (rate_mbps, delay_ms) in graph.links.items():
        found = network.links[pair]
        assert (found.rate_mbps, found.delay_ms, found.fair) == (rate_mbps, delay_ms, True)
    for a, b in case.megabytes:
        way = [(a, network.routes.get((a, b), b))]
        while way[-1][1] != b:
            here = way[-1][1]
            way.append((here, network.routes.get((here, b), b)))
        assert way == graph.way(a, b)
    trips = {network_delay(graph, a, b) + network_delay(graph, b, a) for a, b in case.megabytes}
    assert trips == {30.0}


def network_delay(graph, a, b):
    return graph.network(a, b).delay_ms


class TestInTheLab:
    pytestmark = in_a_lab

    def test_who_crosses_two_full_links_gets_as_much_as_others_where_queues_are_fair(self):
        """No time of the machine's is asked for: times are those of the transfers beside each other."""
        case, part = graphs.PARKING_LOT, 0.4
        measured, simulated = case.measured_s("cubic", fair=True, part=part), case.simulated_s(part)
        mean = sum(measured.values()) / sum(simulated.values())
        for pair, took_s in measured.items():
            assert took_s == pytest.approx(mean * simulated[pair], rel=0.1)
