"""What a description makes of a node's edges."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from geomx.channels.contract import EdgeSettings
from geomx.channels.tcp import Tcp
from geomx.config import Run
from geomx.drive.wiring import wire
from geomx.errors import ConfigError

PLAIN = """
global.addresses = ["127.0.0.1:1"]
party = [{ name = "A", workers = 1, address = "127.0.0.1:3" }]
"""

RUN = Run.parse(
    """
    run.shards = 2
    global.addresses = ["127.0.0.1:1", "127.0.0.1:2"]
    wan.link = { rate_mbps = 100, delay_ms = 20 }
    party = [
        { name = "A", workers = 1, address = "127.0.0.1:3" },
        { name = "B", workers = 1, address = "127.0.0.1:4", link = { delay_ms = 9 } },
    ]
    event = [
        { at_s = 1, for_s = 1, party = "A", rate_mbps = 10, delay_ms = 30 },
        { at_s = 5, for_s = 1, party = "B", cut = true },
    ]
    """,
    "run.toml",
)


def made(name: str) -> list[tuple[str, float, float, float, bool]]:
    """What each change does: (party, when, rate, delay, cut)."""
    rows = []
    for change, make in wire(RUN, name).changes:
        (link,) = make.args
        rows.append((change.party, change.at_s, link.rate_mbps, link.delay_ms, link.cut))
    return rows


def test_a_party_changes_its_way_up_and_each_shard_its_share_of_the_way_down() -> None:
    a, b = [("A", 1, 10, 30, False), ("A", 2, 100, 20, False)], [("B", 5, 0, 9, True), ("B", 6, 0, 9, False)]
    assert made("A") == a
    assert made("B") == b
    for shard in RUN.shard_names:
        assert made(shard) == [(party, at_s, rate / 2, *rest) for party, at_s, rate, *rest in a + b]
    assert made("A/0") == []


def test_a_change_is_made_to_the_link_that_connections_use() -> None:
    wiring = wire(RUN, "B")
    uplink = wiring.peers["global/0"][0].uplink
    assert uplink is wiring.peers["global/1"][0].uplink
    for _, make in wiring.changes:
        assert make.func.__self__ is uplink


class Plain:
    """A channel that carries bytes and imitates nothing."""

    def __init__(self, edge: EdgeSettings) -> None:
        self.edge = edge

    dial = listen = None


def test_a_description_names_a_channel_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(Plain=Plain))
    run = Run.parse(PLAIN, "plain.toml", ("wan.channel=mine:Plain",))
    wiring = wire(run, "A")
    channel, _ = wiring.peers["global/0"]
    assert isinstance(channel, Plain)
    assert channel.edge.seed == run.run.seed
    assert isinstance(wire(run, "global/0").listening.channel, Plain)
    assert isinstance(wiring.listening.channel, Tcp)


@pytest.mark.parametrize("key", ["wan.link={rate_mbps=10}", "wan.pace_mbps=10"])
@pytest.mark.parametrize("node", ["A", "global/0"])
def test_a_channel_that_imitates_nothing_has_no_link(
    key: str, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(Plain=Plain))
    run = Run.parse(PLAIN, "plain.toml", ("wan.channel=mine:Plain", key))
    with pytest.raises(ConfigError, match=r'wan\.channel: found "mine:Plain"; .* does not support link'):
        wire(run, node)
