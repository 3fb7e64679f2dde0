"""Where a cell runs: its network and how fast a round can be there, and the sites that its processes stand in."""

import itertools
import socket
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import HUB_SITE, Cell
from lab.describe import Network, describe, load
from lab.lab import Lab

NETWORKS = Path(__file__).parents[1] / "lab" / "networks"


class Way(NamedTuple):
    """Between a party and the hub. Rates in Mbit/s, towards the hub and back; the round trip in seconds."""

    up_mbps: float
    down_mbps: float
    round_trip_s: float


def round_s(size_bytes: float, ways: Iterable[Way]) -> float:
    """The floor of a round, push and update at once, pipelined: R + 8 · size / B of the slowest party.

    A round trip of R seconds, a rate of B bit/s in the slower direction; with workers in a party the local server sends
    once for all. It knows nothing of headers (3.5 % of what TCP sends), of loss, nor of the time that arithmetic takes.
    No ways: nothing crosses the WAN.
    """
    return max((rtt_s + 8e-6 * size_bytes / min(up, down) for up, down, rtt_s in ways), default=0.0)


def network_of(cell: Cell) -> Network:
    """The network of a cell, with a site for each of its parties and for the hub."""
    path, names = NETWORKS / f"{cell.network}.toml", (*cell.sites, HUB_SITE)
    network = load(path, cell.congestion)
    if {*names} <= {site.name for site in network.sites}:
        return network
    return describe({**network.table, "site": [{"name": name} for name in names]}, str(path))


def ways_of(cell: Cell) -> dict[str, Way]:
    """The way of each party to the hub and back, but of the party in whose site the hub stands.

    In the simulator, where there are more parties than a lab has sites, the first stands for all.
    """
    if cell.where == "simulator":
        cell = replace(cell, parties=1)
    links, hub, ways = network_of(cell).links, cell.hub_site, {}
    for site in cell.sites:
        if site != hub:
            up, down = links[site, hub], links[hub, site]
            ways[site] = Way(up.rate_mbps, down.rate_mbps, 1e-3 * (up.delay_ms + down.delay_ms))
    return ways


class Ground:
    """The sites of a lab that is up; without one each site is this machine's loopback."""

    def __init__(self, lab: Lab | None = None) -> None:
        self._lab, self._ports = lab, itertools.count(21_000)

    def begin(self) -> None:
        """A turn begins: what the network's file says of times counts from now."""
        if self._lab:
            self._lab.begin()

    def address(self, site: str) -> str:
        """The IPv4 address at which a site is reached."""
        return self._lab.address(site) if self._lab else "127.0.0.1"

    def port(self) -> int:
        """One that nothing listens at, in any site, and that no connection of an earlier turn still waits at."""
        if self._lab:
            return next(self._ports)
        with socket.create_server(("127.0.0.1", 0)) as door:
            return int(door.getsockname()[1])

    def start(self, site: str, argv: Iterable[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process at a site; options are those of subprocess.Popen."""
        if not self._lab:
            return subprocess.Popen([*argv], **options)
        # Each site is a host whose name is its address: some systems tell others the name of their host.
        host = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.address(site))
        return self._lab.popen(site, (*host, *argv), **options)


class Grounds(ExitStack):
    """The grounds of a sitting: one lab for all of its cells that need one. Raises `LabError` where none can be had."""

    def __init__(self) -> None:
        super().__init__()
        self._labs: dict[tuple[str, str, int], Ground] = {}

    def of(self, cell: Cell) -> Ground:
        """Where a cell runs."""
        key = cell.network, cell.congestion, cell.parties
        if cell.where == "lab" and key not in self._labs:
            self._labs[key] = Ground(self.enter_context(Lab(network_of(cell))))
        return self._labs[key] if cell.where == "lab" else Ground()
