"""The processes of one run of `storm.py`: started, killed, stopped and started again, and what they have left.

This process watches all of them itself, so that no other watcher ends the run with the first node that dies.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.processes import Meter
from benchmarks.storm_faults import Act, Fault, Relay, acts_of
from benchmarks.storm_figures import GLOBAL, Line, Seen
from benchmarks.storm_train import BATCH, UNTIL, log_path
from benchmarks.systems.adapters import ROOT
from benchmarks.training import publish
from benchmarks.turn import PASSED_ON, THREADS
from geomx.launch.local.ports import Ports
from geomx.observe.records import Record, RecordFiles

LOOK_S = 0.05
START_S = 300.0  # until the first round has closed
END_S, PART_S = 90.0, 30.0  # from the end of the data, and of the global server, until all have ended
GRACE_S = 5.0  # from SIGTERM to SIGKILL
HEARTBEAT_S, TIMEOUT_S = 1.0, 4.0
KEPT = ("round", "lost", "awaited", "clock", "finished", "failed", "roster", "torn", "step")  # records

SCRIPT = Path(__file__).with_name("storm_train.py")


def description(system: dict[str, Any], ports: dict[str, int], on_loss: str) -> str:
    """The run's TOML. `ports`: of each server. `on_loss`: "" leaves the key out."""
    address = {server: f'"127.0.0.1:{port}"' for server, port in ports.items()}
    edge = f"heartbeat_s = {HEARTBEAT_S}\ntimeout_s = {TIMEOUT_S}\n"
    codecs = "".join(f'{key} = "{system[key]}"\n' for key in ("codec_up", "codec_down") if key in system)
    losses = f'on_loss = "{on_loss}"\n' if on_loss else ""
    parties = "".join(
        f'[[party]]\nname = "{party}"\nworkers = 1\naddress = {address[party]}\n'
        for party in ports
        if party != GLOBAL
    )
    return (
        f'[run]\nname = "storm"\nledger = true\n{losses}[sync]\npolicy = "{system["policy"]}"\n'
        f"[wan]\n{edge}{codecs}[lan]\n{edge}[global]\naddresses = [{address[GLOBAL]}]\n{parties}"
    )


class Nodes:
    """One run. `faults`: none for the run without. `relayed`: the parties whose link goes over a relay.

    `settings`: `key=value` over the description, for every node.
    """

    def __init__(
        self,
        folder: Path,
        system: dict[str, Any],
        parties: Sequence[str],
        faults: Sequence[Fault],
        relayed: set[str],
        seconds: float,
        on_loss: str,
        settings: Sequence[str] = (),
    ) -> None:
        self._folder, self._parties, self._seconds = folder, parties, seconds
        self._system, self._faults, self._relayed, self._on_loss = system, faults, relayed, on_loss
        self._settings = settings
        self._workers = [f"{party}/0" for party in parties]
        self._meter = Meter(folder.name)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._relays: dict[str, Relay] = {}
        self._due = deque[Act]()
        self._done: list[Act] = []
        self._records: list[Record] = []
        self._ends: dict[str, str] = {}  # of nodes that have ended badly by themselves: how
        (folder / "records").mkdir()
        self._files = RecordFiles(folder / "records")
        self._began = 0.0

    def run(self) -> Seen:
        """All of it. Whatever happens, none of its processes is left."""
        with Ports() as held:
            ports = {server: held.hold() for server in (GLOBAL, *self._parties)}
            (self._folder / "storm.toml").write_text(description(self._system, ports, self._on_loss))
            self._relays = {party: Relay(ports[GLOBAL]) for party in sorted(self._relayed)}
            try:
                for node in (GLOBAL, *self._parties, *self._workers):
                    self._start(node)
                self._watch()
            finally:
                self._meter.end_all(GRACE_S)
                for process in self._running.values():
                    process.wait()
                for relay in self._relays.values():
                    relay.close()
        self._read()
        until = self._began + self._seconds
        return Seen(
            ended=self._ends,
            workers=self._workers,
            unit=float(BATCH * self._system["every"]),
            began=self._began,
            until=until,
            faults=self._faults,
            acts=self._done,
            records=self._records,
            lines={worker: lines_of(self._folder, worker) for worker in self._workers},
        )

    # -- watching -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Return when all have ended, or the run cannot go on."""
        give_up = time.monotonic() + START_S
        while True:
            time.sleep(LOOK_S)
            self._read()
            if not self._began and (first := self._first_round()) is not None:
                self._begin(first)
                give_up = first + self._seconds + END_S
            while self._due and time.monotonic() >= self._began + self._due[0].t:
                self._act(self._due.popleft())
            self._reap()
            left = [node for node, process in self._running.items() if process.poll() is None]
            if GLOBAL not in left:  # the run is over
                self._due.clear()
                give_up = min(give_up, time.monotonic() + PART_S)
            if not (left or self._due):
                return
            if time.monotonic() > give_up:
                self._ends |= {node: f"{node} had not ended, and was stopped" for node in left}
                return

    def _begin(self, first: float) -> None:
        self._began = first
        publish(self._folder / UNTIL, repr(first + self._seconds))
        self._due.extend(acts_of(self._faults))

    def _first_round(self) -> float | None:
        rounds = (r.t for r in self._records if r.name == "round" and r.node == GLOBAL)
        return next(rounds, None)

    def _read(self) -> None:
        self._records += [record for record in self._files.new() if record.name in KEPT]

    def _reap(self) -> None:
        """Note who has ended by itself."""
        for node, process in self._running.items():
            status = process.poll()
            if not status or node in self._ends or self._is_down(node):
                continue
            at = f" at {time.monotonic() - self._began:.1f} s" if self._began else ""
            self._ends[node] = f"{node} ended with status {status}{at}: {self._last_words(node)}"

    def _is_down(self, node: str) -> bool:
        """Whether this process has killed it, and not yet started it again."""
        acts = [act.what for act in self._done if act.node == node and act.what in ("kill", "start")]
        return acts[-1:] == ["kill"]

    def _last_words(self, node: str) -> str:
        lines = [line.strip() for line in self._output(node).read_text("utf-8", "replace").splitlines()]
        told = [line for line in lines if line]
        begins = [number for number, line in enumerate(told) if "geomx: " in line or "Error: " in line]
        return " ".join(told[begins[-1] :] if begins else told[-1:] or ["it said nothing"])[:300]

    # -- doing --------------------------------------------------------------------------------------------------

    def _act(self, act: Act) -> None:
        process = self._running[act.node]
        with suppress(ProcessLookupError):
            if act.what == "kill":
                process.kill()
                process.wait()
            elif act.what == "start":
                self._start(act.node)
            elif act.what in ("cut", "heal"):
                relay = self._relays[act.node]
                relay.cut() if act.what == "cut" else relay.heal()
            elif process.poll() is None:
                process.send_signal(signal.SIGSTOP if act.what == "stop" else signal.SIGCONT)
        self._done.append(Act(time.monotonic(), act.what, act.node, act.fault))
        print(f"    {time.monotonic() - self._began:6.1f} s  {act.what} {act.node}", flush=True)

    def _start(self, node: str) -> None:
        env = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
        env |= THREADS | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONUNBUFFERED": "1"}
        env |= self._meter.mark(node) | {"GEOMX_RECORDS": str(self._folder / "records")}
        with self._output(node).open("ab") as out:
            self._running[node] = subprocess.Popen(
                [sys.executable, "-m", "geomx", *self._command(node)],
                env=env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def _command(self, node: str) -> list[str]:
        told = [str(self._folder / "storm.toml"), *self._settings]
        if node == GLOBAL:
            return ["serve", *told, "--role", "global", "--shard", "0"]
        if node not in self._workers:
            through = self._relays.get(node)
            relayed = [f'global.addresses=["127.0.0.1:{through.port}"]'] if through else []
            return ["serve", *told, *relayed, "--role", "local", "--party", node]
        party, rank = node.split("/")
        script = [sys.executable, str(SCRIPT), str(self._folder)]
        return ["worker", *told, "--party", party, "--rank", rank, "--", *script]

    def _output(self, node: str) -> Path:
        return self._folder / f"{node.replace('/', '.')}.out"


def lines_of(folder: Path, worker: str) -> list[Line]:
    """What a worker has written down; a line that is not whole is left out."""
    path = log_path(folder, worker)
    text = path.read_text() if path.exists() else ""
    found = []
    for line in text.splitlines():
        with suppress(json.JSONDecodeError):  # of a process that was killed while it wrote, another went on
            found.append(json.loads(line))
    return found
