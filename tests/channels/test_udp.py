"""Datagrams that leave together and come together, and kernels that refuse that."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator, Sequence
from random import Random

import pytest

from geomx.channels import udp
from geomx.channels.udp import UdpSocket, leaving_from

_SO_NO_CHECK = 11  # without checksums, Linux refuses to cut datagrams: EINVAL
HOSTS = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
EVERYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
DIALLED = {
    socket.AF_INET: "127.0.0.2",
    socket.AF_INET6: "::1",
}  # not what the route would take, if there is another
# Of Linux; Python has no names for them: level, IP_MTU_DISCOVER or IPV6_MTU_DISCOVER. PROBE: nothing is cut.
MTU_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
PMTUDISC_PROBE = 3


@contextlib.contextmanager
def pair(family: socket.AddressFamily = socket.AF_INET) -> Iterator[tuple[UdpSocket, UdpSocket]]:
    """A socket, and one that it is connected to."""
    near, far = UdpSocket(family), UdpSocket(family)
    try:
        far.bind((HOSTS[family], 0))
        near.connect(far._socket.getsockname())
        yield near, far
    finally:
        near.close()
        far.close()


def received(end: UdpSocket, count: int) -> list[bytes]:
    """The next datagrams."""
    came: list[bytes] = []
    while len(came) < count:
        select.select([end], [], [])
        came += [bytes(datagram) for datagram, _ in end.receive(count)]
    return came


def datagrams(sizes: Sequence[int]) -> list[bytes]:
    chance = Random(0)
    return [chance.randbytes(size) for size in sizes]


SIZES = {
    "none": [],
    "one": [1400],
    "equal": [1400] * 20,
    "the last one shorter": [1400] * 5 + [3],
    "short ones between": [1400, 3, 1400, 1400, 3, 3, 1400],
    "growing": [1, 2, 3, 1000],
    "more than one call takes": [1400] * 100 + [10] * 100,
    "large": [30_000] * 5,
    "an empty one": [1400, 1400, 0, 1400],
}


@pytest.mark.parametrize("family", HOSTS, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_what_leaves_together_arrives_one_by_one_and_in_order(
    family: socket.AddressFamily, sizes: list[int]
) -> None:
    with pair(family) as (near, far):
        sent = datagrams(sizes)
        near.send_together(sent)
        expected = [datagram for datagram in sent if datagram]
        assert received(far, len(expected)) == expected


def test_several_leave_with_one_call_and_come_with_one() -> None:
    with pair() as (near, far):
        if not near._sends_together:
            pytest.skip("this kernel sends datagrams one by one")
        near.send_together(datagrams([1400] * 10 + [7]))
        select.select([far], [], [])
        assert [len(datagram) for datagram, _ in far.receive(1)] == [1400] * 10 + [7]


def test_where_the_kernel_refuses_to_cut_nothing_is_lost_and_it_is_asked_once() -> None:
    with pair() as (near, far):
        near._socket.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        for _ in range(2):
            near.send_together(datagrams([1400] * 5 + [9]))
            assert received(far, 6) == datagrams([1400] * 5 + [9])
            assert not near._sends_together


def test_what_cannot_be_sent_is_lost_without_a_word() -> None:
    with pair() as (near, far):
        far.close()
        for _ in range(3):
            near.send_together(datagrams([1400] * 3))
            near.send(b"alone")
        assert near._sends_together
        assert not list(near.receive(1))


def test_answers_go_to_whom_a_datagram_came_from() -> None:
    with pair() as (near, far):
        near.send_together(datagrams([100, 100]))
        select.select([far], [], [])
        for _, address in far.receive(2):
            far.send(b"answer", address)
        assert received(near, 2) == [b"answer", b"answer"]


@pytest.mark.parametrize("family", HOSTS, ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("takes_several", [True, False])
def test_answers_leave_from_the_address_that_was_dialled(
    family: socket.AddressFamily, takes_several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connected socket hears nothing from another one."""
    if not takes_several:
        monkeypatch.setattr(udp, "UDP_SEGMENT", 9999)
    near, far = UdpSocket(family), UdpSocket(family)
    with contextlib.closing(near), contextlib.closing(far):
        far.bind((EVERYWHERE[family], 0))
        dialled = (DIALLED[family], *far._socket.getsockname()[1:])
        near.connect(dialled)
        near.send(b"question")
        select.select([far], [], [])
        ((_, address),) = far.receive(1)
        source = leaving_from(dialled)
        assert far.send(b"alone", address, source)
        far.send_together(datagrams([1400] * 10 + [7]), address, source)
        assert received(near, 12) == [b"alone", *datagrams([1400] * 10 + [7])]


def test_an_address_that_this_machine_lacks_is_no_reason_to_send_one_by_one() -> None:
    with pair() as (near, far):
        if not far._sends_together:
            pytest.skip("this kernel sends datagrams one by one")
        address, source = near._socket.getsockname(), leaving_from(("192.0.2.1", 0))
        assert not far.send(b"lost", address, source)
        far.send_together(datagrams([1400] * 3), address, source)
        assert far._sends_together
        far.send_together(datagrams([1400] * 3), address, leaving_from(("127.0.0.1", 0)))
        assert received(near, 3) == datagrams([1400] * 3)


@pytest.mark.parametrize("family", HOSTS, ids=["IPv4", "IPv6"])
def test_nothing_leaves_in_fragments(family: socket.AddressFamily) -> None:
    with pair(family) as (near, far):
        for end in (near, far):
            assert end._socket.getsockopt(*MTU_DISCOVER[family]) == PMTUDISC_PROBE


def test_both_families_can_have_the_same_port() -> None:
    first, second = UdpSocket(socket.AF_INET6), UdpSocket(socket.AF_INET)
    with contextlib.closing(first), contextlib.closing(second):
        first.bind(("::", 0))
        second.bind(("0.0.0.0", first._socket.getsockname()[1]))
