"""Runs of real processes, started and ended node by node."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from forks import context, geomx_command

from geomx.cli import main
from geomx.launch.ports import Ports

SCRIPT = """
import fcntl, os, signal, sys, time, torch, geomx
torch.set_num_threads(1)
steps, raises = int(sys.argv[1]), "raise" in sys.argv
run = geomx.join()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer = run.attach(model, optimizer)
generator = torch.Generator().manual_seed(run.workers.index(run.name))
for step in range(steps):
    run.weight(8)
    x = torch.randn(8, 50, generator=generator)
    loss = (model(x) - x[:, :3]).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("step", step, flush=True)
    if step == 5 and run.name == "B/0":
        if raises:
            raise ValueError("no such batch")
        if "exit" in sys.argv:
            sys.exit(3)
        if "term" in sys.argv:
            os.kill(os.getpid(), signal.SIGTERM)
    if "gate" in sys.argv and step == 10:
        fcntl.flock(open(sys.argv[0] + ".gate"), fcntl.LOCK_SH)
    time.sleep(0.02)  # how long a step computes
print("weights", sum(p.double().sum().item() for p in model.parameters()).hex())
"""

BOUND_S = 300.0
ALL_NODES = ("global/0", "A", "B", "A/0", "B/0")


class RealRun:
    """One global server, two parties of one worker each, on free ports of loopback."""

    def __init__(self, folder: Path, steps: int = 40, toml: str = "", wan_through: int | None = None) -> None:
        self.folder = folder
        self._held = Ports()
        self.ports = {name: self._held.hold() for name in ("global/0", "A", "B")}
        dialled = wan_through or self.ports["global/0"]
        (folder / "train.py").write_text(SCRIPT)
        self._gate = (folder / "train.py.gate").open("w")
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        self.steps = steps
        self.toml = folder / "run.toml"
        self.toml.write_text(f"""
[run]
name = "real"
[global]
addresses = ["127.0.0.1:{dialled}"]
listen = ["127.0.0.1:{self.ports["global/0"]}"]
[lan]
heartbeat_s = 0.5
timeout_s = 120
[wan]
heartbeat_s = 0.5
timeout_s = 120
[limits]
stop_s = 120
[[party]]
name = "A"
workers = 1
address = "127.0.0.1:{self.ports["A"]}"
[[party]]
name = "B"
workers = 1
address = "127.0.0.1:{self.ports["B"]}"
{toml}
""")
        self.records = folder / "records"
        self.records.mkdir()
        self.processes: dict[str, ForkServerProcess] = {}
        self.outputs: dict[str, list[str]] = {}
        self._readers: dict[str, threading.Thread] = {}
        self._changed = threading.Condition()

    def start(self, names: Iterable[str] = ALL_NODES, *settings: str, script: Iterable[str] = ()) -> None:
        for name in names:
            self._spawn(name, self._command(name, list(settings), list(script)))

    def let_go(self) -> None:
        """Workers whose script waits at the gate go on."""
        self._gate.close()

    def _command(self, name: str, settings: list[str], script: list[str]) -> list[str]:
        toml = str(self.toml)
        if name == "global/0":
            return ["serve", toml, *settings, "--role", "global"]
        if "/" not in name:
            return ["serve", toml, *settings, "--role", "local", "--party", name]
        party, rank = name.split("/")
        train = [sys.executable, str(self.folder / "train.py"), str(self.steps), *script]
        return ["worker", toml, *settings, "--party", party, "--rank", rank, "--", *train]

    def _spawn(self, name: str, command: list[str]) -> None:
        environment = {"GEOMX_RECORDS": str(self.records)}
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(
            target=geomx_command, args=(command, environment, self.folder, writer), daemon=True
        )
        process.start()
        writer.close()
        self.processes[name] = process
        lines = self.outputs[name] = []

        def read() -> None:
            with open(reader.fileno(), encoding="utf-8", closefd=False) as output:
                for line in output:
                    with self._changed:
                        lines.append(line)
                        self._changed.notify_all()
            reader.close()

        self._readers[name] = threading.Thread(target=read, daemon=True)
        self._readers[name].start()

    def until(self, name: str, pattern: str, within_s: float = BOUND_S) -> None:
        """Wait until a node has printed something."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while not re.search(pattern, "".join(self.outputs[name])):
                left = deadline - time.monotonic()
                assert left > 0, f"{name} never printed {pattern!r}:\n{self.report()}"
                self._changed.wait(left)

    def told(self, *settings: str) -> dict[str, Any]:
        """The report that `geomx report` makes of the records of all nodes."""
        path = self.folder / "report.json"
        assert main(["report", str(self.toml), str(self.records), *settings, "--json", str(path)]) == 0
        report: dict[str, Any] = json.loads(path.read_text())
        return report

    def signal(self, name: str, number: int) -> None:
        pid = self.processes[name].pid
        assert pid is not None
        os.kill(pid, number)

    def wait(self, names: Iterable[str], within_s: float = BOUND_S) -> dict[str, tuple[int, str]]:
        """The exit status and output of each, all of which must end in time."""
        deadline = time.monotonic() + within_s
        ended = {}
        for name in names:
            process = self.processes[name]
            process.join(max(0.1, deadline - time.monotonic()))
            assert process.exitcode is not None, f"{name} has not ended:\n{self.report()}"
            self._readers[name].join()
            ended[name] = process.exitcode, "".join(self.outputs[name])
        return ended

    def weights(self) -> set[str]:
        """What the workers' models came to, as they printed it."""
        return {
            line.split()[1] for lines in self.outputs.values() for line in lines if line.startswith("weights")
        }

    def report(self) -> str:
        return "\n".join(f"--- {name}\n{''.join(lines[-15:])}" for name, lines in self.outputs.items())

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
        self._held.close()


class Proxy:
    """A link that can be cut: passes bytes between whoever dials `port` and `target`, or holds them.

    `has_held`: set once somebody has met the cut, with bytes or by dialling.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.door.getsockname()[1])
        self._whole = threading.Event()
        self._whole.set()
        self.has_held = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, reset: bool) -> None:
        """Let nothing through; `reset`: and break what stands."""
        self._whole.clear()
        if reset:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self.heal()
        for sock in [self.door, *self._sockets]:
            with suppress(OSError):
                sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.door.accept()
                self._wait_until_whole()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _wait_until_whole(self) -> None:
        if not self._whole.is_set():
            self.has_held.set()
            self._whole.wait()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._wait_until_whole()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def last_lines(ended: dict[str, tuple[int, str]]) -> dict[str, Any]:
    return {name: output.strip().splitlines()[-1:] for name, (_, output) in ended.items()}
