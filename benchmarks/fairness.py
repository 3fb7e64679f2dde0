"""How do geomx's datagrams share a link with TCP? One flow of each from A to the hub, whose queue holds one round trip.

    python benchmarks/fairness.py
    python benchmarks/fairness.py --networks 20mbit-100ms --tcp cubic --seconds 60

Needs root and /dev/net/tun, for the networks. A worker pushes slices over `wan.channel = "datagram"` to a global
server, each again as soon as it is answered; a socket sends as fast as its congestion control lets it. Either begins
first, the other `HEAD_START_S` later, and both run for `WARM_S` before anything is counted. `share` is what the
datagrams have of all bytes that the link delivers, headers included. Leaves rows in out/bench/fairness.jsonl.
"""

import itertools
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks import sweep, wire
from benchmarks.grounds import NETWORKS
from benchmarks.sitting import commit_here, machine_here
from geomx.channels.block_classes import Alike
from geomx.channels.contract import EdgeSettings
from geomx.channels.datagram import Datagram
from geomx.drive.loops import run_loop
from geomx.layout import Layout, Tensor
from geomx.node.port import Arrived
from geomx.node.topology import Edge
from lab import awake
from lab.describe import describe, load
from lab.lab import Lab

HEAD_START_S, WARM_S = 5.0, 15.0
TURNS = ("datagrams first", "TCP first")
GEOMX_PORT, TCP_PORT = 7000, 7001
HEADERS = 1500 / 1448  # of TCP with time stamps
EDGE = Edge(channel="datagram")
MODEL = Layout((Tensor("weights", (1 << 20,), "float32"),), slice_elements=1 << 14)


# -- the four processes ----------------------------------------------------------------------------


def serve(host: str) -> None:
    """The global server."""
    torch.set_num_threads(1)
    run_loop(
        wire.driver_of("global/0", 1, EDGE, Datagram(EdgeSettings(), Alike()), f"{host}:{GEOMX_PORT}").run()
    )


def push(host: str) -> None:
    """The worker: each slice again as soon as it is answered, until the process is ended."""
    torch.set_num_threads(1)
    worker = wire.Pusher(0, 1, EDGE, Datagram(EdgeSettings(), Alike()), f"{host}:{GEOMX_PORT}")
    worker.attach(MODEL, "torch.optim.SGD")
    for slice_ in MODEL.slices:
        worker.contribute(0, slice_, torch.zeros(slice_.elements), "assign")
    while True:
        worker.until(lambda: bool(worker.inbox))
        heard, worker.inbox[:] = list(worker.inbox), []
        for update in (item.update for item in heard if isinstance(item, Arrived)):
            slice_ = MODEL.slices[update.slice]
            worker.contribute(update.turn + 1, slice_, torch.zeros(slice_.elements), "gradient")


def sink(host: str) -> None:
    """Prints how much has come, again and again."""
    with socket.create_server((host, TCP_PORT)) as door:
        connection, _ = door.accept()
        came, told_at = 0, 0.0
        while block := connection.recv(1 << 16):
            came += len(block)
            if time.monotonic() - told_at > 0.1:
                told_at = time.monotonic()
                print(told_at, came, flush=True)


def stream(host: str, controller: str) -> None:
    """Sends until the process is ended."""
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, controller.encode())
        sock.connect((host, TCP_PORT))
        while True:
            sock.sendall(bytes(1 << 16))


# -- one measurement -------------------------------------------------------------------------------


def share_of(network: str, controller: str, turn: str, seconds: float) -> dict[str, Any]:
    """What each has of the link."""
    told = load(NETWORKS / f"{network}.toml", None)
    default = {**told.table["default"], "queue_ms": 2 * told.table["default"]["delay_ms"]}
    processes: list[subprocess.Popen[Any]] = []
    with Lab(describe({**told.table, "default": default}, told.source)) as lab:
        host = lab.address("hub")

        def started(site: str, *arguments: str) -> subprocess.Popen[Any]:
            command = [sys.executable, __file__, "--role", *arguments]
            processes.append(lab.popen(site, command, stdout=subprocess.PIPE, text=True))
            return processes[-1]

        started("hub", "serve", host)
        counting = started("hub", "sink", host)
        time.sleep(4.0)
        ways = [("push", host), ("stream", host, controller)]
        for way in ways if turn == TURNS[0] else reversed(ways):
            started("A", *way)
            time.sleep(HEAD_START_S)
        time.sleep(WARM_S)
        began = time.monotonic()
        before = lab.links()["A", "hub"].counters.delivered_bytes
        time.sleep(seconds)
        delivered, ended = lab.links()["A", "hub"].counters.delivered_bytes - before, time.monotonic()
        for process in processes:
            process.kill()
        assert counting.stdout is not None
        lines = [line.split() for line in counting.stdout.read().splitlines()]
    came = {float(at): int(count) for at, count in lines if began <= float(at) <= ended}
    by_tcp = HEADERS * (max(came.values()) - min(came.values())) if came else 0.0
    row = {"network": network, "tcp": controller, "turn": turn, "seconds": seconds}
    return row | {"share": 1.0 - by_tcp / delivered, "mbps": 8e-6 * delivered / seconds}


def main() -> None:
    parser = sweep.parser_of(__doc__, "fairness")
    parser.add_argument("--networks", nargs="+", default=["20mbit-100ms", "100mbit-30ms"], metavar="NAME")
    parser.add_argument("--tcp", nargs="+", default=["cubic", "bbr"], metavar="CONTROLLER")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    parser.add_argument("--role", nargs="+", help="of the processes that this starts")
    options = parser.parse_args()
    if options.role:
        role, *arguments = options.role
        return {"serve": serve, "push": push, "sink": sink, "stream": stream}[role](*arguments)
    machine = {"commit": commit_here(), **machine_here()}
    with awake.cores():
        for network, controller, turn in itertools.product(options.networks, options.tcp, TURNS):
            row = share_of(network, controller, turn, options.seconds)
            sweep.keep(options.out, [row | machine])
            told = f"{row['share']:.2f} of {row['mbps']:.1f} Mbit/s"
            print(f"  {network}  {controller}, {turn}: {told}", flush=True)
    return None


if __name__ == "__main__":
    main()
