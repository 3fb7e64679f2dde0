"""How fast is the wire? One worker, one server, loopback: slices pushed and answered, beside raw sockets.

    python benchmarks/wire.py                 64 MiB over loopback, against two raw sockets in the same run
    python benchmarks/wire.py --link          10 million parameters over an emulated 100 Mbit/s, 40 ms
    python benchmarks/wire.py --codecs        the same with each codec, beside its own floor

Systems take turns, a few rounds each, so that what disturbs the machine disturbs all of them; figures are medians.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import sweep
from benchmarks.systems.raw.train import fill
from geomx.channels.memory import reuse_freed_blocks
from geomx.channels.tcp import LAN_CHUNK_BYTES, WAN_CHUNK_BYTES, Tcp
from geomx.codecs.spec import slices_wanted
from geomx.config import LinkTable
from geomx.drive.loops import run_loop
from geomx.drive.real import Driver, Wiring
from geomx.drive.threads import NodeThread
from geomx.layout import Layout, Tensor, automatic_slice_elements
from geomx.node.factory import make_node
from geomx.node.port import Contribution, Left, Ready
from geomx.node.topology import Edge, Topology
from geomx.observe.costs import Memory, cost, memory_of

MIB = 1 << 20
PLAIN, LINK = Edge(), Link(rate_mbps=100.0, delay_ms=20.0)
BLOCK = 5  # rounds that one system makes before it is another's turn
SPARSE = "bisparse ratio=0.01"
CODECS = (  # up; down where it is another one
    "fp16", "int8", "int4", "sign; int4", "mpq ratio=0.01", "topk ratio=0.01", SPARSE, f"{SPARSE} values=int4",
    f"{SPARSE} values=int2", f"{SPARSE} values=int4; int4",
)  # fmt: skip
OFF = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
SGD = {"lr": 0.1, **OFF}


class Silent:
    """A recorder that keeps nothing."""

    def record(self, name: str, level: str = "debug", /, **fields: Any) -> None:
        """Nothing."""


def plan_of(workers: int, edge: Edge) -> Topology:
    return Topology(
        "wire", {"W": tuple(f"W/{rank}" for rank in range(workers))}, flat=True, wan=edge, lan=edge
    )


def layout_of(parameters: int, *codecs: str) -> Layout:
    """As a run with these codecs cuts its model."""
    tensors = (Tensor("weights", (parameters,), "float32"),)
    return Layout(tensors, slice_elements=automatic_slice_elements(tensors, slices_wanted(*codecs)))


def channel_of(link: Link | None) -> Tcp:
    return Tcp(link, chunk_bytes=LAN_CHUNK_BYTES if link is None else WAN_CHUNK_BYTES)


def elsewhere(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Do it in a process of its own, which begins with nothing of this one's memory."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    done = pool.submit(work, *arguments)
    pool.shutdown(wait=False)
    return done


def peak_kb() -> int:
    """The most memory that this process has had, in KiB (getrusage would count the parent's, too)."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def serve(port: int, workers: int, link: Link | None, edge: Edge) -> dict[str, float]:
    """The server's process; what it used."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # torch imports what it needs now
    reuse_freed_blocks()  # as `geomx serve` does
    before_kb, start = peak_kb(), time.process_time()
    door = Door(channel_of(link), f"127.0.0.1:{port}")
    run_loop(Driver(make_node(plan_of(workers, edge), "global/0"), Wiring(door), Silent()).run())
    return {"cpu_s": time.process_time() - start, "peak_bytes": 1024 * (peak_kb() - before_kb)}


class Pusher(NodeThread):
    """A worker of the wire's run, driven by hand."""

    def __init__(self, port: int, rank: int, workers: int, link: LinkTable | None, edge: Edge) -> None:
        super().__init__(f"W/{rank}", Silent(), 60.0)
        node = make_node(plan_of(workers, edge), f"W/{rank}")
        wiring = Wiring(peers={"global/0": (channel_of(link), f"127.0.0.1:{port}")})
        self._driver = Driver(node, wiring, Silent(), self.port.give)
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

    def _until(self, ready: Callable[[], bool]) -> None:
        self.port.wait(ready, lambda: "the server")


class Geomx:
    """A server process and workers in this one; `round()` pushes everything and waits for all of it."""

    def __init__(
        self, size_bytes: int, optimizer: str, workers: int = 1, link: Link | None = None, edge: Edge = PLAIN
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = door.getsockname()[1]
        self.server = elsewhere(serve, port, workers, link, edge)
        layout = layout_of(size_bytes // 4, edge.codec_up, edge.codec_down)
        self.workers = [Pusher(port, rank, workers, link, edge) for rank in range(workers)]
        self.threads = ThreadPoolExecutor(workers)
        self._each(lambda worker: worker.attach(layout, optimizer))
        self.gradients = [torch.randn(slice_.elements) for slice_ in layout.slices]

    def round(self) -> float:
        # A push belongs to the worker that sends it: the next round needs buffers of its own, as in training.
        fresh = {worker: [gradient.clone() for gradient in self.gradients] for worker in self.workers}
        start = time.perf_counter()
        self._each(lambda worker: worker.push(fresh[worker]))
        return time.perf_counter() - start

    def close(self) -> dict[str, float]:
        self._each(Pusher.leave)
        usage: dict[str, float] = self.server.result(timeout=60)
        return usage

    def _each(self, action: Callable[[Pusher], None]) -> None:
        list(self.threads.map(action, self.workers))


def echo(port: int, size: int, block_bytes: int) -> None:
    """The raw server: sends back every block that has come, while the next comes in."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        memory, arrived = memoryview(bytearray(size)), threading.Semaphore(0)
        blocks = [memory[start : start + block_bytes] for start in range(0, size, block_bytes)]

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


class Raw:
    """Two raw, blocking sockets that do the same exchange: all of this memory there, and back into other memory."""

    def __init__(self, size_bytes: int, block_bytes: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.server = elsewhere(echo, door.getsockname()[1], size_bytes, block_bytes)
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

    def close(self) -> dict[str, float]:
        self.sock.close()
        self.server.result(timeout=10)
        return {}


def loopback(size_bytes: int, rounds: int) -> list[sweep.Row]:
    """So much memory pushed and answered, three systems in turn."""
    systems: dict[str, Raw | Geomx] = {
        "raw sockets": Raw(size_bytes, MIB),
        "geomx, answer = mean": Geomx(size_bytes, "workers"),
        "geomx, answer = SGD's weights": Geomx(size_bytes, "torch.optim.SGD"),
    }
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds // BLOCK):
        for name, system in systems.items():
            system.round()  # the first of a block fills caches and buffers
            times[name] += [system.round() for _ in range(BLOCK)]
    moved_gb = 2 * size_bytes * (rounds // BLOCK) * (BLOCK + 1) / 1e9
    base, rows = statistics.median(times["raw sockets"]), []
    for name, system in systems.items():
        usage, seconds = system.close(), statistics.median(times[name])
        row = {"system": name, "round_ms": 1e3 * seconds, "gb_per_s": 2 * size_bytes / seconds / 1e9}
        row |= {"of_raw": base / seconds, "server_cpu_s_per_gb": usage.get("cpu_s", float("nan")) / moved_gb}
        rows.append(row | {"server_peak_of_model": usage.get("peak_bytes", float("nan")) / size_bytes})
    return rows


def memory(size_bytes: int, workers: int) -> sweep.Row:
    """What a server holds for several workers."""
    system = Geomx(size_bytes, "torch.optim.SGD", workers)
    for _ in range(5):
        system.round()
    peak = system.close()["peak_bytes"] / size_bytes
    return {"workers": workers, "server_peak_of_model": peak, "bound": workers + 3 if workers > 1 else 3}


def link_s(size_bytes: float) -> float:
    """So many bytes each way at once, and one round trip."""
    assert LINK.rate_mbps is not None
    return 2e-3 * LINK.delay_ms + 8e-6 * size_bytes / LINK.rate_mbps


def over_link(parameters: int, rounds: int, edge: Edge = PLAIN, warmup: int = 0) -> float:
    """The median of dense or coded rounds over the emulated link."""
    system = Geomx(4 * parameters, "torch.optim.SGD", link=LINK, edge=edge)
    times = [system.round() for _ in range(warmup + rounds)]
    system.close()
    return statistics.median(times[warmup:])


def coded(codecs: str, parameters: int, rounds: int, memory: Memory) -> sweep.Row:
    """A party's round with codecs, against its floor.

    That is the compressed bytes at the link's rate, a round trip, and what arithmetic takes one after the other, as
    measured in this run: encoding and decoding up, SGD's passes, encoding and decoding down.
    """
    up, _, down = codecs.partition("; ")
    down = down or up
    slices = layout_of(parameters, up, down).slices
    ways = [cost(spec, slices, memory, 3) for spec in (up, down)]
    sgd_bytes = 5 * 4 * parameters  # the sum reads and writes, the step reads two and writes one
    arithmetic_s = sgd_bytes / memory.updating + sum(way.encode_s + way.decode_s for way in ways)
    sent = [way.sent_bytes for way in ways]
    seconds = over_link(parameters, rounds, Edge(up, down), warmup=2)
    row = {"system": f"{up}; {down}", "kb_up": 1e-3 * sent[0], "kb_down": 1e-3 * sent[1], "round_s": seconds}
    row |= {"link_s": link_s(max(sent)), "arithmetic_s": arithmetic_s}
    return row | {"of_floor": seconds / (link_s(max(sent)) + arithmetic_s)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--link", action="store_true", help="measure the emulated link instead of loopback")
    parser.add_argument("--codecs", action="store_true", help="measure the emulated link with each codec")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, size_bytes, parameters = options.rounds, options.mib * MIB, 10_000_000
    if options.codecs:
        rates = memory_of()
        rows = [coded(codecs, parameters, min(rounds, 7), rates) for codecs in CODECS]
        keep("codecs", "10 M parameters, 100 Mbit/s, 40 ms, each codec beside its own floor", rows)
    elif options.link:
        seconds, floor_s = over_link(parameters, min(rounds, 3)), link_s(4 * parameters)
        row = {
            "parameters": parameters,
            "round_s": seconds,
            "floor_s": floor_s,
            "of_floor": seconds / floor_s,
        }
        keep("link", "10 M parameters, 100 Mbit/s, 40 ms", [row])
    else:
        keep("loopback", f"{options.mib} MiB pushed and answered", loopback(size_bytes, rounds))
        keep("memory", "Memory of the server", [memory(size_bytes, workers) for workers in (1, 2, 4)])


def keep(name: str, title: str, rows: list[sweep.Row]) -> None:
    """Print the table, and leave its figures in `out/bench/wire.jsonl`."""
    sweep.show(title, rows)
    sweep.keep(sweep.OUT / "wire.jsonl", [{"table": name, **row} for row in rows])


if __name__ == "__main__":
    main()
