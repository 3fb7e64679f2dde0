"""The ways of an overlay, drawn and compared by the links of a description."""

from __future__ import annotations

import pytest

from geomx.config import Run
from geomx.config.compatibility.choice_rules import check_choices
from geomx.errors import ConfigError
from geomx.launch.overlay_tables import compared, drawing

PARTIES = '[[party]]\nname = "a"\nworkers = 3\n[[party]]\nname = "b"\nworkers = 3\n[[party]]\nname = "c"\nworkers = 3\n'
LINKS = "wan.link = { rate_mbps = 100, delay_ms = 10 }\n"


def run_of(text: str, parties: str = PARTIES) -> Run:
    return Run.parse(text + LINKS + parties, "run.toml")


def test_a_ring_is_drawn_as_a_chain_for_each_party_both_ways() -> None:
    lines = drawing(run_of('run.overlay = "ring"\n')).splitlines()
    assert lines[0] == "ring, between parties:"
    assert lines[1] == "way 1 of 3, 33% of the bytes"
    assert [line.split() for line in lines[2:7]] == [
        ["sums", "updates"],
        ["global/0", "global/0"],
        ["└──", "a", "└──", "a"],
        ["└──", "c", "└──", "b"],
        ["└──", "b", "└──", "c"],
    ]


def test_trees_keep_the_star_where_the_global_servers_link_has_no_bound() -> None:
    run = run_of('run.overlay = "trees"\nlan.overlay = "binary-blocks"\n')
    assert "no table is faster" in drawing(run)
    assert "inside a, and each party like it" in drawing(run)
    assert "way 2 of" in drawing(run, hub_mbps=100.0).partition("inside")[0]


def test_overlays_are_compared_where_parties_share_a_link() -> None:
    run = run_of('run.overlay = "trees"\n', PARTIES + '[[party]]\nname = "d"\nworkers = 1\n')
    seconds = compared(run, 8e6, 8e6, 100.0)
    assert seconds["star"] == pytest.approx(8 * 4 * 8e6 / 100e6, rel=0.1)
    assert seconds["trees"] < 0.6 * seconds["star"]
    assert "butterfly" in seconds


def test_who_cannot_be_dialled_is_named() -> None:
    apart = PARTIES.replace('name = "c"', 'name = "c"\nneighbours = ["global"]')
    with pytest.raises(
        ConfigError, match=r"nothing may pass from node (b|c) to node (b|c|a)|from (a|b|c) to"
    ):
        drawing(run_of('run.overlay = "ring"\n', apart))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('run.overlay = "butterfly"\n', "with 3 members; allowed: 2, 4, 8"),
        ('run.overlay = "trees"\nsync.policy = "mixed"\n', "parties do not wait for each other"),
        ('run.overlay = "trees"\nwan.channel = "datagram"\n', "goes from a node to its parent alone"),
        ('run.overlay = "ts greed=2"\n', "greed"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_choices(run_of(text))
