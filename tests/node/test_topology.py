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
from geomx.rounds.losses import Losses
from geomx.wire.session import Patience


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
    assert [(edge.codec_down, edge.passes) for edge in map(topology.below, "AB")] == [of_a, of_b]


def test_each_server_gives_up_on_a_turn_later_than_those_below_it() -> None:
    edge = Edge(codec_down="wan", patience=Patience(timeout_s=7.0))
    regions = {"world": ("east", "D"), "east": ("A", "B")}
    topology = topology_of(
        [1, 1, 1, 1], regions=regions, below=edge, wan=Edge(patience=Patience(timeout_s=9.0))
    )
    found = {name: topology.later_s(name) for name in ("A", "east", "world", "global/0")}
    assert found == {"A": 0.0, "east": 7.0, "world": 14.0, "global/0": 23.0}


@pytest.mark.parametrize(
    ("overrides", "losses"),
    [
        ((), Losses()),
        (("run.on_loss=wait", "run.wait_s=60"), Losses("wait", 60.0)),
        (
            ("run.on_loss=continue", "run.least_parties=2", "run.least_workers=3"),
            Losses("continue", 300.0, 2, 3),
        ),
    ],
)
def test_what_becomes_of_losses_is_as_the_description_says(
    overrides: tuple[str, ...], losses: Losses
) -> None:
    assert Topology.of(Run.parse(TWO_KINDS, "two.toml", overrides)).losses == losses


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
