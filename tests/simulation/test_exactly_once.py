"""Whatever the network does, each contribution counts once: the weights end with the bits of the undisturbed run."""

from __future__ import annotations

import random

import pytest
import torch
from trees import Loop, assert_well, bad_network, disturb, layout_of, run_tree, topology_of

from geomx.simulate.simulator import Network
from geomx.wire.session import Patience

ROUNDS = 3
CHUNK = 25  # seeds
QUICK_RESEND = Patience(heartbeat_s=0.5, timeout_s=30.0, resend_s=0.15)


def undisturbed(shards: int) -> dict[int, torch.Tensor]:
    topology = topology_of([2, 2], shards)
    loop = Loop(layout_of(4), topology.tree.workers, ROUNDS)
    simulator, programs = run_tree(topology, loop, Network(50.0, 10.0))
    assert_well(simulator, topology, programs)
    return loop.weights["A/0"]


@pytest.fixture(scope="module")
def expected() -> dict[int, dict[int, torch.Tensor]]:
    return {shards: undisturbed(shards) for shards in (1, 2)}


@pytest.mark.parametrize("chunk", [0, *(pytest.param(n, marks=pytest.mark.faults) for n in range(1, 20))])
def test_bits_survive_a_bad_network(chunk: int, expected: dict[int, dict[int, torch.Tensor]]) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        chance = random.Random(seed)
        shards = 1 + seed % 2
        topology = topology_of([2, 2], shards, QUICK_RESEND)
        network = bad_network(chance)
        loop = Loop(layout_of(4), topology.tree.workers, ROUNDS)
        simulator, programs = run_tree(
            topology, loop, network, seed, lambda s, c=chance, p=topology: disturb(s, c, p)
        )
        try:
            assert_well(simulator, topology, programs)
            for worker in topology.tree.workers:
                for index, weights in expected[shards].items():
                    assert torch.equal(loop.weights[worker][index], weights), (worker, index)
            ledger = next(slice_.index for slice_ in loop.layout.slices if slice_.role == "ledger")
            assert loop.weights["B/1"][ledger].tolist() == [ROUNDS] * 4
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {network}: {error}") from error


def test_one_shard_and_two_end_with_the_same_bits(expected: dict[int, dict[int, torch.Tensor]]) -> None:
    assert expected[1].keys() == expected[2].keys()
    assert all(torch.equal(expected[1][index], expected[2][index]) for index in expected[1])


def test_a_run_replays_from_its_seed() -> None:
    histories = []
    for _ in range(2):
        topology = topology_of([2, 1], 2, QUICK_RESEND)
        loop = Loop(layout_of(3), topology.tree.workers, ROUNDS)
        run_tree(topology, loop, Network(20.0, 30.0, 10.0, 0.1, duplicate=0.1, reorder=0.2), seed=7)
        histories.append(loop.arrived)
    assert histories[0] == histories[1]
