from __future__ import annotations

import socket
import sys

import pytest
from wires import on_each_loop, pair

from geomx.channels import congestion
from geomx.channels.congestion import available, check, choose
from geomx.channels.tcp import Tcp
from geomx.errors import ConfigError

NO_PACE = 2**32 - 1
needs_linux = pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="TCP_CONGESTION is Linux's")


def test_system_is_always_there_and_changes_nothing():
    assert available()[0] == "system"
    check("system")
    choose(None, "system")


@pytest.mark.parametrize("name", ["no_such_algorithm", "", "x" * 200])
def test_an_unknown_name_is_refused_with_those_that_there_are(name):
    with pytest.raises(ConfigError) as caught:
        Tcp(congestion=name)
    (fault,) = caught.value.faults
    assert fault.where == "congestion"
    assert fault.allowed == ", ".join(available())


def test_a_system_without_the_setting_has_its_own_alone(monkeypatch):
    monkeypatch.delattr(socket, "TCP_CONGESTION", raising=False)
    assert available() == ("system",)
    check("system")
    with pytest.raises(ConfigError, match="allowed: system "):
        Tcp(congestion="cubic")


def test_lists_that_cannot_be_read_leave_the_systems_own(monkeypatch):
    monkeypatch.setattr(congestion, "_LISTS", ("no_such_list",))
    assert available() == ("system",)


@needs_linux
@on_each_loop
async def test_each_end_has_a_pace_of_its_own():
    tcp = Tcp(pace_mbps=96)
    async with pair(tcp) as (connection, _, accepted, _):
        assert _pace(connection) == 12_000_000
        assert _pace(accepted) == NO_PACE
        for mbps, expected in ((0, NO_PACE), (8, 1_000_000), (1e18, NO_PACE)):
            tcp.pace(accepted, mbps)
            assert _pace(accepted) == expected
        tcp.pace(accepted, 1e9)
        assert _pace(accepted, 8) == 125_000 * 10**9


def _pace(connection, size=4):
    return int.from_bytes(connection.socket.getsockopt(socket.SOL_SOCKET, 47, size), sys.byteorder)


@needs_linux
@on_each_loop
async def test_both_ends_use_what_they_are_told():
    names = available()[1:]
    assert names
    for name in names:
        async with pair(Tcp(congestion=name)) as (ours, _, theirs, _):
            for end in (ours, theirs):
                used = end.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 32)
                assert used.rstrip(b"\0").decode() == name
