"""The namespaces of a lab: made with iproute2, named with their owner, and removed with all that runs in them.

A name is `geomx-lab.OWNER.SITE` or `geomx-lab.OWNER.SITE.HOST`, where OWNER is the pid and the start time of
the process that has the lab, and a count. A lab whose owner is gone is nobody's and may be cleared; others
are never touched.

    one namespace a site (no lan_mbps)         a namespace a host (lan_mbps)
    wan  10.77.N.1, .2, ... .hosts             wan, and a bridge `lan` 10.77.N.254 in the site's
                                               eth0 10.77.N.HOST in each host's, tbf at both ends of the cable
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab import system
from lab.describe import Network, Site
from lab.errors import LabError, Unavailable

PREFIX = "geomx-lab."
CONTROL = Path("/run/geomx-lab")  # a socket for each lab that runs
WAN = "wan"  # the TUN device's name in its namespace
_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
_GATEWAY = 254
_TCP_BYTES = 64 << 20  # more than a rate times a round trip that a lab can have
_QUEUE_PACKETS = (
    20_000  # of the TUN device: packets must overflow in the router, where it is counted, not there
)
_KILL_AFTER_S = 1.0


def owner_name(count: int) -> str:
    """This process's name as an owner of its `count`-th lab."""
    return f"{os.getpid()}-{system.started_at(os.getpid())}-{count}"


def owner_pid(owner: str) -> int:
    """The process that has, or had, a lab."""
    return int(owner.partition("-")[0])


def alive(owner: str) -> bool:
    """Whether the process that had this lab still runs."""
    return system.started_at(owner_pid(owner)) == owner.split("-")[1]


def control_path(owner: str) -> Path:
    """Where the router of a lab listens."""
    return CONTROL / f"{owner}.sock"


def address(number: int, host: int) -> str:
    """The IPv4 address of a host of the site with that number; both count from 1."""
    return f"10.77.{number}.{host}"


def of_site(owner: str, site: str) -> str:
    """The namespace that holds a site's WAN device."""
    return f"{PREFIX}{owner}.{site}"


def of_host(owner: str, site: Site, host: int) -> str:
    """The namespace in which a host's processes run."""
    name = of_site(owner, site.name)
    return name if site.lan_mbps is None else f"{name}.{host}"


def make(owner: str, network: Network) -> None:
    """The namespaces, empty but for their settings."""
    with _allowed(network.congestion):
        _make(owner, network)


def _make(owner: str, network: Network) -> None:
    for site in network.sites:
        hosts = (
            [] if site.lan_mbps is None else [of_host(owner, site, host + 1) for host in range(site.hosts)]
        )
        for name in (of_site(owner, site.name), *hosts):
            _run("ip", "netns", "add", name)
            _batch(name, ["link set lo up"])
            with system.inside(name):
                _settle(network.congestion, gateway=bool(hosts) and name not in hosts)


def connect(owner: str, network: Network) -> None:
    """Addresses, routes and intra-site links, once the router has made the WAN devices."""
    for number, site in enumerate(network.sites, start=1):
        hosts = range(1, site.hosts + 1)
        local = (
            []
            if site.lan_mbps is not None
            else [f"address add {address(number, k)}/32 dev {WAN}" for k in hosts]
        )
        source = f"src {address(number, 1)}" if local else ""
        lines = [
            f"link set {WAN} txqueuelen {_QUEUE_PACKETS} mtu 1500 up",
            *local,
            f"route add 10.77.0.0/16 dev {WAN} {source}",
        ]
        _batch(of_site(owner, site.name), lines)
        if site.lan_mbps is not None:
            _lan(owner, site, number, site.lan_mbps)


@contextmanager
def _allowed(congestion: str) -> Iterator[None]:
    """A namespace only takes a congestion control that the host allows to everybody; allow it for so long.

    Sockets then have what their namespace took, whatever the host allows.
    """
    before = _ALLOWED.read_text().split()
    if congestion not in before:
        _write(_ALLOWED, " ".join([*before, congestion]))
    try:
        yield
    finally:
        if congestion not in before:
            _write(_ALLOWED, " ".join(before))


def _settle(congestion: str, gateway: bool) -> None:
    """What every namespace has in place of the host's settings; runs inside of it."""
    settings = {
        "ipv4/tcp_wmem": f"4096 65536 {_TCP_BYTES}",
        "ipv4/tcp_rmem": f"4096 131072 {_TCP_BYTES}",
        "ipv4/tcp_no_metrics_save": "1",
        "ipv4/ping_group_range": "0 2147483647",
        "ipv6/conf/all/disable_ipv6": "1",  # it would send packets of its own
        "ipv6/conf/default/disable_ipv6": "1",
        "ipv4/ip_forward": "1" if gateway else "0",
        "ipv4/tcp_congestion_control": congestion,
    }
    for key, value in settings.items():
        path = Path("/proc/sys/net") / key
        if path.exists() or not key.startswith("ipv6"):  # a kernel may be without IPv6
            _write(path, value)


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise Unavailable(f"the kernel refuses {path.name} = {value}: {error.strerror}") from None


def _lan(owner: str, site: Site, number: int, rate_mbps: float) -> None:
    gateway = of_site(owner, site.name)
    _batch(
        gateway,
        [
            "link add lan type bridge",
            f"address add {address(number, _GATEWAY)}/24 dev lan",
            "link set lan up",
        ],
    )
    burst = max(128 << 10, int(rate_mbps * 125))  # a large packet, or a millisecond's worth
    shape = f"tbf rate {rate_mbps:g}mbit burst {burst} latency 50ms"
    for host in range(1, site.hosts + 1):
        name, cable = of_host(owner, site, host), f"host{host}"
        _batch(
            gateway,
            [f"link add {cable} type veth peer name eth0 netns {name}", f"link set {cable} master lan up"],
        )
        _batch(
            name,
            [
                f"address add {address(number, host)}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {address(number, _GATEWAY)}",
            ],
        )
        _run("tc", "-n", gateway, "qdisc", "add", "dev", cable, "root", *shape.split())
        _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *shape.split())


def device_bytes(namespace: str) -> tuple[int, int]:
    """What the WAN device of a namespace has sent and received, in bytes, as its kernel counts."""
    with system.inside(namespace):
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    for line in lines:
        name, _, numbers = line.partition(":")
        if name.strip() == WAN:
            columns = numbers.split()
            return int(columns[8]), int(columns[0])
    raise LabError(f"namespace {namespace} has no device {WAN!r}: is its router gone?")


def owners() -> set[str]:
    """Whoever has, or had, namespaces or a control socket on this machine."""
    names = {path.name for path in system.NAMESPACES.glob(f"{PREFIX}*")}
    found = {name.removeprefix(PREFIX).split(".")[0] for name in names}
    return found | {path.stem for path in CONTROL.glob("*.sock")}


def clear_orphans() -> list[str]:
    """Remove the labs whose owners are gone; their owners' names."""
    orphans = sorted(owner for owner in owners() if not alive(owner))
    for owner in orphans:
        remove(owner)
    return orphans


def remove(owner: str) -> None:
    """End what runs in a lab's namespaces, and remove them. Does nothing where they are gone already."""
    names = sorted(path.name for path in system.NAMESPACES.glob(f"{PREFIX}{owner}.*"))
    _end_processes(names)
    for name in names:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    control_path(owner).unlink(missing_ok=True)


def _end_processes(names: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        give_up_at = time.monotonic() + _KILL_AFTER_S
        pids = _processes(names)
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        while pids and time.monotonic() < give_up_at:
            time.sleep(0.01)
            pids = _processes(names)


def _processes(names: list[str]) -> list[int]:
    """Those in one of the namespaces that are still there, this one excepted."""
    inodes = set()
    for name in names:
        with suppress(FileNotFoundError):
            status = (system.NAMESPACES / name).stat()
            inodes.add((status.st_dev, status.st_ino))
    pids = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            status = (folder / "ns/net").stat()
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in inodes:
            pids.append(int(folder.name))
    return pids


def _batch(namespace: str, lines: list[str]) -> None:
    _run("ip", "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def _run(*command: str, text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tried = f"{' '.join(command)} {text.strip()!r}" if text else " ".join(command)
        raise Unavailable(f"this kernel or user cannot make the lab: {tried}: {done.stderr.strip()}")
