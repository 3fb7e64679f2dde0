"""Supervision of real, tiny child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launched_runs import is_alive

from geomx.errors import RunFailed
from geomx.launch.local import processes
from geomx.launch.local.child import Command, Lines
from geomx.launch.local.processes import Outcome, Supervisor

pytestmark = pytest.mark.processes
BOUND_S = 300.0

SLEEP = "import time\ntime.sleep(600)"
TREE = """
    import subprocess, sys, os
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    grandchild = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print("pids", os.getpid(), grandchild.pid, flush=True)
"""


def command(name: str, program: str, serves: bool = False) -> Command:
    argv = (sys.executable, "-S", "-u", "-c", textwrap.dedent(program))
    return Command(name, argv, dict(os.environ), serves)


class Watched:
    """A supervisor and what it has shown; `at` acts when a line is shown."""

    def __init__(self, stop_s: float = 10 * BOUND_S) -> None:
        self.lines: list[tuple[str, str, bool]] = []
        self.ticks = 0
        self.at: dict[str, Callable[[], object]] = {}
        self.said: list[str] = []
        self.lacks: dict[str, str] = {}
        self.goes_on: dict[str, str] = {}
        self.out: set[str] = set()
        self._supervisor = Supervisor(
            self._show,
            self._tick,
            stop_s,
            self.said.append,
            lambda worker: self.lacks.get(worker, ""),
            goes_on=lambda ended: self.goes_on.get(ended.name, ""),
            is_out=lambda worker: worker in self.out,
        )

        self.run = lambda *commands: self._supervisor.run(commands)
        self.stop = self._supervisor.stop

    def _show(self, node: str, line: str, is_error: bool) -> None:
        self.lines.append((node, line, is_error))
        for start, act in self.at.items():
            if line.startswith(start):
                act()

    def _tick(self) -> None:
        self.ticks += 1

    def interrupt_at(self, start: str, count: int = 1) -> None:
        """Ctrl-C, as soon as so many lines begin so."""
        came = iter(range(count - 1))
        self.at[start] = lambda: next(came, None) is None and interrupt()

    @property
    def pids(self) -> list[int]:
        said = [line.split()[1:] for _, line, _ in self.lines if line.startswith("pids")]
        return [int(word) for words in said for word in words]


def pair(folder: Path, first: str, then: str) -> tuple[str, str]:
    """Two programs, of which the second goes on once the first has ended and been buried."""
    path = str(folder / "pid")
    tells = f"import os\nwith open({path!r} + '~', 'w') as file: file.write(str(os.getpid()))\n"
    tells += f"os.rename({path!r} + '~', {path!r})\n"
    waits = f"""
        import os, time
        while not os.path.exists({path!r}): time.sleep(0.01)
        pid = open({path!r}).read()
        while os.path.exists(f"/proc/{{pid}}"): time.sleep(0.01)
    """
    return tells + first, textwrap.dedent(waits) + then


def assert_gone(pids: list[int]) -> None:
    assert pids
    until = time.monotonic() + BOUND_S
    for pid in pids:
        while is_alive(pid):
            assert time.monotonic() < until, f"process {pid} has not ended"
            time.sleep(0.01)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    monkeypatch.setattr(processes, "POLL_S", 0.02)


def test_lines_of_both_streams_are_shown_by_node() -> None:
    """And signals mean afterwards what they meant before."""
    watched, before = Watched(), signal.getsignal(signal.SIGTERM)
    program = (
        "import sys; print('one'); print('two', end=''); sys.stdout.flush(); print('bad ü', file=sys.stderr)"
    )
    outcome = watched.run(command("A/0", program), command("B/0", "print('three')"))
    assert outcome == Outcome((), interrupted=False)
    assert [line for node, line, is_error in watched.lines if (node, is_error) == ("A/0", False)] == [
        "one",
        "two",
    ]
    assert {("A/0", "bad ü", True), ("B/0", "three", False)} <= set(watched.lines)
    assert watched.ticks
    assert signal.getsignal(signal.SIGTERM) is before


def test_everything_a_process_wrote_before_its_end_is_shown() -> None:
    watched = Watched()
    watched.run(command("A/0", "for i in range(20_000): print(i)"))
    assert [line for _, line, _ in watched.lines] == [str(i) for i in range(20_000)]


def test_a_failure_names_status_and_last_lines_and_stops_the_others(tmp_path: Path) -> None:
    watched, flag = Watched(), tmp_path / "flag"
    watched.at["pids"] = flag.touch
    failing = f"""
        import os, sys, time
        while not os.path.exists({str(flag)!r}): time.sleep(0.01)
        for i in range(30): print("line", i, file=sys.stderr)
        sys.exit(3)
    """
    others = command("A", textwrap.dedent(TREE) + SLEEP, serves=True), command("B/0", SLEEP)
    outcome = watched.run(*others, command("A/0", failing))
    (failure,) = outcome.failures
    assert (failure.name, failure.status, failure.how) == ("A/0", 3, "ended with status 3")
    assert failure.last_lines == tuple(f"line {i}" for i in range(18, 30))
    assert not outcome.interrupted
    why = "A/0 ended with status 3: line 29; stopping the processes that are left"
    assert watched.said == [why]
    assert_gone(watched.pids)


def test_a_killed_process_is_named_with_its_signal_and_waited_for_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 10 * BOUND_S)
    killed = command("A/0", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    watched = Watched()
    outcome = watched.run(killed, command("A/1", SLEEP))
    assert [failure.how for failure in outcome.failures] == ["was killed by SIGKILL"]
    assert watched.said == ["A/0 was killed by SIGKILL; stopping the processes that are left"]


def test_a_worker_that_ends_well_but_lacks_something_has_failed() -> None:
    watched = Watched()
    watched.lacks["A/0"] = "without joining the run"
    outcome = watched.run(command("A", SLEEP, serves=True), command("A/0", ""))
    (failure,) = outcome.failures
    assert (failure.name, failure.how) == ("A/0", "ended without joining the run")


ON = "the run goes on without it"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"


@pytest.mark.parametrize(
    ("end", "how", "serves"),
    [(KILLED, "was killed by SIGKILL", True), ("raise SystemExit(3)", "ended with status 3", False)],
)
def test_a_run_goes_on_without_who_is_lost(tmp_path: Path, end: str, how: str, serves: bool) -> None:
    first, then = pair(tmp_path, end, "print('end')")
    watched = Watched()
    watched.goes_on["A/1"] = ON
    outcome = watched.run(command("A/1", first, serves), command("B/0", then))
    assert [(lost.name, lost.how) for lost in outcome.lost] == [("A/1", how)]
    assert (outcome.failures, outcome.stopped_at, outcome.well) == ((), None, {"B/0"})
    assert watched.said == [f"A/1 {how}; {ON}"]
    assert ("B/0", "end", False) in watched.lines


@pytest.mark.parametrize(
    ("end", "status"),
    [
        pytest.param(KILLED, -9, id="the last worker"),
        pytest.param("raise SystemExit(3)", 3, id="one that may not"),
    ],
)
def test_after_a_loss_the_last_worker_or_who_fails_still_ends_the_run(
    tmp_path: Path, end: str, status: int
) -> None:
    first, then = pair(tmp_path, KILLED, end)
    watched = Watched()
    watched.goes_on |= {"A/0": ON} | ({"A/1": ON} if end == KILLED else {})
    others = [command("B/1", SLEEP)] if end != KILLED else []
    server = command("A", SLEEP, serves=True)
    outcome = watched.run(server, command("A/0", first), command("A/1", then), *others)
    assert [lost.name for lost in outcome.lost] == ["A/0"]
    assert [(failure.name, failure.status) for failure in outcome.failures] == [("A/1", status)]
    assert watched.said[1].startswith("A/1 ")
    assert watched.said[1].endswith("; stopping the processes that are left")


def test_who_ends_because_of_a_failure_is_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "GRACE_S", BOUND_S)
    first, then = pair(tmp_path, "raise SystemExit(3)", "raise SystemExit(1)")
    watched = Watched()
    watched.goes_on["A/1"] = ON
    outcome = watched.run(command("A/0", first), command("A/1", then))
    assert ([failure.name for failure in outcome.failures], outcome.lost) == (["A/0", "A/1"], ())
    assert watched.said == []


def test_a_server_that_waits_for_who_is_lost_is_stopped_in_the_end() -> None:
    watched = Watched(stop_s=0.3)
    watched.goes_on |= {"B/0": ON, "B": "stopping it"}
    both = command("B/0", KILLED), command("A/0", "import time; time.sleep(0.3)")
    outcome = watched.run(command("B", SLEEP, serves=True), *both)
    assert [lost.name for lost in outcome.lost] == ["B/0", "B"]
    assert outcome.failures == ()
    assert watched.said[-1] == "B did not end with the run; stopping it"


def test_a_worker_that_stands_still_does_not_outlast_a_run_that_went_on_without_it() -> None:
    watched = Watched(stop_s=0.3)
    watched.out = {"A/1"}
    watched.goes_on |= {"A": "stopping it", "A/1": "stopping it"}
    stands_still = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)\n"
    a = command("A", stands_still, serves=True)
    outcome = watched.run(a, command("A/1", stands_still), command("B/0", "pass"))
    assert [lost.name for lost in outcome.lost] == ["A", "A/1"]
    assert (outcome.failures, outcome.well) == ((), {"B/0"})
    assert watched.said[-1] == "A/1 did not end with the run; stopping it"


@pytest.mark.parametrize("name", ["A/1", "A"])
def test_a_worker_may_outlast_the_run_and_a_server_its_workers(tmp_path: Path, name: str) -> None:
    """A script may have more to do, unless the run has gone on without it."""
    first, then = pair(tmp_path, "pass", "print('still here')")
    watched = Watched(stop_s=0.0 if name == "A/1" else 10 * BOUND_S)
    outcome = watched.run(command(name, then, serves=name == "A"), command("A/0", first))
    assert (outcome.failures, outcome.well | {name}) == ((), {"A/0", name})
    assert watched.lines == [(name, "still here", False)]


def test_others_may_end_by_themselves_before_they_are_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", BOUND_S)
    first, outlives = pair(tmp_path, "raise SystemExit(3)", "print('so do I')\nraise SystemExit(1)")
    watched = Watched()
    outcome = watched.run(command("A", outlives, serves=True), command("A/0", first))
    assert [(failure.name, failure.status) for failure in outcome.failures] == [("A/0", 3), ("A", 1)]
    assert ("A", "so do I", False) in watched.lines


def test_interrupted_workers_end_before_servers() -> None:
    waits = """
        import signal, sys, time
        def end(*_): print("end"); sys.exit({status})
        signal.signal(signal.SIGINT, end)
        print("ready")
        time.sleep(600)
    """
    watched = Watched()
    watched.interrupt_at("ready", 3)
    outcome = watched.run(
        command("A", waits.format(status=0), serves=True),
        command("A/0", waits.format(status=1)),
        command("A/1", waits.format(status=0)),
    )
    assert outcome == Outcome((), interrupted=True)
    assert [node for node, line, _ in watched.lines if line == "end"][-1] == "A"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_child_that_ignores_every_request_is_killed_with_its_tree(number: int) -> None:
    deaf = "import signal\nfor s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
    program = deaf + textwrap.dedent(TREE) + SLEEP
    watched = Watched(stop_s=0.2)
    watched.at["pids"] = lambda: os.kill(os.getpid(), number)
    outcome = watched.run(command("A/0", program))
    assert outcome.interrupted
    assert_gone(watched.pids)


def test_a_server_is_never_sent_what_may_ask_it_to_leave_a_run_that_goes_on() -> None:
    """Where workers do not end, servers hear of the end by themselves, after half of the time."""
    tells = "import signal, time\nsignal.signal({number}, lambda *_: print('{word}'))\n"
    server = "".join(tells.format(number=f"signal.SIG{n}", word=n) for n in ("INT", "TERM"))
    deaf = "import signal, time\nfor s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
    forever = "print('ready')\nwhile True: time.sleep(0.01)"
    watched = Watched(stop_s=1.0)
    watched.interrupt_at("ready", 2)
    assert watched.run(
        command("A", server + forever, serves=True), command("A/0", deaf + forever)
    ).interrupted
    assert [line for node, line, _ in watched.lines if node == "A"] == ["ready", "INT"]


def test_a_run_that_has_done_its_work_is_stopped_and_has_not_failed() -> None:
    watched = Watched()
    watched.at["pids"] = watched.stop
    outcome = watched.run(
        command("global/0", SLEEP, serves=True), command("A/0", textwrap.dedent(TREE) + SLEEP)
    )
    assert outcome == Outcome((), interrupted=False)
    assert_gone(watched.pids)


def test_a_second_interrupt_kills_at_once() -> None:
    deaf = "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: print('no'))\nprint('ready')\n"
    watched = Watched(stop_s=10 * BOUND_S)
    watched.at |= {"ready": interrupt, "no": interrupt}
    assert watched.run(command("A/0", deaf + "while True: time.sleep(0.1)")).interrupted
    assert watched.said == [
        "Ctrl-C: stopping every process of the run; once more kills them",
        "Ctrl-C: killing every process of the run",
    ]


def test_a_suspended_process_is_woken_to_end() -> None:
    suspended = """
        import os, signal, sys
        signal.signal(signal.SIGINT, lambda *_: (print("woken"), sys.exit(0)))
        print("ready")
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    watched = Watched(stop_s=10 * BOUND_S)
    watched.interrupt_at("ready")
    watched.run(command("A/0", suspended))
    assert [line for _, line, _ in watched.lines] == ["ready", "woken"]


def test_tracebacks_of_stopped_processes_are_not_shown() -> None:
    watched = Watched()
    watched.interrupt_at("ready")
    watched.run(command("A/0", "import time\nprint('ready')\ntime.sleep(600)"))
    assert watched.lines == [("A/0", "ready", False)]


def test_what_an_ended_process_left_behind_is_killed() -> None:
    watched = Watched()
    outcome = watched.run(command("A/0", TREE))
    assert outcome.failures == ()
    assert_gone(watched.pids)


def test_a_server_that_does_not_end_is_stopped_and_named() -> None:
    (failure,) = Watched(stop_s=0.3).run(command("A", SLEEP, serves=True), command("A/0", "")).failures
    assert (failure.name, failure.how) == ("A", "did not end with the run")


def test_a_command_that_cannot_start_is_named_and_nothing_is_left() -> None:
    watched = Watched()
    missing = Command("A/1", ("/nowhere/python",), {})
    started = command("A/0", SLEEP)
    before = children_of(os.getpid())
    with pytest.raises(RunFailed, match="A/1: /nowhere/python cannot be started"):
        watched.run(started, missing)
    assert children_of(os.getpid()) <= before


def test_an_error_of_the_view_ends_the_processes() -> None:
    watched = Watched()
    watched.at["pids"] = lambda: os.read(-1, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        watched.run(command("A/0", textwrap.dedent(TREE) + SLEEP))
    assert_gone(watched.pids)


LAUNCHER = """
    import os, sys, threading
    from geomx.launch.local.child import Command
    from geomx.launch.local.processes import Supervisor
    tree = sys.argv[1]
    argv = (sys.executable, "-S", "-u", "-c", tree)
    commands = [Command(f"A/{rank}", argv, dict(os.environ)) for rank in range(2)]
    Supervisor(lambda node, line, is_error: print(line, flush=True), lambda: None, 600.0).run(commands)
"""


def test_nothing_survives_a_launcher_that_is_killed() -> None:
    argv = [sys.executable, "-u", "-c", textwrap.dedent(LAUNCHER), textwrap.dedent(TREE) + SLEEP]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        give_up = threading.Timer(BOUND_S, launcher.kill)
        give_up.start()
        pids = [int(word) for _ in range(2) for word in launcher.stdout.readline().split()[1:]]
        assert len(pids) == 4
        pids += children_of(launcher.pid)
        launcher.kill()
        give_up.cancel()
    assert_gone(pids)


def children_of(pid: int) -> set[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return set(map(int, listed))


def test_lines_are_cut_wherever_the_bytes_are() -> None:
    lines = Lines()
    whole = "one\nzwei ü\r\n10 %\r50 %\r100 %\nlast".encode()
    found = [line for byte in whole for line in lines.feed(bytes([byte]))]
    assert [*found, *lines.end()] == ["one", "zwei ü", "100 %", "last"]


def test_a_line_without_end_takes_bounded_memory() -> None:
    lines = Lines()
    found = [line for _ in range(100) for line in lines.feed(b"x" * 10_000)]
    assert "".join([*found, *lines.end()]) == "x" * 1_000_000
    assert max(map(len, found)) < 100_000
    assert list(lines.feed(b"progress\r" * 100_000)) == []
    assert list(lines.feed(b"done\n")) == ["done"]
