"""What a description makes of a node's edges."""

from __future__ import annotations

from geomx.config import Run
from geomx.drive.wiring import wire

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
