"""The faults that `storm.py` makes, and the relay by which it cuts a link."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

RESTART_S = 5.0
KINDS = ("kill worker", "stop worker", "cut link", "kill server")
BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a party with one worker, `at_s` seconds after the first round; `for_s` until it is undone."""

    at_s: float
    what: str
    party: str
    for_s: float = RESTART_S

    @property
    def worker(self) -> str:
        return f"{self.party}/0"

    @property
    def node(self) -> str:
        """Whom the others miss: the worker, or the local server."""
        return self.worker if "worker" in self.what else self.party

    @property
    def acts(self) -> tuple[str, str]:
        """What is done to the node, and what undoes it."""
        kind = self.what.split()[0]
        return {"kill": ("kill", "start"), "stop": ("stop", "go on"), "cut": ("cut", "heal")}[kind]


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that is done to a node. `t`: seconds since the first round, or once it is done of the monotonic clock.

    `fault`: the place of the fault in its schedule.
    """

    t: float
    what: str
    node: str
    fault: int


def faults_of(schedule: Iterable[dict[str, Any]], parties: Sequence[str], seconds: float) -> list[Fault]:
    """The faults of a schedule in the order of time: of these parties, and as far as they are undone in time.

    Raises ValueError where a schedule is wrong: a kind that there is not, or a fault twice at one moment.
    """
    faults = sorted((Fault(**told) for told in schedule), key=lambda fault: fault.at_s)
    for fault in faults:
        if fault.what not in KINDS:
            raise ValueError(f"`{fault.what}` is no fault: {', '.join(KINDS)}")
    if len({(fault.at_s, fault.party) for fault in faults}) < len(faults):
        raise ValueError("two faults of one party at one moment")
    return [fault for fault in faults if fault.party in parties and fault.at_s + fault.for_s < seconds]


def acts_of(faults: Sequence[Fault]) -> list[Act]:
    """What is to be done, in the order of time."""
    acts = []
    for number, fault in enumerate(faults):
        does, undoes = fault.acts
        acts.append(Act(fault.at_s, does, fault.node, number))
        acts.append(Act(fault.at_s + fault.for_s, undoes, fault.node, number))
    return sorted(acts, key=lambda act: act.t)


class Relay:
    """A link of a party's: passes bytes between whoever dials `port` and `target`, both ports of 127.0.0.1.

    While it is cut it holds them, both ways, and closes nothing; whoever dials then gets no word.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = threading.Event()
        self._whole.set()
        self._sockets: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._door.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        self._whole.set()

    def close(self) -> None:
        for sock in (self._door, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._whole.set()

    def _accept(self) -> None:
        with suppress(OSError):  # the door is closed
            while True:
                near, _ = self._door.accept()
                self._whole.wait()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while block := source.recv(BLOCK_BYTES):
                self._whole.wait()
                sink.sendall(block)
        self._whole.wait()  # that the other has hung up does not pass either
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
