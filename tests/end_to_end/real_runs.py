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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal

from forks import context, geomx_command

from geomx.cli import main
from geomx.drive.secret import make_secret
from geomx.launch.environment import job_environment
from geomx.launch.local.ports import Ports

# Words: `steps=N`, of which the last counts; `endless`: its data ends when a file beside the script says so;
# `gate=PLACE`, where it waits until it is let go; `resume`, `shard`, `clip`: what it uses of geomx; and what it does at
# step 5.
SCRIPT = """
import fcntl, os, signal, sys, time, torch, geomx
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
words = sys.argv[1:]
steps = [int(word[6:]) for word in words if word.startswith("steps=")][-1]
if "collective" in words:
    torch.distributed.init_process_group("gloo")

def reach(place):
    print(place, flush=True)
    if "gate=" + place in words:
        fcntl.flock(open(sys.argv[0] + ".gate"), fcntl.LOCK_SH)

reach("imported")
run = geomx.join()
reach("joined")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer = run.attach(model, optimizer, clip_norm=1.0 if "clip" in words else None)
generator = torch.Generator().manual_seed(run.workers.index(run.name))

def endless():
    while not os.path.exists(sys.argv[0] + ".over"):
        yield torch.randn(8, 50, generator=generator)

def batches():
    if "endless" in words:
        yield from run.shard(endless(), over="run")
    elif "shard" in words:
        x = torch.randn(8 * steps, 50, generator=generator)
        for (x,) in run.shard(DataLoader(TensorDataset(x), batch_size=8), over="run"):
            yield x
    else:
        for step in range(run.step if "resume" in words else 0, steps):
            run.weight(8)
            yield torch.randn(8, 50, generator=generator)

for step, x in enumerate(batches()):
    loss = (model(x) - x[:, :3]).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    reach(f"step {step}")
    if step == 5:
        if "raise" in words:
            raise ValueError("no such batch")
        if "exit" in words:
            sys.exit(3)
        if "term" in words:
            os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.02)  # how long a step computes
run.wait()
print("weights", sum(p.double().sum().item() for p in model.parameters()).hex())
reach("trained")
run.close()
reach("closed")
"""

BOUND_S = 300.0
WORKERS = (1, 1)
ALL_NODES = ("global/0", "A", "B", "A/0", "B/0")


class RealRun:
    """Servers and workers by hand, on free ports of loopback: party A has the first number of workers, B the second.

    `outputs`: what each node has printed, and when, on the monotonic clock; `former`: what the processes did that had
    its name before.
    """

    target: Callable[..., None] = staticmethod(geomx_command)  # what a process does

    def __init__(
        self, folder: Path, steps: int = 40, toml: str = "", workers: Sequence[int] = WORKERS, shards: int = 1
    ) -> None:
        self.folder = folder
        self.shards = [f"global/{index}" for index in range(shards)]
        self.servers = [*self.shards, *"AB"[: len(workers)]]
        self.workers = [
            f"{party}/{rank}" for party, count in zip("AB", workers, strict=False) for rank in range(count)
        ]
        self.nodes = [*self.servers, *self.workers]
        self._held = Ports()
        self.ports = {name: self._held.hold() for name in self.servers}
        self._stores = {party: self._held.hold() for party in "AB"}  # where `collective` parties meet
        (folder / "train.py").write_text(SCRIPT)
        make_secret(folder / "secret")  # for runs that need one
        self._gate = (folder / "train.py.gate").open("w")
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        self.steps = steps
        self.toml = folder / "run.toml"
        addresses = [self.address(name) for name in self.shards]
        self.toml.write_text(
            f"""
[run]
name = "real"
shards = {shards}
[global]
addresses = {addresses}
listen = {addresses}
[lan]
heartbeat_s = 0.5
timeout_s = 120
[wan]
heartbeat_s = 0.5
timeout_s = 120
[limits]
stop_s = 120
"""
            + "".join(
                f"""
[[party]]
name = "{party}"
workers = {count}
address = "{self.address(party)}"
listen = "{self.address(party)}"
"""
                for party, count in zip("AB", workers, strict=False)
            )
            + toml
        )
        self.records = folder / "records"
        self.records.mkdir()
        self.processes: dict[str, ForkServerProcess] = {}
        self.outputs: dict[str, list[tuple[float, str]]] = {}
        self.former: dict[str, list[tuple[float, str]]] = {}
        self._readers: dict[str, threading.Thread] = {}
        self._changed = threading.Condition()

    def address(self, server: str) -> str:
        return f"127.0.0.1:{self.ports[server]}"

    def is_below(self, worker: str, nodes: Iterable[str]) -> bool:
        """Whether a worker is one of these nodes, or hangs on one."""
        return any(node in self.shards or f"{worker}/".startswith(f"{node}/") for node in nodes)

    def start(self, names: Iterable[str] = ALL_NODES, *settings: str, script: Iterable[str] = ()) -> None:
        """Start nodes; `script`: words for those that are workers. Those of a node's own come with a second call."""
        for name in names:
            self._spawn(name, self._command(name, list(settings), list(script)))

    def start_guest(self, address: str, *settings: str) -> None:
        """Start a party that the others' descriptions do not name, `guest-1`, with a worker whose data is endless."""
        own = self.folder / "guest.toml"
        party = f'[[party]]\nname = "guest-1"\nworkers = 1\naddress = "{address}"\n'
        own.write_text(self.toml.read_text() + party)
        train = [sys.executable, str(self.folder / "train.py"), "steps=1", "endless"]
        of = [str(own), *settings]
        self._spawn("guest-1", ["serve", *of, "--role", "local", "--party", "guest-1"])
        self._spawn("guest-1/0", ["worker", *of, "--party", "guest-1", "--rank", "0", "--", *train])

    def let_go(self) -> None:
        """Workers whose script waits at the gate go on."""
        self._gate.close()

    def end_data(self) -> None:
        """Workers whose data is `endless` come to its end."""
        (self.folder / "train.py.over").touch()

    def _namespace(self, name: str) -> str:
        """The network namespace that a node runs in; "": that of the tests."""
        return ""

    def _job(self, name: str) -> dict[str, str]:
        """What torchrun would set for a worker."""
        party, _, rank = name.partition("/")
        if name not in self.workers:
            return {}
        count = sum(worker.startswith(f"{party}/") for worker in self.workers)
        return job_environment(int(rank), count, self._stores[party])

    def _command(self, name: str, settings: list[str], script: list[str]) -> list[str]:
        toml = str(self.toml)
        if name in self.shards:
            return ["serve", toml, *settings, "--role", "global", "--shard", name.removeprefix("global/")]
        if "/" not in name:
            return ["serve", toml, *settings, "--role", "local", "--party", name]
        party, rank = name.split("/")
        train = [sys.executable, str(self.folder / "train.py"), f"steps={self.steps}", *script]
        return ["worker", toml, *settings, "--party", party, "--rank", rank, "--", *train]

    def _spawn(self, name: str, command: list[str]) -> None:
        environment = {"GEOMX_RECORDS": str(self.records), **self._job(name)}
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(
            target=self.target,
            args=(command, environment, self.folder, writer, self._namespace(name)),
            daemon=True,
        )
        process.start()
        writer.close()
        self.processes[name] = process
        self.former.setdefault(name, []).extend(self.outputs.get(name, ()))
        lines = self.outputs[name] = []

        def read() -> None:
            with open(reader.fileno(), encoding="utf-8", closefd=False) as output:
                for line in output:
                    with self._changed:
                        lines.append((time.monotonic(), line))
                        self._changed.notify_all()
            reader.close()

        self._readers[name] = threading.Thread(target=read, daemon=True)
        self._readers[name].start()

    def until(self, name: str, pattern: str, within_s: float = BOUND_S) -> None:
        """Wait until a node has printed something."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while not re.search(pattern, self.printed(name)):
                left = deadline - time.monotonic()
                assert left > 0, f"{name} never printed {pattern!r}:\n{self.report()}"
                self._changed.wait(left)

    def goes_on(self, worker: str, since: int, within_s: float, steps: int = 3) -> bool:
        """Wait until a worker has taken so many steps behind a number of printed lines; whether it has."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while sum("step " in line for _, line in self.outputs[worker][since:]) < steps:
                left = deadline - time.monotonic()
                if left <= 0 or not self.processes[worker].is_alive():
                    return False
                self._changed.wait(min(left, 1.0))
        return True

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
            ended[name] = process.exitcode, self.printed(name)
        return ended

    def end_well(self) -> None:
        """All nodes end, with status 0."""
        assert all(status == 0 for status, _ in self.wait(self.nodes).values()), self.report()

    def weights(self) -> set[str]:
        """What the workers' models came to, as they printed it."""
        return {
            line.split()[1]
            for name in self.outputs
            for line in self.printed(name).splitlines()
            if line.startswith("weights")
        }

    def printed(self, name: str) -> str:
        return "".join(line for _, line in self.outputs[name])

    def report(self) -> str:
        return "\n".join(f"--- {name}\n{tail(self.printed(name))}" for name in self.outputs)

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
        self._whole = {"up": threading.Event(), "down": threading.Event()}
        self.heal()
        self.has_held = threading.Event()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, reset: bool = False, way: Literal["up", "down", "both"] = "both") -> None:
        """Let nothing through, or nothing one way; `reset`: and break what stands."""
        for name, whole in self._whole.items():
            if way in (name, "both"):
                whole.clear()
        if reset:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        for whole in self._whole.values():
            whole.set()

    def close(self) -> None:
        self.heal()
        for sock in [self.door, *self._sockets]:
            with suppress(OSError):
                sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.door.accept()
                self._wait_until_whole("up")
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for way, source, sink in (("up", near, far), ("down", far, near)):
                    threading.Thread(target=self._pass_on, args=(way, source, sink), daemon=True).start()

    def _wait_until_whole(self, way: str) -> None:
        if not self._whole[way].is_set():
            self.has_held.set()
            self._whole[way].wait()

    def _pass_on(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._wait_until_whole(way)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def tail(text: str) -> str:
    return "\n".join(text.splitlines()[-15:])
