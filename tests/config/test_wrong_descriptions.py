"""Descriptions as users get them wrong: what each is told, and at which key."""

from __future__ import annotations

import pytest
from config_runs import TWO_PARTIES

from geomx.config import Run
from geomx.errors import ConfigError

CYRILLIC_A = "\u0410"
NO_BREAK_SPACE = "\u00a0"
EVENT = 'wan.link = {}\nevent = [{at_s = 1, party = "A", %s}]'
STORE = 'run.on_loss = "wait"\nstore.url = "file:///tmp/run"'
PARTY = 'party = [{name = "A", workers = 1, %s}]'

# One line of a description, or one with parties; the key that is told; what is told of it.
WRONG = [
    # numbers that are no numbers, or far from any run's
    ("run.shards = 100000", "run.shards", "integer ≥ 1, ≤ 128"),
    ("run.shards = 1.0", "run.shards", "found 1.0"),
    ("run.shards = 0x" + 5000 * "f", "run.shards", "a number of thousands of digits"),
    ("run.wait_s = 0", "run.wait_s", "number > 0, ≤ 604800"),
    ("run.seed = 1979-05-27", "run.seed", 'found "1979-05-27"'),
    ("wan.heartbeat_s = 1e-9", "wan.heartbeat_s", "number ≥ 0.01, ≤ 3600"),
    ("wan.timeout_s = -inf", "wan.timeout_s", "found -Infinity"),
    ("wan.timeout_s = 1" + 400 * "0", "wan.timeout_s", "≤ 86400"),
    ('wan.timeout_s = "15 s"', "wan.timeout_s", 'found "15 s"'),
    ("wan.link.rate_mbps = 1e-300", "wan.link.rate_mbps", "0, or number ≥ 0.001, ≤ 1000000"),
    # names
    ('run.name = ".."', "run.name", "not beginning with `.` or `-`"),
    ('run.name = "a\\u0007b"', "run.name", "it has the character U+0007"),
    (f'run.name = "{300 * "n"}"', "run.name", "it has 300 characters"),
    (f'party = [{{name = "{300 * "n"}", workers = 1}}]', "party[0].name", "it has 300 characters"),
    ('party = [{name = "A/0", workers = 1}]', "party[0].name", 'found "A/0"'),
    ('party = [{name = "Global", workers = 1}]', "party[0].name", "and not `global`"),
    (f'party = [{{name = "{CYRILLIC_A}", workers = 1}}]', "party[0].name", "CYRILLIC CAPITAL LETTER A"),
    (
        'party = [{name = "a", workers = 1}, {name = "A", workers = 1}]',
        "party[1].name", "it is the name of party[0] `a` but for upper and lower case",
    ),
    ('party = [{name = "A", workers = 1}, {name = "A", workers = 1}]', "party[1].name", "of party[0])"),
    # addresses
    (PARTY % 'address = "999.1.1.1:7000"', "party[0].address", "`999.1.1.1` is no IPv4 address"),
    (PARTY % 'address = "fe80::1:7000"', "party[0].address", "in brackets: `[fe80::1]:7000`"),
    (PARTY % 'address = "[fe80::g]:7000"', "party[0].address", "`fe80::g` is no IPv6 address"),
    (PARTY % 'address = "host"', "party[0].address", "the port is missing: `host:7000`"),
    (PARTY % 'address = ":7000"', "party[0].address", "the host is missing"),
    (PARTY % 'address = "host:0"', "party[0].address", "a port is 1 to 65535"),
    (PARTY % 'address = "host:http"', "party[0].address", "a port is 1 to 65535"),
    (PARTY % 'address = "http://host:7000"', "party[0].address", "leave out `http://`"),
    (PARTY % 'address = "a..b:7000"', "party[0].address", "`a..b` is no name of a host"),
    (PARTY % f'address = "{64 * "h"}:7000"', "party[0].address", "is no name of a host"),
    (PARTY % 'address = "0.0.0.0:7000"', "party[0].address", "nobody can dial it: give it as `listen`"),
    (PARTY % f'address = "host{NO_BREAK_SPACE}:7000"', "party[0].address", "U+00A0, NO-BREAK SPACE"),
    ('global.addresses = [""]', "global.addresses[0]", "it is empty"),
    ('global.addresses = [["host:1", "host"]]', "global.addresses[0]", "the port is missing: `host:7000`"),
    ("run.open = true", "run.open", "only with run.on_loss = `continue`"),
    ("run.replicas = 1\nrun.on_loss = 'wait'", "run.replicas", "with several global servers"),
    ("store.every_s = 9.0", "store.every_s", "only with store.url or run.replicas"),
    ("store.keep_mb = 9.0", "store.keep_mb", "only with store.url or run.replicas"),
    ("store.lease_s = 9.0", "store.lease_s", "only where a global server has several addresses"),
    ("sync.grace_s = 9.0", "sync.grace_s", "only with sync.quorum below 1"),
    # overlays
    (PARTY % 'address_wan = "127.0.0.1:1"', "party[0].address_wan", "only with run.overlay"),
    (PARTY % 'neighbours = ["global"]', "party[0].neighbours", "only with run.overlay"),
    (PARTY % 'worker_addresses = ["127.0.0.1:1"]', "party[0].worker_addresses", "only with lan.overlay"),
    ('run.overlay = "ring"\n' + PARTY % 'listen_wan = "127.0.0.1:1"', "party[0].listen_wan", "give `address_wan`"),
    ('run.overlay = "ring"\n' + PARTY % 'neighbours = ["Z"]', "party[0].neighbours", "another party or region"),
    ('run.overlay = "rings"', "run.overlay", "did you mean `ring`?"),
    (
        "run.on_loss = 'wait'\nglobal.addresses = [['localhost:1', 'localhost:2']]\n"
        "store = {url = 's3://b/r', lease_s = 300.0}",
        "store.lease_s",
        "less than run.wait_s = 300",
    ),
    ("run.replicas = 1\nrun.shards = 2\nrun.on_loss = 'wait'\nstore.url = 'file:///x'", "run.replicas", "one of"),
    ("run.replicas = 1\nrun.shards = 2", "run.replicas", "only with run.on_loss = `wait` or `continue`"),
    (
        'run = {open = true, on_loss = "continue"}\nparty = [{name = "guest-1", workers = 9}]', "party[0].workers",
        "8 or fewer, of a party that comes later",
    ),
    (
        'global.addresses = [["localhost:1", "localhost:2"]]', "global.addresses[0]",
        "one, or store.url, from which another",
    ),
    (
        f'{STORE}\nglobal.addresses = [["localhost:1", "127.0.0.1:1"]]', "global.addresses[0]",
        "it is the address of global/0",
    ),
    (
        'global = {addresses = ["localhost:1"], listen = [["localhost:1", "localhost:2"]]}', "global.listen[0]",
        "1, one for each of `addresses`",
    ),
    ('global.addresses = "host:7000"', "global.addresses", 'found "host:7000"'),
    (
        'global.addresses = ["localhost:7000"]\nparty = [{name = "A", workers = 1, address = "127.0.0.1:7000"}]',
        "party[0].address", "it is the address of global/0",
    ),
    (
        'global.addresses = ["[::1]:7000"]\nparty = [{name = "A", workers = 1, address = "[0:0::1]:7000"}]',
        "party[0].address", "it is the address of global/0",
    ),
    # choices
    ('wan.codec_up = "topkk ratio=0.1"', "wan.codec_up", "did you mean `topk`?"),
    ('wan.codec_up = "topk ratio = 0.1"', "wan.codec_up", "without spaces around `=`"),
    ('wan.codec_up = "topk 0.1"', "wan.codec_up", 'found "0.1"; allowed: parameters as `ratio=0.01`'),
    ('wan.codec_up = "mine.Codec"', "wan.codec_up", "did you mean `mine:Codec`?"),
    ('wan.codec_up = "./mine/codecs.py:Sparse"', "wan.codec_up", "did you mean `mine.codecs:Sparse`?"),
    (f'wan.codec_up = "topk {300 * "r"}=1"', "wan.codec_up", "at most 200 characters"),
    ('lan.codec_down = "wan ratio=0.1"', "lan.codec_down", "`wan` without parameters"),
    ('optimizer.rule = "SGD"', "optimizer.rule", 'your own as "module:Class"'),
    # keys and tables
    ("[runn]\nseed = 1", "runn", "did you mean `run`?"),
    ("layout.size_lower_bound = 9", "layout.size_lower_bound", "parameter of codecs, as in `mpq size_lower_bound=2"),
    ("layout.size_lower_bound = 9", "layout.size_lower_bound", "which tensors share slices is `layout.pack_below`"),
    ("[[parties]]\nname = 1", "parties", "did you mean `party`?"),
    ("[[run]]\nseed = 1", "run", "allowed: table of `name`"),
    ("wan = 100", "wan", "found 100"),
    ("[link.C]\nrate_mbps = 1", "link", "there is `party.link`, `region.link`, `region.below.link`, `wan.link`"),
    ('run.script = "train.py"\nrun.arguments = ["a\\u0000b"]', "run.arguments[0]", "U+0000"),
    (EVENT.replace('"A"', '"C"') % "loss = 0.1", "event[0].party", "no party `C`"),
    # what is no TOML
    ("run.ledger = True", "line 1", "write `true` and `false` in lower case"),
    ("run.name = paris", "line 1", 'put text in "quotes"'),
    ("run.name = \u201cparis\u201d", "line 1", "LEFT DOUBLE QUOTATION MARK"),
    (f"run.seed{NO_BREAK_SPACE}= 1", "line 1", "U+00A0, NO-BREAK SPACE"),
    ("run.seed = 1" + 5000 * "0", "the file", "digits"),
    ("run.arguments = " + 5000 * "[" + 5000 * "]", "the file", "brackets within brackets"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "key", "piece"), WRONG, ids=[f"{key}-{piece[:30]}" for _, key, piece in WRONG]
)
def test_a_wrong_description_is_told_at_its_key(text: str, key: str, piece: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Run.parse(text if "party = [" in text else text + TWO_PARTIES, "run.toml")
    (fault,) = caught.value.faults
    assert fault.where.partition(" (")[0] == key
    assert piece in str(fault)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("party.A.address=host_1.example.:7000", "host_1.example.:7000"),
        ("party.A.address=[fe80::1%eth0]:7000", "[fe80::1%eth0]:7000"),
        ("party.A.address=10.0.0.255:1", "10.0.0.255:1"),
        ("wan.link.rate_mbps=0.001", 0.001),
        ("wan.codec_up=  topk   ratio=0.5 ", "topk ratio=0.5"),
        (f"party.A.name={32 * 'n'}", 32 * "n"),
    ],
)
def test_what_is_near_to_wrong_is_right(text: str, kept: object) -> None:
    run = Run.parse(TWO_PARTIES, "run.toml", [text, "run.secret_file=s"])
    values = (
        run.parties[0].address,
        run.wan.link and run.wan.link.rate_mbps,
        run.wan.codec_up,
        run.servers[0],
    )
    assert kept in values
