"""The router: a process of its own that holds every site's TUN device and moves the packets between them.

It reads a network's description from standard input, makes the devices, writes a line to standard output and
then serves until it is told to end or its parent is gone. Whichever it is, it removes the lab's namespaces
last: they cannot outlive it unless it is killed outright, and then the next `up` clears them.

It runs with SCHED_RR, since at a user's priority two busy processes would hold up every packet by
milliseconds, and waits in `select`, whose time-out is in microseconds where that of Python's `epoll` is in
milliseconds.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from geomx.errors import ConfigError
from lab import namespaces, system
from lab.control import MAX_MESSAGE_BYTES
from lab.describe import describe
from lab.errors import LabError
from lab.packets import MAX_PACKET_BYTES
from lab.switch import Switch

READY = "ready"
_READS = 16  # packets from one device before the others, and what is due, have their turn
_LONGEST_WAIT_S = 1.0
_LATE_S = 0.001
_SO_SNDBUFFORCE = 32  # of Linux, for root; Python has no name for it
_WAKING_S = 0.00005  # what it takes to wake up, so sleep ends that much earlier
_EARLY_S = (
    0.0002  # packets due so soon are handed over with those that are due: most of the cost is waking up
)


class Router:
    """The loop around a Switch: TUN devices, the control socket, and the clock."""

    def __init__(
        self, switch: Switch, devices: list[int], listener: socket.socket, facts: Mapping[str, Any]
    ) -> None:
        """`devices`: one TUN for each site, in the order of the description. `facts`: what `status` adds."""
        self._switch = switch
        self._devices = devices
        self._numbers = {device: number for number, device in enumerate(devices)}
        self._listener = listener
        self._clients: dict[int, socket.socket] = {}
        self._facts = facts
        self._stopping = False
        self._refused = 0  # packets that a device did not take
        self._handed = self._late = 0  # groups of packets handed over, and those later than 1 ms
        self._latest_s = 0.0

    def stop(self) -> None:
        """End the loop; may be called by a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Serve until `stop`."""
        while not self._stopping:
            wait_s = self._switch.next_at() - _WAKING_S - time.monotonic()
            watched = [*self._devices, self._listener.fileno(), *self._clients]
            readable, _, _ = select.select(watched, [], [], min(max(wait_s, 0.0), _LONGEST_WAIT_S))
            for descriptor in readable:
                if descriptor in self._numbers:
                    self._read(descriptor)
                elif descriptor in self._clients:
                    self._answer(self._clients[descriptor])
                else:
                    self._accept()
            self._hand_over()

    def _read(self, device: int) -> None:
        source = self._numbers[device]
        for _ in range(_READS):
            try:
                data = os.read(device, MAX_PACKET_BYTES)
            except OSError:  # nothing is left
                return
            self._switch.arrive(source, data, time.monotonic())

    def _hand_over(self) -> None:
        now = time.monotonic()
        for target, due_at, packets in self._switch.due(now + _EARLY_S):
            device = self._devices[target]
            for packet in packets:
                try:
                    os.write(device, packet)
                except OSError:
                    self._refused += 1
            late_s = now - due_at
            self._handed += 1
            self._late += late_s > _LATE_S
            self._latest_s = max(self._latest_s, late_s)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, MAX_MESSAGE_BYTES)
        self._clients[client.fileno()] = client

    def _answer(self, client: socket.socket) -> None:
        try:
            asked = client.recv(MAX_MESSAGE_BYTES)
            if asked:
                client.send(json.dumps(self._reply(asked)).encode())
                return
        except OSError:
            pass  # it has gone, or does not listen to answers; nobody else may wait for it
        del self._clients[client.fileno()]
        client.close()

    def _reply(self, asked: bytes) -> dict[str, Any]:
        try:
            request = json.loads(asked)
            return {"ok": self._do(request.pop("do"), request)}
        except (LabError, ConfigError) as error:
            return {"error": str(error)}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            return {"error": f"not a request: {error!r}"}

    def _do(self, what: str, request: dict[str, Any]) -> Any:
        now = time.monotonic()
        if what == "set":
            return self._switch.change(request["link"], now)
        if what == "begin":
            return self._switch.begin(now)
        if what == "rebind":
            return self._switch.rebind(request["site"])
        if what == "status":
            return {**self._switch.state(now), **self._facts, "router": self._own_state()}
        raise LabError(f"unknown request {what!r}; there are set, begin, rebind, status")

    def _own_state(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "cpu_s": time.process_time(),
            "handed": self._handed,
            "late": self._late,
            "latest_s": self._latest_s,
            "refused": self._refused,
        }


def listen(owner: str) -> socket.socket:
    """The control socket of a lab, in a directory that only root can enter."""
    path = namespaces.control_path(owner)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)
    return listener


def main() -> None:
    """`python -m lab.router`, started by Lab: {owner, parent, source, table, facts} comes on standard input."""
    start = json.loads(sys.stdin.readline())
    owner = start["owner"]
    system.die_with_parent(start["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the parent decides
    network = describe(start["table"], start["source"])
    devices = []
    for site in network.sites:
        with system.inside(namespaces.of_site(owner, site.name)):
            devices.append(system.open_tun(namespaces.WAN))
    facts = {
        "realtime": system.hurry(),
        "owner": owner,
        "table": start["table"],
        "source": start["source"],
        **start["facts"],
    }
    router = Router(Switch(network), devices, listen(owner), facts)
    signal.signal(signal.SIGTERM, lambda number, frame: router.stop())
    gc.collect()
    gc.freeze()
    gc.disable()  # packets make no cycles, and a collection would hold them up
    try:
        print(READY, flush=True)
        router.run()
    finally:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        namespaces.remove(owner)


if __name__ == "__main__":
    main()
