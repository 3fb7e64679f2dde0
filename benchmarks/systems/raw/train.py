"""Raw sockets: a party's bytes to the hub, and as many back, block by block.

The hub sends a block back once it has that block from every party: the dependence that a synchronous round has, and
nothing else of it. No arithmetic is done.
"""

import itertools
import socket
import threading
import time
from queue import SimpleQueue

from benchmarks import training

BLOCK_BYTES = 128 << 10
DIAL_S = 60.0


def main(job: training.Job) -> None:
    host, _, port = job.addresses["hub"].rpartition(":")
    if job.name == "hub":
        with socket.create_server((host, int(port)), backlog=64) as door:
            hub([door.accept()[0] for _ in range(job.cell.parties)], job.cell.size_bytes)
    else:
        party(dial(host, int(port)), job.cell.size_bytes, training.Watch(job))


def hub(ends: list[socket.socket], size_bytes: int) -> None:
    """Serve every party until they hang up."""
    whole, rest = divmod(size_bytes, BLOCK_BYTES)
    sizes = [BLOCK_BYTES] * whole + ([rest] if rest else [])

    def receive(end: socket.socket, arrived: SimpleQueue[bool]) -> None:
        memory = memoryview(bytearray(BLOCK_BYTES))
        for size in itertools.cycle(sizes):
            has_come = fill(end, memory[:size])
            arrived.put(has_come)
            if not has_come:
                return

    def send(end: socket.socket, leaving: SimpleQueue[int]) -> None:
        memory = memoryview(bytes(BLOCK_BYTES))
        while True:
            end.sendall(memory[: leaving.get()])

    lanes = [(end, SimpleQueue[bool](), SimpleQueue[int]()) for end in ends]
    for end, arrived, leaving in lanes:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=receive, args=(end, arrived), daemon=True).start()
        threading.Thread(target=send, args=(end, leaving), daemon=True).start()
    for size in itertools.cycle(sizes):
        have_come = [arrived.get() for _, arrived, _ in lanes]
        if not all(have_come):
            return
        for _, _, leaving in lanes:
            leaving.put(size)


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
