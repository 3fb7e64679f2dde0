"""Regions in a description: who hangs on whom, what is refused, and what it comes to."""

from __future__ import annotations

import pytest
from config_runs import faults_of

from geomx.config import Run, describe
from geomx.config.compatibility.choice_rules import check_choices
from geomx.drive.wiring import wire
from geomx.errors import ConfigError
from geomx.node.topology import Topology

THREE_TIERS = """
[wan]
codec_up = "int4"
codec_down = "int4"
link = { rate_mbps = 100, delay_ms = 40 }
[[region]]
name = "europe"
below = { codec_up = "fp16", link = { rate_mbps = 1000, delay_ms = 5 } }
[[region]]
name = "alps"
parent = "europe"
below = { codec_down = "dense" }
[[party]]
name = "A"
parent = "europe"
workers = 2
[[party]]
name = "B"
parent = "alps"
workers = 1
link = { rate_mbps = 10 }
[[party]]
name = "C"
workers = 1
"""


def run_of(*overrides: str) -> Run:
    return Run.parse(THREE_TIERS, "three.toml", overrides)


def test_the_tree_is_that_of_the_description() -> None:
    tree = run_of("run.shards=2").tree
    assert {name: tree.parents(name) for name in tree.servers} == {
        "europe": ("global/0", "global/1"),
        "alps": ("europe",),
        "A": ("europe",),
        "B": ("alps",),
        "C": ("global/0", "global/1"),
    }
    assert tree.workers == ("A/0", "A/1", "B/0", "C/0")


def test_each_edge_has_the_codecs_of_the_table_above_it_or_passes_on_what_comes() -> None:
    topology = Topology.of(run_of())
    found = {
        name: (edge.codec_up, edge.codec_down, edge.passes)
        for name, edge in (
            (name, topology.below(name)) for name in ("global/0", "europe", "alps", "A", "B", "C")
        )
    }
    assert found == {
        "global/0": ("int4", "int4", False),
        "europe": ("fp16", "int4", True),
        "alps": ("dense", "dense", False),
        "A": ("dense", "int4", True),
        "B": ("dense", "dense", True),
        "C": ("dense", "int4", True),
    }


def test_a_server_s_link_leads_to_its_parent() -> None:
    run = run_of("run.shards=2", "region.europe.pace_mbps=30", "wan.pace_mbps=50")
    links = {name: run.link_of(name) for name in run.tree.servers}
    assert [link and link.rate_mbps for link in links.values()] == [100, 1000, 1000, 10, 100]
    assert [run.pace_mbps_of(name) for name in run.tree.servers] == [15, 0, 0, 0, 25]


def test_every_node_has_its_wiring() -> None:
    run = run_of("run.shards=2")
    run = run.with_addresses({node: f"127.0.0.1:{7000 + place}" for place, node in enumerate(run.addresses)})
    dialled = {name: sorted(wire(run, name).peers) for name in run.tree.nodes}
    assert dialled["europe"] == ["global/0", "global/1"]
    assert dialled["alps"] == dialled["A"] == ["europe"]
    assert dialled["B"] == ["alps"]
    assert dialled["B/0"] == ["B"]
    assert dialled["global/1"] == ["global/0"]


def test_nodes_agree_on_regions() -> None:
    manifest, other = run_of().manifest(), run_of("region.europe.below.codec_up=int8").manifest()
    assert {key for key in manifest if manifest[key] != other[key]} == {"region.europe.below.codec_up"}
    assert manifest["party.B.parent"] == "alps"


def test_the_drawing_shows_who_hangs_on_whom() -> None:
    assert describe(run_of()).splitlines()[3:] == [
        "global/0  a free port",
        "├── europe  a free port  [up int4, down int4; 100 Mbit/s, 40 ms one way]",
        "│   ├── alps  a free port  [up fp16, down as above; 1000 Mbit/s, 5 ms one way]",
        "│   │   └── B  a free port  [up dense, down dense; 10 Mbit/s, 0 ms one way]",
        "│   │       └── B/0  [up dense, down as above]",
        "│   └── A  a free port  [up fp16, down as above; 1000 Mbit/s, 5 ms one way]",
        "│       ├── A/0  [up dense, down as above]",
        "│       └── A/1  [up dense, down as above]",
        "└── C  a free port  [up int4, down int4; 100 Mbit/s, 40 ms one way]",
        "    └── C/0  [up dense, down as above]",
    ]


@pytest.mark.parametrize(
    ("overrides", "key", "piece"),
    [
        (["party.A.parent=europa"], "party[0].parent", "no region `europa`; allowed: `europe`, `alps` (did you mean"),
        (["party.A.parent=B"], "party[0].parent", "no region `B`"),
        (["party.B.parent="], "region[1].name", 'give a party `parent = "alps"`, or leave the region out'),
        (["region.europe.parent=alps"], "region[0].parent", "europe → alps → europe"),
        (["region.alps.parent=alps"], "region[1].parent", "alps → alps"),
        (["region.alps.name=A"], "region[1].name", "it is the name of party[0]"),
        (["region.alps.name=EUROPE"], "region[1].name", "but for upper and lower case"),
        (["region.alps.name=global"], "region[1].name", "and not `global`"),
        (["region.alps.below.timeout_s=2"], "region[1].below.timeout_s", "3 × region[1].below.heartbeat_s"),
        (["region.alps.below.codec_up=wan"], "region[1].below.codec_up", "allowed"),
        (["region.alps.listen=0.0.0.0:7000"], "region[1].listen", "only together with `address`"),
        (["region.alps.address=10.0.0.1:7000", "party.A.address=10.0.0.1:7000"], "region[1].address", "an address of"),
    ],
)  # fmt: skip
def test_a_region_that_cannot_be_is_told_at_its_key(overrides: list[str], key: str, piece: str) -> None:
    found = [fault for fault in faults_of(THREE_TIERS, *overrides) if fault.where.partition(" (")[0] == key]
    assert any(piece in str(fault) for fault in found), faults_of(THREE_TIERS, *overrides)


def test_events_may_be_of_a_region_that_has_an_emulated_link() -> None:
    event = 'event=[{{at_s = 1, party = "{}", loss = 0.1}}]'
    assert run_of(event.format("europe")).link_changes_of("europe")
    assert run_of(event.format("alps")).link_changes_of("alps")
    without_link = "party[1]={name='B', parent='alps', workers=1}"
    (fault,) = faults_of(THREE_TIERS, event.format("B"), without_link)
    assert "which has no emulated link" in str(fault)


def test_hfa_has_no_more_periods_than_the_tree_has_tiers() -> None:
    for periods in ("k1=2 k2=2", "k1=2 k2=2 k3=2", "k1=2 k2=2 k3=2 k4=2"):
        check_choices(run_of(f"sync.policy=hfa {periods}", "run.on_loss=continue"))
    flat = Run.parse(THREE_TIERS, "three.toml", ["region=[]", *(f"party.{name}.parent=" for name in "AB")])
    check_choices(flat.changed(["sync.policy=hfa k1=2 k2=2"]))
    with pytest.raises(ConfigError, match=r"averages of 2 tiers at most \(this tree has 2 tiers"):
        check_choices(flat.changed(["sync.policy=hfa k1=2 k2=2 k3=2"]))
