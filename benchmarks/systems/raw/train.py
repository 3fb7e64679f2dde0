"""Raw sockets: a party's bytes to the hub, and as many back, block by block.

The hub sends a block back once it has that block from every party: the dependence that a synchronous round has, and
nothing else of it. No arithmetic is done.
"""

from __future__ import annotations

import json
import queue
import socket
import sys
import threading
import time
from pathlib import Path

from benchmarks import training

BLOCK_BYTES = 128 << 10
DIAL_S = 60.0


def main() -> None:
    if sys.argv[2] == "hub":
        hub(json.loads(Path(sys.argv[1]).read_text()))
    else:
        party(*training.begin())


def blocks(size_bytes: int) -> list[int]:
    """The sizes of a round's blocks."""
    whole, rest = divmod(size_bytes, BLOCK_BYTES)
    return [BLOCK_BYTES] * whole + ([rest] if rest else [])


def hub(job: dict) -> None:
    """Serve every party until they hang up."""
    host, _, port = job["addresses"]["hub"].rpartition(":")
    with socket.create_server((host, int(port)), backlog=64) as door:
        ends = [door.accept()[0] for _ in range(job["parties"])]
    sizes = blocks(4 * job["parameters"])
    arrived: list[queue.SimpleQueue[bool]] = [queue.SimpleQueue() for _ in ends]
    leaving: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in ends]
    for end, here, out in zip(ends, arrived, leaving, strict=True):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=receive, args=(end, sizes, here), daemon=True).start()
        threading.Thread(target=send, args=(end, out), daemon=True).start()
    while True:
        for size in sizes:
            here = [each.get() for each in arrived]
            if not all(here):
                return
            for out in leaving:
                out.put(size)


def receive(end: socket.socket, sizes: list[int], arrived: queue.SimpleQueue[bool]) -> None:
    """Tell of each block that has come; False at the end."""
    memory = memoryview(bytearray(BLOCK_BYTES))
    while True:
        for size in sizes:
            if not fill(end, memory[:size]):
                arrived.put(False)
                return
            arrived.put(True)


def send(end: socket.socket, leaving: queue.SimpleQueue[int]) -> None:
    memory = memoryview(bytes(BLOCK_BYTES))
    while True:
        end.sendall(memory[: leaving.get()])


def fill(end: socket.socket, view: memoryview) -> bool:
    """Receive exactly this much; False where the other side has hung up."""
    while view:
        count = end.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def party(job: training.Job, watch: training.Watch) -> None:
    """Send and receive a round's bytes, round after round."""
    size = 4 * job.parameters
    mine, into = bytes(size), memoryview(bytearray(size))
    with dial(job.addresses["hub"]) as end:
        for _ in watch.steps():
            sender = threading.Thread(target=end.sendall, args=(mine,))
            sender.start()
            if not fill(end, into):
                raise ConnectionError("the hub hung up")
            sender.join()


def dial(address: str) -> socket.socket:
    """Connect to the hub, which may not listen yet."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + DIAL_S
    while True:
        try:
            end = socket.create_connection((host, int(port)))
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return end


if __name__ == "__main__":
    main()
