"""Where the processes of a cell run: in the sites of a lab, or all on this machine's loopback."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Protocol

from benchmarks.cells import HUB_SITE, Cell
from benchmarks.floors import Path as Way
from lab.describe import Network, describe, load
from lab.lab import Lab

NETWORKS = Path(__file__).parents[1] / "lab" / "networks"
FIRST_PORT = 21_000
AS_A_HOST = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')


class Ground(Protocol):
    """A place for processes."""

    def begin(self) -> None:
        """A turn begins: what the network's file says of times counts from now."""

    def address(self, site: str) -> str:
        """The IPv4 address at which a site is reached."""

    def port(self) -> int:
        """A port that nothing listens at, in any site."""

    def start(
        self, site: str, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[Any]:
        """Start a process at a site; what it prints goes to `output`."""


class Loopback:
    """No network at all: each site is 127.0.0.1."""

    def begin(self) -> None:
        """Nothing changes here."""

    def address(self, site: str) -> str:
        return "127.0.0.1"

    def port(self) -> int:
        with socket.create_server(("127.0.0.1", 0)) as door:
            return int(door.getsockname()[1])

    def start(
        self, site: str, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[Any]:
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


class InLab:
    """The namespaces of a lab that is up.

    Each site is a host, too, whose name is its address: some systems tell others the name of their host.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._next_port = FIRST_PORT

    def begin(self) -> None:
        self._lab.begin()

    def address(self, site: str) -> str:
        return str(self._lab.address(site))

    def port(self) -> int:
        """Each turn gets ports of its own, so that none waits for the last turn's connections to time out."""
        self._next_port += 1
        return self._next_port

    def start(
        self, site: str, argv: Sequence[str], env: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[Any]:
        named = (*AS_A_HOST, self.address(site), *argv)
        return self._lab.popen(site, named, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


class Grounds(ExitStack):
    """The grounds of a sitting: one lab for all of its cells that need one. Raises `LabError` where none can be had."""

    def __init__(self) -> None:
        super().__init__()
        self._labs: dict[tuple[str, str, int], InLab] = {}

    def of(self, cell: Cell) -> Ground:
        """Where a cell runs."""
        if cell.where != "lab":
            return Loopback()
        key = cell.network, cell.congestion, cell.parties
        if key not in self._labs:
            self._labs[key] = InLab(self.enter_context(Lab(network_of(cell))))
        return self._labs[key]


def network_of(cell: Cell) -> Network:
    """The network of a cell, with a site for each of its parties and for the hub."""
    path = NETWORKS / f"{cell.network}.toml"
    network = load(path, cell.congestion)
    if {*cell.sites, HUB_SITE} <= {site.name for site in network.sites}:
        return network
    table = {**network.table, "site": [{"name": name} for name in (*cell.sites, HUB_SITE)]}
    return describe(table, str(path))


def ways_of(cell: Cell) -> list[Way]:
    """The way of each party to the hub and back; none for the party in whose site the hub stands.

    In the simulator, where there are more parties than a lab has sites, all have the way of the first.
    """
    if cell.where == "simulator":
        cell = replace(cell, parties=1)
    return list(ways_by_site(cell).values())


def ways_by_site(cell: Cell) -> dict[str, Way]:
    """The way of each party whose site is not the hub's."""
    links, hub, ways = network_of(cell).links, cell.hub_site, {}
    for site in cell.sites:
        if site != hub:
            up, down = links[site, hub], links[hub, site]
            ways[site] = Way(up.rate_mbps, down.rate_mbps, 1e-3 * (up.delay_ms + down.delay_ms))
    return ways
