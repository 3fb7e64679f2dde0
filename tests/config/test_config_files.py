"""How a description is read: files, the lines of their keys, overrides, what is saved."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from config_runs import TWO_PARTIES, faults_of, places_of, two_parties
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.config import LinkTable, Run
from geomx.config.reading.document import MOST_BYTES, read_text, read_toml
from geomx.config.reading.fields import TABLES, keys
from geomx.config.reading.overrides import literal
from geomx.errors import ConfigError, Fault

# -- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where", "found"),
    [
        ("[run]\nseed 3\n", "line 2", '"seed 3"'),
        ("[run]\nseed = 3\nseed = 4\n[sync]", "line 3", '"seed = 4"'),
        ("[run]\narguments = [1,\n", "end of the file", '"arguments = [1,"'),
        ('run.name = "a', "end of the file", '"run.name = \\"a"'),
    ],
)
def test_a_fault_of_syntax_names_its_line(text, where, found):
    (fault,) = faults_of(text)
    assert (fault.where, fault.found, fault.allowed) == (where, found, "TOML")


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"run": }'])
def test_a_saved_run_must_be_a_json_object(text):
    (fault,) = faults_of(text, source="run.json")
    assert "JSON" in fault.allowed


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[run]\n\xff", "byte 6 is no UTF-8"),
        (TWO_PARTIES.encode("utf-16"), r"a text in UTF-16; allowed: .*\(save it as UTF-8\)"),
        (None, "a file that can be read"),
    ],
)
def test_what_is_no_text_is_a_fault_that_says_so(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "run.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=told):
        Run.load(path)


def test_a_file_whose_name_is_no_name_for_a_run_needs_one(tmp_path):
    path = tmp_path / "my run.toml"
    path.write_text(TWO_PARTIES)
    with pytest.raises(ConfigError, match=r"run\.name \(from the file's name\)"):
        Run.load(path)
    assert Run.load(path, ["run.name=mine"]).run.name == "mine"


@pytest.mark.parametrize("slip", ["exmples/demo.toml", "examples/dmo.toml", "exampels/demo.tmol"])
def test_a_file_that_is_not_there_is_a_fault_with_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slip: str
) -> None:
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "demo.toml").touch()
    (tmp_path / "examples" / "other.toml").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        Run.load(slip)
    (fault,) = caught.value.faults
    assert (fault.found, fault.hint) == (
        "No such file or directory",
        "did you mean `examples/demo.toml`?",
    )


def test_a_byte_order_mark_is_no_part_of_a_description(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TWO_PARTIES.strip(), encoding="utf-8-sig")
    assert Run.load(tmp_path / "run.toml").servers == ("A", "B")


def test_a_file_is_not_read_that_is_too_long_for_a_description() -> None:
    with pytest.raises(ConfigError, match=f"more than {MOST_BYTES >> 20} MiB"):
        read_text(Path(os.devnull).with_name("zero"))


def test_paths_are_relative_to_the_folder_of_the_file(tmp_path, monkeypatch):
    tls = 'tls = { certificate = "node.pem", key = "/keys/node.key", authority = "a.pem" }'
    (tmp_path / "run.toml").write_text(f'run.script = "train.py"\n{tls}{TWO_PARTIES}')
    monkeypatch.chdir(tmp_path.parent)
    run = Run.load(Path(tmp_path.name) / "run.toml")
    assert (run.run.script, run.tls.certificate) == (tmp_path / "train.py", tmp_path / "node.pem")
    assert run.tls.key == Path("/keys/node.key")


numbers = st.just(0) | st.floats(0.001, 60_000)
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,7}", fullmatch=True).filter(
    lambda name: name.lower() != "global"
)
links = st.fixed_dictionaries(
    {}, optional={"rate_mbps": numbers, "delay_ms": numbers, "jitter_ms": numbers, "loss": st.floats(0, 0.9)}
)
edges = st.fixed_dictionaries({}, optional={"link": links, "congestion": st.sampled_from(["bbr", "reno"])})
parties = st.fixed_dictionaries({"name": names, "workers": st.integers(1, 9)}, optional={"link": links})
descriptions = st.fixed_dictionaries(
    {"party": st.lists(parties, min_size=1, max_size=4, unique_by=lambda party: party["name"].lower())},
    optional={
        "run": st.fixed_dictionaries(
            {"script": st.just("train.py")},
            optional={
                "arguments": st.lists(st.text(st.characters(exclude_characters="\0"), max_size=9)),
                "shards": st.integers(1, 4),
            },
        ),
        "wan": edges,
        "lan": edges,
    },
)


@examples(10)
@given(descriptions)
def test_what_is_saved_is_loaded_again(tmp_path_factory, description):
    run = Run.parse(json.dumps(description), "run.json")
    path = tmp_path_factory.getbasetemp() / "elsewhere.json"
    run.save(path)
    again = Run.load(path)
    assert again == run
    assert again.manifest() == run.manifest()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
all_keys = sorted({key for table in TABLES.values() for key in keys(table)})
nonsense = st.dictionaries(
    st.sampled_from(sorted(TABLES)),
    st.dictionaries(st.sampled_from(all_keys), anything)
    | st.lists(st.dictionaries(st.sampled_from(all_keys), anything), max_size=3)
    | anything,
)


@examples(30)
@given(nonsense)
def test_nonsense_is_answered_with_faults_and_nothing_else(data):
    faults = faults_of(json.dumps({**data, "nonsense": 1}), source="run.json")
    assert any(fault.where == "nonsense" for fault in faults)


noise = st.sampled_from(["", "\n", "  # [run]\n", "\t\n# x = 1\n"])
values = st.sampled_from(["1", "[\n 1, # [a]\n 2,\n]", '"""\n[wan]\nx = 1\n"""', "'#'", "[{a = 1}, {a = 2}]"])
blocks = st.lists(
    st.tuples(st.lists(st.tuples(noise, values), max_size=3), st.sampled_from(["[[p]]", "[[p.q]]"]), noise),
    min_size=1,
    max_size=6,
)


@given(blocks)
def test_every_key_is_found_in_its_line(drawn):
    text, expected, outer, inner = "[[p]]\n", {("p", 0): 1}, 0, -1
    for pairs, header, before in drawn:
        outer, inner = (outer + 1, -1) if header == "[[p]]" else (outer, inner + 1)
        table = ("p", outer) if header == "[[p]]" else ("p", outer, "q", inner)
        text += before
        expected[table] = text.count("\n") + 1
        text += f"{header}\n"
        for number, (between, value) in enumerate(pairs):
            text += between
            expected[*table, f"k{number}"] = text.count("\n") + 1
            text += f"k{number} = {value}\n"
    places = read_toml(text, "p.toml").places
    assert {path: places[path] for path in expected} == expected


# -- overrides -----------------------------------------------------------------------------------------


def test_overrides_change_what_is_validated():
    run = two_parties(
        "run.seed=1",
        "run.seed = 2",
        "wan.link.rate_mbps=20",
        "party.A.workers=3",
        "party[1].workers=4",
        "party.B.link={delay_ms = 5}",
        "worker.overlap=forward",
        "run.name='quoted'",
        "run.script=train.py",
        'run.arguments=["--lr", "0.1"]',
        "run.arguments[1]=a=b # c",
    )
    assert run.run.seed == 2
    assert run.wan.link == LinkTable(rate_mbps=20.0)
    assert [party.workers for party in run.parties] == [3, 4]
    assert run.link_of("B") == LinkTable(delay_ms=5.0)
    assert (run.worker.overlap, run.run.name) == ("forward", "quoted")
    assert run.run.arguments == ("--lr", "a=b # c")


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("run.shards=none", "run.shards"),
        ("wan.link.rate_mpbs=20", "wan.link.rate_mpbs"),
        ("party.A.workers=0", "party[0].workers"),
        ("wan.link={rate_mbps=-1}", "wan.link.rate_mbps"),
        ("lan=", "lan"),
    ],
)
def test_a_fault_of_an_override_names_the_override(override, where):
    """Also of keys that the file has, in a table that is replaced."""
    assert places_of("[wan.link]\nrate_mbps = 3\n" + TWO_PARTIES, override) == [
        f"{where} (override `{override}`)"
    ]


@pytest.mark.parametrize(
    ("override", "found", "allowed", "hint"),
    [
        ("workers", "no key with a value", "`key=value`, such as `wan.link.rate_mbps=20`", ""),
        ("wan..link=3", "no key with a value", "`key=value`, such as `wan.link.rate_mbps=20`", ""),
        ("party.a.workers=3", "no party.a", "party.A, party.B", "did you mean `A`?"),
        ("party.AA.workers=3", "no party.AA", "party.A, party.B", "did you mean `A`?"),
        ("party[2].workers=3", "no party[2]", "party[0] to [1]", ""),
        ("party.A.name.x=3", 'party[0].name is "A"', "a key inside a table", ""),
        ("run[0]=3", "run is a table", "a key", ""),
    ],
)
def test_an_override_that_cannot_be_applied_is_a_fault(override, found, allowed, hint):
    assert faults_of(TWO_PARTIES, override) == (Fault(f"override `{override}`", found, allowed, hint),)


def test_faults_of_overrides_and_of_the_file_are_named_together():
    places = places_of("run.seed = -1" + TWO_PARTIES, "no", "sync.policy=fsb")
    assert places == ["run.seed (line 1)", "sync.policy (override `sync.policy=fsb`)", "override `no`"]


@given(
    st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.floats(allow_nan=False) | st.lists(st.integers())
)
def test_a_toml_value_is_read_as_such(value):
    assert literal(json.dumps(value).replace("Infinity", "inf")) == value


@pytest.mark.parametrize(
    "text", ["?", "?x = 1", "train.py", "a b", "9" * 5000, "[" * 5000 + "]" * 5000, "1\nother = 2", "]"]
)
def test_what_is_no_toml_value_or_more_than_one_is_text(text):
    assert literal(text) == text


steps = st.sampled_from(["party", "A", "[0]", "[1]", "wan", "link", "name", "workers"])
paths = st.lists(steps, min_size=1, max_size=4).map(lambda drawn: ".".join(drawn).replace(".[", "["))


@examples(30)
@given(st.lists(st.builds("{}={}".format, paths, st.text() | st.sampled_from(["1", "[]", "{}", "[{}, 3]"]))))
def test_any_override_is_applied_or_a_fault(overrides):
    assert "override `no value`" in places_of(TWO_PARTIES, *overrides, "no value")
