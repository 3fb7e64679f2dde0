"""Datagrams over IPv6, on a link of 1,500 bytes: none leaves in fragments; answers leave from the address dialled."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from geomx.channels.udp import UdpSocket, leaving_from
from lab import system

MISSING = system.missing_here()
pytestmark = [pytest.mark.lab, pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))]

NEAR, FAR, FAR_TOO = "fd77::1", "fd77::2", "fd77::3"
HEADERS_BYTES = 48  # of IPv6 and UDP


def commands(*lines: str) -> None:
    for line in lines:
        subprocess.run(["ip", *line.split()], check=True)


@pytest.fixture(scope="module")
def sites() -> Iterator[tuple[str, str]]:
    """Two namespaces with a cable between them."""
    near, far = (f"geomx-ipv6-{os.getpid()}-{end}" for end in ("near", "far"))
    try:
        commands(
            f"netns add {near}",
            f"netns add {far}",
            f"link add eth0 netns {near} type veth peer name eth0 netns {far}",
            f"-n {near} addr add {NEAR}/64 dev eth0 nodad",
            f"-n {far} addr add {FAR}/64 dev eth0 nodad",
            f"-n {far} addr add {FAR_TOO}/64 dev eth0 nodad",
            *(f"-n {name} link set {device} up" for name in (near, far) for device in ("lo", "eth0")),
        )
        yield near, far
    finally:
        for name in (near, far):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def fragments(site: str) -> int:
    with system.inside(site):
        lines = Path("/proc/thread-self/net/snmp6").read_text().splitlines()
    counts = dict(line.split() for line in lines)
    return int(counts["Ip6FragCreates"])


@contextlib.contextmanager
def socket_in(site: str) -> Iterator[UdpSocket]:
    with system.inside(site):
        made = UdpSocket(socket.AF_INET6)
    with contextlib.closing(made):
        yield made


@pytest.mark.parametrize("together", [False, True])
def test_a_datagram_larger_than_the_link_takes_is_refused(sites: tuple[str, str], together: bool) -> None:
    site, _ = sites
    before = fragments(site)
    with socket_in(site) as near:
        near.connect((FAR, 9))
        if together:
            near.send_together([bytes(1500 - HEADERS_BYTES + 1)] * 5)
        else:
            assert near.send(bytes(1500 - HEADERS_BYTES))
            assert not near.send(bytes(1500 - HEADERS_BYTES + 1))
    assert fragments(site) == before


@pytest.mark.parametrize("host", [FAR, FAR_TOO])
def test_answers_leave_from_the_address_that_was_dialled(sites: tuple[str, str], host: str) -> None:
    with socket_in(sites[0]) as near, socket_in(sites[1]) as far:
        far.bind(("::", 0))
        dialled = (host, *far._socket.getsockname()[1:])
        near.connect(dialled)
        near.send(b"question")
        select.select([far], [], [])
        ((_, address),) = far.receive(1)
        far.send_together([bytes(1000)] * 3, address, leaving_from(dialled))
        came = 0
        while came < 3:
            select.select([near], [], [])
            came += len(list(near.receive(3)))
