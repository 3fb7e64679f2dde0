from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from config_runs import two_parties
from rich.console import Console

from geomx.config import Run
from geomx.errors import ConfigError, FileUnwritable, ResultWrong, RunFailed
from geomx.launch.local.child import Ended
from geomx.launch.local.local_run import (
    RunOptions,
    _conclude,
    _Folder,
    _Losses,
    _NotJoined,
    commands,
    rehearse,
    run_here,
    with_free_ports,
)
from geomx.launch.local.ports import Ports
from geomx.launch.local.processes import Outcome
from geomx.observe.records import Recorder, RecordFiles

ADDRESSES = ["127.0.0.1:7000", "127.0.0.1:7001"]
KEYS = (
    "run.shards=2",
    "run.script=train.py",
    'run.arguments=["--lr", "0.1"]',
    f"global.addresses={ADDRESSES}",
)


@pytest.fixture
def run() -> Run:
    return two_parties(*KEYS)


@pytest.fixture
def ports() -> Iterator[Ports]:
    with Ports() as ports:
        yield ports


def test_servers_without_address_get_ports_of_their_own(run: Run, ports: Ports) -> None:
    free = with_free_ports(run, ports)
    assert free.global_.addresses == run.global_.addresses
    given = [free.address_of(party).split(":") for party in ("A", "B")]
    assert {host for host, _ in given} == {"127.0.0.1"}
    assert len({port for _, port in given}) == 2
    assert run.addresses["A"] == ""


def test_workers_that_reduce_among_themselves_are_told_what_torchrun_tells(
    tmp_path: Path, ports: Ports
) -> None:
    job = two_parties(*KEYS, "party.A.inside=collective")
    first, second, other = list(commands(job, tmp_path, ports, trace=False))[4:]
    for rank, command in enumerate((first, second)):
        told = {key: command.environment[key] for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")}
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        assert told == ranks | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    assert first.environment["MASTER_PORT"] == second.environment["MASTER_PORT"]
    assert other.environment.get("MASTER_PORT") == os.environ.get("MASTER_PORT")


def test_every_node_has_a_process(run: Run, tmp_path: Path, ports: Ports) -> None:
    started = list(commands(run, tmp_path, ports, trace=True))
    assert [command.name for command in started] == ["global/0", "global/1", "A", "B", "A/0", "A/1", "B/0"]
    assert [command.serves for command in started] == [True] * 4 + [False] * 3
    assert started[1].argv[-4:] == ("--role", "global", "--shard", "1")
    assert started[3].argv[-4:] == ("--role", "local", "--party", "B")
    assert started[5].argv[4:] == (
        *(str(tmp_path / "run.json"), "--party", "A", "--rank", "1", "--"),
        *(sys.executable, str(run.run.script), "--lr", "0.1"),
    )
    records = {command.environment["GEOMX_RECORDS"] for command in started}
    assert len(records) == 7
    assert str(tmp_path / "records" / "A.1.jsonl") in records
    assert {command.environment["GEOMX_TRACE"] for command in started} == {"1"}


# -- how it ends ---------------------------------------------------------------------------------------------------


def conclude(
    run: Run,
    folder: Path,
    options: RunOptions,
    outcome: Outcome,
    ends: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[_Folder, BaseException | None]:
    """The end of a run whose workers have told of 8 samples, and of these ends; with what was raised."""
    kept = _Folder(folder, keep=False)
    recorder = Recorder(kept.records, "A/0")
    recorder.record("step", turn=0, samples=8)
    recorder.close()
    for worker, fields in (ends or {}).items():
        recorder = Recorder(kept.records, worker)
        recorder.record("finished", **fields)
        recorder.close()
    try:
        _conclude(run, options, outcome, 1.0, kept, Console())
    except BaseException as error:
        return kept, error
    return kept, None


@pytest.mark.parametrize(
    ("failures", "interrupted", "ended"),
    [((), False, "well"), ((), True, "interrupted"), ((Ended("A/0", 3),), False, "failed")],
)
def test_however_a_run_ends_it_leaves_its_report(
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    failures: tuple[Ended, ...],
    interrupted: bool,
    ended: str,
) -> None:
    path = tmp_path / "report.json"
    _, raised = conclude(run, tmp_path, RunOptions(report=path), Outcome(failures, interrupted))
    report = json.loads(path.read_text())
    assert (report["ended"], report["samples"]) == (ended, 8)
    assert path.stat().st_mode & 0o777 == 0o600
    out = capsys.readouterr().out
    assert ("interrupted: this is what was done until then" in out) is interrupted
    if failures:
        assert isinstance(raised, RunFailed)
        assert report["failure"] == str(raised)
        assert out == ""
    else:
        assert isinstance(raised, KeyboardInterrupt) if interrupted else raised is None
        assert (report["failure"], "samples" in out) == (None, True)


@pytest.mark.parametrize(
    ("hashes", "counted", "words"),
    [
        ("AAB", 3, "different weights behind the same step"),
        ("AAA", 2, "not every contribution was counted exactly once"),
        ("AAA", 3, None),
    ],
)
def test_a_run_has_failed_if_its_weights_or_its_ledger_differ(
    run: Run, tmp_path: Path, hashes: str, counted: int, words: str | None
) -> None:
    run = run.changed(["run.ledger=true"])
    end = {
        "parameters": 1, "samples": 8, "steps": 3, "train_s": 1.0, "cohort": "",
        "ledger": [float(counted)] * len(run.workers), "contributions": 3,
    }  # fmt: skip
    ends = {worker: end | {"parameters_sha256": hashes[n] * 64} for n, worker in enumerate(run.workers)}
    path = tmp_path / "report.json"
    kept, raised = conclude(run, tmp_path, RunOptions(report=path), Outcome((), False), ends)
    assert isinstance(raised, ResultWrong) == kept.keep == bool(words)
    assert words is None or words in str(raised)
    assert bool(json.loads(path.read_text())["wrong"]) == bool(words)


@pytest.mark.parametrize("failures", [(), (Ended("A/0", 3),)])
def test_a_report_that_cannot_be_written_costs_no_result(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], failures: tuple[Ended, ...]
) -> None:
    """The table has been printed, the trace is there, the records stay, and a line says what to do with them."""
    nowhere, trace = tmp_path / "folder", tmp_path / "trace.json"
    nowhere.mkdir()
    options = RunOptions(report=nowhere, trace=trace)
    kept, raised = conclude(run, tmp_path, options, Outcome(failures, False))
    out, err = capsys.readouterr()
    if failures:
        assert isinstance(raised, RunFailed)
        told = err
    else:
        assert isinstance(raised, FileUnwritable)
        assert "samples" in out
        told = str(raised)
    assert (
        f"cannot write {nowhere}: Is a directory; `geomx report {tmp_path}/run.json {tmp_path}/records"
        in told
    )
    assert kept.keep
    assert trace.is_file()


def test_a_script_that_has_recorded_nothing_has_not_joined(run: Run, tmp_path: Path) -> None:
    records = RecordFiles(tmp_path)
    Recorder(tmp_path, "A/0").close()
    workers = _NotJoined(run, records)
    assert workers.lack_of("A/0") == ""
    assert workers.lack_of("A/1") == f"without joining the run: {run.run.script} did not call geomx.join()"


def told(folder: Path, node: str, *failures: tuple[str, str]) -> None:
    recorder = Recorder(folder, node)
    for of, error in failures:
        recorder.record("failed", "error", node=of, error=error, reason="so")
    recorder.close()


@pytest.mark.parametrize(
    ("node", "status", "failures"),
    [
        ("A/1", -9, ()),
        ("A", -9, ()),
        ("A/1", 3, ()),  # os._exit, of which nobody hears
        ("A/1", 1, (("A", "NodeLost"),)),  # cut off
        ("A/1", 1, (("global/0", "NodeLost"),)),  # with its server
        ("A", 1, (("global/1", "NodeLost"),)),
    ],
)
def test_a_run_goes_on_without_a_worker_or_local_server_if_it_may(
    run: Run, tmp_path: Path, node: str, status: int, failures: tuple[tuple[str, str], ...]
) -> None:
    told(tmp_path, node, *failures)
    ended = Ended(node, status)
    assert _Losses(run, tmp_path).goes_on(ended) == ""
    waits, goes_on = (run.changed([f"run.on_loss={on_loss}"]) for on_loss in ("wait", "continue"))
    assert _Losses(waits, tmp_path).goes_on(ended).startswith("the run waits up to 300 s for it")
    assert _Losses(goes_on, tmp_path).goes_on(ended) == "the run goes on without it"


@pytest.mark.parametrize(
    ("node", "failures"),
    [
        ("global/0", ()),
        ("A/1", (("A/1", "RunFailed"),)),  # its script raised
        ("A/0", (("A/1", "RunFailed"),)),  # another's did
        ("A", (("A/1", "NodeLost"),)),  # it has waited for long enough
        ("B/0", (("A", "NodeLost"),)),
    ],
)
def test_a_run_that_has_failed_does_not_go_on(
    run: Run, tmp_path: Path, node: str, failures: tuple[tuple[str, str], ...]
) -> None:
    told(tmp_path, node, *failures)
    losses = _Losses(run.changed(["run.on_loss=continue"]), tmp_path)
    assert losses.goes_on(Ended(node, 1)) == ""
    assert losses.goes_on(Ended("B", -9)) == ""  # it was not there yet


def test_the_end_of_a_run_that_went_on_says_who_was_lost(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    outcome = Outcome((), False, well=frozenset({"A/0", "B/0"}), lost=(Ended("A/1", -9),))
    _, raised = conclude(run, tmp_path, RunOptions(report=path), outcome)
    assert raised is None
    report = json.loads(path.read_text())
    assert (report["ended"], report["lost"]) == ("well", {"A/1": "was killed by SIGKILL"})
    assert "A/1 was killed by SIGKILL" in capsys.readouterr().out


@pytest.mark.parametrize("command", [run_here, lambda run, _: rehearse(run, lambda _: True)])
def test_a_script_that_is_a_folder_is_told_as_one(run: Run, tmp_path: Path, command: Any) -> None:
    folder = run.changed([f"run.script={tmp_path}"])
    with pytest.raises(ConfigError, match=rf"run\.script: found the folder {tmp_path}"):
        command(folder, RunOptions())
