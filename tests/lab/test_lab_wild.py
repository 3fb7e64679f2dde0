"""What datagrams meet in the wild, in a lab that is really up: filters, small MTUs, disorder, NATs."""

import errno
import os
import socket
from contextlib import ExitStack, contextmanager

import pytest
from labs_up import GIVE_UP_S, carried, connection, in_a_lab, until, up

from lab import LabError

pytestmark = in_a_lab

IP_MTU_DISCOVER, IP_PMTUDISC_DO, IP_MTU = 10, 2, 14  # of Linux; Python has no names for them


@pytest.fixture(scope="module")
def plain():
    with up("A", "B") as lab:
        yield lab


@pytest.fixture
def lab(plain):
    """As it was described, whatever the test before did."""
    yield plain
    plain.set("*", "*", udp_blocked=False, mtu=0, mtu_icmp=False, reorder=0, duplicate=0, loss=0)


@pytest.fixture(scope="module")
def natted():
    with up({"name": "A", "nat": True}, "B", {"name": "C", "nat": True, "hosts": 2, "lan_mbps": 500}) as lab:
        yield lab


@contextmanager
def datagrams(lab, *places):
    """A socket in each place, SITE or (SITE, HOST)."""
    with ExitStack() as stack:
        ends = []
        for place in places:
            site, host = place if isinstance(place, tuple) else (place, 1)
            with lab.inside(site, host):
                end = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            end.bind((lab.address(site, host), 0))
            end.settimeout(GIVE_UP_S)
            ends.append(end)
        yield ends


def is_echoed(lab, a, target):
    """Whether an echo request (ICMP) is answered."""
    with lab.inside(a):
        end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    with end:
        end.settimeout(GIVE_UP_S)
        end.sendto(b"\x08\0\0\0\0\0\0\1hello", (target, 0))
        return end.recv(100)[8:] == b"hello"


def counters(lab, a="A", b="B"):
    return lab.links()[a, b].counters


def test_where_udp_is_blocked_and_large_packets_vanish_tcp_and_icmp_pass(lab):
    lab.set("A", "B", both=True, mtu=1300)
    with datagrams(lab, "A", "B") as (near, far):
        before = counters(lab)
        near.sendto(bytes(1273), far.getsockname())
        until(lambda: counters(lab).oversized_segments == before.oversized_segments + 1)
        near.sendto(bytes(1272), far.getsockname())
        assert len(far.recv(2000)) == 1272
        lab.set("A", "B", udp_blocked=True)
        near.sendto(b"lost", far.getsockname())
        until(lambda: counters(lab).blocked_segments == before.blocked_segments + 1)
        with connection(lab, "A", "B") as ends:
            assert carried(*ends)
        assert is_echoed(lab, "A", lab.address("B"))
    assert counters(lab).oversized_segments == before.oversized_segments + 1
    assert counters(lab, "B", "A").oversized_segments == 0


def test_where_the_router_answers_datagrams_and_open_connections_learn_the_mtu():
    with up("A", "B") as lab, datagrams(lab, "A", "B") as (near, far), connection(lab, "A", "B") as ends:
        lab.set("A", "B", both=True, mtu=1200, mtu_icmp=True)
        near.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        near.connect(far.getsockname())
        near.send(bytes(1400))
        until(lambda: near.getsockopt(socket.IPPROTO_IP, IP_MTU) == 1200)
        near.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # the answer itself
        with pytest.raises(OSError, match=os.strerror(errno.EMSGSIZE)):
            near.send(bytes(1400))
        assert carried(*ends)


@pytest.mark.parametrize(("site", "host"), [("A", 1), ("C", 2)])
def test_streams_from_behind_a_nat_come_from_its_address_and_pass_unharmed(natted, site, host):
    natted.set("*", "*", loss=0.01, reorder=0.01, duplicate=0.01)
    with connection(natted, site, "B", host) as (near, far):
        assert near.getsockname()[0] == natted.address(site, host)
        assert far.getpeername()[0] == natted.outside(site)
        assert carried(near, far, 1_000_000)
    natted.set("*", "*", loss=0, reorder=0, duplicate=0)
    assert natted.router().refused == 0


@pytest.mark.parametrize(("site", "host"), [("A", 1), ("C", 2)])
def test_after_rebinding_datagrams_come_from_another_port_and_streams_go_on(natted, site, host):
    with datagrams(natted, (site, host), "B") as (near, far), connection(natted, site, "B", host) as ends:
        near.sendto(b"first", far.getsockname())
        came, first = far.recvfrom(10)
        assert (came, first[0]) == (b"first", natted.outside(site))
        far.sendto(b"back", first)
        assert near.recvfrom(10) == (b"back", far.getsockname())

        before = natted.nats()[site]
        natted.rebind(site)
        assert natted.nats()[site].mappings < before.mappings
        far.sendto(b"lost", first)
        until(lambda: natted.nats()[site].refused == before.refused + 1)
        near.sendto(b"second", far.getsockname())
        came, second = far.recvfrom(10)
        assert (came, second[0]) == (b"second", first[0])
        assert second[1] != first[1]
        far.sendto(b"again", second)
        assert near.recv(10) == b"again"
        assert carried(*ends)


def test_echoes_and_errors_of_icmp_pass_a_nat(natted):
    assert is_echoed(natted, "A", natted.address("B"))
    with datagrams(natted, "A", "B") as (near, far):
        nobody = far.getsockname()
        far.close()
        near.connect(nobody)
        near.send(b"is there anybody")
        with pytest.raises(ConnectionRefusedError):
            near.recv(10)


def test_only_a_site_behind_a_nat_has_an_address_outside(natted):
    assert natted.outside("C") == "10.77.3.253"
    with pytest.raises(LabError, match="site B is not behind a NAT: set `nat = true` in test"):
        natted.outside("B")
    with pytest.raises(LabError, match="no site 'B' is behind a NAT; those are A, C"):
        natted.rebind("B")
