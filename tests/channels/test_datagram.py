"""Payloads in datagrams beside a connection, over real sockets and a relay that treats datagrams as networks do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple

import pytest
import torch
from relays import Relay, losing, relay
from wires import (
    BLOCK_BYTES,
    Witness,
    listening,
    on_each_loop,
    pair,
    push_of,
    tensor,
    until_open,
    write_blocks,
)

from geomx.channels import udp
from geomx.channels.block_classes import Alike
from geomx.channels.contract import EdgeSettings
from geomx.channels.datagram import Datagram
from geomx.channels.sealing import SALT_BYTES
from geomx.wire.flow import path as path_module
from geomx.wire.flow.inbox import Blocks
from geomx.wire.flow.outbox import BlockOut, FlowTerms
from geomx.wire.flow_messages import FlowOpen
from geomx.wire.messages import Beat, Push

SECRET = b"s" * 32


class Ends(NamedTuple):
    """Both ends of a connection through a relay."""

    sender: Any
    receiver: Any
    mine: Witness
    theirs: Witness
    relay: Relay


@contextlib.asynccontextmanager
async def joined(
    terms: FlowTerms | None = None,
    secrets: tuple[bytes, bytes] = (SECRET, SECRET),
    is_open: bool = True,
    fec: float = 0.0,
) -> AsyncIterator[Ends]:
    """Flows are open on both sides, as nodes open them; `secrets`: what the dialling and the listening side know.

    `is_open`: whether the listening side opens its own.
    """
    mine = Witness()
    async with (
        listening(Datagram(EdgeSettings(), Alike(fec=fec))) as (door, theirs),
        relay(door.address) as between,
    ):
        sender: Any = await Datagram(EdgeSettings(), Alike()).dial(between.address, mine)
        await theirs.until(lambda: bool(theirs.accepted))
        (receiver,) = theirs.accepted
        sender.open_flow(secrets[0], terms or FlowTerms())
        if is_open:
            receiver.open_flow(secrets[1], FlowTerms())
        beating = asyncio.create_task(beat(receiver))
        yield Ends(sender, receiver, mine, theirs, between)
        beating.cancel()
        sender.close("the test is over")


async def beat(connection: Any) -> None:
    """As a node does: so that the other end hears that the link is not cut."""
    while True:
        connection.write(0, Beat(0, 0, 0.0), None, 0)
        await asyncio.sleep(0.05)


def joined_again(payload: Any, size: int) -> tuple[torch.Tensor, int]:
    """What has come, zero elsewhere, and how many blocks are missing."""
    if not isinstance(payload, Blocks):
        return payload, 0
    whole = torch.zeros(size, dtype=torch.uint8)
    for start, stop, data in payload.blocks:
        whole[start:stop] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return whole, sum(not came for came in payload.came)


async def all_arrive(ends: Ends, sizes: list[int]) -> None:
    """Payloads of these sizes, in datagrams and whole."""
    for number, size in enumerate(sizes, 1):
        write_blocks(ends.sender, number, tensor(size, number))
    await ends.theirs.until(lambda: len(ends.theirs.messages) == len(sizes))
    for number, message, payload in ends.theirs.messages:
        assert isinstance(payload, Blocks)
        assert isinstance(message, Push)
        assert torch.equal(joined_again(payload, message.size)[0], tensor(message.size, number))


@pytest.fixture(params=["together", "one by one"])
def offload(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the kernel takes several datagrams with one call: there is no option 9999, so it refuses that."""
    if request.param == "one by one":
        monkeypatch.setattr(udp, "UDP_SEGMENT", 9999)
        monkeypatch.setattr(udp, "UDP_GRO", 9999)


@pytest.mark.usefixtures("offload")
@pytest.mark.parametrize("share", [0.0, 0.2])
@on_each_loop
async def test_reliable_blocks_arrive_whatever_is_lost(share: float) -> None:
    async with joined() as ends:
        await until_open(ends.sender)
        ends.relay.passes = losing(share)
        sizes = [1, 1400, 1401, 50_000, 300_000]
        await all_arrive(ends, sizes)
        assert ends.relay.datagrams[0] > sum(sizes) / BLOCK_BYTES


@pytest.mark.usefixtures("offload")
@on_each_loop
async def test_without_a_relay_both_ends_count_the_same() -> None:
    async with pair(Datagram(EdgeSettings(), Alike())) as (sender, mine, receiver, theirs):
        sender.open_flow(SECRET, FlowTerms())
        receiver.open_flow(SECRET, FlowTerms())
        ends = Ends(sender, receiver, mine, theirs, None)
        await until_open(ends.sender)
        write_blocks(ends.sender, 1, tensor(100_000, 1))
        await theirs.until(lambda: bool(theirs.messages))
        assert torch.equal(joined_again(theirs.messages[0][2], 100_000)[0], tensor(100_000, 1))
        assert receiver.flow_counts.came == sender.flow_counts.sent == {0: 72}
        assert sender.bytes_sent >= receiver.bytes_received > 100_000


@on_each_loop
async def test_lost_pieces_are_rebuilt_from_parity() -> None:
    async with joined(FlowTerms(parity_share=0.5), fec=0.5) as ends:
        await until_open(ends.sender)
        ends.relay.passes = losing(0.1)
        await all_arrive(ends, [1, 1400, 1401, 50_000, 300_000])
        assert 0 < ends.receiver.flow_counts.rebuilt <= ends.sender.flow_counts.parity


@pytest.mark.parametrize("why", ["none passes", "none can be sent", "another secret"])
@on_each_loop
async def test_where_datagrams_do_not_pass_the_connection_carries_all(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows another secret is not heard."""

    def refused(family: int) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(path_module, "LIMIT_S", 0.3)
    if why == "none can be sent":
        monkeypatch.setattr("geomx.channels.datagram.UdpSocket", refused)
    async with joined(secrets=(SECRET, b"t" * 32 if why == "another secret" else SECRET)) as ends:
        ends.relay.passes = lambda datagram: why != "none passes"
        await ends.mine.until(lambda: bool(ends.mine.flows))
        assert ends.mine.flows == [False]
        write_blocks(ends.sender, 1, tensor(50_000, 1))
        await ends.theirs.until(lambda: bool(ends.theirs.messages))
        assert torch.equal(ends.theirs.messages[0][2], tensor(50_000, 1))
        assert not ends.relay.datagrams[1]
        assert bool(ends.relay.datagrams[0]) == (why != "none can be sent")


@pytest.mark.parametrize("most_bytes", [0, 1300])
@on_each_loop
async def test_where_datagrams_pass_no_more_the_connection_takes_over(
    most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, or those above a size."""
    monkeypatch.setattr(path_module, "LIMIT_S", 0.3)
    monkeypatch.setattr("geomx.wire.flow.ends.SILENT_S", 0.3)
    async with joined() as ends:
        await until_open(ends.sender)
        write_blocks(ends.sender, 1, tensor(100_000, 1))
        while ends.sender._end.sender.open_loads or not ends.theirs.messages:
            await asyncio.sleep(0.01)
        ends.relay.passes = lambda datagram: len(datagram) <= most_bytes
        for number in (2, 3):
            write_blocks(ends.sender, number, tensor(100_000, number))
        await ends.theirs.until(lambda: len(ends.theirs.messages) == 3)
        for number, _, payload in ends.theirs.messages:
            assert torch.equal(joined_again(payload, 100_000)[0], tensor(100_000, number))
        if most_bytes:
            await until_open(ends.sender)
            write_blocks(ends.sender, 4, tensor(100_000, 4))
            await ends.theirs.until(lambda: len(ends.theirs.messages) == 4)
            assert isinstance(ends.theirs.messages[3][2], Blocks)
            assert all(ends.mine.flows)
        else:
            await ends.mine.until(lambda: False in ends.mine.flows)
            ends.relay.passes = losing(0.0)


@on_each_loop
async def test_answers_find_a_sender_whose_address_has_changed() -> None:
    async with joined() as ends:
        await until_open(ends.sender)
        for number in range(1, 4):
            write_blocks(ends.sender, number, tensor(200_000, number))
            await ends.theirs.until(lambda n=number: len(ends.theirs.messages) == n)
            ends.relay.rebind()
        assert all(isinstance(payload, Blocks) for _, _, payload in ends.theirs.messages)


@on_each_loop
async def test_without_a_secret_or_tls_nothing_leaves_as_a_datagram() -> None:
    async with joined(secrets=(b"", b"")) as ends:
        write_blocks(ends.sender, 1, tensor(50_000, 1))
        await ends.theirs.until(lambda: bool(ends.theirs.messages))
        assert torch.equal(ends.theirs.messages[0][2], tensor(50_000, 1))
        assert ends.relay.datagrams == [0, 0]


@pytest.mark.parametrize("flow", [0, -1, 1 << 60])
@on_each_loop
async def test_a_flow_whose_number_cannot_be_ends_the_connection(flow: int) -> None:
    async with joined(is_open=False) as ends:
        ends.receiver.write(0, FlowOpen(flow, bytes(SALT_BYTES)), None, 0)
        await ends.mine.until(lambda: bool(ends.mine.reasons))
        assert "flow" in ends.mine.reasons[0].lower()


# -- liars --------------------------------------------------------------------------------------------------------


@on_each_loop
async def test_whoever_sends_other_blocks_than_were_announced_is_told_of_as_a_liar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with joined() as ends:
        await until_open(ends.sender)
        sender = ends.sender._end.sender
        add = sender.add

        def lie(number: int, head: bytes, blocks: Iterable[BlockOut], *more: Any) -> None:
            add(number, head, [block._replace(level=1) for block in blocks], *more)

        monkeypatch.setattr(sender, "add", lie)
        ends.sender.write(1, push_of(5000), tensor(5000, 1), 1)
        await ends.theirs.until_closed()
        (breach,) = ends.theirs.breaches
        assert "announced as reliable, and came in class 1" in breach
        assert not ends.theirs.messages


@on_each_loop
async def test_whoever_sends_none_of_the_blocks_that_were_announced_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No more than that: on the next connection the payload comes whole."""
    monkeypatch.setattr("geomx.wire.flow.ends.STUCK_S", 0.3)
    async with joined() as ends:
        await until_open(ends.sender)
        monkeypatch.setattr(ends.sender._end.sender, "next", lambda *_: None)
        write_blocks(ends.sender, 1, tensor(5000, 1))
        assert "announced blocks, and sent none" in await ends.theirs.until_closed()
        assert not ends.theirs.breaches
