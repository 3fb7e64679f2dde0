"""Has nodes of a run leave it: what `geomx leave` does.

Each node's process holds a door: a socket without a file. Its name says run, node and process, and the kernel takes it
away with the process. `/proc/net/unix` lists them all, and `/proc/PROCESS/fd` says whether it is that process's own. So
a process is found on its own machine (in its own container), whoever has started it, and never another one for it.
Whoever waits there when the node has left in order is told so, with one byte; all others only see it go.
"""

from __future__ import annotations

import hashlib
import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from geomx.config import Run
from geomx.errors import ConfigError, Fault, NodeLost, WaitTimeout, nearest
from geomx.launch.environment import read_place
from geomx.observe.records import CLOCK, RecordFiles
from geomx.tree import ROW_SERVERS

DOORS = Path("/proc/net/unix")
LEFT = b"1"
MOST_WAITING = 8
MORE_S = 5.0  # what a process may take to end beyond its leaving


class Door:
    """Lets this process be found as a node of a run, until it is closed. Where a system has none, it does nothing."""

    def __init__(self, run: str, node: str) -> None:
        self._socket: socket.socket | None = None
        with suppress(OSError, AttributeError):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(_address_of(run, node, os.getpid()))
            self._socket.setblocking(False)
            self._socket.listen(MOST_WAITING)

    def has_left(self) -> None:
        """Tell whoever waits that the node has left in order."""
        with suppress(OSError):
            while self._socket is not None:
                waiting, _ = self._socket.accept()
                with waiting:
                    waiting.send(LEFT)

    def close(self) -> None:
        """Be found no more."""
        if self._socket is not None:
            self._socket.close()


def leave(run: Run, nodes: Sequence[str]) -> None:
    """Have nodes whose processes run here leave in order; prints what happens, and returns when they have ended.

    Raises `ConfigError` for nodes that cannot leave or are not here, `WaitTimeout` for one that does not end, and
    `NodeLost` for one that has ended in another way.
    """
    faults = [fault for node in nodes for fault in _faults(run, node)]
    if faults:
        raise ConfigError("the command line", faults)
    asked = []
    for node in dict.fromkeys(nodes):
        for process in processes_of(run.run.name, node)[:1]:  # none, if it has just ended
            asked.append((node, process, os.pidfd_open(process), _at_door(run.run.name, node, process)))
    for node, process, handle, _ in asked:
        signal.pidfd_send_signal(handle, signal.SIGTERM)
        is_lone = run.tree.is_worker(node) or node in ROW_SERVERS
        below = "" if is_lone else ", and all below it"
        print(f"{node} (process {process}) is asked to leave{below}", flush=True)
    within_s = 2 * run.limits.stop_s + MORE_S
    lost = []
    for node, process, handle, at_door in asked:
        if not _ends(handle, within_s):
            raise WaitTimeout(
                f"{node} (process {process}) has not ended within {within_s:g} s: end it with SIGKILL"
            )
        has_left = at_door is None or _hears_that_it_left(at_door)
        print(f"{node}: {'has left' if has_left else 'its process has ended otherwise'}", flush=True)
        lost += [] if has_left else [node]
    if lost:
        raise NodeLost(", ".join(lost), "it was asked to leave, and has ended in another way; see its log")


def processes_of(run: str, node: str) -> list[int]:
    """The processes on this machine that are a node of a run of this name."""
    start, found = f"@{_door_of(run, node)}", []
    for line in DOORS.read_text().splitlines():
        *_, inode, name = line.split()
        if (
            name.startswith(start)
            and (process := name.removeprefix(start)).isdecimal()
            and _holds(process, inode)
        ):
            found.append(int(process))
    return found


def _holds(process: str, inode: str) -> bool:
    """Whether a process has this socket open, as far as we may know."""
    with suppress(OSError):
        for file in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # it has closed it by now
                if str(file.readlink()) == f"socket:[{inode}]":
                    return True
    return False


def _address_of(run: str, node: str, process: int) -> str:
    return f"\0{_door_of(run, node)}{process}"


def _at_door(run: str, node: str, process: int) -> socket.socket | None:
    """Wait at a process's door, to be told that it has left; None: too many do already."""
    waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    waiting.setblocking(False)
    try:
        waiting.connect(_address_of(run, node, process))
    except OSError:
        waiting.close()
        return None
    return waiting


def _hears_that_it_left(waiting: socket.socket) -> bool:
    """Whether a process that has ended has said so."""
    with waiting, suppress(OSError):
        return waiting.recv(1) == LEFT
    return False


def _door_of(run: str, node: str) -> str:
    digest = hashlib.blake2b(f"{run}\0{node}".encode(), digest_size=16).hexdigest()
    return f"geomx/{digest}/"


def _ends(process: int, within_s: float) -> bool:
    """Whether a process ends in time. `process`: a descriptor of it."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(1000 * within_s))


def _faults(run: Run, node: str) -> list[Fault]:
    """Why a node cannot be asked to leave from here."""
    tree = run.tree
    if node not in (*tree.nodes, *ROW_SERVERS):
        allowed = (*tree.nodes, *ROW_SERVERS)
        return [Fault("NODE", node, ", ".join(tree.nodes) + ", or a row server", nearest(node, allowed))]
    if tree.is_shard(node):
        return [
            Fault(
                "NODE", node, "workers and servers below the global ones", "the run ends with a global server"
            )
        ]
    if run.run.on_loss != "continue" and node not in ROW_SERVERS:
        return [
            Fault(
                "run.on_loss",
                f'"{run.run.on_loss}"',
                '"continue"',
                "else the run ends with each of its nodes",
            )
        ]
    jobs = [party.name for party in run.parties if party.inside == "collective"]
    if jobs and not set(tree.leaves(node)).isdisjoint(name for job in jobs for name in tree.leaves(job)):
        hint = "workers that reduce among themselves end together: end all of them, and the party is lost"
        return [Fault("NODE", node, 'nodes of parties with inside = "server"', hint)]
    processes = processes_of(run.run.name, node)
    if len(processes) == 1:
        return []
    if processes:
        listed = ", ".join(map(str, processes))
        hint = "send SIGTERM to the one that you mean"
        return [Fault("NODE", f"{node} in processes {listed}", "one run of this name on a machine", hint)]
    return [Fault("NODE", f"{node}, which does not run on this machine", "nodes that do", _whereabouts(node))]


def _whereabouts(node: str) -> str:
    """On which machine a node has run last, as far as its records tell that are here."""
    folder = read_place().records
    told = RecordFiles(folder).of(node) if folder is not None and folder.is_dir() else []
    hosts = [record.fields["host"] for record in told if record.name == CLOCK and "host" in record.fields]
    return (
        f"its records say that it runs on {hosts[-1]}" if hosts else "call this on the machine where it runs"
    )
