"""A network that is up: `with Lab.load("lab/networks/100mbit-30ms.toml") as lab: lab.popen("A", [...])`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lab import namespaces, nat, router, system
from lab.control import Control
from lab.describe import Network, Pair, load
from lab.errors import LabError, RouterError
from lab.link import Conditions, Counters

_STOP_AFTER_S = 10.0
_labs = count()


@dataclass(frozen=True, slots=True)
class LinkState:
    """What holds on a directed link, and what became of its segments so far."""

    conditions: Conditions
    counters: Counters


@dataclass(frozen=True, slots=True)
class RouterState:
    """How the router fares. `late`: groups of packets, of `handed`, that were handed over more than 1 ms too late."""

    pid: int
    cpu_s: float
    handed: int
    late: int
    latest_s: float
    refused: int  # packets that a site's kernel did not take
    strays: int  # packets to nowhere
    realtime: bool  # SCHED_RR was granted


@dataclass(frozen=True, slots=True)
class NatState:
    """What a site's NAT does. `refused`: packets, of either direction, that belonged to no flow."""

    mappings: int
    refused: int


class Lab:
    """Owns the namespaces and the router of one network, from `open` to `close`.

    Open and close it on the same thread: the router ends with the thread that started it.
    """

    def __init__(self, network: Network, facts: dict[str, Any] | None = None) -> None:
        """`facts` is added to what `status` answers. Nothing happens before `open`."""
        self.network = network
        self.owner = namespaces.owner_name(next(_labs))
        self._facts = facts or {}
        self._router: subprocess.Popen[str] | None = None
        self._control: Control | None = None
        self._processes: list[subprocess.Popen[Any]] = []

    @classmethod
    def load(cls, path: str | Path, congestion: str | None = None) -> Self:
        """A lab of a network's file. `congestion` ("bbr", "cubic") overrides the file's."""
        return cls(load(path, congestion))

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- up and down ------------------------------------------------------------------------------

    def open(self) -> None:
        """Make namespaces, devices and routes, and start the router. Unavailable says what this machine lacks."""
        if self._router is not None:
            raise LabError("this lab is up already")
        system.require()
        namespaces.clear_orphans()
        try:
            namespaces.make(self.owner, self.network)
            self._start_router()
            namespaces.connect(self.owner, self.network)
            self._control = Control(self.owner)
        except BaseException:
            self.close()
            raise

    def _start_router(self) -> None:
        here = str(Path(__file__).resolve().parents[1])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
        process = self._router = subprocess.Popen(
            [sys.executable, "-m", router.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        start = {
            "owner": self.owner,
            "parent": os.getpid(),
            "source": self.network.source,
            "table": self.network.table,
            "facts": self._facts,
        }
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(start) + "\n")
            process.stdin.flush()
            ready = process.stdout.readline().strip() == router.READY
        except BrokenPipeError:
            ready = False
        if not ready:
            raise RouterError(f"the router did not start: {_last_words(process)}")

    def close(self) -> None:
        """End everything that runs in the sites, the router, and the namespaces. May be called twice."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._router is not None:
            self._router.send_signal(signal.SIGTERM)
            try:
                self._router.wait(_STOP_AFTER_S)
            except subprocess.TimeoutExpired:
                self._router.kill()
                self._router.wait()
            for pipe in (self._router.stdin, self._router.stdout, self._router.stderr):
                assert pipe is not None
                pipe.close()
            self._router = None
        namespaces.remove(self.owner)
        for process in self._processes:
            process.wait()
        self._processes.clear()

    # -- in the sites -----------------------------------------------------------------------------

    def address(self, site: str, host: int = 1) -> str:
        """The IPv4 address of a host, counted from 1, of a site. Behind a NAT only the site itself knows it."""
        self._check_host(site, host)
        return namespaces.address(self._number(site), host)

    def outside(self, site: str) -> str:
        """The IPv4 address that other sites see of one behind a NAT."""
        if not self.network.site(site).nat:
            raise LabError(f"site {site} is not behind a NAT: set `nat = true` in {self.network.source}")
        return namespaces.address(self._number(site), nat.HOST)

    def _number(self, site: str) -> int:
        return [each.name for each in self.network.sites].index(site) + 1

    def namespace(self, site: str, host: int = 1) -> str:
        """The name of the namespace in which a host's processes run."""
        self._check_host(site, host)
        return namespaces.of_host(self.owner, self.network.site(site), host)

    def _check_host(self, site: str, host: int) -> None:
        hosts = self.network.site(site).hosts
        if not 1 <= host <= hosts:
            raise LabError(
                f"site {site} has hosts 1 to {hosts}, not {host}: set `hosts` in {self.network.source}"
            )

    def popen(
        self, site: str, command: Sequence[str], host: int = 1, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process in a site. `options` are those of subprocess.Popen. `close` ends it, if nothing else has."""
        process: subprocess.Popen[Any] = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(site, host), *command], **options
        )
        self._processes.append(process)
        return process

    def inside(self, site: str, host: int = 1) -> AbstractContextManager[None]:
        """Within the context, sockets that this thread opens stand in a site; they stay there ever after."""
        return system.inside(self.namespace(site, host))

    # -- the links --------------------------------------------------------------------------------

    def set(self, a: str, b: str, both: bool = False, **changes: Any) -> None:
        """Change conditions of the link from `a` to `b` ("*" is every site): `lab.set("A", "B", rate_mbps=5)`."""
        self._ask("set", link={**changes, "from": a, "to": b, "both": both})

    def cut(self, a: str, b: str, both: bool = True) -> None:
        """Lose all that is on the link and all that comes, until it is healed."""
        self.set(a, b, both, cut=True)

    def heal(self, a: str, b: str, both: bool = True) -> None:
        """The link carries again."""
        self.set(a, b, both, cut=False)

    def begin(self) -> None:
        """The script of events begins, at its second 0; one that had begun begins again."""
        self._ask("begin")

    def rebind(self, site: str) -> None:
        """The NAT of a site forgets its UDP flows: their next datagrams come from other ports. TCP goes on."""
        self._ask("rebind", site=site)

    # -- what was counted -------------------------------------------------------------------------

    def counters(self, site: str) -> tuple[int, int]:
        """Bytes that a site sent and received over the WAN, as its kernel counts: a large packet's headers once."""
        self.network.site(site)
        return namespaces.device_bytes(namespaces.of_site(self.owner, site))

    def wire_bytes(self, site: str) -> tuple[int, int]:
        """Bytes that a site sent and received over the WAN, as a wire carries them: headers of every segment.

        What the network lost counts as sent, not as received.
        """
        links = self.links()
        sent = sum(link.counters.offered_bytes for (a, _), link in links.items() if a == site)
        received = sum(link.counters.delivered_bytes for (_, b), link in links.items() if b == site)
        return sent, received

    def links(self) -> dict[Pair, LinkState]:
        """Each directed link."""
        return {
            (entry["from"], entry["to"]): LinkState(
                Conditions(**entry["conditions"]), Counters(**entry["counters"])
            )
            for entry in self._ask("status")["links"]
        }

    def nats(self) -> dict[str, NatState]:
        """The NAT of each site that has one."""
        return {site: NatState(**entry) for site, entry in self._ask("status")["nats"].items()}

    def router(self) -> RouterState:
        """The router's CPU time and punctuality."""
        status = self._ask("status")
        return RouterState(**status["router"], strays=status["strays"], realtime=status["realtime"])

    def _ask(self, do: str, **arguments: Any) -> Any:
        if self._control is None:
            raise LabError("this lab is not up: open it, or use it as a context manager")
        try:
            return self._control.ask(do, **arguments)
        except RouterError as error:
            if self._router is None or self._router.poll() is None:
                raise
            raise RouterError(f"{error}: {_last_words(self._router)}") from None


def _last_words(process: subprocess.Popen[str]) -> str:
    """Why a router that ends, or has ended, did so."""
    _, trouble = process.communicate()
    lines = trouble.strip().splitlines()
    return lines[-1] if lines else f"exit status {process.returncode}"
