"""Processes of a turn are found, metered and ended, with all that they have started."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import turn as turn_module
from benchmarks.cells import Cell
from benchmarks.grounds import Ground
from benchmarks.processes import Meter, living
from benchmarks.systems.adapters import ROOT, Node, System
from benchmarks.training import record_path
from benchmarks.turn import run_turn

pytestmark = pytest.mark.processes

FORKS_AWAY = (
    "import os, time; os.setsid() if os.fork() == 0 else None; print('up', flush=True); time.sleep(600)"
)


def start(meter, node, script):
    env = dict(os.environ) | meter.mark(node)
    return subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE)


def test_a_child_that_has_left_for_a_session_of_its_own_is_ended_too():
    meter = Meter("test-forks")
    with start(meter, "A/0", FORKS_AWAY) as process:
        process.stdout.readline()
        process.stdout.readline()
        assert list(living("test-forks").values()) == ["A/0", "A/0"]
        meter.end_all()
        process.wait()
    assert living("test-forks") == {}


BURNS = """
import time
while time.process_time() < 0.1: pass
print("up", flush=True)
input()
"""


def test_what_a_node_used_is_known_after_it_has_ended():
    meter = Meter("test-usage")
    env = dict(os.environ) | meter.mark("A")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    began = time.monotonic()
    meter.sample()
    with subprocess.Popen([sys.executable, "-c", BURNS], env=env, **pipes) as process:
        process.stdout.readline()
        meter.sample()
        process.communicate(b"\n")
    meter.sample()
    assert meter.cpu_s(began, time.monotonic())["A"] >= 0.08
    assert meter.peak_mb["A"] > 1
    assert meter.cpu_s(time.monotonic(), began) == {}


def test_cpu_seconds_grow_evenly_between_two_samples():
    meter = Meter("turn")
    meter.samples = [(1.0, {"A": 0.0}), (2.0, {"A": 1.0}), (3.0, {"A": 5.0, "B": 1.0})]
    assert meter.cpu_s(1.5, 2.25) == {"A": pytest.approx(2.0 - 0.5), "B": pytest.approx(0.25)}
    assert meter.cpu_s(0.0, 9.0) == {"A": 5.0, "B": 1.0}


LOOKS = """
import time
from benchmarks.processes import others_stopped
print("up", flush=True)
input()
with others_stopped():
    print("stopped", flush=True)
    input()
print("continued", flush=True)
input()
"""


def test_while_one_looks_the_others_of_its_turn_stand_still():
    meter, other = Meter("test-stops"), Meter("test-stops-not")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}

    def begin(meter, node):
        env = dict(os.environ) | meter.mark(node) | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, "-c", LOOKS], env=env, **pipes)
        assert process.stdout.readline() == b"up\n"
        return process

    with begin(meter, "A/0") as looks, begin(meter, "B/0") as stands, begin(other, "B/0") as goes_on:
        for said, expected in ((b"stopped\n", "T"), (b"continued\n", "S")):
            looks.stdin.write(b"\n")
            looks.stdin.flush()
            assert looks.stdout.readline() == said
            assert state(stands.pid, expected) == expected
            assert state(goes_on.pid, "S") == "S"
        for process in (looks, stands, goes_on):
            process.kill()


def state(pid, expected):
    """What /proc says of a process, which takes a moment to obey a signal."""
    for _ in range(30_000):
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if found == expected:
            break
        time.sleep(0.01)
    return found


def scripted(script, steps=None):
    """An adapter whose workers run a given script, behind so many steps that they have written down already."""

    def nodes(desk):
        if steps is not None:
            lines = "".join(f'{{"t":{step}.0,"step":{step}}}\n' for step in range(steps + 1))
            for name in desk.cell.worker_names:
                record_path(desk.folder, name).write_text(lines)
        argv = [sys.executable, "-c", script, str(desk.job)]
        return [Node(name, name[0], (*argv, name)) for name in desk.cell.worker_names], {}

    return nodes


def turn_with(tmp_path, script, limit_s=600.0, steps=None):
    cell = Cell("scripted", "only", "synthetic", 10, "100mbit-30ms", 2, 1, "none")
    cell.rounds_a_turn, cell.warmup, cell.limit_s = 2, 1, limit_s
    return run_turn(cell, System(scripted(script, steps), {"only": {}}), Ground(), tmp_path)


TRAINS = "from benchmarks.training import Job, Watch\nfor step in Watch(Job.here()).steps(): pass"


def test_a_turn_that_ends_well_has_the_steps_of_its_workers(tmp_path):
    turn = turn_with(tmp_path, TRAINS)
    assert turn.state == "ok"
    assert [line["step"] for line in turn.steps["B/0"]] == [0, 1, 2, 3]


def test_a_worker_that_raises_is_named_with_its_last_words(tmp_path):
    turn = turn_with(tmp_path, "raise RuntimeError('the cable was cut')")
    assert "A/0 ended with status 1" in turn.state
    assert "RuntimeError: the cable was cut" in turn.state


HANGS = "import signal; signal.pause()"


@pytest.mark.parametrize(("steps", "where"), [(None, "before all workers had begun"), (1, "at step 1 of 3")])
def test_a_turn_that_hangs_is_stopped(tmp_path, steps, where):
    turn = turn_with(tmp_path, HANGS, limit_s=0.2, steps=steps)
    assert turn.state.startswith("it was stopped after 0.2 s")
    assert where in turn.state


@pytest.mark.parametrize(("limit_s", "end_s"), [(0.2, 600.0), (600.0, 0.2)])
def test_a_turn_that_hangs_behind_its_last_step_has_its_figures_and_a_note(
    tmp_path, limit_s, end_s, monkeypatch
):
    monkeypatch.setattr(turn_module, "LOOK_AT_STEPS_S", 0.05)
    monkeypatch.setattr(turn_module, "END_S", end_s)
    turn = turn_with(tmp_path, HANGS, limit_s=limit_s, steps=3)
    assert turn.state == "ok"
    assert [line["step"] for line in turn.steps["B/0"]] == [0, 1, 2, 3]
    assert turn.note.endswith("did not end, and were stopped")


def test_a_turn_that_ends_early_was_not_measured(tmp_path):
    assert turn_with(tmp_path, "pass").state == "it ended before a round could be measured"
