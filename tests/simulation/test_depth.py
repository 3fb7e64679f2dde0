"""Trees of three tiers and more: what comes out is what two tiers make of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trees import Loop, layout_of, run_tree, topology_of

from geomx.node.topology import Edge
from geomx.simulate.simulator import Network

PARTIES = [2, 1, 2, 1]
REGIONS = {"east": ("A", "B"), "west": ("C", "D")}
ONE_IS_SHALLOW = {"east": ("A", "B"), "west": ("C",)}  # D hangs on the shards itself
DEEP = {"world": ("east",), "east": ("A", "B"), "west": ("C", "D")}


def trained(regions: dict[str, Any] | None, shards: int = 1, **more: Any) -> Loop:
    topology = topology_of(PARTIES, shards, regions=regions, **more)
    loop = Loop(layout_of(6, "float64"), topology.tree.workers, 5)
    simulator, programs = run_tree(topology, loop, Network(100.0, 10.0))
    errors = {name: program.error for name, program in programs.items() if program.error is not None}
    assert not errors
    assert not [note for _, _, note in simulator.notes if note.level == "error"]
    return loop


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("regions", [REGIONS, ONE_IS_SHALLOW, DEEP])
def test_weights_are_those_of_two_tiers_but_for_the_order_of_sums(
    regions: dict[str, Any], shards: int
) -> None:
    flat, deep = trained(None), trained(regions, shards)
    for name, weights in deep.weights.items():
        for index, values in weights.items():
            assert torch.equal(values, deep.weights["A/0"][index]), f"{name} has other weights"
            torch.testing.assert_close(values, flat.weights[name][index], rtol=0.0, atol=1e-12)
    assert deep.weights["A/0"][3].tolist() == [5] * 6  # the ledger


@pytest.mark.parametrize("codec", ["int4", "fp16", "bisparse ratio=0.1"])
@pytest.mark.parametrize("below", [None, Edge("fp16", "fp16"), Edge("int8", "int4")])
def test_replicas_are_equal_with_any_codec_on_either_edge(codec: str, below: Edge | None) -> None:
    deep = trained(REGIONS, wan=Edge(codec, codec), below=below)
    for name, weights in deep.weights.items():
        for index, values in weights.items():
            assert torch.equal(values, deep.weights["A/0"][index]), f"{name} has other weights"
    assert deep.weights["A/0"][3].tolist() == [5] * 6
