"""What a description says of a run: its keys, nodes, addresses, and what nodes must agree on."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from config_runs import TWO_PARTIES, two_parties
from pydantic import ValidationError

from geomx.config import AGREED, AGREED_OF_EACH, LinkTable, PartyTable, Run, describe
from geomx.config.reading.fields import TABLES, as_table, keys
from geomx.errors import ConfigError

# -- what is allowed -----------------------------------------------------------------------------------


def test_a_run_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        two_parties().wan.codec_up = "mine:Codec"


def test_a_run_made_in_python_must_hold_together_too():
    with pytest.raises(ConfigError, match=r"party\[1\]\.name"):
        Run(run={"name": "r"}, party=[PartyTable(name="A", workers=1), PartyTable(name="A", workers=2)])


# -- nodes ---------------------------------------------------------------------------------------------


def test_an_unknown_party_is_answered_with_the_nearest_name():
    run = two_parties("party.B.name=paris")
    for ask in (run.party, run.workers_of, run.link_of):
        with pytest.raises(ConfigError, match=r"no party `pariss`.*did you mean `paris`"):
            ask("pariss")


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


@pytest.mark.parametrize(
    ("events", "cuts"),
    [
        ('{at_s = 1, party = "A", delay_ms = 5, cut = false}', []),  # changes nothing
        (
            '{at_s = 1, party = "A", cut = true}, {at_s = 3, party = "A", cut = false}',
            [(1, True), (3, False)],
        ),
    ],
)
def test_a_link_is_changed_by_what_is_new_and_a_later_event_may_heal_a_cut(events, cuts):
    changes = two_parties("wan.link={delay_ms = 5}", f"event=[{events}]").link_changes_of("A")
    assert [(change.at_s, change.link.cut) for change in changes] == cuts


def test_addresses_are_filled_in():
    run = two_parties(
        "run.shards=2", "party.A.address=localhost:1", "party.A.listen=127.0.0.2:1", "run.script=train.py"
    )
    assert run.addresses == {"global/0": "", "global/1": "", "A": "localhost:1", "B": ""}
    with pytest.raises(ConfigError, match=r"party\.B\.address: found nothing"):
        run.address_of("B")
    whole = run.with_addresses({"global/0": "localhost:2", "global/1": "localhost:3", "B": "localhost:4"})
    assert [whole.address_of(node)[-1] for node in whole.addresses] == ["2", "3", "1", "4"]
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
    with pytest.raises(ConfigError, match="no server `A/0`"):  # a worker has none
        run.address_of("A/0")


def test_a_shard_has_several_addresses_where_others_stand_by():
    run = two_parties(
        "run.shards=2", "run.on_loss=wait", "store.url=file:///tmp/run",
        'global.addresses=[["localhost:1", "localhost:2"], ["localhost:3"]]',
        'global.listen=[["127.0.0.2:1", "127.0.0.2:2"], "127.0.0.2:3"]',
    )  # fmt: skip
    moved = run.with_addresses({"global/0": "localhost:9"})
    assert (run.addresses["global/0"], run.addresses["global/1"]) == ("localhost:1", "localhost:3")
    assert moved.addresses_of("global/0") == ("localhost:9", "localhost:2")
    assert [run.listen_address_of("global/0", place) for place in (0, 1)] == ["127.0.0.2:1", "127.0.0.2:2"]
    assert run.addresses_of("global/1") == ("localhost:3",)


def test_whoever_comes_later_describes_the_same_run_and_itself():
    settings = ["run.on_loss=continue", "run.open=true"]
    table = '{name = "guest-2", workers = 2, address = "localhost:9"}'
    run = two_parties(*settings)
    parties = ", ".join(
        [*(f'{{name = "{party.name}", workers = {party.workers}}}' for party in run.parties), table]
    )
    guest = two_parties(*settings, f"party=[{parties}]")
    assert guest.manifest() == run.manifest()
    assert guest.open_tree.workers == run.open_tree.workers
    assert guest.workers_of("guest-2") == ("guest-2/0", "guest-2/1")
    assert set(run.workers).isdisjoint(run.open_tree.guests)
    assert two_parties().open_tree.guests == frozenset()


@pytest.mark.parametrize(
    "addresses",
    [{"B": "h"}, {"C": "localhost:1"}, {"A": "localhost:1", "B": "localhost:1"}, {"global/0": "localhost:1"}],
)
def test_addresses_are_validated(addresses):
    with pytest.raises(ConfigError):
        two_parties("run.shards=2").with_addresses(addresses)


# -- agreement -----------------------------------------------------------------------------------------

OF_A_REGION = {
    "parent": "south",
    "address": "127.0.0.9:5",
    "listen": "127.0.0.9:6",
    "link": "{loss = 0.9}",
    "pace_mbps": "9",
    "address_wan": "127.0.0.9:9",
    "listen_wan": "127.0.0.9:10",
    "neighbours": '["B"]',
    "below": '{codec_up = "other:Codec"}',
}
OF_A_SITE = {
    "engine": "other:Engine",
    "hosts": '["other"]',
    "workers_each": "9",
    "python": "python9",
    "setup": '["true"]',
    "folder": "/var/geomx",
    "restart": "{ most = 1 }",
}
SITES = ['site=[{party = "A", serves = ["global"], engine = "slurm"}, {party = "B", engine = "local"}]']
REGIONS = ['region=[{name = "north"}, {name = "south"}]', "party.A.parent=north", "party.B.parent=south"]
OTHER_VALUES = {
    "run.name": "other",
    "run.script": "other.py",
    "run.arguments": '["other"]',
    "run.files": '["other/*"]',
    "run.seed": "9",
    "run.shards": "3",
    "run.secret_file": "other.secret",
    "run.on_nonfinite": "skip",
    "run.on_loss": "wait",
    "run.wait_s": "60",
    "run.least_parties": "2",
    "run.least_workers": "2",
    "run.open": "true",
    "run.replicas": 1,
    "run.calls": "true",
    "run.table_classes": '["other:Rule"]',
    "run.ledger": "true",
    "run.strict": "true",
    "run.preset": "slow-link",
    "sync.policy": "other:Policy",
    "sync.weight": "equal",
    "sync.quorum": "0.5",
    "sync.grace_s": "9",
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
    "party.A.address_wan": "127.0.0.9:5",
    "party.A.listen_wan": "127.0.0.9:6",
    "party.A.neighbours": '["B"]',
    "party.A.worker_addresses": '["127.0.0.9:7", "127.0.0.9:8"]',
    "run.overlay": "ring",
    "lan.overlay": "ring",
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
    "store.url": "file:///var/lib/run",
    "store.every_s": 30.0,
    "store.lease_s": 9.0,
    "store.keep_mb": 64.0,
    **{f"site[0].{key}": value for key, value in OF_A_SITE.items()},
    **{f"tls.{key}": "other.pem" for key in ("certificate", "key", "authority", "revoked")},
    "tls.hosts": "false",
}
# What else has to be there for a value to be valid; it is the same in both runs that are compared.
TOGETHER = {
    "run.arguments": ["run.script=train.py"],
    "run.wait_s": ["run.on_loss=wait"],
    "run.least_parties": ["run.on_loss=continue"],
    "run.least_workers": ["run.on_loss=continue"],
    "run.open": ["run.on_loss=continue"],
    "run.replicas": ["run.on_loss=wait", "run.shards=2"],
    "global.listen": ['global.addresses=["localhost:1"]'],
    "party.A.listen": ["party.A.address=localhost:2"],
    "party.A.dataset_size": ["sync.weight=dataset_size", "party.A.dataset_size=1", "party.B.dataset_size=1"],
    "party.A.parent": [*REGIONS, "region.north.parent=south", "party.B.parent=north"],
    **{f"region.north.{key}": REGIONS for key in OF_A_REGION},
    "sync.grace_s": ["sync.quorum=0.5"],
    **{f"party.A.{key}": ["run.overlay=trees"] for key in ("address_wan", "neighbours")},
    "party.A.listen_wan": ["run.overlay=trees", "party.A.address_wan=127.0.0.9:5"],
    "party.A.worker_addresses": ["lan.overlay=trees"],
    "store.url": ["run.on_loss=wait"],
    **{f"store.{key}": ["store.url=s3://bucket/run", "run.on_loss=wait"] for key in ("every_s", "keep_mb")},
    "store.lease_s": [
        "store.url=s3://bucket/run",
        "run.on_loss=wait",
        'global.addresses=[["localhost:1", "localhost:2"]]',
    ],
    **{f"site[0].{key}": ["run.on_loss=continue", *SITES] for key in OF_A_SITE},
    **{f"region.north.{key}": [*REGIONS, "run.overlay=trees"] for key in ("address_wan", "neighbours")},
    "region.north.listen_wan": [*REGIONS, "run.overlay=trees", "region.north.address_wan=127.0.0.9:9"],
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


def test_other_values_are_known_for_every_key_so_that_each_can_be_given():
    every = {f"{name}.{key}" for name, table in TABLES.items() for key in keys(table)}
    every.remove("region.name")  # something hangs on each region, and names it
    every -= {"site.party", "site.serves"}  # each node has one site
    assert {re.sub(r"\.A\.|\.north\.|\[0\]\.", ".", key) for key in OTHER_VALUES} == every


@pytest.mark.parametrize("key", OTHER_VALUES)
def test_the_manifest_differs_exactly_where_nodes_must_agree(key):
    together = TOGETHER.get(key, [])
    before = two_parties(*together)
    after = two_parties(*together, f"{key}={OTHER_VALUES[key]}")
    agreed = {*AGREED, *(f"party.A.{name}" for name in (*AGREED_OF_EACH["party"], "name")), "run.preset"}
    agreed |= {"store.url", "party.A.address_wan", "party.A.neighbours", "party.A.worker_addresses"}
    agreed |= {f"region.north.{name}" for name in ("parent", "below", "neighbours", "address_wan")}
    assert before != after
    assert (before.manifest() != after.manifest()) == (key in agreed)


def test_a_partys_pace_is_shared_by_its_connections_to_the_shards():
    assert two_parties().pace_mbps_of("A") == 0
    run = two_parties("wan.pace_mbps=95", "party.B.pace_mbps=20", "run.shards=2")
    assert (run.pace_mbps_of("A"), run.pace_mbps_of("B")) == (47.5, 10)
    assert two_parties("wan.pace_mbps=95", "party.B.pace_mbps=0").pace_mbps_of("B") == 0


def test_a_manifest_is_flat_and_has_the_order_of_the_parties():
    manifest = two_parties().manifest()
    assert manifest["party"] == "A, B"
    assert (manifest["party.A.workers"], manifest["party.B.workers"]) == (2, 1)
    assert all(isinstance(value, str | int | float | bool | None) for value in manifest.values())


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


def test_the_reference_is_made_from_this_code(monkeypatch):
    monkeypatch.setattr("sys.argv", ["make_configuration.py", "--check"])
    script = Path(__file__).parents[2] / "docs" / "make_configuration.py"
    assert runpy.run_path(str(script))["main"]() == 0


def test_a_policy_that_weighs_all_workers_alike_says_so():
    assert "every worker counts the same" in describe(two_parties("sync.policy=esync"))
    assert "weight by samples" in describe(two_parties("sync.policy=esync equal=false"))
    assert "weight by samples" in describe(two_parties("sync.policy=hfa"))
