"""Measures collective calls over loopback, beside torch.distributed over gloo, and raw sockets.

    python benchmarks/calls.py                 two parties of two workers; a minute

Prints calls a second, one by one and packed, and how long 100 MB take. `--worker` is what each process of it runs.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import torch

SMALL, PACKED, MEGABYTES, TURNS = 300, 10_000, 100, 5
DESCRIPTION = """
[run]
script = "{script}"
arguments = ["--worker", "geomx"]
[[party]]
name = "A"
workers = 2
[[party]]
name = "B"
workers = 2
"""


def worker(system: str) -> None:
    """What one of four measures; the first prints."""
    torch.set_num_threads(1)
    if system == "geomx":
        import geomx  # noqa: PLC0415

        run = geomx.join()
        is_first, reduce, barrier = run.is_first, run.reduce, run.barrier
        many = lambda: [each.result() for each in [run.reduce(1.0, wait=False) for _ in range(PACKED)]]  # noqa: E731
    else:
        import torch.distributed as dist  # noqa: PLC0415

        dist.init_process_group("gloo")
        is_first, barrier, many = dist.get_rank() == 0, dist.barrier, None

        def reduce(value: torch.Tensor | float) -> None:
            dist.all_reduce(value.clone() if isinstance(value, torch.Tensor) else torch.tensor(value))

    def timed(what, times: int = 1) -> float:
        barrier()
        begin = time.perf_counter()
        for _ in range(times):
            what()
        return time.perf_counter() - begin

    timed(lambda: reduce(1.0), 20)
    one_by_one = SMALL / median(timed(lambda: reduce(1.0), SMALL) for _ in range(3))
    packed = PACKED / median(timed(many) for _ in range(3)) if many else 0.0
    large = torch.randn(MEGABYTES * 250_000)
    seconds = [timed(lambda: reduce(large)) for _ in range(TURNS)]
    if is_first:
        print(f"RESULT {system} {one_by_one:.0f} {packed:.0f} {median(seconds):.3f}", flush=True)
    if system == "geomx":
        run.close()
    else:
        dist.barrier()
        dist.destroy_process_group()


def measured(system: str) -> tuple[float, float, float]:
    """Calls a second one by one and packed, and the seconds of a large one."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    here = str(Path(__file__).resolve())
    if system == "geomx":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "calls.toml"
            path.write_text(DESCRIPTION.format(script=here))
            command = [sys.executable, "-m", "geomx", "run", str(path), "--plain"]
            outputs = [subprocess.run(command, capture_output=True, text=True, env=env, check=True).stdout]
    else:
        port = free_port()
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "4"}
        processes = [
            subprocess.Popen(
                [sys.executable, here, "--worker", system],
                env={**env, **job, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(4)
        ]
        outputs = [process.communicate()[0] for process in processes]
    (line,) = [line for text in outputs for line in text.splitlines() if f"RESULT {system} " in line]
    return tuple(map(float, line.split(f"RESULT {system} ")[1].split()))  # type: ignore[return-value]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def raw_seconds() -> float:
    """100 MB over one loopback connection, there alone."""
    server = socket.create_server(("127.0.0.1", 0))
    data = bytes(1_000_000 * MEGABYTES)

    def send() -> None:
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(data)

    threading.Thread(target=send).start()
    accepted, _ = server.accept()
    begin, left, room = time.perf_counter(), len(data), bytearray(1 << 20)
    while left:
        left -= accepted.recv_into(room)
    return time.perf_counter() - begin


def raw_tree_seconds() -> float:
    """The bytes that geomx moves, by plain sockets over the same tree, in as many processes; nobody adds anything."""
    here, size = str(Path(__file__).resolve()), 1_000_000 * MEGABYTES
    ports = [free_port() for _ in range(3)]  # of the root and two local servers
    relays = [["0", str(ports[0]), "0"]] + [["1", str(port), str(ports[0])] for port in ports[1:]]
    leaves = [["2", "0", str(port)] for port in ports[1:] for _ in range(2)]
    processes = []
    for role in (*relays, *leaves):
        command = [sys.executable, here, "--raw", *role, str(size)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    return max(float(text.split()[-1]) for text in outputs[len(relays) :])


def raw_node(role: int, port: int, above: int, size: int) -> None:
    """One process of that. `role`: 0 the root, 1 a local server, 2 a worker."""

    def take(connection: socket.socket, to: socket.socket | None) -> None:
        left, room = size, memoryview(bytearray(1 << 20))
        while left:
            count = connection.recv_into(room)
            left -= count
            if to is not None:
                to.sendall(room[:count])

    def at_once(*jobs: tuple) -> None:
        threads = [threading.Thread(target=take, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    if role < 2:
        server = socket.create_server(("127.0.0.1", port))
        below = [server.accept()[0] for _ in range(2)]
    if role:
        for _ in range(1000):
            try:
                up = socket.create_connection(("127.0.0.1", above))
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        up.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if role == 2:
        data = bytes(size)
        up.sendall(b"!")  # all are there when the root says so
        up.recv(1)
        begin = time.perf_counter()
        sending = threading.Thread(target=up.sendall, args=(data,))
        sending.start()
        take(up, None)
        sending.join()
        print(time.perf_counter() - begin, flush=True)
        return
    for connection in below:
        connection.recv(1)
    if role:
        up.sendall(b"!")
        up.recv(1)
    for connection in below:
        connection.sendall(b"!")
    if role:
        # What the first gives goes up, as a sum would; what comes down goes to both.
        down = threading.Thread(target=spread, args=(up, below, size))
        down.start()
        at_once((below[0], up), (below[1], None))
        down.join()
    else:
        answer = threading.Thread(target=spread, args=(below[0], below, size))
        answer.start()
        at_once((below[1], None))
        answer.join()


def spread(source: socket.socket, to: list[socket.socket], size: int) -> None:
    """Pass on to several what comes from one."""
    left, room = size, memoryview(bytearray(1 << 20))
    while left:
        count = source.recv_into(room)
        left -= count
        for each in to:
            each.sendall(room[:count])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worker", choices=("geomx", "gloo"))
    parser.add_argument("--raw", type=int, nargs=4)
    chosen = parser.parse_args()
    if chosen.raw:
        raw_node(*chosen.raw)
        return
    if chosen.worker:
        worker(chosen.worker)
        return
    raw = median(raw_seconds() for _ in range(5))
    print(f"raw: {MEGABYTES} MB over one connection in {raw:.3f} s")
    tree = median(raw_tree_seconds() for _ in range(5))
    print(f"raw: what a reduction of {MEGABYTES} MB moves over the tree, in {tree:.3f} s")
    for system in ("geomx", "gloo", "geomx", "gloo"):
        one, packed, seconds = measured(system)
        many = f", {packed:,.0f} packed" if packed else ""
        print(
            f"{system}: {one:,.0f} small calls a second one by one{many}; {MEGABYTES} MB in {seconds:.3f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
