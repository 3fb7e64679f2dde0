"""How connections end: by us, by the peer, by the network, and what still arrives."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest
import torch
from wires import Witness, listening, on_each_loop, pair, state, stranger, tensor

from geomx.channels import connection as connection_module
from geomx.channels.emulation.link import LinkSpec
from geomx.channels.tcp import Tcp
from geomx.wire.frames import PREFIX
from geomx.wire.messages import Ack, Beat, Refuse, encode_head


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "closed by the peer"),
        (PREFIX.pack(1, 900, 40, 0), "closed by the peer in a frame"),
        (
            PREFIX.pack(3, 20, len(encode_head(state(900))), 0) + encode_head(state(900)) + b"abc",
            "closed by the peer in message 3 (State), after 3 of 900 payload bytes",
        ),
        (None, "connection reset by peer"),
    ],
)
@on_each_loop
async def test_a_peer_that_goes_away_is_told_of_once(data, reason):
    """`data`: what it says before; None: it resets the connection."""
    async with stranger() as (sock, witness):
        if data is None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await asyncio.get_running_loop().sock_sendall(sock, data or b"")
        sock.close()
        assert await witness.until_closed() == reason
        assert (witness.reasons, witness.messages) == ([reason], [])


@pytest.mark.parametrize("link", [None, LinkSpec(rate_mbps=100, delay_ms=120)])
@on_each_loop
async def test_close_says_the_last_words_and_nothing_else_and_gone_waits_for_them(link):
    """However long the link is: a node that ends may stop its loop after that."""
    async with pair(Tcp(), Tcp(link)) as (_, mine, theirs, their):
        theirs.write(1, state(1 << 20), tensor(1 << 20), priority=6)
        theirs.write(0, Refuse("run", "another run"), None, priority=0)
        theirs.close("refused")
        theirs.close("twice is once")
        theirs.write(2, Beat(0, 9, 0.0), None, priority=0)
        await theirs.gone()
        assert mine.messages == [(0, Refuse("run", "another run"), None)]
        (reason,) = mine.reasons
        assert reason.startswith("closed by the peer")
        assert their.reasons == []


@on_each_loop
async def test_close_is_not_held_up_by_bytes_on_their_way_here():
    """A socket closed with unread bytes would reset the connection, and the last words with it."""
    async with pair(Tcp()) as (ours, mine, theirs, _):
        ours.write(1, state(4 << 20), tensor(4 << 20), priority=1)
        theirs.write(0, Refuse("run", "another run"), None, priority=0)
        theirs.close("refused")
        await mine.until_closed()
        assert mine.numbers == [0]


@on_each_loop
async def test_close_is_bounded_where_the_peer_does_not_read(monkeypatch):
    monkeypatch.setattr(connection_module, "CLOSE_LIMIT_S", 0.02)
    async with stranger() as (sock, witness):
        (connection,) = witness.accepted
        connection.write(1, state(64 << 20), torch.zeros(64 << 20, dtype=torch.uint8), priority=0)
        connection.close("bye")
        loop, count = asyncio.get_running_loop(), 0
        while connection._state is not connection_module._ConnectionState.CLOSED:
            await asyncio.sleep(0)
        with contextlib.suppress(ConnectionResetError):
            while data := await loop.sock_recv(sock, 1 << 20):
                count += len(data)
        assert count < 64 << 20
        assert witness.reasons == []


@on_each_loop
async def test_a_closed_listener_takes_no_more_and_touches_no_other():
    async with listening(Tcp()) as (door, witness):
        connection = await Tcp().dial(door.address, Witness())
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the loop
        await Tcp().dial(door.address, Witness())
    connection.write(1, Ack(1), None, 0)
    await witness.until(lambda: witness.numbers == [1])
    connection.close("done")


@on_each_loop
async def test_a_peer_that_floods_and_never_reads_is_cut_off(monkeypatch):
    """What we owe it (acknowledgements, heartbeats, welcomes) may not pile up here."""
    monkeypatch.setattr(connection_module, "MOST_CONTROLS", 100)
    async with stranger() as (_, witness):
        (connection,) = witness.accepted
        connection.write(1, state(64 << 20), torch.zeros(64 << 20, dtype=torch.uint8), priority=0)
        for number in range(300):
            connection.write(0, Ack(number), None, priority=0)
        assert await witness.until_closed() == "it does not read what it is sent"
        assert connection._lanes.queued_bytes == 0
        connection.write(0, Ack(1), None, priority=0)
        assert (witness.reasons, connection._lanes.queued_bytes) == (witness.reasons[:1], 0)
