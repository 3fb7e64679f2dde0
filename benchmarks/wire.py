"""How fast is the wire? One worker, one server, loopback: slices pushed and answered, beside raw sockets.

    python benchmarks/wire.py                 64 MiB over loopback, against two raw sockets in the same run
    python benchmarks/wire.py --link          10 million parameters over an emulated 100 Mbit/s, 40 ms
    python benchmarks/wire.py --codecs        the same with each codec, beside its own floor

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
from geomx.observe.records import Recorder
from geomx.tree import TOP, Tree

MIB, PARAMETERS = 1 << 20, 10_000_000
PLAIN, LINK = Edge(), LinkTable(rate_mbps=100.0, delay_ms=20.0)
BLOCK = 5  # rounds that one system makes before it is another's turn
SPARSE = "bisparse ratio=0.01"
CODECS = (  # up; down where it is another one
    "fp16", "int8", "int4", "sign; int4", "mpq ratio=0.01", "topk ratio=0.01", SPARSE, f"{SPARSE} values=int4",
    f"{SPARSE} values=int2", f"{SPARSE} values=int4; int4",
)  # fmt: skip
OFF = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
SGD = {"lr": 0.1, **OFF}


def layout_of(parameters: int, edge: Edge) -> Layout:
    """As a run with these codecs cuts its model."""
    tensors = (Tensor("weights", (parameters,), "float32"),)
    wanted = slices_wanted(edge.codec_up, edge.codec_down)
    return Layout(tensors, slice_elements=automatic_slice_elements(tensors, wanted))


def driver_of(
    name: str, workers: int, link: LinkTable | None, edge: Edge, port: int, give: Any = None
) -> Driver:
    """A node of the wire's run: `global/0`, or `W/0`, `W/1`, ..."""
    tree = Tree({f"W/{rank}": TOP for rank in range(workers)})
    node = make_node(Topology("wire", tree, {TOP: edge}), name)
    channel = Tcp(
        None if link is None else link.spec, chunk_bytes=LAN_CHUNK_BYTES if link is None else WAN_CHUNK_BYTES
    )
    address, recorder = f"127.0.0.1:{port}", Recorder(None, name)
    if name == "global/0":
        return Driver(node, Wiring(ListeningEdge(channel, address)), recorder)
    return Driver(node, Wiring(peers={"global/0": (channel, address)}), recorder, give)


def elsewhere(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Do it in a process of its own, which begins with nothing of this one's memory."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    done = pool.submit(work, *arguments)
    pool.shutdown(wait=False)
    return done


def peak_kb() -> int:
    """The most memory that this process has had, in KiB (getrusage would count the parent's, too)."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def serve(workers: int, link: LinkTable | None, edge: Edge, port: int) -> dict[str, float]:
    """The server's process; what it used."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # torch imports what it needs now
    reuse_freed_blocks()  # as `geomx serve` does
    before_kb, start = peak_kb(), time.process_time()
    run_loop(driver_of("global/0", workers, link, edge, port).run())
    return {"cpu_s": time.process_time() - start, "peak_bytes": 1024 * (peak_kb() - before_kb)}


class Pusher(NodeThread):
    """A worker of the wire's run, driven by hand."""

    def __init__(self, rank: int, *run: Any) -> None:
        super().__init__(f"W/{rank}", Recorder(None, f"W/{rank}"), 60.0)
        self._driver = driver_of(f"W/{rank}", *run, self.port.give)
        self._inbox: list[Any] = []
        self._turn, self._rank = 0, rank

    def drivers(self) -> list[Driver]:
        return [self._driver]

    def attach(self, layout: Layout, optimizer: str) -> None:
        self._slices = layout.slices
        self.port.listen(self._inbox.append)
        self.start()
        self.port.call("attach", layout, {"optimizer": optimizer})
        self._until(lambda: any(isinstance(item, Ready) for item in self._inbox))
        self.push(
            [None if self._rank else torch.zeros(slice_.elements) for slice_ in layout.slices], "assign"
        )

    def push(self, values: list[torch.Tensor | None], kind: Any = "gradient") -> None:
        self._inbox.clear()
        for slice_, mine in zip(self._slices, values, strict=True):
            present = None if mine is not None else bytes((len(slice_.parts) + 7) // 8)
            share = Contribution.of(self._turn, slice_.index, kind, "step()", 1.0, mine, present, SGD)
            self.port.call("contribute", share)
        self._turn += 1
        self._until(lambda: len(self._inbox) == len(values))

    def leave(self) -> None:
        self.port.call("leave", {"": self._turn})
        self._until(lambda: any(isinstance(item, Left) for item in self._inbox))
        self.stop()

    def _until(self, ready: Callable[[], bool]) -> None:
        self.port.wait(ready, lambda: "the server")


class Geomx:
    """A server process and workers in this one; `round()` pushes everything and waits for all of it."""

    def __init__(
        self, size_bytes: int, optimizer: str, workers: int = 1, link: Any = None, edge: Edge = PLAIN
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            run = (workers, link, edge, door.getsockname()[1])
        self.server, layout = elsewhere(serve, *run), layout_of(size_bytes // 4, edge)
        self.workers, self.threads = (
            [Pusher(rank, *run) for rank in range(workers)],
            ThreadPoolExecutor(workers),
        )
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


def link_s(size_bytes: float) -> float:
    """So many bytes each way at once over the link, and one round trip."""
    return 2e-3 * LINK.delay_ms + 8e-6 * size_bytes / LINK.rate_mbps


def over_link(rounds: int, edge: Edge = PLAIN, warmup: int = 0) -> float:
    """The median of rounds over the emulated link."""
    system = Geomx(4 * PARAMETERS, "torch.optim.SGD", link=LINK, edge=edge)
    times = [system.round() for _ in range(warmup + rounds)]
    system.close()
    return statistics.median(times[warmup:])


def coded(codecs: str, rounds: int, rates: Memory) -> sweep.Row:
    """A party's round with codecs, against its floor.

    That is the compressed bytes at the link's rate, a round trip, and what arithmetic takes one after the other, as
    measured in this run: encoding and decoding up, SGD's passes, encoding and decoding down.
    """
    up, _, down = codecs.partition("; ")
    edge = Edge(up, down or up)
    ways = [
        cost(spec, layout_of(PARAMETERS, edge).slices, rates, 3) for spec in (edge.codec_up, edge.codec_down)
    ]
    sgd_bytes = 5 * 4 * PARAMETERS  # the sum reads and writes, the step reads two and writes one
    arithmetic_s = sgd_bytes / rates.updating + sum(way.encode_s + way.decode_s for way in ways)
    seconds, moving_s = over_link(rounds, edge, warmup=2), link_s(max(way.sent_bytes for way in ways))
    row = {"system": codecs, "kb_up": 1e-3 * ways[0].sent_bytes, "kb_down": 1e-3 * ways[1].sent_bytes}
    row |= {"round_s": seconds, "link_s": moving_s, "arithmetic_s": arithmetic_s}
    return row | {"of_floor": seconds / (moving_s + arithmetic_s)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--link", action="store_true", help="measure the emulated link instead of loopback")
    parser.add_argument("--codecs", action="store_true", help="measure the emulated link with each codec")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--mib", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds, size_bytes, link = options.rounds, options.mib * MIB, "10 M parameters, 100 Mbit/s, 40 ms"
    if options.codecs:
        rates = memory_of()
        rows = [coded(codecs, min(rounds, 7), rates) for codecs in CODECS]
        keep("codecs", f"{link}, each codec beside its own floor", rows)
    elif options.link:
        row = {
            "parameters": PARAMETERS,
            "round_s": over_link(min(rounds, 3)),
            "floor_s": link_s(4 * PARAMETERS),
        }
        keep("link", link, [row | {"of_floor": row["round_s"] / row["floor_s"]}])
    else:
        keep("loopback", f"{options.mib} MiB pushed and answered", loopback(size_bytes, rounds))
        keep("memory", "Memory of the server", [memory(size_bytes, workers) for workers in (1, 2, 4)])


def keep(name: str, title: str, rows: list[sweep.Row]) -> None:
    """Print the table, and leave its figures in `out/bench/wire.jsonl`."""
    sweep.show(title, rows)
    sweep.keep(sweep.OUT / "wire.jsonl", [{"table": name, **row} for row in rows])


if __name__ == "__main__":
    main()
