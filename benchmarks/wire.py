"""How fast is the wire? One worker, one server, loopback: slices pushed and answered, beside raw sockets.

    python benchmarks/wire.py                 64 MiB over loopback, against two raw sockets in the same run
    python benchmarks/wire.py --link          10 million parameters over an emulated 100 Mbit/s, 40 ms
    python benchmarks/wire.py --codecs        the same with each codec, beside its own floor

Systems take turns, a few rounds each, so that what disturbs the machine disturbs all of them; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from geomx.channels.memory import reuse_freed_blocks
from geomx.channels.tcp import LAN_CHUNK_BYTES, WAN_CHUNK_BYTES, Tcp
from geomx.codecs.spec import slices_wanted
from geomx.config import LinkTable
from geomx.drive.loops import run_loop
from geomx.drive.real import Driver, ListeningEdge, Wiring
from geomx.drive.threads import NodeThread
from geomx.layout import Layout, Tensor, automatic_slice_elements
from geomx.node.factory import make_node
from geomx.node.port import Contribution, Left, Ready
from geomx.node.topology import Edge, Topology
from geomx.observe.costs import Memory, cost, memory_of

MIB = 1 << 20
PLAIN = Edge()
LINK = LinkTable(rate_mbps=100.0, delay_ms=20.0)
BLOCK = 5  # rounds that one system makes before it is another's turn
CODECS = (
    ("fp16", "fp16"),
    ("int8", "int8"),
    ("int4", "int4"),
    ("sign", "int4"),
    ("mpq ratio=0.01", "mpq ratio=0.01"),
    ("topk ratio=0.01", "topk ratio=0.01"),
    ("bisparse ratio=0.01", "bisparse ratio=0.01"),
    ("bisparse ratio=0.01 values=int4", "bisparse ratio=0.01 values=int4"),
    ("bisparse ratio=0.01 values=int2", "bisparse ratio=0.01 values=int2"),
    ("bisparse ratio=0.01 values=int4", "int4"),
)
SGD = {
    "lr": 0.1,
    "momentum": 0.0,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "nesterov": False,
    "maximize": False,
}


class Silent:
    """A recorder that keeps nothing."""

    def record(self, name: str, level: str = "debug", /, **fields: Any) -> None:
        """Nothing."""


def plan_of(workers: int, edge: Edge) -> Topology:
    return Topology(
        "wire", {"W": tuple(f"W/{rank}" for rank in range(workers))}, flat=True, wan=edge, lan=edge
    )


# -- geomx -----------------------------------------------------------------------------------------------------


def serve(port: int, workers: int, link: LinkTable | None, edge: Edge) -> None:
    """The server's process: prints what it used, as JSON, when the run has ended."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # torch imports what it needs now
    reuse_freed_blocks()  # as `geomx serve` does
    before_kb = peak_kb()
    plan, channel = plan_of(workers, edge), channel_of(link)
    start = time.process_time()
    run_loop(
        Driver(
            make_node(plan, "global/0"), Wiring(ListeningEdge(channel, f"127.0.0.1:{port}")), Silent()
        ).run()
    )
    print(json.dumps({"cpu_s": time.process_time() - start, "peak_mib": (peak_kb() - before_kb) / 1024}))


def layout_of(parameters: int, *codecs: str) -> Layout:
    """As a run with these codecs cuts its model."""
    tensors = (Tensor("weights", (parameters,), "float32"),)
    return Layout(tensors, slice_elements=automatic_slice_elements(tensors, slices_wanted(*codecs)))


def peak_kb() -> int:
    """The most memory that this process has had, in KiB (getrusage would count the parent's, too)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def channel_of(link: LinkTable | None) -> Tcp:
    return Tcp(
        None if link is None else link.spec, chunk_bytes=LAN_CHUNK_BYTES if link is None else WAN_CHUNK_BYTES
    )


class Pusher(NodeThread):
    """A worker of the wire's run, driven by hand."""

    def __init__(self, port: int, rank: int, workers: int, link: LinkTable | None, edge: Edge) -> None:
        super().__init__(f"W/{rank}", Silent(), 60.0)
        self._driver = Driver(
            make_node(plan_of(workers, edge), f"W/{rank}"),
            Wiring(peers={"global/0": (channel_of(link), f"127.0.0.1:{port}")}),
            Silent(),
            self.port.give,
        )
        self.inbox: list[Any] = []
        self.turn = 0
        self.first = rank == 0

    def drivers(self) -> list[Driver]:
        return [self._driver]

    def attach(self, layout: Layout, optimizer: str) -> None:
        self.layout = layout
        self.port.listen(self.inbox.append)
        self.start()
        self.port.call("attach", layout, {"optimizer": optimizer})
        self._until(lambda: any(isinstance(item, Ready) for item in self.inbox))
        self.push([torch.zeros(p.elements) if self.first else None for p in layout.slices], "assign")

    def push(self, values: list[torch.Tensor | None], kind: Any = "gradient") -> None:
        self.inbox.clear()
        for slice_, mine in zip(self.layout.slices, values, strict=True):
            present = None if mine is not None else bytes((len(slice_.parts) + 7) // 8)
            share = Contribution.of(self.turn, slice_.index, kind, "step()", 1.0, mine, present, SGD)
            self.port.call("contribute", share)
        self.turn += 1
        self._until(lambda: len(self.inbox) == len(values))

    def leave(self) -> None:
        self.port.call("leave", {"": self.turn})
        self._until(lambda: any(isinstance(item, Left) for item in self.inbox))
        self.stop()

    def _until(self, ready: Any) -> None:
        self.port.wait(ready, lambda: "the server")


class Geomx:
    """A server process and workers in this one; `round()` pushes everything and waits for all of it."""

    def __init__(
        self,
        size_bytes: int,
        optimizer: str,
        workers: int = 1,
        link: LinkTable | None = None,
        edge: Edge = PLAIN,
    ) -> None:
        self.port = free_port()
        self.layout = layout_of(size_bytes // 4, edge.codec_up, edge.codec_down)
        arguments = ["--serve", str(self.port), str(workers), edge.codec_up, edge.codec_down]
        arguments += ["--link"] if link else []
        self.server = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True
        )
        self.workers = [Pusher(self.port, rank, workers, link, edge) for rank in range(workers)]
        self._each(lambda worker: worker.attach(self.layout, optimizer))
        self.gradients = [torch.randn(slice_.elements) for slice_ in self.layout.slices]
        self.rounds = 0

    def round(self) -> float:
        # A push belongs to the worker that sends it: the next round needs buffers of its own, as in training.
        fresh = [[gradient.clone() for gradient in self.gradients] for _ in self.workers]
        start = time.perf_counter()
        self._each(lambda worker: worker.push(fresh[self.workers.index(worker)]))
        self.rounds += 1
        return time.perf_counter() - start

    def close(self) -> dict[str, float]:
        self._each(Pusher.leave)
        usage, _ = self.server.communicate(timeout=60)
        return dict(json.loads(usage.splitlines()[-1]))

    def _each(self, action: Any) -> None:
        if len(self.workers) == 1:
            action(self.workers[0])
            return
        threads = [threading.Thread(target=action, args=(worker,)) for worker in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


# -- raw sockets ----------------------------------------------------------------------------------------------------


def echo(port: int, size: int, block_bytes: int) -> None:
    """The raw server: sends back every block that has come, while the next comes in."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        blocks, arrived = blocks_of(bytearray(size), block_bytes), threading.Semaphore(0)

        def send() -> None:
            for block in blocks:
                arrived.acquire()
                sock.sendall(block)

        while sock.recv(1, socket.MSG_PEEK):
            sender = threading.Thread(target=send)
            sender.start()
            for block in blocks:
                fill(sock, block)
                arrived.release()
            sender.join()


def blocks_of(memory: bytearray, block_bytes: int) -> list[memoryview]:
    return [memoryview(memory)[start : start + block_bytes] for start in range(0, len(memory), block_bytes)]


def fill(sock: socket.socket, view: memoryview) -> None:
    while view:
        view = view[sock.recv_into(view) :]


class Raw:
    """Two raw, blocking sockets that do the same exchange: all of this memory there, and back into other memory."""

    def __init__(self, size_bytes: int, block_bytes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            arguments = [str(door.getsockname()[1]), str(size_bytes), str(block_bytes)]
            self.server = subprocess.Popen([sys.executable, __file__, "--echo", *arguments])
            self.sock, _ = door.accept()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.mine, self.into = bytearray(size_bytes), memoryview(bytearray(size_bytes))

    def round(self) -> float:
        start = time.perf_counter()
        sender = threading.Thread(target=self.sock.sendall, args=(self.mine,))
        sender.start()
        fill(self.sock, self.into)
        sender.join()
        return time.perf_counter() - start

    def close(self) -> None:
        self.sock.close()
        self.server.wait(10)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


# -- the tables -------------------------------------------------------------------------------------------------


def loopback(size_bytes: int, rounds: int) -> list[dict[str, Any]]:
    """64 MiB pushed and answered, three systems in turn."""
    systems: dict[str, Any] = {
        "raw sockets": Raw(size_bytes, MIB),
        "geomx, answer = mean": Geomx(size_bytes, "workers"),
        "geomx, answer = SGD's weights": Geomx(size_bytes, "torch.optim.SGD"),
    }
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds // BLOCK):
        for name, system in systems.items():
            system.round()  # the first of a block fills caches and buffers
            times[name] += [system.round() for _ in range(BLOCK)]
    base = statistics.median(times["raw sockets"])
    rows = []
    for name, system in systems.items():
        usage = system.close() or {}
        seconds = statistics.median(times[name])
        moved_gb = 2 * size_bytes * (rounds // BLOCK) * (BLOCK + 1) / 1e9
        rows.append(
            {
                "system": name,
                "round_ms": 1e3 * seconds,
                "gb_per_s": 2 * size_bytes / seconds / 1e9,
                "of_raw": base / seconds,
                "server_cpu_s_per_gb": usage.get("cpu_s", float("nan")) / moved_gb,
                "server_peak_of_model": usage.get("peak_mib", float("nan")) * MIB / size_bytes,
            }
        )
    return rows


def memory(size_bytes: int, workers: int) -> dict[str, Any]:
    """What a server holds for several workers."""
    system = Geomx(size_bytes, "torch.optim.SGD", workers)
    for _ in range(5):
        system.round()
    peak = system.close()["peak_mib"] * MIB / size_bytes
    return {"workers": workers, "server_peak_of_model": peak, "bound": workers + 3 if workers > 1 else 3}


def emulated(parameters: int, rounds: int) -> dict[str, Any]:
    """A dense round over a shaped link, against the floor: bytes / rate each way overlapped, one round trip."""
    system = Geomx(4 * parameters, "torch.optim.SGD", link=LINK)
    seconds = statistics.median(system.round() for _ in range(rounds))
    system.close()
    floor_s = link_s(4 * parameters)
    return {"parameters": parameters, "round_s": seconds, "floor_s": floor_s, "of_floor": seconds / floor_s}


def link_s(size_bytes: float) -> float:
    """So many bytes each way at once, and one round trip."""
    assert LINK.rate_mbps is not None
    return 2e-3 * LINK.delay_ms + 8e-6 * size_bytes / LINK.rate_mbps


def coded(up: str, down: str, parameters: int, rounds: int, memory: Memory) -> dict[str, Any]:
    """A party's round with codecs, against its floor.

    That is the compressed bytes at the link's rate, a round trip, and what arithmetic takes one after the other, as
    measured in this run: encoding and decoding up, SGD's passes, encoding and decoding down.
    """
    slices = layout_of(parameters, up, down).slices
    ways = [cost(spec, slices, memory, 3) for spec in (up, down)]
    sgd_bytes = 5 * 4 * parameters  # the sum reads and writes, the step reads two and writes one
    arithmetic_s = sgd_bytes / memory.updating + sum(way.encode_s + way.decode_s for way in ways)
    floor_s = link_s(max(way.sent_bytes for way in ways)) + arithmetic_s
    system = Geomx(4 * parameters, "torch.optim.SGD", 1, LINK, Edge(up, down))
    for _ in range(2):
        system.round()
    seconds = statistics.median(system.round() for _ in range(rounds))
    system.close()
    return {
        "system": f"{up}; {down}",
        "kb_up": 1e-3 * ways[0].sent_bytes,
        "kb_down": 1e-3 * ways[1].sent_bytes,
        "round_s": seconds,
        "link_s": link_s(max(way.sent_bytes for way in ways)),
        "arithmetic_s": arithmetic_s,
        "of_floor": seconds / floor_s,
    }


def show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    for column in rows[0]:
        is_name = column == "system"
        table.add_column(column, justify="left" if is_name else "right", no_wrap=is_name)
    for row in rows:
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else f"{cell}" for cell in row.values()))
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)  # port, workers, codec up, codec down
    parser.add_argument("--echo", nargs=3, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--link", action="store_true", help="measure the emulated link instead of loopback")
    parser.add_argument("--codecs", action="store_true", help="measure the emulated link with each codec")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.echo:
        echo(*options.echo)
    elif options.serve:
        port, workers, up, down = options.serve
        serve(int(port), int(workers), LINK if options.link else None, Edge(up, down))
    elif options.codecs:
        memory = memory_of()
        rows = [coded(up, down, 10_000_000, min(options.rounds, 7), memory) for up, down in CODECS]
        keep("codecs", rows, "10 M parameters, 100 Mbit/s, 40 ms, each codec beside its own floor")
    elif options.link:
        keep("link", [emulated(10_000_000, min(options.rounds, 3))], "10 M parameters, 100 Mbit/s, 40 ms")
    else:
        keep(
            "loopback", loopback(options.mib * MIB, options.rounds), f"{options.mib} MiB pushed and answered"
        )
        keep("memory", [memory(options.mib * MIB, workers) for workers in (1, 2, 4)], "Memory of the server")


def keep(name: str, rows: list[dict[str, Any]], title: str) -> None:
    """Print the table, and leave its figures in `out/bench/wire.jsonl`."""
    show(title, rows)
    path = Path("out/bench/wire.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps({"table": name, **row}) + "\n")


if __name__ == "__main__":
    main()
