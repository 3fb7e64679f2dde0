"""Training scripts as processes of their own, alone and in a run of two parties."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forks
import pytest
from forks import printed

import geomx
from geomx.config import Run
from geomx.launch import join as join_module
from geomx.launch.environment import ProcessPlace
from geomx.launch.join import _settings, join
from geomx.launch.verdict import AGAIN, CHANGED, EVERYWHERE

BOUND_S = 300.0
TOML = """
[run]
script = "train.py"
[[party]]
name = "A"
workers = 1
[[party]]
name = "B"
workers = 1
"""
SCRIPT = """
    import sys
    import torch
    import geomx

    torch.set_num_threads(1)
    torch.manual_seed(0)
    run = geomx.join()
    model = torch.nn.Linear(8, 4)
    model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batches = [(torch.randn(6, 8), torch.randn(6, 4)) for _ in range(5)]
    for x, y in run.shard(batches):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if sys.argv[1:]:
            raise ValueError(f"{run.name} has had enough")
    print(run.name, "is done")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def outside() -> dict[str, str]:
    """The environment of what is in no run."""
    return {key: value for key, value in os.environ.items() if not key.startswith("GEOMX_")}


def geomx_command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call `geomx` in a folder, where it makes that of its run."""
    return forks.geomx(words, outside() | {"TMPDIR": str(folder)}, folder)


@pytest.mark.processes
def test_alone_a_script_trains_and_ends_in_order(script: Path, tmp_path: Path) -> None:
    """And may have its numbers logged."""
    shown = "import logging, os; logging.basicConfig(level=logging.INFO)\n"
    shown += f"os.environ['GEOMX_RECORDS'] = {str(tmp_path / 'solo.jsonl')!r}\n"
    script.write_text(shown + script.read_text())
    said = printed([str(script)], tmp_path)
    assert "\nsolo/0 is done\n" in said
    records = [json.loads(line) for line in (tmp_path / "solo.jsonl").read_text().splitlines()]
    (finished,) = [record["fields"] for record in records if record["name"] == "finished"]
    assert (finished["parameters"], finished["steps"], finished["samples"]) == (36, 5, 30)
    assert re.search(r"^INFO:geomx:turn 5: loss [\d.]+$", said, re.MULTILINE), said


@pytest.mark.processes
def test_alone_a_script_that_raises_ends_as_it_would_without_geomx(script: Path) -> None:
    argv = [sys.executable, str(script), "now"]
    done = subprocess.run(argv, env=outside(), capture_output=True, text=True, timeout=BOUND_S, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: solo/0 has had enough"
    assert 'train.py", line' in done.stderr


EVENTS = """
[wan]
link = { rate_mbps = 50, delay_ms = 10 }  # at most 25 rounds before the cut
[[event]]
at_s = 0.5
for_s = 0.5
party = "B"
cut = true
[[event]]
at_s = 0.6
party = "A"
rate_mbps = 5
"""
# Nobody is lost, or ended, because the machine is busy.
PATIENT = ("wan.timeout_s=120", "lan.timeout_s=120", "limits.stop_s=120")


@pytest.mark.processes
def test_a_run_of_two_parties_leaves_a_report_and_a_trace(script: Path, tmp_path: Path) -> None:
    """While links change on the way, and a cut heals."""
    script.write_text(script.read_text().replace("run.shard(batches)", "run.shard(batches * 6)"))
    (tmp_path / "two.toml").write_text(TOML + EVENTS)
    report, trace = tmp_path / "out" / "report.json", tmp_path / "out" / "trace.json"
    words = ("run", "two.toml", "run.ledger=true", "run.shards=2", *PATIENT, "run.seed=1")
    done = geomx_command(tmp_path, *words, "--report", str(report), "--trace", str(trace))
    assert done.returncode == 0, done.stdout + done.stderr
    for line in ("A/0      │ A/0 is done", "B/0      │ B/0 is done", "link of B from 0.5 s on: cut"):
        assert line in done.stdout
    told = json.loads(report.read_text())
    assert (told["rounds"], told["samples"], told["parameters"]) == (30, 360, 36)
    assert told["config"]["run"]["seed"] == 1
    assert isinstance(told["parameters_sha256"], str)
    assert told["final_loss"] > 0
    assert set(told["node_cpu_s"]) == {"global/0", "global/1", "A", "B", "A/0", "B/0"}
    least = 30 * 2 * 36 * 4  # rounds, parties, parameters, bytes each
    for key in ("wan_bytes_up", "wan_bytes_down", "lan_bytes_up", "lan_bytes_down"):
        assert least < told[key] < 20 * least
    for way, first in (("up", 1), ("down", 2)):  # once up from the first party, and down to both
        assert first * 36 * 4 < told[f"first_weights_wan_bytes_{way}"] < told[f"wan_bytes_{way}"] - least
    assert told["first_weights_lan_bytes_down"] > 2 * 36 * 4
    assert told["first_weights_s"] >= 0.01  # the delay of a link
    assert told["wan_bytes_dense"] == 2 * 2 * 36 * 4 * told["steps"]
    assert (told["counted_exactly_once"], told["round_floor_s"]) == (True, None)
    changes = {(change["party"], change["at_s"]): change["state"] for change in told["link_changes"]}
    assert changes == {
        ("B", 0.5): "cut",
        ("B", 1.0): "50 Mbit/s, 10 ms one way",
        ("A", 0.6): "5 Mbit/s, 10 ms one way",
    }
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"A", "A/0", "B/0"} <= {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(e["name"] for e in events if e.get("cat") == "link") == sorted(changes.values())
    assert not list(tmp_path.glob("geomx-*"))


@pytest.mark.processes
def test_a_script_that_is_refused_ends_the_run_is_named_and_not_to_be_started_again(
    script: Path, tmp_path: Path
) -> None:
    """By `attach`: the message says what would work, and a second start would end in the same way."""
    script.write_text(script.read_text().replace("lr=0.1)", 'lr=0.1), push_at="never"'))
    (tmp_path / "one.toml").write_text(TOML.partition('[[party]]\nname = "B"')[0])
    done = geomx_command(tmp_path, "run", "one.toml", *PATIENT)
    assert done.returncode == 1
    (raised,) = re.findall(r"^A/0      │ .*Unsupported: (.*)$", done.stderr, re.MULTILINE)
    verdict = done.stderr[done.stderr.rindex("\ngeomx: ") + 1 :]
    # Its server, which hears of it, may end before its own process does.
    status = "(it ended with status 1: )?"
    assert re.match(rf"geomx: the run failed at A/0: {status}Unsupported: {re.escape(raised)}", verdict)
    assert verdict.rstrip().endswith(CHANGED)
    assert AGAIN not in done.stderr
    assert (done.stderr.count("Traceback"), done.stderr.count(raised)) == (1, 2), done.stderr
    assert "geomx/launch" not in done.stderr
    assert not list(tmp_path.glob("geomx-*"))


class Script:
    """A worker's run and what is around it, as far as the end of a script knows them."""

    def __init__(self, amid: bool = False) -> None:
        self.name = "A/0"
        self.is_amid_data, self.is_closed = amid, False
        self.may_leave_early = False
        self.told: list[str] = []
        self.stay = join_module._Stay(self, self, self, ProcessPlace())  # type: ignore[arg-type]

    def fail(self, reason: str) -> None:
        self.is_closed = True
        self.told.append(reason)

    def close(self) -> None:
        if not self.is_closed:
            self.told.append("left")
        self.is_closed = True

    def ask_to_leave(self) -> None:
        self.told.append("asked to leave")

    def stop(self, timeout_s: float = 0.0) -> None:
        self.told.append("stopped")


@pytest.mark.parametrize("amid", [False, True])
@pytest.mark.parametrize(
    ("end", "told"),
    [
        *((end, "left") for end in (None, SystemExit(), SystemExit(0))),
        *((SystemExit(end), f"its script ended with status {end}") for end in (3, "no such batch")),
    ],
)
def test_a_script_that_ended_well_leaves_and_one_that_exits_with_a_status_ends_the_run(
    amid: bool, end: SystemExit | None, told: str
) -> None:
    """Also amid its data: it has left its loop by `break`."""
    script = Script(amid)
    script.stay.script_ended(end)
    script.stay._leave()
    assert script.told == [told]


def test_a_script_that_ends_amid_its_data_ends_the_run() -> None:
    script = Script(amid=True)
    with pytest.raises(
        geomx.RunFailed, match=r"A/0: its script ended in the middle of run\.shard.*call run\.close\(\)"
    ):
        script.stay._leave()
    assert script.told == ["its script ended in the middle of run.shard(loader), without run.close()"]


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Whom this process has sent what, in place of being sent it."""
    killed, before = list[Any](), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(join_module.os, "kill", lambda *who: killed.append(who))
    yield killed
    signal.signal(signal.SIGTERM, before)


ITSELF = (os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("may_return", [False, True])
def test_a_worker_that_is_asked_to_end_has_failed_unless_it_is_awaited(
    may_return: bool, monkeypatch: pytest.MonkeyPatch, killed: list[Any]
) -> None:
    """Whoever starts processes again asks them to end first."""
    script = Script()
    script.stay._may_return = may_return
    monkeypatch.setattr(script.stay, "_recorder", SimpleNamespace(close=lambda: None))
    script.stay._terminated(signal.SIGTERM, None)
    assert script.told == [*([] if may_return else ["it was asked to end (SIGTERM)"]), "stopped"]
    assert killed == [ITSELF]


@pytest.mark.parametrize("leaves", [True, False])
def test_where_the_others_go_on_sigterm_asks_a_worker_to_leave(
    leaves: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], killed: list[Any]
) -> None:
    """Once; and a script that does not come to a step in time ends as lost."""
    script, ended = Script(), list[int]()
    script.may_leave_early = script.stay._may_return = True
    asleep, awake = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        asleep.set()
        awake.wait(BOUND_S)

    monkeypatch.setattr(script.stay, "_recorder", SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(join_module.time, "sleep", sleep)
    monkeypatch.setattr(join_module.os, "_exit", ended.append)
    script.stay._terminated(signal.SIGTERM, None)
    assert script.told == ["asked to leave"]
    assert asleep.wait(BOUND_S)
    script.is_closed = leaves
    awake.set()
    for thread in threading.enumerate():
        if thread.name == "geomx leave":
            thread.join(BOUND_S)
    assert ended == ([] if leaves else [128 + signal.SIGTERM])
    assert ("A/0 has not left in order" in capsys.readouterr().err) is not leaves
    script.stay._terminated(signal.SIGTERM, None)
    assert killed == [ITSELF]


def test_who_has_left_and_goes_on_with_its_script_ends_by_sigterm(killed: list[Any]) -> None:
    script = Script()
    script.may_leave_early = script.is_closed = True
    script.stay._terminated(signal.SIGTERM, None)
    assert (script.told, killed) == ([], [ITSELF])


def test_of_what_came_about_elsewhere_a_watched_node_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    script = Script()
    for watched in (False, True):
        script.stay._watched = watched
        script.stay._say(geomx.RunFailed("B/0", "boom"))
        script.stay._say(geomx.Refused("B refused A/0"))
    assert capsys.readouterr().err.splitlines() == [
        "geomx: the run failed at B/0: boom",
        f"  {EVERYWHERE}",
        "geomx: B refused A/0",
        "geomx: B refused A/0",
    ]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("GEOMX_"):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("alone")
def test_a_place_without_a_run_is_refused() -> None:
    with pytest.raises(geomx.ConfigError, match=r"party: found 'A'.*\n.*rank: found 0"):
        join(party="A", rank=0)


@pytest.mark.usefixtures("alone")
def test_a_run_without_a_place_is_refused_with_the_places_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.parse(TOML, "two.toml")
    with pytest.raises(geomx.ConfigError, match="one of A, B") as refused:
        join(run)
    assert [fault.where for fault in refused.value.faults] == ["party", "rank"]
    monkeypatch.setenv("GEOMX_PARTY", "A")
    with pytest.raises(geomx.ConfigError, match="rank: found 1") as refused:
        join(run, rank=1)
    with pytest.raises(geomx.ConfigError, match="no party `C`"):
        join(run, party="C", rank=0)


@pytest.mark.usefixtures("alone")
def test_a_party_that_is_a_job_has_the_jobs_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.parse(TOML, "two.toml", ["party.A.workers=2", "party.A.inside=collective"])
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        geomx.ConfigError, match=r"RANK and WORLD_SIZE: found nothing.*by torchrun or `geomx run`"
    ):
        join(run, "A", 0)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(geomx.ConfigError, match=r"WORLD_SIZE: found 4; allowed: 2 .A has 2 workers"):
        join(run, "A")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(geomx.ConfigError, match="rank: found 1; allowed: 0"):
        join(run, "A", 1)


@pytest.mark.usefixtures("alone")
def test_the_environments_settings_are_those_of_its_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "two.toml").write_text(TOML)
    monkeypatch.setenv("GEOMX_RUN", str(tmp_path / "two.toml"))
    monkeypatch.setenv("GEOMX_SET", "run.shards=0")
    with pytest.raises(geomx.ConfigError, match=r"run\.shards"):
        join()


def test_training_is_told_of_the_codecs_on_both_tiers_up_and_of_their_momentum() -> None:
    overrides = ["wan.codec_up=bisparse ratio=0.1 momentum=0.9", "lan.codec_up=int8"]
    settings = _settings(Run.parse(TOML, "run.toml", overrides), "A", "A/0")
    found = [(codec.key, codec.ratio, codec.momentum) for codec in settings.codecs_up]
    assert found == [("wan.codec_up", 0.1, 0.9), ("lan.codec_up", None, 0.0)]


def test_a_model_is_cut_at_the_bounds_of_the_codecs_of_both_tiers() -> None:
    codecs = ("wan.codec_up=mpq size_lower_bound=200", "lan.codec_down=tiny_fp16 size_lower_bound=30")
    assert _settings(Run.parse(TOML, "two.toml"), "A", "A/0").size_bounds == ()
    found = _settings(
        Run.parse(TOML, "two.toml", (*codecs, "wan.codec_down=int8", "layout.pack_below=50")), "A", "A/0"
    )
    assert (found.size_bounds, found.pack_below) == ((30, 200, 1000), 50)
