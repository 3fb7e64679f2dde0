"""Parity pieces on links that lose datagrams: hardly anything is sent again, and weights are TCP's, bit for bit."""

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
        for party in topology.tree.parties:
            network = Network(rate_mbps=20.0, delay_ms=50.0, loss=loss, keeps_streams=True)
            simulator.link(party, "global/0", network)

    loop = Loop(LAYOUT, topology.tree.workers, ROUNDS)
    simulator, programs = run_tree(topology, loop, faults=lose)
    assert_well(simulator, topology, programs)
    ends = sorted({turn: time for time, _, turn, _ in loop.arrived}.items())
    return mean(after - before for (_, before), (_, after) in pairwise(ends[2:])), loop.weights, simulator


def counted(simulator: Simulator, name: str) -> int:
    flows = [*simulator.usage("A")["flows"].values(), *simulator.usage("global/0")["flows"].values()]
    return sum(
        sum(found.values()) if isinstance(found := flow.get(name, 0), dict) else found for flow in flows
    )


def test_what_is_lost_is_mostly_rebuilt_and_weights_are_those_of_tcp() -> None:
    lossy_s, lossy, simulator = ran("datagram", 0.05)
    assert counted(simulator, "rebuilt") > 3 * counted(simulator, "again")
    over_tcp_s, over_tcp, _ = ran("tcp", 0.0)
    assert lossy_s < over_tcp_s + 0.1, "less than one more round trip, where to send again takes one or two"
    for worker, slices in over_tcp.items():
        assert all(torch.equal(lossy[worker][index], values) for index, values in slices.items())


def test_where_nothing_is_lost_there_is_no_parity() -> None:
    _, _, simulator = ran("datagram", 0.0)
    assert not counted(simulator, "again")
    assert not counted(simulator, "parity")


def test_a_share_of_parity_is_kept_to_whatever_is_lost() -> None:
    _, _, simulator = ran("datagram fec=0.5", 0.0)
    assert not counted(simulator, "again")
    assert not counted(simulator, "rebuilt")
    sent = counted(simulator, "sent")
    assert 0.5 * sent <= counted(simulator, "parity") < 0.6 * sent
