"""`lab demo`: one training run over a network that loses 5 %, with TCP and with datagrams in turn.

Each system trains the examples' CNN in two sites, against a global server in a third. A system is stopped after
`TRAIN_S` seconds: TCP with cubic would take minutes for what the others do in seconds.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lab.errors import LabError
from lab.lab import Lab

# SIGINT as well: it is ignored by what a shell starts in the background.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ROOT = Path(__file__).resolve().parents[1]
NETWORK = ROOT / "lab" / "networks" / "20mbit-100ms-5loss.toml"
HUB, SITES = "hub", ("A", "B")
SYSTEMS: Mapping[str, Mapping[str, str]] = {
    "TCP cubic": {"wan.congestion": "cubic"},
    "TCP BBR": {"wan.congestion": "bbr"},
    "datagram": {"wan.congestion": "bbr", "wan.channel": "datagram"},
    "dgt": {"wan.congestion": "bbr", "wan.channel": "dgt"},
}
ROUNDS, WARM_UP = 30, 1
TRAIN_S, START_S, STOP_S, LOOK_S = 50.0, 90.0, 5.0, 0.25
MINUTES = 4  # on two cores, starts included
LAST_LINES = 6  # of what a node has printed before it failed
_FIRST_PORT = 21_000


class Interrupted(KeyboardInterrupt):
    """A signal of `STOPS`. Python remembers a plain KeyboardInterrupt that leaves an `exec`, such as a dataclass's, and
    under `-m` dies of SIGINT at its end, although it was caught.
    """


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one system: a line of the first worker's for each round."""

    name: str
    rounds: Sequence[Mapping[str, Any]]

    @property
    def count(self) -> int:
        """How many rounds it has made."""
        return len(self.rounds) - 1

    @property
    def seconds(self) -> list[float]:
        """Of each round but the first ones, in which connections find their rate."""
        return sorted(line["seconds"] for line in self.rounds[WARM_UP + 1 :])

    @property
    def up_bytes(self) -> float:
        """What one site sent, a round."""
        return float(self.rounds[-1]["sent"] - self.rounds[0]["sent"]) / self.count

    def accuracy_after(self, round_: int) -> float:
        return float(self.rounds[round_]["accuracy"])


def play(systems: Mapping[str, Mapping[str, str]] = SYSTEMS, rounds: int = ROUNDS) -> None:
    """Run the systems in turn, and print a table. Raises `LabError` where a node ends early."""
    console, outcomes = Console(highlight=False), []
    with _interruptible(), Lab.load(NETWORK) as lab:
        console.print(f"{len(systems)} runs over {_words(lab)}; about {MINUTES} minutes")
        for turn, (name, keys) in enumerate(systems.items()):
            with console.status(f"{name}: its processes start") as status:
                outcome = _Turn(lab, name, keys, _FIRST_PORT + 10 * turn, rounds).run(status.update)
            console.print(told(outcome))
            outcomes.append(outcome)
    console.print(table(outcomes))


def told(outcome: Outcome) -> str:
    """One line for a system that has had its turn."""
    if not outcome.seconds:
        return f"{outcome.name}: too slow to be measured, rounds in {TRAIN_S:g} s: {outcome.count}"
    median_s = statistics.median(outcome.seconds)
    return f"{outcome.name}: {outcome.count} rounds, {median_s:.2f} s each (median)"


def table(outcomes: Sequence[Outcome]) -> Table:
    """All systems side by side; accuracies at the end, and after as many rounds as the slowest has made."""
    alike = min(outcome.count for outcome in outcomes)
    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    made.add_column("")
    for heading in (
        "seconds a round",
        "p95",
        "MB up a round",
        f"accuracy after {alike}",
        "rounds",
        "at the end",
    ):
        made.add_column(heading, justify="right")
    for outcome in outcomes:
        made.add_row(outcome.name, *_figures(outcome, alike))
    return made


def _figures(outcome: Outcome, alike: int) -> tuple[str, ...]:
    seconds = outcome.seconds
    if not seconds:
        return "–", "–", "–", "–", str(outcome.count), "–"
    times = f"{statistics.median(seconds):.2f}", f"{_percentile(seconds, 0.95):.2f}"
    accuracies = (f"{outcome.accuracy_after(alike):.1%}" if alike else "–"), str(outcome.count)
    end = f"{outcome.accuracy_after(outcome.count):.1%}"
    return *times, f"{outcome.up_bytes / 1e6:.2f}", *accuracies, end


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _words(lab: Lab) -> str:
    link = lab.links()[SITES[0], HUB].conditions
    return (
        f"{link.rate_mbps:g} Mbit/s, {2 * link.delay_ms:g} ms there and back, {link.loss:.0%} lost each way"
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """What ends this process is raised as `Interrupted`, so that the lab is taken down."""
    before = {number: signal.signal(number, _interrupt) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: Any) -> None:
    raise Interrupted


class _Turn:
    """The processes of one system."""

    def __init__(self, lab: Lab, name: str, keys: Mapping[str, str], port: int, rounds: int) -> None:
        self._lab, self._name, self._keys, self._port, self._rounds = lab, name, keys, port, rounds
        self._processes: dict[str, subprocess.Popen[Any]] = {}

    def run(self, show: Callable[[str], None]) -> Outcome:
        """To its end, or until its time is over; then none of its processes is left. `show`: says how far it is."""
        with tempfile.TemporaryDirectory(prefix="geomx-lossy-") as folder:
            try:
                self._start(Path(folder))
                return Outcome(self._name, self._watch(Path(folder), show))
            finally:
                self._stop()

    def _start(self, folder: Path) -> None:
        secret, description = folder / "secret", folder / "run.toml"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32))
        description.write_text(self._description())
        geomx = (sys.executable, "-m", "geomx")
        self._open(
            folder, "global", HUB, *geomx, "serve", str(description), "--role", "global", "--shard", "0"
        )
        for site in SITES:
            self._open(
                folder, site, site, *geomx, "serve", str(description), "--role", "local", "--party", site
            )
        for site in SITES:
            script = (
                sys.executable,
                "-m",
                "lab.lossy_worker",
                str(folder / f"{site}.jsonl"),
                str(self._rounds),
            )
            place = ("--party", site, "--rank", "0")
            self._open(folder, f"{site}/0", site, *geomx, "worker", str(description), *place, "--", *script)

    def _description(self) -> str:
        keys = {
            "run.secret_file": "secret",
            "worker.threads": 1,
            "wan.codec_up": "fp16",
            "wan.codec_down": "fp16",
        }
        keys |= {"global.addresses": [f"{self._lab.address(HUB)}:{self._port}"], **self._keys}
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        for site in SITES:
            lines += ["[[party]]", f'name = "{site}"', "workers = 1"]
            lines += [f'address = "{self._lab.address(site)}:{self._port}"']
        return "\n".join(lines) + "\n"

    def _open(self, folder: Path, name: str, site: str, *command: str) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
        with (folder / f"{name.replace('/', '.')}.out").open("wb") as out:
            self._processes[name] = self._lab.popen(
                site,
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for this process alone
            )

    def _watch(self, folder: Path, show: Callable[[str], None]) -> list[Mapping[str, Any]]:
        record, until = folder / f"{SITES[0]}.jsonl", time.monotonic() + START_S
        lines: list[Mapping[str, Any]] = []
        while time.monotonic() < until:
            self._check(folder)
            text = record.read_text() if record.exists() else ""
            seen = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
            if seen and not lines:
                until = time.monotonic() + TRAIN_S
            if len(seen) > len(lines):
                lines = seen
                show(f"{self._name}: {len(lines) - 1} of {self._rounds} rounds")
            if len(lines) > self._rounds:
                return lines
            time.sleep(LOOK_S)
        if not lines:
            raise LabError(f"training had not begun after {START_S:g} s: is this machine busy?")
        return lines

    def _check(self, folder: Path) -> None:
        for name, process in self._processes.items():
            if process.poll():
                words = (folder / f"{name.replace('/', '.')}.out").read_text("utf-8", "replace").splitlines()
                last = "\n".join(words[-LAST_LINES:]) or "it said nothing"
                raise LabError(f"{name} ended with status {process.returncode}:\n{last}")

    def _stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, number)
            until = time.monotonic() + STOP_S
            while time.monotonic() < until and any(
                process.poll() is None for process in self._processes.values()
            ):
                time.sleep(LOOK_S / 5)
