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


def assert_alike(deep: Loop) -> None:
    """All have the same weights, and every contribution was counted."""
    for name, weights in deep.weights.items():
        for index, values in weights.items():
            assert torch.equal(values, deep.weights["A/0"][index]), f"{name} has other weights"
    assert deep.weights["A/0"][3].tolist() == [5] * 6  # the ledger


@pytest.mark.parametrize(("regions", "shards"), [(REGIONS, 2), (ONE_IS_SHALLOW, 1), (DEEP, 2)])
def test_weights_are_those_of_two_tiers_but_for_the_order_of_sums(
    regions: dict[str, Any], shards: int
) -> None:
    flat, deep = trained(None), trained(regions, shards)
    assert_alike(deep)
    for name, weights in deep.weights.items():
        for index, values in weights.items():
            torch.testing.assert_close(values, flat.weights[name][index], rtol=0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("codec", "below"),
    [("int4", None), ("fp16", Edge("int8", "int4")), ("bisparse ratio=0.1", Edge("fp16", "fp16"))],
)
def test_replicas_are_equal_with_any_codec_on_either_edge(codec: str, below: Edge | None) -> None:
    deep = trained(REGIONS, wan=Edge(codec, codec), below=below)
    assert_alike(deep)
