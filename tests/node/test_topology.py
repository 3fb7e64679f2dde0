"""What a description's edges become in the tree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from config_runs import TWO_KINDS
from trees import topology_of

from geomx.codecs.dense import Dense
from geomx.config import Run
from geomx.layout import Layout, Tensor
from geomx.node.factory import make_node
from geomx.node.topology import Edge, Topology
from geomx.node.worker import Worker


@pytest.mark.parametrize(
    ("overrides", "of_a", "of_b"),
    [
        ((), ("int4", True), ("dense", False)),
        (("wan.codec_down=dense",), ("dense", True), ("dense", False)),
        (("lan.codec_down=fp16",), ("fp16", False), ("fp16", False)),
    ],
)
def test_what_local_servers_send_their_workers(
    overrides: tuple[str, ...], of_a: tuple[str, bool], of_b: tuple[str, bool]
) -> None:
    """Workers that may hold parts of a model get values: deltas need the whole."""
    topology = Topology.of(Run.parse(TWO_KINDS, "two.toml", overrides))
    assert (topology.lan_of("A").codec_down, topology.passes("A")) == of_a
    assert (topology.lan_of("B").codec_down, topology.passes("B")) == of_b


LAYOUT = Layout((Tensor("w", (30_000,), "float32"),))


def drawn(seed: int, name: str) -> list[list[int]]:
    """The classes that a node gives to the blocks of a slice, in three turns."""
    edge = Edge(channel="dgt rank=random k=0.5 adaptive=false")
    node: Any = make_node(topology_of([1, 1], wan=edge, lan=edge, seed=seed), name)
    uplink = node._uplink if isinstance(node, Worker) else node.sink.above
    slice_, classes = LAYOUT.slices[0], uplink._blocks._classes
    blocks = Dense().cut(slice_, torch.zeros(4 * slice_.elements, dtype=torch.uint8), 1000)
    return [
        classes.levels(slice_, turn, blocks, lambda: torch.zeros(slice_.elements), None) for turn in range(3)
    ]


@pytest.mark.parametrize(("name", "other"), [("A", "B"), ("A/0", "B/0"), ("A", "A/0")])
def test_classes_that_are_drawn_depend_on_the_seed_of_the_run_and_on_the_node(name: str, other: str) -> None:
    assert drawn(7, name) == drawn(7, name)
    assert drawn(7, name) != drawn(7, other)
    assert drawn(7, name) != drawn(8, name)
    one, another, _ = drawn(7, name)
    assert one != another
    assert sorted(one) == sorted(another)


def test_both_ends_keep_to_the_same_terms_whatever_they_draw() -> None:
    edge = Edge(channel="dgt k=0.5 channels=2")
    topology = topology_of([1, 1], wan=edge)
    local, shard = make_node(topology, "A"), make_node(topology, "global/0")
    assert local._flows["global/0"] == shard._flows["A"]
