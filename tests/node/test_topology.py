"""What a description's edges become in the tree."""

from __future__ import annotations

import pytest
from config_runs import TWO_KINDS

from geomx.config import Run
from geomx.node.topology import Topology


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
