from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct

import pytest
import torch
from wires import Witness, listening, on_each_loop, pair, state, stranger, tensor

from geomx.channels import connection as connection_module
from geomx.channels.emulation.link import LinkSpec
from geomx.channels.tcp import Tcp, split_address
from geomx.errors import ConfigError, OutOfMemory
from geomx.wire.frames import PREFIX, Parser
from geomx.wire.messages import encode_head


@pytest.mark.parametrize("chunk_bytes", [1000, None])
@on_each_loop
async def test_messages_of_all_sizes_arrive_intact_both_ways(chunk_bytes):
    sizes = [0, 1, 999, 1000, 1001, 40_000, 70_000, 300_000]
    async with pair(Tcp(chunk_bytes=chunk_bytes)) as (ours, mine, theirs, their):
        for number, size in enumerate(sizes, 1):
            for connection in (ours, theirs):
                payload = tensor(size, number) if size else None
                connection.write(number, state(size), payload, priority=number % 3)
        for witness in (mine, their):
            await witness.until(lambda witness=witness: len(witness.messages) == len(sizes))
            for number, message, payload in witness.messages:
                assert message == state(sizes[number - 1])
                assert (payload is None) == (message.size == 0)
                assert payload is None or torch.equal(payload, tensor(message.size, number))
        assert ours.bytes_sent == theirs.bytes_received > sum(sizes)
        assert theirs.bytes_sent == ours.bytes_received > sum(sizes)


@on_each_loop
async def test_the_most_urgent_of_what_was_written_together_leaves_first():
    async with pair(Tcp()) as (ours, _, _, their):
        for priority in (9, 3, 7, 0):
            ours.write(priority + 1, state(10), tensor(10), priority)
        await their.until(lambda: len(their.messages) == 4)
        assert their.numbers == [1, 4, 8, 10]


@on_each_loop
async def test_the_urgent_overtakes_a_message_that_is_under_way():
    async with stranger() as (sock, witness):
        (connection,) = witness.accepted
        connection.write(1, state(32 << 20), torch.zeros(32 << 20, dtype=torch.uint8), priority=5)
        while not connection.bytes_sent:
            await asyncio.sleep(0)
        connection.write(2, state(5), tensor(5), priority=0)
        numbers: list[int] = []
        parser = Parser(lambda message: None, lambda size: (None, memoryview(bytearray(size))))
        while len(numbers) < 2:
            count = await asyncio.get_running_loop().sock_recv_into(sock, parser.buffer())
            numbers += [arrival.number for arrival in parser.advance(count)]
        assert numbers == [2, 1]


@on_each_loop
async def test_little_is_handed_to_the_kernel_while_the_peer_does_not_read():
    async with stranger() as (_, witness):
        (connection,) = witness.accepted
        size = 64 << 20
        connection.write(1, state(size), torch.zeros(size, dtype=torch.uint8), priority=5)
        before = -1
        while connection.bytes_sent != before:
            before = connection.bytes_sent
            for _ in range(50):
                await asyncio.sleep(0)
        assert 0 < connection.bytes_sent < size / 4


@on_each_loop
async def test_what_admit_refuses_closes_the_connection():
    async with pair(Tcp(), limit=100) as (ours, mine, _, their):
        ours.write(1, state(100), tensor(100), 0)
        ours.write(2, state(101), tensor(101), 0)
        assert await their.until_closed() == "more than this edge may carry"
        assert await mine.until_closed()
        assert their.numbers == [1]
        ours.write(3, state(1), tensor(1), 0)  # dropped, as after any end
        assert (len(mine.reasons), len(their.reasons)) == (1, 1)


GARBAGE = {
    "random bytes": (random.Random(4).randbytes(100_000), "cannot be decoded"),
    "text": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 5000, "cannot be decoded"),
    "a payload of 2^62": (
        PREFIX.pack(1, 50, len(encode_head(state(1 << 62))), 0) + encode_head(state(1 << 62)),
        "claims",
    ),
    "numbers of 2^62": (struct.pack("<QQQQ", *[1 << 62] * 4), "message 4611686018427387904"),
    "a TLS alert": (b"\x15\x03\x03\x00\x02\x02\x28", "speaks TLS"),
    "a TLS handshake": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "speaks TLS"),
    "an empty frame": (PREFIX.pack(1, 0, 0, 0), "none is under way"),
}


@pytest.mark.parametrize("what", GARBAGE)
@on_each_loop
async def test_garbage_closes_the_connection_with_a_reason(what):
    data, reason = GARBAGE[what]
    async with stranger() as (sock, witness):
        await asyncio.get_running_loop().sock_sendall(sock, data)
        assert reason in await witness.until_closed()
        assert witness.messages == []


@pytest.mark.parametrize("address", ["127.0.0.1", ":80", "host:", "host:x", "host:70000"])
@on_each_loop
async def test_an_address_is_host_and_port(address):
    with pytest.raises(ConfigError, match="host:port"):
        await Tcp().dial(address, Witness())


def test_ipv6_hosts_stand_in_brackets():
    assert split_address("[::1]:80") == ("::1", 80)
    assert connection_module.format_address(("::1", 80, 0, 0)) == "[::1]:80"
    assert connection_module.format_address(None) == "unknown"


@on_each_loop
async def test_a_shaped_connection_carries_everything_in_order_of_urgency():
    link = LinkSpec(rate_mbps=400, delay_ms=2, jitter_ms=1, loss=0.01)
    async with pair(Tcp(link, seed=3)) as (ours, mine, theirs, their):
        for connection in (ours, theirs):
            for number in range(1, 9):
                connection.write(number, state(100_000), tensor(100_000, number), priority=9 - number)
        for witness in (mine, their):
            await witness.until(lambda witness=witness: len(witness.messages) == 8)
            assert witness.numbers == [8, 7, 6, 5, 4, 3, 2, 1]
            assert all(torch.equal(payload, tensor(100_000, n)) for n, _, payload in witness.messages)
        assert ours.bytes_sent == theirs.bytes_received


@on_each_loop
async def test_more_messages_than_that_wait_where_they_are_less_urgent(monkeypatch):
    monkeypatch.setattr(connection_module, "MOST_CONTROLS", 100)
    async with pair(Tcp()) as (ours, _, _, their):
        for number in range(1, 301):
            ours.write(number, state(1000), tensor(1000), priority=3)
        await their.until(lambda: len(their.messages) == 300)
        assert their.numbers == list(range(1, 301))


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="not every system has it")
@pytest.mark.parametrize(
    ("settings", "expected"), [({}, 512 << 10), ({"link": LinkSpec()}, 64 << 10), ({"chunk_bytes": 999}, 999)]
)
@on_each_loop
async def test_the_kernel_holds_one_chunk_and_waits_for_no_other(settings, expected):
    async with pair(Tcp(**settings)) as (ours, _, theirs, _):
        for end in (ours, theirs):
            sock = end._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == expected
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@on_each_loop
async def test_connections_of_one_dialler_share_its_link(monkeypatch):
    """What is urgent on one of them goes before what is not on the other, as long as the kernel takes it."""
    written, deliver = [], connection_module.TcpConnection.deliver

    def record(connection, chunk):
        written.append(connection.ident)
        deliver(connection, chunk)

    monkeypatch.setattr(connection_module.TcpConnection, "deliver", record)
    tcp = Tcp(LinkSpec(rate_mbps=100), chunk_bytes=1000)
    async with pair(tcp, Tcp()) as (idle, _, _, one), pair(tcp, Tcp()) as (urgent, _, _, other):
        for priority, connection in ((5, idle), (1, urgent)):
            for number in range(1, 4):
                connection.write(number, state(4000), tensor(4000), priority)
        for witness in (one, other):
            await witness.until(lambda witness=witness: len(witness.messages) == 3)
        assert written == [urgent.ident] * 12 + [idle.ident] * 12


@on_each_loop
async def test_an_accepted_connection_is_shaped_once_it_is_known_who_has_come():
    tcp = Tcp()
    async with pair(tcp) as (_, mine, theirs, _):
        theirs.write(1, state(200_000), tensor(200_000, 1), priority=1)
        tcp.shape(theirs, tcp.downlink(LinkSpec(rate_mbps=400, delay_ms=1)))
        theirs.write(2, state(200_000), tensor(200_000, 2), priority=0)
        await mine.until(lambda: len(mine.messages) == 2)
        assert all(torch.equal(payload, tensor(200_000, n)) for n, _, payload in mine.messages)


@on_each_loop
async def test_a_cut_holds_bytes_and_whoever_dials_until_it_heals():
    tcp, link = Tcp(LinkSpec(delay_ms=1)), LinkSpec(rate_mbps=400)
    async with pair(tcp, Tcp()) as (ours, _, _, their):
        tcp.uplink.change(link.changed({"cut": True}))
        ours.write(1, state(100_000), tensor(100_000, 1), priority=0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert ours.bytes_sent == 0
        with pytest.raises(OSError, match="the emulated link is cut"):
            await tcp.dial(ours.peer_address, Witness())
        tcp.uplink.change(link)
        await their.until(lambda: len(their.messages) == 1)
        assert torch.equal(their.messages[0][2], tensor(100_000, 1))
        (await tcp.dial(ours.peer_address, Witness())).close("done")


@on_each_loop
async def test_a_peer_that_dials_again_finds_its_downlink_as_it_is_by_then():
    listener, dialler, mine = Tcp(), Tcp(), Witness()
    downlink = listener.downlink(LinkSpec())
    async with listening(listener) as (door, witness):
        first = await dialler.dial(door.address, Witness())
        await witness.until(lambda: len(witness.accepted) == 1)
        listener.shape(witness.accepted[0], downlink)
        downlink.change(LinkSpec(cut=True))
        first.close("dialling anew")
        again = await dialler.dial(door.address, mine)
        await witness.until(lambda: len(witness.accepted) == 2)
        listener.shape(witness.accepted[1], downlink)
        witness.accepted[1].write(1, state(10), tensor(10), priority=0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert witness.accepted[1].bytes_sent == 0
        downlink.change(LinkSpec())
        await mine.until(lambda: len(mine.messages) == 1)
        again.close("done")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "closed"),
        (ConnectionResetError(104, "Connection reset by peer"), "connection reset by peer"),
        (ssl.SSLError(1, "[SSL] something"), "TLS: "),
        (TimeoutError("SSL handshake is taking longer"), "TimeoutError: SSL handshake is taking longer"),
    ],
)
def test_every_end_has_a_reason_in_words(error, reason):
    assert connection_module._reason(error).startswith(reason)


@on_each_loop
async def test_no_memory_for_a_payload_is_this_node_s_own_failure(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("not enough memory: you tried to allocate")

    async with pair(Tcp()) as (ours, _, _, their):
        ours.write(1, state(5_000_000), tensor(5_000_000), 0)
        monkeypatch.setattr(torch, "empty", refuse)
        await their.until(lambda: bool(their.failures))
        (failure,) = their.failures
        assert isinstance(failure, OutOfMemory)
        assert str(failure).startswith("no memory for a message of 5.0 MB that has come")
        assert their.reasons == []  # the peer has done nothing wrong
