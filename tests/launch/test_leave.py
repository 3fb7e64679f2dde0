"""`geomx leave`: it finds the processes of nodes, asks them, and says what became of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from config_runs import two_parties

from geomx import cli
from geomx.config import Run
from geomx.errors import ConfigError, NodeLost, WaitTimeout
from geomx.launch import leave as leave_module
from geomx.launch.leave import Door, leave, processes_of
from geomx.observe.records import Recorder

NODE = """
    import signal, sys, time
    from geomx.launch.leave import Door
    if "deaf" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    door = Door(sys.argv[1], sys.argv[2])
    def leaves(*_):
        door.has_left()
        sys.exit(0)
    if "leaves" in sys.argv:
        signal.signal(signal.SIGTERM, leaves)
    print("here", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Of a name of its own, since tests run beside each other."""
    name = f"leave-{os.getpid()}-{tmp_path.name.replace('_', '-')}"
    return two_parties(f"run.name={name}", "run.on_loss=continue", "party.B.workers=2")


def faults(run: Run, *nodes: str) -> str:
    with pytest.raises(ConfigError) as caught:
        leave(run, nodes)
    return str(caught.value)


def test_a_process_is_found_as_long_as_it_holds_its_door(run: Run) -> None:
    name = run.run.name
    door = Door(name, "A/0")
    assert processes_of(name, "A/0") == [os.getpid()]
    assert processes_of(name, "A/1") == processes_of(f"{name}x", "A/0") == []
    door.close()
    assert processes_of(name, "A/0") == []


def test_a_door_is_of_whoever_holds_it_and_not_of_whom_its_name_says(run: Run) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(f"\0{leave_module._door_of(run.run.name, 'A/0')}1")
        assert processes_of(run.run.name, "A/0") == []


def test_what_cannot_leave_is_told(run: Run) -> None:
    assert "NODE: found A/7; allowed: " in faults(run, "A/7", "B/x")
    assert "B/x" in faults(run, "A/7", "B/x")
    assert "did you mean" in faults(run, "a/0")
    assert "the run ends with a global server" in faults(run, "global/0")
    waits = run.changed(["run.on_loss=wait"])
    assert 'run.on_loss: found "wait"; allowed: "continue"' in faults(waits, "A/0")
    assert "workers that reduce among themselves" in faults(run.changed(["party.A.inside=collective"]), "A/1")


def test_a_node_that_runs_elsewhere_is_not_here(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GEOMX_RECORDS", raising=False)
    assert "A/0, which does not run on this machine" in faults(run, "A/0")
    assert "call this on the machine where it runs" in faults(run, "A/0")
    Recorder(tmp_path, "A/0").close()
    monkeypatch.setenv("GEOMX_RECORDS", str(tmp_path))
    assert f"its records say that it runs on {socket.gethostname()}" in faults(run, "A/0")
    assert "call this on the machine where it runs" in faults(run, "B")


def test_the_command_line_takes_nodes_and_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toml = tmp_path / "two.toml"
    toml.write_text('[run]\nname = "leave-two"\n[[party]]\nname = "A"\nworkers = 1\n')
    assert cli.main(["leave", str(toml), "A/0"]) == 2
    assert 'found "stop"; allowed: "continue"' in capsys.readouterr().err
    assert cli.main(["leave", str(toml), "run.on_loss=continue", "A/0"]) == 2
    assert "does not run on this machine" in capsys.readouterr().err
    assert cli.main(["leave", str(toml), "run.on_loss=continue"]) == 2
    assert "NODE: found nothing" in capsys.readouterr().err


def start(run: Run, node: str, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", textwrap.dedent(NODE), run.run.name, node, *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


@pytest.mark.processes
def test_it_asks_each_and_returns_when_they_have_ended(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = {name: start(run, name, "leaves") for name in ("A/1", "B")}
    leave(run, list(nodes))
    pids = {name: process.pid for name, process in nodes.items()}
    assert capsys.readouterr().out.splitlines() == [
        f"A/1 (process {pids['A/1']}) is asked to leave",
        f"B (process {pids['B']}) is asked to leave, and all below it",
        "A/1: has left",
        "B: has left",
    ]
    assert [process.wait() for process in nodes.values()] == [0, 0]


@pytest.mark.processes
def test_who_is_lost_instead_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = {"A/1": start(run, "A/1"), "B": start(run, "B", "leaves")}
    with pytest.raises(NodeLost, match="A/1 is lost: it was asked to leave, and has ended in another way"):
        leave(run, list(nodes))
    assert capsys.readouterr().out.splitlines()[2:] == ["A/1: its process has ended otherwise", "B: has left"]
    assert [process.wait() for process in nodes.values()] == [-15, 0]


@pytest.mark.processes
def test_it_does_not_wait_for_ever_nor_choose_between_two(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave_module, "MORE_S", 0.1)
    hasty = run.changed(["limits.stop_s=1"])
    process, other = start(run, "A/1", "deaf"), None
    try:
        with pytest.raises(WaitTimeout, match=rf"A/1 \(process {process.pid}\) has not ended within 2.1 s"):
            leave(hasty, ["A/1"])
        other = start(run, "A/1")
        told = faults(run, "A/1")
        assert str(process.pid) in told
        assert str(other.pid) in told
    finally:
        for each in filter(None, (process, other)):
            each.kill()
            each.wait()
