"""Parity pieces on links that lose datagrams: rounds are shorter than without, and weights the same, bit for bit."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import torch
from trees import Loop, assert_well, run_tree, topology_of

from geomx.layout import Layout, Tensor
from geomx.node.topology import Edge
from geomx.simulate.network import Network
from geomx.simulate.simulator import Simulator

ROUNDS = 12
LAYOUT = Layout(
    (
        Tensor("large", (300, 100), "float32"),
        Tensor("tiny", (40,), "float32"),
        Tensor("geomx.ledger", (2,), "int64", role="ledger"),
    )
)
Weights = dict[str, dict[int, torch.Tensor]]


def ran(channel: str, loss: float) -> tuple[float, Weights, Simulator]:
    """A round's seconds, the weights in the end, and the simulator."""
    topology = topology_of([1, 1], wan=Edge(channel=channel))

    def lose(simulator: Simulator) -> None:
        for party in topology.parties:
            network = Network(rate_mbps=20.0, delay_ms=50.0, loss=loss, keeps_streams=True)
            simulator.link(party, "global/0", network)

    loop = Loop(LAYOUT, topology.workers, ROUNDS)
    simulator, programs = run_tree(topology, loop, faults=lose)
    assert_well(simulator, topology, programs)
    ends = sorted({turn: time for time, _, turn, _ in loop.arrived}.items())
    return mean(after - before for (_, before), (_, after) in pairwise(ends[2:])), loop.weights, simulator


def counted(simulator: Simulator, name: str) -> int:
    flows = [*simulator.usage("A")["flows"].values(), *simulator.usage("global/0")["flows"].values()]
    return sum(
        sum(found.values()) if isinstance(found := flow.get(name, 0), dict) else found for flow in flows
    )


def test_rounds_are_shorter_with_parity_and_weights_the_same() -> None:
    (plain_s, plain, without), (parity_s, parity, with_parity) = (
        ran(channel, 0.05) for channel in ("datagram", "datagram fec=0.1")
    )
    assert parity_s < 0.9 * plain_s
    assert counted(with_parity, "rebuilt") > 5 * counted(with_parity, "again")
    assert counted(with_parity, "again") < counted(without, "again") / 5
    _, over_tcp, _ = ran("tcp", 0.0)
    for weights in (plain, parity):
        for worker, slices in over_tcp.items():
            assert all(torch.equal(weights[worker][index], values) for index, values in slices.items())


def test_where_nothing_is_lost_parity_is_all_that_it_costs() -> None:
    _, _, simulator = ran("datagram fec=0.1", 0.0)
    assert not counted(simulator, "again")
    assert not counted(simulator, "rebuilt")
    sent = counted(simulator, "sent")
    assert 0.1 * sent <= counted(simulator, "parity") < 0.12 * sent
