"""Updates go down in datagrams, as gradients go up: over links that lose a fifth, and are cut, bits are as over TCP."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from flow_training import Trained, check, train
from trees import topology_of

from geomx.node.slices.blocks import BLOCK_BYTES as MOST_BYTES
from geomx.node.topology import Edge
from geomx.simulate.network import Network
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.wire.session import Patience

ROUNDS = 12
POLICIES = {"fsa": 1, "mixed": 1, "diloco every=2 lr=1 momentum=0": 2}  # steps in a round
BLOCK_BYTES = MOST_BYTES // 4 * 4  # of float32
LOSING = Network(50.0, 20.0, loss=0.2, keeps_streams=True)
CUTS = ((1.0, "A", 1.0), (2.5, "B", 0.3), (4.0, "A", 0.3))  # when, which party from the shard, for how long


@cache
def trained(policy: str, channel: str, network: Network, resets: bool = False) -> Trained:
    """A run of two parties, with cuts of which the last ends a connection or not."""
    topology = topology_of(
        [2, 2], patience=Patience(heartbeat_s=0.5, timeout_s=30.0), policy=policy, wan=Edge(channel=channel)
    )

    def cut(simulator: Simulator) -> None:
        for at_s, party, for_s in CUTS:
            reset = resets and at_s == CUTS[-1][0]
            simulator.at(at_s, lambda p=party, f=for_s, r=reset: simulator.cut(p, "global/0", f, r))

    made = train(topology, network, 1, cut, steps=ROUNDS * POLICIES[policy])
    check(made, is_exact=True)
    assert channel == "tcp" or made.simulator.now > CUTS[-1][0] + CUTS[-1][2], (
        "it was over before the last cut"
    )
    return made


def share_in_datagrams(made: Trained, over_tcp: Trained, node: str, peer: str) -> float:
    """Of the bytes that TCP carries from a node to a peer: what came in datagrams, or was rebuilt, at the peer's end.

    At least: of each slice the last piece may be small, and is left out.
    """
    flow = made.simulator.usage(peer)["flows"][node]
    pieces = sum(flow["came"].values()) + flow.get("rebuilt", 0)
    sent = made.simulator.usage(node)["flows"][peer]["sent"]
    assert pieces <= sum(sent.values())
    full = pieces - len(made.layout.slices) * ROUNDS
    return full * BLOCK_BYTES / over_tcp.simulator.usage(node)["sent"][peer]


@pytest.mark.parametrize(
    ("policy", "resets"),
    [
        pytest.param(policy, resets, marks=[] if resets else pytest.mark.grids)
        for policy in POLICIES
        for resets in {False, policy == "fsa"}
    ],
)
def test_weights_are_as_over_tcp_where_datagrams_carry_both_ways(policy: str, resets: bool) -> None:
    over_tcp = trained(policy, "tcp", Network(50.0, 20.0))
    made = trained(policy, "datagram", LOSING, resets)
    for index, values in over_tcp.at_root().items():
        assert torch.equal(made.at_root()[index], values)
    if policies.make(policy).sync_group == "run":
        for worker, tensors in over_tcp.weights.items():
            assert all(map(torch.equal, made.weights[worker], tensors))
    for party in () if resets else ("A", "B"):
        assert share_in_datagrams(made, over_tcp, party, "global/0") > 0.9
        assert share_in_datagrams(made, over_tcp, "global/0", party) > 0.9
