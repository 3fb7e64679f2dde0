"""The demo: the table it prints, what it says where no lab can be had, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from lab import lossy_worker, namespaces, system
from lab.__main__ import main
from lab.lossy_demo import SYSTEMS, Outcome, play, table, told

ROOT = Path(__file__).parents[2]
needs_a_lab = pytest.mark.skipif(bool(system.missing_here()), reason="; ".join(system.missing_here()))


def outcome(name: str, *seconds: float) -> Outcome:
    """Rounds that took so long, with 2 MB each; the accuracy rises by 1 % in each."""
    lines = [
        {"round": number, "seconds": each, "sent": 5_000_000 + number * 2_000_000, "accuracy": number / 100}
        for number, each in enumerate(seconds, 1)
    ]
    return Outcome(name, [{"round": 0, "sent": 5_000_000}, *lines])


def printed(*outcomes: Outcome) -> dict[str, list[str]]:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(table(outcomes))
    rows = [line.split("  ") for line in captured.get().splitlines() if line.strip()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return {row[0]: row[1:] for row in cells}


def test_accuracies_are_compared_after_as_many_rounds_as_the_slowest_has_made() -> None:
    fast = outcome("dgt", 30.0, *(0.5 + number / 100 for number in range(20)))
    rows = printed(outcome("TCP cubic", 20.0, 9.0, 10.0, 11.0), fast)
    assert rows["TCP cubic"] == ["10.00", "11.00", "2.00", "4.0%", "4", "4.0%"]
    assert rows["dgt"] == ["0.59", "0.69", "2.00", "4.0%", "21", "21.0%"]  # without its first round
    assert "accuracy after 4" in rows["seconds a round"]
    assert told(fast) == "dgt: 21 rounds, 0.59 s each (median)"


@pytest.mark.parametrize("seconds", [(), (30.0,)])
def test_a_system_that_was_too_slow_has_no_figures(seconds: tuple[float, ...]) -> None:
    slow = outcome("TCP cubic", *seconds)
    rows = printed(slow, outcome("dgt", 1.0, 1.0))
    assert rows["TCP cubic"] == ["–", "–", "–", "–", str(len(seconds)), "–"]
    assert rows["dgt"][0] == "1.00"
    assert told(slow).endswith(f": {len(seconds)}")


def test_only_what_leaves_the_site_is_counted(tmp_path: Path) -> None:
    devices = tmp_path / "dev"
    head = "Inter-|   Receive\n face |bytes\n"
    devices.write_text(head + "    lo: 1 0 0 0 0 0 0 0 500 0\n  wan0: 2 0 0 0 0 0 0 0 700 0\n")
    assert lossy_worker.sent_bytes(devices) == 700


def test_where_no_lab_can_be_had_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["demo"]) == 77
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lab: a lab cannot be had here: ")
    assert "root" in err
    assert err.count("\n") == 1


@needs_a_lab
@pytest.mark.lab
@pytest.mark.grids
@pytest.mark.parametrize("name", ["TCP BBR", "dgt"])
def test_a_system_has_its_turn_and_nothing_is_left(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    play({name: SYSTEMS[name]}, rounds=3)
    out = capsys.readouterr().out
    assert f"{name}: 3 rounds" in out
    assert re.search(rf"^ ?{name} .* 3 +[0-9.]+% *$", out, re.MULTILINE)
    assert not [owner for owner in namespaces.owners() if namespaces.owner_pid(owner) == os.getpid()]


@needs_a_lab
@pytest.mark.lab
@pytest.mark.parametrize(
    ("number", "before"),
    [(signal.SIGINT, signal.SIG_IGN), (signal.SIGTERM, signal.SIG_DFL)],
    ids=["SIGINT, in the background", "SIGTERM"],
)
def test_what_stops_it_leaves_nothing_behind(number: signal.Signals, before: signal.Handlers) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "lab", "demo"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, before) and None,  # noqa: PLW1509 (no threads here)
    )
    assert demo.stdout is not None
    assert "4 runs over" in demo.stdout.readline()
    demo.send_signal(number)
    _, err = demo.communicate()
    assert demo.returncode == 130
    assert err == "lab: stopped; its processes and its network are gone\n"
    assert not [owner for owner in namespaces.owners() if namespaces.owner_pid(owner) == demo.pid]


def test_a_stop_within_generated_code_is_no_death_of_a_signal(tmp_path: Path) -> None:
    (tmp_path / "stopped.py").write_text(
        "import os\n"
        "from lab.lossy_demo import _interruptible\n"
        "try:\n"
        "    with _interruptible():\n"
        "        exec('os.kill(os.getpid(), 2)')\n"
        "except KeyboardInterrupt:\n"
        "    raise SystemExit(130)\n"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", "stopped"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert ended.returncode == 130
