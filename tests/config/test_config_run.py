"""What a description says of a run: its keys, nodes, addresses, and what nodes must agree on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from config_runs import TWO_PARTIES, two_parties
from pydantic import ValidationError

from geomx.config import (
    AGREED,
    AGREED_OF_EACH,
    LinkTable,
    PartyTable,
    Run,
    describe,
)
from geomx.config.reading.fields import TABLES, as_table, keys
from geomx.errors import ConfigError

# -- what is allowed -----------------------------------------------------------------------------------


def test_one_party_is_a_whole_description():
    run = Run.parse('[[party]]\nname = "A"\nworkers = 1', "folder/cnn.toml")
    assert run.run.name == "cnn"
    assert (run.run.shards, run.sync.policy, run.sync.weight, run.optimizer.place) == (
        1,
        "fsa",
        "samples",
        "auto",
    )
    assert (run.wan.timeout_s, run.lan.timeout_s, run.wan.link, run.run.script) == (15.0, 5.0, None, None)


def test_every_key_can_be_given():
    text = """
    [run]
    name = "all.keys-1"
    script = "train.py"
    arguments = ["--epochs", "3"]
    seed = 7
    shards = 2
    secret_file = "all.secret"
    ledger = true
    [sync]
    policy = "my.policies:Patient"
    weight = "dataset_size"
    [optimizer]
    place = "workers"
    compensation = "dcasgd strength=0.1"
    [worker]
    overlap = "forward"
    push_at = "step"
    threads = 2
    [layout]
    slice_elements = 4096
    pack_below = 1
    [global]
    addresses = ["127.0.0.3:9000", "[fe80::1]:9001"]
    listen = ["127.0.0.2:9000", "127.0.0.2:9001"]
    [wan]
    codec_up = "mine:Sparse"
    codec_down = "dense"
    congestion = "bbr"
    pace_mbps = 95
    heartbeat_s = 2
    timeout_s = 6
    link = { rate_mbps = 100, delay_ms = 20, jitter_ms = 2.5, loss = 0.01 }
    [lan]
    link = { delay_ms = 1 }
    [limits]
    start_s = 1
    stall_s = 2
    stop_s = 3
    turn_s = 600
    [tls]
    certificate = "node.pem"
    key = "/keys/node.key"
    authority = "authority.pem"
    [[party]]
    name = "A"
    workers = 3
    address = "node-1.example:7000"
    listen = "127.0.0.2:7000"
    pace_mbps = 90
    worker_delay = { factor = 4, jitter = 0.2 }
    dataset_size = 1000
    link = {}
    parent = "europe"
    [[region]]
    name = "europe"
    address = "node-2.example:7000"
    listen = "127.0.0.2:7001"
    pace_mbps = 80
    link = { delay_ms = 9 }
    below = { codec_up = "fp16" }
    [[event]]
    at_s = 30
    party = "A"
    for_s = 20
    rate_mbps = 5
    delay_ms = 40
    jitter_ms = 1
    loss = 0.1
    cut = false
    """
    run = Run.parse(text, "/runs/all.toml")
    assert run.run.script == Path("/runs/train.py")
    assert (run.tls.certificate, run.tls.key) == (Path("/runs/node.pem"), Path("/keys/node.key"))
    assert run.wan.link == LinkTable(rate_mbps=100.0, delay_ms=20.0, jitter_ms=2.5, loss=0.01)
    assert run.parties[0].dataset_size == 1000
    written = run.as_dict()
    written |= {name: written[name][0] for name in ("party", "region", "event")}
    assert {name: set(table) for name, table in written.items()} == {
        name: set(keys(table)) for name, table in TABLES.items()
    }


def test_a_run_cannot_be_changed():
    run = two_parties()
    with pytest.raises(ValidationError, match="frozen"):
        run.wan.codec_up = "mine:Codec"


def test_a_run_made_in_python_must_hold_together_too():
    with pytest.raises(ConfigError, match=r"party\[1\]\.name"):
        Run(run={"name": "r"}, party=[PartyTable(name="A", workers=1), PartyTable(name="A", workers=2)])


def test_reading_a_description_does_not_import_torch():
    code = "import sys, geomx.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- nodes ---------------------------------------------------------------------------------------------


def test_nodes_have_names():
    run = two_parties("run.shards=2")
    assert run.workers == ("A/0", "A/1", "B/0")
    assert run.workers_of("A") == ("A/0", "A/1")
    assert run.servers == ("A", "B")
    assert run.shard_names == ("global/0", "global/1")
    assert run.party("B") is run.parties[1]


def test_an_unknown_party_is_answered_with_the_nearest_name():
    run = two_parties("party.A.name=berlin", "party.B.name=paris")
    for ask in (run.party, run.workers_of, run.link_of):
        with pytest.raises(ConfigError, match=r"no party `pariss`.*did you mean `paris`"):
            ask("pariss")


def test_a_party_has_its_own_link_or_that_of_the_wan():
    run = two_parties("wan.link.rate_mbps=100", "party.B.link.delay_ms=5")
    assert run.link_of("A") == LinkTable(rate_mbps=100.0)
    assert run.link_of("B") == LinkTable(delay_ms=5.0)
    assert two_parties().link_of("A") is None


EVENTS = """
wan.link = { rate_mbps = 100, delay_ms = 20 }
event = [
    { at_s = 30, for_s = 20, party = "B", rate_mbps = 5 },
    { at_s = 30, for_s = 30, party = "A", delay_ms = 1 },
    { at_s = 40, for_s = 30, party = "B", delay_ms = 50 },
    { at_s = 40, for_s = 2, party = "B", cut = true },
    { at_s = 60, party = "B", rate_mbps = 9, jitter_ms = 3 },
]
"""


def test_events_lie_upon_each_other_and_show_again_what_they_covered():
    run = Run.parse(EVENTS + TWO_PARTIES, "two.toml")
    assert [(change.at_s, change.link.words) for change in run.link_changes_of("B")] == [
        (30, "5 Mbit/s, 20 ms one way"),
        (40, "cut"),
        (42, "5 Mbit/s, 50 ms one way"),
        (50, "100 Mbit/s, 50 ms one way"),
        (60, "9 Mbit/s, 50 ± 3 ms one way"),
        (70, "9 Mbit/s, 20 ± 3 ms one way"),
    ]
    assert [(change.party, change.at_s) for change in run.link_changes_of("A")] == [("A", 30), ("A", 60)]
    assert two_parties().link_changes_of("A") == ()


def test_an_event_that_changes_nothing_is_no_change():
    overrides = ["wan.link={delay_ms = 5}", 'event=[{at_s = 1, party = "A", delay_ms = 5, cut = false}]']
    assert two_parties(*overrides).link_changes_of("A") == ()


def test_a_later_event_may_heal_a_cut():
    text = 'event = [{at_s = 1, party = "A", cut = true}, {at_s = 3, party = "A", cut = false}]'
    run = Run.parse(f"wan.link = {{}}\n{text}\n{TWO_PARTIES}", "two.toml")
    assert [(change.at_s, change.link.cut) for change in run.link_changes_of("A")] == [(1, True), (3, False)]


def test_addresses_are_filled_in():
    run = two_parties(
        "run.shards=2", "party.A.address=localhost:1", "party.A.listen=127.0.0.2:1", "run.script=train.py"
    )
    assert run.addresses == {"global/0": "", "global/1": "", "A": "localhost:1", "B": ""}
    with pytest.raises(ConfigError, match=r"party\.B\.address: found nothing"):
        run.address_of("B")
    whole = run.with_addresses({"global/0": "localhost:2", "global/1": "localhost:3", "B": "localhost:4"})
    assert [whole.address_of(node) for node in whole.addresses] == [
        "localhost:2",
        "localhost:3",
        "localhost:1",
        "localhost:4",
    ]
    assert (whole.listen_address_of("A"), whole.listen_address_of("B")) == ("127.0.0.2:1", "localhost:4")
    assert whole.manifest() == run.manifest()
    assert whole.run == run.run
    assert run.addresses["B"] == ""


def test_settings_are_changed_as_on_the_command_line():
    run = two_parties("run.shards=2", "party.B.link={delay_ms = 5}")
    other = run.changed(
        ["sync.policy=hfa k1=2 k2=3", "wan.codec_up=int8", "party.B.link={}", "party[0].workers=7"]
    )
    assert (other.sync.policy, other.wan.codec_up, other.party("A").workers) == ("hfa k1=2 k2=3", "int8", 7)
    assert other.link_of("B") == LinkTable()
    assert (run.sync.policy, run.run, other.run) == ("fsa", run.run, run.run)
    with pytest.raises(ConfigError, match=r"run\.shards"):
        run.changed(["run.shards=0"])


def test_a_shard_listens_where_it_is_told_to():
    run = two_parties('global.addresses=["localhost:1"]', 'global.listen=["127.0.0.2:2"]')
    assert (run.address_of("global/0"), run.listen_address_of("global/0")) == ("localhost:1", "127.0.0.2:2")


@pytest.mark.parametrize(
    "addresses",
    [{"B": "h"}, {"C": "localhost:1"}, {"A": "localhost:1", "B": "localhost:1"}, {"global/0": "localhost:1"}],
)
def test_addresses_are_validated(addresses):
    with pytest.raises(ConfigError):
        two_parties("run.shards=2").with_addresses(addresses)


def test_a_worker_has_no_address():
    with pytest.raises(ConfigError, match="no server `A/0`"):
        two_parties().address_of("A/0")


# -- agreement -----------------------------------------------------------------------------------------

OF_A_REGION = {
    "parent": "south",
    "address": "127.0.0.9:5",
    "listen": "127.0.0.9:6",
    "link": "{loss = 0.9}",
    "pace_mbps": "9",
    "below": '{codec_up = "other:Codec"}',
}
REGIONS = ['region=[{name = "north"}, {name = "south"}]', "party.A.parent=north", "party.B.parent=south"]
OTHER_VALUES = {
    "run.name": "other",
    "run.script": "other.py",
    "run.arguments": '["other"]',
    "run.seed": "9",
    "run.shards": "3",
    "run.secret_file": "other.secret",
    "run.on_nonfinite": "skip",
    "run.on_loss": "wait",
    "run.wait_s": "60",
    "run.least_parties": "2",
    "run.least_workers": "2",
    "run.ledger": "true",
    "run.strict": "true",
    "run.preset": "slow-link",
    "sync.policy": "other:Policy",
    "sync.weight": "equal",
    "sync.buffers": "average",
    "optimizer.place": "workers",
    "optimizer.rule": "rules:Mine",
    "optimizer.compensation": "dcasgd",
    "party.A.worker_delay": "{factor = 4.0}",
    "worker.overlap": "forward",
    "worker.push_at": "step",
    "worker.threads": "9",
    "layout.slice_elements": "9",
    "layout.pack_below": "9",
    "global.addresses": '["127.0.0.9:1"]',
    "global.listen": '["127.0.0.9:2"]',
    "party.A.name": "other",
    "party.A.workers": "9",
    "party.A.address": "127.0.0.9:3",
    "party.A.listen": "127.0.0.9:4",
    "party.A.link": "{loss = 0.9}",
    "party.A.dataset_size": "9",
    "party.A.inside": "collective",
    "party.A.pace_mbps": "9",
    "party.A.parent": "south",
    **{f"region.north.{key}": value for key, value in OF_A_REGION.items()},
    "wan.pace_mbps": "9",
    "event[0].party": "B",
    "event[0].cut": "false",
    **{f"event[0].{key}": "0.9" for key in ("at_s", "for_s", "rate_mbps", "delay_ms", "jitter_ms", "loss")},
    **{f"{tier}.codec_{way}": "other:Codec" for tier in ("wan", "lan") for way in ("up", "down")},
    **{f"{tier}.channel": "other:Channel" for tier in ("wan", "lan")},
    **{f"{tier}.congestion": "reno" for tier in ("wan", "lan")},
    **{f"{tier}.heartbeat_s": "0.9" for tier in ("wan", "lan")},
    **{f"{tier}.timeout_s": "99" for tier in ("wan", "lan")},
    **{f"{tier}.link": "{loss = 0.9}" for tier in ("wan", "lan")},
    **{f"limits.{key}": "9" for key in ("start_s", "stall_s", "stop_s", "turn_s")},
    **{f"tls.{key}": "other.pem" for key in ("certificate", "key", "authority")},
}
# What else has to be there for a value to be valid; it is the same in both runs that are compared.
TOGETHER = {
    "run.arguments": ["run.script=train.py"],
    "run.wait_s": ["run.on_loss=wait"],
    "run.least_parties": ["run.on_loss=continue"],
    "run.least_workers": ["run.on_loss=continue"],
    "global.listen": ['global.addresses=["localhost:1"]'],
    "party.A.listen": ["party.A.address=localhost:2"],
    "party.A.dataset_size": ["sync.weight=dataset_size", "party.A.dataset_size=1", "party.B.dataset_size=1"],
    "party.A.parent": [*REGIONS, "region.north.parent=south", "party.B.parent=north"],
    **{f"region.north.{key}": REGIONS for key in OF_A_REGION},
    "region.north.listen": [*REGIONS, "region.north.address=localhost:3"],
    **{
        f"tls.{key}": [f"tls.{k}=a.pem" for k in ("certificate", "key", "authority")]
        for key in keys(TABLES["tls"])
    },
    **{
        f"event[0].{key}": ["wan.link={}", 'event=[{at_s = 1, for_s = 1, party = "A", cut = true}]']
        for key in keys(TABLES["event"])
    },
}


def test_other_values_are_known_for_every_key():
    every = {f"{name}.{key}" for name, table in TABLES.items() for key in keys(table)}
    every.remove("region.name")  # something hangs on each region, and names it
    assert {re.sub(r"\.A\.|\.north\.|\[0\]\.", ".", key) for key in OTHER_VALUES} == every


@pytest.mark.parametrize("key", OTHER_VALUES)
def test_the_manifest_differs_exactly_where_nodes_must_agree(key):
    together = TOGETHER.get(key, [])
    before = two_parties(*together)
    after = two_parties(*together, f"{key}={OTHER_VALUES[key]}")
    agreed = {*AGREED, *(f"party.A.{name}" for name in (*AGREED_OF_EACH["party"], "name")), "run.preset"}
    agreed |= {"region.north.parent", "region.north.below"}
    assert before != after
    assert (before.manifest() != after.manifest()) == (key in agreed)


def test_a_partys_pace_is_shared_by_its_connections_to_the_shards():
    assert two_parties().pace_mbps_of("A") == 0
    run = two_parties("wan.pace_mbps=95", "party.B.pace_mbps=20", "run.shards=2")
    assert (run.pace_mbps_of("A"), run.pace_mbps_of("B")) == (47.5, 10)
    assert two_parties("wan.pace_mbps=95", "party.B.pace_mbps=0").pace_mbps_of("B") == 0


def test_a_manifest_is_flat():
    manifest = two_parties().manifest()
    assert manifest["party"] == "A, B"
    assert (manifest["party.A.workers"], manifest["party.B.workers"]) == (2, 1)
    assert all(isinstance(value, str | int | float | bool | None) for value in manifest.values())


def test_nodes_must_agree_on_the_order_of_the_parties():
    swapped = Run.parse(json.dumps({"party": two_parties().as_dict()["party"][::-1]}), "two.json")
    assert two_parties().manifest()["party"] != swapped.manifest()["party"]


# -- for people ----------------------------------------------------------------------------------------


def test_the_tree_is_drawn():
    run = two_parties(
        "run.shards=2",
        'global.addresses=["localhost:1", "localhost:2"]',
        "party.B.workers=5",
        "wan.link={rate_mbps = 100, delay_ms = 20, jitter_ms = 2.5, loss = 0.01}",
        "party.B.link={delay_ms = 5}",
        "wan.codec_up=my:Codec",
        "lan.channel=my:Channel",
        "optimizer.rule=my:Rule",
        'event=[{at_s = 30, for_s = 2.5, party = "B", cut = true}]',
    )
    assert describe(run) == (
        "two: 2 shards, 2 parties, 7 workers\n"
        "policy fsa, weight by samples, optimizer auto by my:Rule\n"
        "\n"
        "global/0  localhost:1\n"
        "global/1  localhost:2\n"
        "├── A  a free port  [up my:Codec, down dense; 100 Mbit/s, 20 ± 2.5 ms one way, loss 1 %]\n"
        "│   ├── A/0  [up dense, down as above; over my:Channel]\n"
        "│   └── A/1  [up dense, down as above; over my:Channel]\n"
        "└── B  a free port  [up my:Codec, down dense; any rate, 5 ms one way]\n"
        "    └── B/0 … B/4  [up dense, down as above; over my:Channel]\n"
        "\n"
        "B from 30 s on: cut\n"
        "B from 32.5 s on: any rate, 5 ms one way"
    )


def test_every_key_has_a_description():
    fields = [field for table in (*TABLES.values(), LinkTable) for field in keys(table).values()]
    assert all(field.description or as_table(field.annotation) for field in fields)


def test_the_reference_is_made_from_this_code():
    command = [sys.executable, str(Path(__file__).parents[2] / "docs" / "make_configuration.py"), "--check"]
    assert subprocess.run(command, check=False, capture_output=True, text=True).stderr == ""


def test_a_policy_that_weighs_all_workers_alike_says_so():
    assert "every worker counts the same" in describe(two_parties("sync.policy=esync"))
    assert "weight by samples" in describe(two_parties("sync.policy=esync equal=false"))
    assert "weight by samples" in describe(two_parties("sync.policy=hfa"))
