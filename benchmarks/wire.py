"""How fast is the wire? One worker, one server, loopback: slices pushed and answered, beside raw sockets.

    python benchmarks/wire.py --mib 64

Systems take turns, a few rounds each, so that what disturbs the machine disturbs all of them; figures are medians.
"""

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
from geomx.channels.tcp import LAN_CHUNK_BYTES, Tcp
from geomx.drive.loops import run_loop
from geomx.drive.real import Driver, ListeningEdge, Wiring
from geomx.drive.threads import NodeThread
from geomx.layout import Layout, Slice, Tensor, automatic_slice_elements
from geomx.node.factory import make_node
from geomx.node.port import Contribution, Left, Ready
from geomx.node.topology import Edge, Topology
from geomx.observe.records import Recorder
from geomx.tree import TOP, Tree

MIB, PLAIN = 1 << 20, Edge()
BLOCK = 5  # rounds that one system makes before it is another's turn
OFF = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
SGD = {"lr": 0.1, **OFF}


def layout_of(parameters: int) -> Layout:
    """As a run cuts its model."""
    tensors = (Tensor("weights", (parameters,), "float32"),)
    return Layout(tensors, slice_elements=automatic_slice_elements(tensors))


def driver_of(name: str, workers: int, edge: Edge, channel: Any, address: str, give: Any = None) -> Driver:
    """A node of the wire's run: `global/0`, which listens at an address, or `W/0`, `W/1`, ..., which dial it."""
    tree = Tree({f"W/{rank}": TOP for rank in range(workers)})
    secret = b"" if edge.channel == "tcp" else b"wire" * 8  # datagrams need one
    node = make_node(Topology("wire", tree, {TOP: edge}, secret=secret), name)
    if name == "global/0":
        return Driver(node, Wiring(ListeningEdge(channel, address)), Recorder(None, name))
    return Driver(node, Wiring(peers={"global/0": (channel, address)}), Recorder(None, name), give)


def elsewhere(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Do it in a process of its own, which begins with nothing of this one's memory."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    done = pool.submit(work, *arguments)
    pool.shutdown(wait=False)
    return done


def peak_kb() -> int:
    """The most memory that this process has had, in KiB (getrusage would count the parent's, too)."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def serve(workers: int, address: str) -> dict[str, float]:
    """The server's process; what it used."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # torch imports what it needs now
    reuse_freed_blocks()  # as `geomx serve` does
    before_kb, start = peak_kb(), time.process_time()
    run_loop(driver_of("global/0", workers, PLAIN, Tcp(chunk_bytes=LAN_CHUNK_BYTES), address).run())
    return {"cpu_s": time.process_time() - start, "peak_bytes": 1024 * (peak_kb() - before_kb)}


class Pusher(NodeThread):
    """A worker of the wire's run, driven by hand."""

    def __init__(self, rank: int, workers: int, edge: Edge, channel: Any, address: str) -> None:
        super().__init__(f"W/{rank}", Recorder(None, f"W/{rank}"), 60.0)
        self._driver = driver_of(f"W/{rank}", workers, edge, channel, address, self.port.give)
        self.inbox: list[Any] = []
        self._turn, self._rank = 0, rank

    def drivers(self) -> list[Driver]:
        return [self._driver]

    def attach(self, layout: Layout, optimizer: str) -> None:
        """Until the run is ready for the first values."""
        self.slices = layout.slices
        self.port.listen(self.inbox.append)
        self.start()
        self.port.call("attach", layout, {"optimizer": optimizer})
        self.until(lambda: any(isinstance(item, Ready) for item in self.inbox))
        self.inbox.clear()

    def assign(self) -> None:
        """Give the first values, which the first worker alone has."""
        self.push([None if self._rank else torch.zeros(slice_.elements) for slice_ in self.slices], "assign")

    def push(self, values: list[torch.Tensor | None], kind: Any = "gradient") -> None:
        """A turn: all slices, until all are answered."""
        self.inbox.clear()
        for slice_, mine in zip(self.slices, values, strict=True):
            self.contribute(self._turn, slice_, mine, kind)
        self._turn += 1
        self.until(lambda: len(self.inbox) == len(values))

    def contribute(self, turn: int, slice_: Slice, values: torch.Tensor | None, kind: Any) -> None:
        present = None if values is not None else bytes((len(slice_.parts) + 7) // 8)
        share = Contribution.of(turn, slice_.index, kind, "step()", 1.0, values, present, SGD)
        self.port.call("contribute", share)

    def leave(self) -> None:
        self.port.call("leave", {"": self._turn})
        self.until(lambda: any(isinstance(item, Left) for item in self.inbox))
        self.stop()

    def until(self, ready: Callable[[], bool]) -> None:
        self.port.wait(ready, lambda: "the server")


class Geomx:
    """A server process and workers in this one; `round()` pushes everything and waits for all of it."""

    def __init__(self, size_bytes: int, optimizer: str, workers: int = 1) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            address = f"127.0.0.1:{door.getsockname()[1]}"
        self.server, layout = elsewhere(serve, workers, address), layout_of(size_bytes // 4)
        channels = [Tcp(chunk_bytes=LAN_CHUNK_BYTES) for _ in range(workers)]
        self.workers = [Pusher(rank, workers, PLAIN, each, address) for rank, each in enumerate(channels)]
        self.threads = ThreadPoolExecutor(workers)
        self._each(lambda worker: worker.attach(layout, optimizer))
        self._each(Pusher.assign)
        self.gradients = [torch.randn(slice_.elements) for slice_ in layout.slices]

    def round(self) -> float:
        # A push belongs to the worker that sends it: the next round needs buffers of its own, as in training.
        fresh = {worker: [gradient.clone() for gradient in self.gradients] for worker in self.workers}
        start = time.perf_counter()
        self._each(lambda worker: worker.push(fresh[worker]))
        return time.perf_counter() - start

    def close(self) -> dict[str, float]:
        self._each(Pusher.leave)
        return self.server.result(timeout=60)

    def _each(self, action: Callable[[Pusher], None]) -> None:
        list(self.threads.map(action, self.workers))


def echo(port: int, size: int, block_bytes: int) -> dict[str, float]:
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
    return {"cpu_s": float("nan"), "peak_bytes": float("nan")}


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
        return self.server.result(timeout=10)


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
        used, seconds = system.close(), statistics.median(times[name])
        row = {"system": name, "round_ms": 1e3 * seconds, "gb_per_s": 2 * size_bytes / seconds / 1e9}
        row |= {"of_raw": base / seconds, "server_cpu_s_per_gb": used["cpu_s"] / moved_gb}
        rows.append(row | {"server_peak_of_model": used["peak_bytes"] / size_bytes})
    return rows


def memory(size_bytes: int, workers: int) -> sweep.Row:
    """What a server holds for several workers."""
    system = Geomx(size_bytes, "torch.optim.SGD", workers)
    for _ in range(5):
        system.round()
    peak = system.close()["peak_bytes"] / size_bytes
    return {"workers": workers, "server_peak_of_model": peak, "bound": workers + 3 if workers > 1 else 3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size_bytes = options.mib * MIB
    keep("loopback", f"{options.mib} MiB pushed and answered", loopback(size_bytes, options.rounds))
    keep("memory", "Memory of the server", [memory(size_bytes, workers) for workers in (1, 2, 4)])


def keep(name: str, title: str, rows: list[sweep.Row]) -> None:
    """Print the table, and leave its figures in `out/bench/wire.jsonl`."""
    sweep.show(title, rows)
    sweep.keep(sweep.OUT / "wire.jsonl", [{"table": name, **row} for row in rows])


if __name__ == "__main__":
    main()
