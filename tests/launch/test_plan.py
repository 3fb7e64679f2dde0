"""`geomx plan`, as a user calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from geomx.channels.contract import EdgeSettings
from geomx.channels.tcp import Tcp
from geomx.cli import BAD_USAGE, FAILED, OK, main
from geomx.launch.planning.plan import ALGORITHMS, CODECS
from geomx.observe.costs import Memory
from geomx.sync import policies

TOML = """
[run]
script = "train_to_plan.py"
[sync]
policy = "hfa k1=2 k2=3"
[wan]
codec_up = "int8"
codec_down = "int4"
link = { rate_mbps = 10, delay_ms = 20 }
[[party]]
name = "A"
workers = 2
[[party]]
name = "B"
workers = 1
link = { rate_mbps = 5, delay_ms = 50 }
worker_delay = { factor = 3.0 }
"""
SCRIPT = """
import time, torch, geomx
torch.set_num_threads(1)
run = geomx.join()
model = torch.nn.Linear(50, 40)
model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.01))
while True:  # until there is enough to see
    run.weight(4)
    optimizer.zero_grad()
    model(torch.randn(4, 50)).square().mean().backward()
    optimizer.step()
"""
MODEL = """
import torch
def make():
    return torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Linear(50, 10))
"""
ONE = ["--algorithm", "fsa", "--codec", "dense"]
# Nobody is lost, or ended, because the machine is busy.
PATIENT = ["wan.timeout_s=120", "lan.timeout_s=120", "limits.stop_s=120"]
GIVEN = ["--parameters", "100000", "--step-ms", "50"]


@pytest.fixture(autouse=True)
def _beside_a_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.toml").write_text(TOML)
    (tmp_path / "train_to_plan.py").write_text(SCRIPT)
    (tmp_path / "model_to_plan.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    # What the machine has to spare now is not what these tests are about; `geomx inspect codec` measures it.
    monkeypatch.setattr("geomx.launch.planning.plan.memory_of", lambda: Memory(5e9, 5e9))


def predictions(*arguments: str) -> dict[str, Any]:
    assert main(["plan", "run.toml", *arguments, "--json", "out/plan.json"]) == OK
    found: dict[str, Any] = json.loads(Path("out/plan.json").read_text())
    return found


def test_the_fastest_comes_first_and_every_pair_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    rows = predictions(*GIVEN)["predictions"]
    # The description's own, too, and the preset's.
    assert len(rows) == (len(ALGORITHMS) + 1) * (len(CODECS) + 1) + 1
    assert [row["step_s"] for row in rows] == sorted(row["step_s"] for row in rows)
    assert rows[0]["of_best"] == 1.0
    described = [(row["algorithm"], row["codec_up"], row["codec_down"]) for row in rows if row["described"]]
    assert described == [("hfa k1=2 k2=3", "int8", "int4")]
    printed = capsys.readouterr().out
    for words in ("100,000 parameters", "5 Mbit/s, 100 ms there and back", "int8; int4", "Accuracy is not"):
        assert words in printed
    for trade in ("then are averaged (inside a party every 2 steps)", "1 % of the entries a round"):
        assert trade in " ".join(printed.split())


def test_what_is_asked_for_is_compared() -> None:
    rows = predictions(
        *GIVEN, "--algorithm", "diloco every=7", "--algorithm", "mixed", "--codec", "fp16; int4"
    )
    assert {row["algorithm"] for row in rows["predictions"]} == {"diloco every=7", "mixed"}
    assert {(row["codec_up"], row["codec_down"]) for row in rows["predictions"]} == {("fp16", "int4")}
    assert rows["predictions"][0]["party_steps"] == {"A": 7.0, "B": 7.0}


def test_parties_are_as_the_description_and_the_options_say() -> None:
    found = predictions(
        *ONE, *GIVEN, "--step-ms", "A=200", "party.A.link.delay_ms=7", "party.A.link.rate_mbps=8"
    )
    a, b = found["parties"]
    assert (a["compute_s"], b["compute_s"]) == (pytest.approx(0.2), pytest.approx(0.15))  # three times 50 ms
    assert (a["link"]["delay_ms"], b["link"]["delay_ms"]) == (7.0, 50.0)
    (row,) = found["predictions"]
    least = 8 * 400_000 / 5e6 + 0.1
    assert least + 0.1 < row["step_s"] < least + 0.4
    assert row["wan_bytes_up"] == pytest.approx(400_000, rel=0.02)


def test_a_model_or_an_earlier_report_gives_the_size() -> None:
    assert predictions(*ONE, "--step-ms", "5", "--model", "model_to_plan:make")["parameters"] == 5560
    times = {"compute_s_median": {"A/0": 0.1, "A/1": 0.3, "B/0": 0.2}, "backward_s_median": {"A/1": 0.1}}
    Path("report.json").write_text(json.dumps({"parameters": 777, **times}))
    found = predictions(*ONE, "--report", "report.json")
    assert found["parameters"] == 777
    assert [(party["compute_s"], party["backward_s"]) for party in found["parties"]] == [
        (0.3, 0.1),
        (0.2, pytest.approx(0.4 / 3)),
    ]


def test_what_does_not_go_with_the_description_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = predictions(*GIVEN, "--codec", "dense", "optimizer.place=workers")
    assert set(found["refused"]) == {"mixed", "downpour"}
    assert {"fsa", "hfa"} <= {row["algorithm"] for row in found["predictions"]}
    assert "Not with this run: mixed: optimizer.place" in capsys.readouterr().out


def report(parameters: int, steps: int, script: dict[str, Any]) -> None:
    """An earlier run's, whose workers all took 0.1 s a step."""
    told = {"parameters": parameters, "steps": steps, "script": script, "backward_s_median": {}}
    told["compute_s_median"] = dict.fromkeys(("A/0", "A/1", "B/0"), 0.1)
    Path("report.json").write_text(json.dumps(told))


def test_what_the_script_has_is_learnt_from_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Its steps, its optimizer and its clipping decide what it can have, and what it pays."""
    adam = {"optimizer": "AdamW", "keeps": "squares", "momentum": True, "elementwise": True, "clips": True}
    report(100_000, 90, adam)
    specs = ("dense", "bisparse ratio=0.01", "bisparse ratio=0.01 momentum=0.9; dense")
    codecs = [word for spec in specs for word in ("--codec", spec)]
    names = ("fsa", "hfa k1=50 k2=2", "hfa k1=5 k2=2")
    algorithms = [word for name in names for word in ("--algorithm", name)]
    found = predictions("--report", "report.json", *algorithms, *codecs)
    assert "averages every 100 steps, but a worker takes only 90" in found["refused"]["hfa k1=50 k2=2"]
    assert "has momentum, and so has AdamW" in found["refused"][f"fsa with {specs[2]}"]
    assert all(0 < row["computing"] <= 1 for row in found["predictions"])
    costs = {(row["algorithm"], row["codec_up"]): row["known_cost"] for row in found["predictions"]}
    assert "on gradients with AdamW" in costs["fsa", "bisparse ratio=0.01"]
    assert not costs["fsa", "dense"]
    assert "on gradients" not in costs["hfa k1=5 k2=2", "bisparse ratio=0.01"]
    assert "! Known to cost accuracy: wan.codec_up" in capsys.readouterr().out
    few = predictions("--report", "report.json", *algorithms[-2:], "--algorithm", "hfa k1=3 k2=1")
    costs = {row["algorithm"]: row["known_cost"] for row in few["predictions"]}
    assert not costs["hfa k1=3 k2=1"]
    assert "averages every 10 steps, 9 times in 90 steps" in costs["hfa k1=5 k2=2"]
    longer = predictions("--report", "report.json", "--steps", "600", *algorithms, *codecs)
    assert "hfa k1=50 k2=2" in {row["algorithm"] for row in longer["predictions"]}
    strict = predictions("--report", "report.json", "--strict", *algorithms, *codecs)
    assert ("fsa", "bisparse ratio=0.01") not in {
        (r["algorithm"], r["codec_up"]) for r in strict["predictions"]
    }


def test_means_that_are_clipped_where_they_arrive_are_faster_than_servers_that_wait_for_all() -> None:
    def step_s(clips: bool, *more: str) -> float:
        script = {"optimizer": "SGD", "keeps": "nothing", "elementwise": True, "clips": clips}
        report(1_000_000, 9, script)
        found = predictions(*ONE, "--report", "report.json", "sync.policy=fsa", *more)
        return float(found["predictions"][0]["step_s"])

    plain, on_workers = step_s(False), step_s(True)
    on_servers = step_s(True, "optimizer.place=server")
    assert on_workers == pytest.approx(plain, rel=0.05)
    assert on_servers > 1.3 * plain


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*GIVEN, "--steps", "0"], "--steps: found 0"),
        ([], "--parameters N, --model MODULE:FUNCTION, --measure or --report FILE"),
        (["--parameters", "10"], "--step-ms MS, --measure or --report FILE"),
        (["--parameters", "10", "--step-ms", "A=1"], "the seconds of a step in B"),
        (["--parameters", "10", "--step-ms", "C=1"], "--step-ms: found C=1"),
        (["--parameters", "10", "--step-ms", "fast"], "--step-ms: found fast"),
        (["--parameters", "0", "--step-ms", "1"], "allowed: 1 or more"),
        ([*GIVEN, "--algorithm", "fsb"], "fsb: found no sync policy of that name"),
        ([*GIVEN, "--algorithm", "hfa k1=0"], "k1: found 0"),
        ([*GIVEN, "--codec", "zip"], "zip: found no codec of that name"),
        ([*GIVEN, "--codec", "int8; int4; fp16"], "--codec: found int8; int4; fp16"),
        ([*GIVEN, "--json", "run.toml/plan.json"], "run.toml/plan.json"),
        (["--report", "nowhere.json"], "--report: found nowhere.json"),
        (["--report", "run.toml"], "what `geomx run --report` wrote"),
    ],
)
def test_mistakes_are_answered(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "run.toml", *arguments]) == BAD_USAGE
    assert said in capsys.readouterr().err


def test_a_network_that_nobody_has_described_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text('[[party]]\nname = "A"\nworkers = 1\n')
    assert main(["plan", "run.toml", *GIVEN]) == BAD_USAGE
    assert "party.A.link: found nothing; allowed: rate_mbps and delay_ms" in capsys.readouterr().err
    assert main(["plan", "run.toml", *ONE, *GIVEN, "wan.link.rate_mbps=50", "wan.link.delay_ms=5"]) == OK


def test_every_policy_of_geomx_is_compared() -> None:
    assert {spec.split()[0] for spec in ALGORITHMS} == set(policies.names)


@pytest.mark.processes
@pytest.mark.grids
def test_the_run_itself_is_measured_without_its_links() -> None:
    Path("run.toml").write_text(TOML.partition('[[party]]\nname = "B"')[0])
    found = predictions(*ONE, *PATIENT, "--measure", "party.A.workers=1", "wan.link.rate_mbps=0.001")
    assert found["parameters"] == 2040
    (party,) = found["parties"]
    assert 0.0 < party["backward_s"] <= party["compute_s"] < 60.0
    (row,) = found["predictions"]
    assert row["step_s"] > 8 * 4 * 2040 / 1e3  # over the link that was left out


@pytest.mark.processes
def test_a_script_that_fails_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train_to_plan.py").write_text("raise ValueError('no data')")  # before others have begun
    Path("run.toml").write_text(TOML.partition('[[party]]\nname = "B"')[0])
    assert main(["plan", "run.toml", *PATIENT, "--measure", "party.A.workers=1"]) == FAILED
    assert "ValueError: no data" in capsys.readouterr().err


def test_the_fastest_that_costs_no_accuracy_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    fast, exact = ("--codec", "bisparse ratio=0.01"), ("--codec", "int8")
    predictions(*GIVEN, "--algorithm", "fsa", *fast, *exact)
    assert "Fastest without !: fsa with int8, " in capsys.readouterr().out
    predictions(*GIVEN, "--algorithm", "fsa", *exact)
    assert "Fastest without" not in capsys.readouterr().out


# -- channels -------------------------------------------------------------------------------------------------------

LOSSY = ["wan.link.loss=0.01", "party.B.link.loss=0.01"]


class Odd(Tcp):
    """A channel of which plan knows nothing."""

    def __init__(self, edge: EdgeSettings) -> None:
        super().__init__(edge.link)


def test_channels_are_compared_where_a_link_loses_and_nowhere_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert predictions(*ONE, *GIVEN)["channels"] == []
    assert "Channels" not in capsys.readouterr().out
    found = predictions(*ONE, *GIVEN, *LOSSY)
    ways = {(way["channel"], way["congestion"]): way for way in found["channels"]}
    assert set(ways) == {("tcp", "bbr"), ("tcp", "cubic"), ("datagram", "any")}
    assert [way["step_s"] for way in found["channels"]] == sorted(way["step_s"] for way in ways.values())
    steady = ways["tcp", "bbr"]
    assert steady["step_s"] > found["predictions"][0]["step_s"]  # of an emulated link
    assert ways["tcp", "cubic"]["step_s"] > 1.5 * steady["step_s"]
    both = ways["datagram", "any"]
    assert both["step_s"] < steady["step_s"], "parity replaces what TCP's tail waits for"
    parity = 1472 / 1428 * (1 + 0.01 + 2 * (0.01 / 128) ** 0.5)
    for way in ("wan_bytes_up", "wan_bytes_down"):
        assert both[way] == pytest.approx(parity * steady[way], rel=0.01)
    described = [way for way, told in ways.items() if told["described"]]
    assert described == [("tcp", "cubic")]  # "system" is taken for it
    printed = capsys.readouterr().out
    for words in (
        "1 % lost",
        "Channels, for fsa with dense",
        "tcp *",
        "Channels are predicted for a real link",
    ):
        assert words in printed


def test_the_description_s_own_channel_is_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    dgt = "wan.channel=dgt k=0.5 drop=true"
    found = predictions(*ONE, *GIVEN, *LOSSY, dgt, "wan.congestion=bbr", "lan.channel=datagram")
    own = [way for way in found["channels"] if way["described"]]
    assert [(way["channel"], way["congestion"]) for way in own] == [("dgt k=0.5 drop=true", "any")]
    (row,) = found["predictions"]
    assert row["wan_bytes_up"] == own[0]["wan_bytes_up"]
    assert row["step_s"] == own[0]["step_s"]
    assert row["wan_bytes_up"] == pytest.approx(0.5 * row["wan_bytes_down"], rel=0.01)
    printed = capsys.readouterr().out
    assert "as in the first round; later ones depend on the training loss" in printed
    assert 'lan.channel = "datagram" is predicted as `tcp`' in printed


@pytest.mark.parametrize(
    ("channel", "says"),
    [
        ("dgt", "as in the first round; later ones depend on the training loss"),
        (
            "dgt k=0.3 k_least=0.3",
            "as in the first round, and in later ones where the training loss is no higher than there",
        ),
        ("dgt k=0", ""),
        ("dgt adaptive=false", ""),
        ("datagram deadline=1", ""),
    ],
)
def test_what_the_loss_changes_is_said_where_it_changes_something(
    channel: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions(*ONE, *GIVEN, *LOSSY, f"wan.channel={channel}")
    printed = " ".join(capsys.readouterr().out.split())
    assert says in printed
    assert ("as in the first round" in printed) == bool(says)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["wan.channel=datagram"], "no link loses packets here, so `tcp` is as fast; give wan.link.loss"),
        (["wan.channel=test_plan:Odd"], "how it carries bytes is not known; it is predicted as `tcp`"),
        ([*LOSSY, "wan.congestion=reno"], "reno is not predicted; it is no faster than cubic"),
    ],
)
def test_what_cannot_be_predicted_is_said(
    overrides: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "test_plan", sys.modules[__name__])
    predictions(*ONE, *GIVEN, *overrides)
    assert says in " ".join(capsys.readouterr().out.split())
