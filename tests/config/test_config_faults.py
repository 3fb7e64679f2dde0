"""Every fault of a description is named, at once and in its place."""

from __future__ import annotations

import re

import pytest
from config_runs import TWO_PARTIES, faults_of, places_of

from geomx.config import Run
from geomx.errors import ConfigError

EVERYTHING_WRONG = '''\
wam = 3  # <- wam
[run]
sript = "train.py"  # <- run.sript
shards = 2
seed = -1  # <- run.seed
arguments = [  # <- run.arguments[1]
    "a # b",
    2,
]
notes = """  # <- run.notes
[sync]
policy = "fsaa"
"""
[sync]
policy = "fsaa"  # <- sync.policy
weight = "dataset_size"
[wnn]  # <- wnn
codec_up = "dense"
[global]
addresses = ["localhost:1", "localhost:2", "localhost:3"]  # <- global.addresses
[tls]  # <- tls.key  # <- tls.authority
certificate = "c.pem"
[wan]
codec_upp = "dense"  # <- wan.codec_upp
congestion = "BBR"  # <- wan.congestion
heartbeat_s = 5
timeout_s = 14.9  # <- wan.timeout_s
"link" . "loss" = 1.0  # <- wan.link.loss
[lan]
heartbeat_s = inf  # <- lan.heartbeat_s
link = { rate_mbps = -2, delay_ms = "3" }  # <- lan.link.rate_mbps  # <- lan.link.delay_ms

[[party]]
name = "A"
workers = 0  # <- party[0].workers
dataset_size = 5
[[ party ]]  # <- party[1].workers  # <- party[1].dataset_size
name = "A"  # <- party[1].name
address = "localhost:1"  # <- party[1].address
  [ party . 'link' ]
  rate_mbps = true  # <- party[1].link.rate_mbps
[[party]]
name = "global"  # <- party[2].name
workers = 2.0  # <- party[2].workers
listen = "localhost:5"  # <- party[2].listen
dataset_size = 5
'''
CUT = "{at_s = 1, party = 'A', cut = true}"


def test_every_fault_is_named_at_once_with_its_key_and_line():
    expected = [
        f"{key} (line {number})"
        for number, line in enumerate(EVERYTHING_WRONG.split("\n"), 1)
        for key in re.findall(r"# <- (\S+)", line)
    ]
    with pytest.raises(ConfigError) as caught:
        Run.parse(EVERYTHING_WRONG, "wrong.toml")
    faults, message = caught.value.faults, str(caught.value)
    assert sorted(fault.where for fault in faults) == sorted(expected)
    lines = [int(re.search(r"line (\d+)", fault.where)[1]) for fault in faults]
    assert lines == sorted(lines)
    assert message.startswith(f"wrong.toml: {len(faults)} faults\n")
    assert all(str(fault) in message for fault in faults)


@pytest.mark.parametrize(
    ("line", "where", "found", "hint"),
    [
        ('[wnn]\ncodec_up = "dense"', "wnn", "an unknown table", "did you mean `wan`?"),
        ("run.shard = 2", "run.shard", "an unknown key", "did you mean `shards`?"),
        (
            "wan.rate_mbps = 3", "wan.rate_mbps", "an unknown key",
            "there is `party.link.rate_mbps`, `region.link.rate_mbps`, `region.below.link.rate_mbps`, "
            "`wan.link.rate_mbps`, `lan.link.rate_mbps`, `event.rate_mbps`",
        ),
        ("run.xyz = 3", "run.xyz", "an unknown key", ""),
        ('sync.policy = "fsaa"', "sync.policy", '"fsaa"', "did you mean `fsa`?"),
        ('lan.codec_down = "Dense"', "lan.codec_down", '"Dense"', "did you mean `dense`?"),
        ('worker.push_at = "steps"', "worker.push_at", '"steps"', "did you mean `step`?"),
        ('worker.push_at = "whenever"', "worker.push_at", '"whenever"', ""),
        ("worker.push_at = 1", "worker.push_at", "1", ""),
    ],
)  # fmt: skip
def test_a_typo_is_answered_with_the_nearest_name(line, where, found, hint):
    (fault,) = faults_of(f"# a run\n{line}\n{TWO_PARTIES}")
    assert (fault.where, fault.found, fault.hint) == (f"{where} (line 2)", found, hint)


@pytest.mark.parametrize(
    ("on_loss", "line", "allowed"),
    [
        ("stop", "wait_s = 60", 'only with run.on_loss = "wait" or "continue"'),
        ("stop", "least_parties = 2", 'only with run.on_loss = "continue"'),
        ("wait", "least_workers = 2", 'only with run.on_loss = "continue"'),
        ("continue", "least_parties = 3", "2 or fewer: the run has no more parties"),
        ("continue", "least_workers = 4", "3 or fewer: the run has no more workers"),
        ("stop", "wait_s = 300\nleast_parties = 1", ""),  # their defaults
        ("wait", "wait_s = 0.5", ""),
        ("continue", "wait_s = 9\nleast_parties = 2\nleast_workers = 3", ""),
    ],
)
def test_what_losses_need_goes_with_what_happens_at_one(on_loss: str, line: str, allowed: str) -> None:
    text = f'[run]\non_loss = "{on_loss}"\n{line}\n{TWO_PARTIES}'
    if not allowed:
        Run.parse(text, "run.toml")
        return
    (fault,) = faults_of(text)
    key, _, value = line.partition(" = ")
    assert (fault.where, fault.found, fault.allowed) == (f"run.{key} (line 3)", value, allowed)


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("run.ledger = 1", "true or false"),
        ("run.name = 3", "1 to 64 letters, digits, `_`, `.` and `-`, not beginning with `.` or `-`"),
        ('run.script = ""', "path of a file"),
        ('run.arguments = "--fast"', "list of text"),
        ("wan.link = {loss = 1}", "number ≥ 0, ≤ 0.9"),
        ('wan.link = {}\nevent = [{at_s = 1, party = "A"}]', "`rate_mbps`, `delay_ms`, `jitter_ms`, `loss`, `cut`"),
        ("wan.link = 100", "table of `rate_mbps`, `delay_ms`, `jitter_ms`, `loss`"),
        (
            'sync.policy = "my policy:Class"',
            '"fsa", "mixed", "hfa", "esync", "diloco", "downpour", or your own as "module:Class", '
            "with parameters as `staleness=4` behind it",
        ),
        ('global.addresses = ["host:65536"]', 'list of "host:port", or a list of several'),
        ('sync.weight = "samples "', '"samples", "equal", "dataset_size"'),
    ],
)  # fmt: skip
def test_a_fault_says_what_is_allowed(line, allowed):
    (fault,) = faults_of(line + TWO_PARTIES)
    assert fault.allowed == allowed


@pytest.mark.parametrize("text", ["", "party = []", "party = 3", '[party]\nname = "A"\nworkers = 1'])
def test_a_run_has_a_party(text):
    (fault,) = faults_of(text)
    assert fault.allowed == "1 to 128 `[[party]]` tables"


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (['global.addresses=["localhost:1"]', 'global.listen=["localhost:1", "localhost:2"]'], ["global.listen"]),
        (['global.listen=["localhost:1"]'], ["global.listen"]),
        (['global.addresses=["localhost:1"]', "party.B.address=localhost:1"], ["party[1].address"]),
        (["run.shards=2", 'global.addresses=["localhost:1", "localhost:1"]'], ["global.addresses[1]"]),
        (["sync.weight=dataset_size", "party.B.dataset_size=9"], ["party[0].dataset_size"]),
        (["party.A.dataset_size=9"], ["party[0].dataset_size"]),
        (["wan.heartbeat_s=5.1"], ["wan.timeout_s"]),
        (['run.arguments=["--fast"]'], ["run.arguments"]),
        (['event=[{at_s = 1, party = "A", loss = 0}]'], ["event[0].party"]),
        (["party.B.link={}", 'event=[{at_s = 1, party = "A", loss = 0}]'], ["event[0].party"]),
        (["wan.link={}", 'event=[{at_s = 1, party = "a", loss = 0}]'], ["event[0].party"]),
        (["wan.link={}", 'event=[{at_s = 1, party = "A", for_s = 1}]'], ["event[0]"]),
        (["wan.link={}", "event=[{at_s=2, party='A', loss=0}, {at_s=1, party='A', loss=0}]"], ["event[1].at_s"]),
        (["wan.link={}", f"event=[{CUT}, {{at_s = 2, party = 'B', cut = false}}]"], ["event[0].for_s"]),
        (["wan.link={}", f"event=[{CUT}, {{at_s = 2, for_s = 1, party = 'A', cut = false}}]"], ["event[0].for_s"]),
    ],
)  # fmt: skip
def test_keys_that_contradict_each_other_are_faults(overrides, keys):
    assert [re.sub(r" \(.*", "", place) for place in places_of(TWO_PARTIES, *overrides)] == keys


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('run.shrds = 2\nglobal.addresses = ["localhost:1", "localhost:2"]', "run.shrds"),
        ('run.shards = 0\nglobal.addresses = ["localhost:1", "localhost:2"]', "run.shards"),
        ('sync.wieght = "equal"\nparty = [{name = "A", workers = 1, dataset_size = 1}]', "sync.wieght"),
        ('snyc.weight = "equal"\nparty = [{name = "A", workers = 1, dataset_size = 1}]', "snyc"),
        ('tls.certificate = "c"\ntls.key = "k"\ntls.authorty = "a"', "tls.authorty"),
        ("lan.timeout_s = 1\nlan.hartbeat_s = 0.1", "lan.hartbeat_s"),
        (
            'party = [{name = "A", workers = 1, listen = "localhost:1", adress = "localhost:1"}]',
            "party[0].adress",
        ),
        ('run.arguments = ["a"]\nrun.script = 3', "run.script"),
        ('event = [{at_s = -1, party = "A", loss = 0}]\nwan.link = {}', "event[0].at_s"),
        ('event = [{at_s = 1, party = "A", los = 0}]\nwan.link = {}', "event[0].los"),
        ('event = [{at_s = 1, party = "A", cut = true, for_s = 0}]\nwan.link = {}', "event[0].for_s"),
        ('event = [{at_s = 1, party = "A", loss = 0}]\nwan.lnk = {}', "wan.lnk"),
    ],
)
def test_a_fault_does_not_make_others_out_of_thin_air(text, key):
    (fault,) = faults_of(text if "party = [" in text else text + TWO_PARTIES)
    assert fault.where.startswith(f"{key} (")
