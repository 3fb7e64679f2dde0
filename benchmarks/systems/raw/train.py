"""Raw sockets: a party's bytes to the hub, and as many back, block by block.

The hub sends a block back once it has that block from every party: the dependence that a synchronous round has, and
nothing else of it. No arithmetic is done.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Sequence

from benchmarks import training

BLOCK_BYTES = 128 << 10
DIAL_S = 60.0


def main() -> None:
    job = training.Job.here()
    host, _, port = job.addresses["hub"].rpartition(":")
    if job.name == "hub":
        hub(host, int(port), job.cell.parties, job.cell.size_bytes)
    else:
        party(dial(host, int(port)), job.cell.size_bytes, training.Watch(job))


def hub(host: str, port: int, parties: int, size_bytes: int) -> None:
    """Serve every party until they hang up."""
    with socket.create_server((host, port), backlog=64) as door:
        ends = [door.accept()[0] for _ in range(parties)]
    whole, rest = divmod(size_bytes, BLOCK_BYTES)
    sizes = [BLOCK_BYTES] * whole + ([rest] if rest else [])
    arrived: list[queue.SimpleQueue[bool]] = [queue.SimpleQueue() for _ in ends]
    leaving: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in ends]
    for end, here, out in zip(ends, arrived, leaving, strict=True):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=receive, args=(end, sizes, here), daemon=True).start()
        threading.Thread(target=send, args=(end, out), daemon=True).start()
    while True:
        for size in sizes:
            are_here = [each.get() for each in arrived]
            if not all(are_here):
                return
            for out in leaving:
                out.put(size)


def receive(end: socket.socket, sizes: Sequence[int], arrived: queue.SimpleQueue[bool]) -> None:
    """Tell of each block that has come; False at the end."""
    memory = memoryview(bytearray(BLOCK_BYTES))
    while True:
        for size in sizes:
            has_come = fill(end, memory[:size])
            arrived.put(has_come)
            if not has_come:
                return


def send(end: socket.socket, leaving: queue.SimpleQueue[int]) -> None:
    memory = memoryview(bytes(BLOCK_BYTES))
    while True:
        end.sendall(memory[: leaving.get()])


def fill(end: socket.socket, view: memoryview) -> bool:
    """Receive exactly this much; False where the other side has hung up."""
    while view and (count := end.recv_into(view)):
        view = view[count:]
    return not view


def party(end: socket.socket, size_bytes: int, watch: training.Watch) -> None:
    """Send and receive a round's bytes, round after round."""
    mine, into = bytes(size_bytes), memoryview(bytearray(size_bytes))
    for _ in watch.steps():
        sender = threading.Thread(target=end.sendall, args=(mine,))
        sender.start()
        if not fill(end, into):
            raise ConnectionError("the hub hung up")
        sender.join()


def dial(host: str, port: int) -> socket.socket:
    """Connect to the hub, which may not listen yet."""
    until = time.monotonic() + DIAL_S
    while True:
        try:
            end = socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return end


if __name__ == "__main__":
    main()
