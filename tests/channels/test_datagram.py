"""Payloads in datagrams beside a connection, over real sockets and a relay that treats datagrams as networks do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
import torch
from relays import Relay, losing, relay
from wires import ANY_PORT, LOOPS, Witness, run_on, tensor

from geomx.channels import udp
from geomx.channels.block_classes import Alike
from geomx.channels.contract import EdgeSettings
from geomx.channels.datagram import Datagram
from geomx.channels.sealing import SALT_BYTES
from geomx.codecs.contract import Block
from geomx.wire.flow import path as path_module
from geomx.wire.flow.inbox import Blocks
from geomx.wire.flow.outbox import BlockOut, FlowTerms
from geomx.wire.flow_messages import FlowOpen
from geomx.wire.messages import Beat, Push, Reading

pytestmark = pytest.mark.parametrize("loop_name", LOOPS)
SECRET = b"s" * 32
BLOCK_BYTES = 1400


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
    mine, theirs = Witness(), Witness()
    door = await Datagram(EdgeSettings(), Alike(fec=fec)).listen(ANY_PORT, theirs, theirs.accept)
    async with relay(door.address) as between:
        sender = await Datagram(EdgeSettings(), Alike()).dial(between.address, mine)
        await theirs.until(lambda: bool(theirs.accepted))
        (receiver,) = theirs.accepted
        sender.open_flow(secrets[0], terms or FlowTerms())
        if is_open:
            receiver.open_flow(secrets[1], FlowTerms())
        beating = asyncio.create_task(beat(receiver))
        yield Ends(sender, receiver, mine, theirs, between)
        beating.cancel()
        sender.close("the test is over")
        await door.close()


async def beat(connection: Any) -> None:
    """As a node does: so that the other end hears that the link is not cut."""
    while True:
        connection.write(0, Beat(0, 0, 0.0), None, 0)
        await asyncio.sleep(0.05)


async def until_open(ends: Ends) -> None:
    while ends.sender.flow_state != "open":
        await asyncio.sleep(0.01)


def push(size: int) -> Push:
    return Push(1, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", Reading(), size=size)


def write(ends: Ends, number: int, payload: torch.Tensor, level: int = 0) -> None:
    ranges = [
        (start, min(start + BLOCK_BYTES, payload.numel())) for start in range(0, payload.numel(), BLOCK_BYTES)
    ]
    blocks = [(Block(start, stop, payload[start:stop]), level) for start, stop in ranges]
    ends.sender.write_blocks(number, push(payload.numel()), payload, 1, blocks)


def joined_again(payload: Any, size: int) -> tuple[torch.Tensor, int]:
    """What has come, zero elsewhere, and how many blocks are missing."""
    if not isinstance(payload, Blocks):
        return payload, 0
    whole = torch.zeros(size, dtype=torch.uint8)
    for start, stop, data in payload.blocks:
        whole[start:stop] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return whole, sum(not came for came in payload.came)


@pytest.fixture(params=["together", "one by one"])
def offload(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the kernel takes several datagrams with one call: there is no option 9999, so it refuses that."""
    if request.param == "one by one":
        monkeypatch.setattr(udp, "UDP_SEGMENT", 9999)
        monkeypatch.setattr(udp, "UDP_GRO", 9999)


@pytest.mark.usefixtures("offload")
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_reliable_blocks_arrive_whatever_is_lost(loop_name: str, share: float) -> None:
    async def main() -> None:
        async with joined() as ends:
            await until_open(ends)
            ends.relay.passes = losing(share)
            sizes = [1, 1400, 1401, 50_000, 300_000]
            for number, size in enumerate(sizes, 1):
                write(ends, number, tensor(size, number))
            await ends.theirs.until(lambda: len(ends.theirs.messages) == len(sizes))
            assert ends.relay.datagrams[0] > sum(sizes) / BLOCK_BYTES
            for number, message, payload in ends.theirs.messages:
                assert isinstance(payload, Blocks)
                assert isinstance(message, Push)
                assert torch.equal(joined_again(payload, message.size)[0], tensor(message.size, number))

    run_on(loop_name, main)


@pytest.mark.usefixtures("offload")
def test_without_a_relay_both_ends_count_the_same(loop_name: str) -> None:
    """Without a relay between them: what leaves together arrives together."""

    async def main() -> None:
        mine, theirs = Witness(), Witness()
        door = await Datagram(EdgeSettings(), Alike()).listen(ANY_PORT, theirs, theirs.accept)
        sender: Any = await Datagram(EdgeSettings(), Alike()).dial(door.address, mine)
        await theirs.until(lambda: bool(theirs.accepted))
        (receiver,) = theirs.accepted
        sender.open_flow(SECRET, FlowTerms())
        receiver.open_flow(SECRET, FlowTerms())
        ends = Ends(sender, receiver, mine, theirs, None)
        await until_open(ends)
        write(ends, 1, tensor(100_000, 1))
        await theirs.until(lambda: bool(theirs.messages))
        assert torch.equal(joined_again(theirs.messages[0][2], 100_000)[0], tensor(100_000, 1))
        assert receiver.flow_counts.came == sender.flow_counts.sent == {0: 72}
        assert sender.bytes_sent >= receiver.bytes_received > 100_000
        sender.close("the test is over")
        await door.close()

    run_on(loop_name, main)


def test_lost_pieces_are_rebuilt_from_parity(loop_name: str) -> None:
    async def main() -> None:
        async with joined(FlowTerms(parity_share=0.5), fec=0.5) as ends:
            await until_open(ends)
            ends.relay.passes = losing(0.1)
            sizes = [1, 1400, 1401, 50_000, 300_000]
            for number, size in enumerate(sizes, 1):
                write(ends, number, tensor(size, number))
            await ends.theirs.until(lambda: len(ends.theirs.messages) == len(sizes))
            for number, message, payload in ends.theirs.messages:
                assert isinstance(payload, Blocks)
                assert torch.equal(joined_again(payload, message.size)[0], tensor(message.size, number))
            assert 0 < ends.receiver.flow_counts.rebuilt <= ends.sender.flow_counts.parity

    run_on(loop_name, main)


def test_what_may_be_lost_is_awaited_no_longer_than_its_tail(loop_name: str) -> None:
    async def main() -> None:
        async with joined(FlowTerms((1,))) as ends:
            await until_open(ends)
            ends.relay.passes = losing(0.2)
            write(ends, 1, tensor(300_000, 1), level=1)
            await ends.theirs.until(lambda: bool(ends.theirs.messages))
            ((_, _, payload),) = ends.theirs.messages
            found, missing = joined_again(payload, 300_000)
            assert 0 < missing < len(payload.came) / 2
            there = [slice(block.start, block.stop) for block in payload.blocks]
            assert all(torch.equal(found[part], tensor(300_000, 1)[part]) for part in there)

    run_on(loop_name, main)


def test_where_datagrams_do_not_pass_the_connection_carries_all(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path_module, "LIMIT_S", 0.3)

    async def main() -> None:
        async with joined() as ends:
            ends.relay.passes = lambda datagram: 0
            await ends.mine.until(lambda: bool(ends.mine.flows))
            assert ends.mine.flows == [False]
            write(ends, 1, tensor(50_000, 1))
            await ends.theirs.until(lambda: bool(ends.theirs.messages))
            assert torch.equal(ends.theirs.messages[0][2], tensor(50_000, 1))

    run_on(loop_name, main)


@pytest.mark.parametrize("most_bytes", [0, 1300])
def test_where_datagrams_pass_no_more_the_connection_takes_over(
    loop_name: str, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, or those above a size."""
    monkeypatch.setattr(path_module, "LIMIT_S", 0.3)
    monkeypatch.setattr("geomx.wire.flow.ends.SILENT_S", 0.3)

    async def main() -> None:
        async with joined() as ends:
            await until_open(ends)
            write(ends, 1, tensor(100_000, 1))
            while ends.sender._end.sender.open_loads or not ends.theirs.messages:
                await asyncio.sleep(0.01)
            ends.relay.passes = lambda datagram: len(datagram) <= most_bytes
            for number in (2, 3):
                write(ends, number, tensor(100_000, number))
            await ends.theirs.until(lambda: len(ends.theirs.messages) == 3)
            for number, _, payload in ends.theirs.messages:
                assert torch.equal(joined_again(payload, 100_000)[0], tensor(100_000, number))
            if most_bytes:
                await until_open(ends)
                write(ends, 4, tensor(100_000, 4))
                await ends.theirs.until(lambda: len(ends.theirs.messages) == 4)
                assert isinstance(ends.theirs.messages[3][2], Blocks)
                assert all(ends.mine.flows)
            else:
                await ends.mine.until(lambda: False in ends.mine.flows)
                ends.relay.passes = losing(0.0)

    run_on(loop_name, main)


def test_answers_find_a_sender_whose_address_has_changed(loop_name: str) -> None:
    async def main() -> None:
        async with joined() as ends:
            await until_open(ends)
            for number in range(1, 4):
                write(ends, number, tensor(200_000, number))
                await ends.theirs.until(lambda n=number: len(ends.theirs.messages) == n)
                ends.relay.rebind()
            assert all(isinstance(payload, Blocks) for _, _, payload in ends.theirs.messages)

    run_on(loop_name, main)


def test_without_a_secret_or_tls_nothing_leaves_as_a_datagram(loop_name: str) -> None:
    async def main() -> None:
        async with joined(secrets=(b"", b"")) as ends:
            write(ends, 1, tensor(50_000, 1))
            await ends.theirs.until(lambda: bool(ends.theirs.messages))
            assert torch.equal(ends.theirs.messages[0][2], tensor(50_000, 1))
            assert ends.relay.datagrams == [0, 0]

    run_on(loop_name, main)


def test_where_no_datagram_can_be_sent_the_connection_carries_all(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(family: int) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("geomx.channels.datagram.UdpSocket", refused)

    async def main() -> None:
        async with joined() as ends:
            await ends.mine.until(lambda: bool(ends.mine.flows))
            assert ends.mine.flows == [False]
            write(ends, 1, tensor(50_000, 1))
            await ends.theirs.until(lambda: bool(ends.theirs.messages))
            assert torch.equal(ends.theirs.messages[0][2], tensor(50_000, 1))

    run_on(loop_name, main)


def test_whoever_knows_another_secret_is_not_heard(loop_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_module, "LIMIT_S", 0.3)

    async def main() -> None:
        async with joined(secrets=(SECRET, b"t" * 32)) as ends:
            await ends.mine.until(lambda: bool(ends.mine.flows))
            assert ends.mine.flows == [False]
            assert ends.relay.datagrams[0]
            assert not ends.relay.datagrams[1]

    run_on(loop_name, main)


@pytest.mark.parametrize("flow", [0, -1, 1 << 32, 1 << 60])
def test_a_flow_whose_number_cannot_be_ends_the_connection(loop_name: str, flow: int) -> None:
    async def main() -> None:
        async with joined(is_open=False) as ends:
            ends.receiver.write(0, FlowOpen(flow, bytes(SALT_BYTES)), None, 0)
            await ends.mine.until(lambda: bool(ends.mine.reasons))
            assert "flow" in ends.mine.reasons[0].lower()

    run_on(loop_name, main)


# -- liars --------------------------------------------------------------------------------------------------------

LIES: dict[str, tuple[Callable[[BlockOut], BlockOut], str]] = {
    "another class": (lambda block: block._replace(level=1), "announced as reliable, and came in class 1"),
    "more bytes": (
        lambda block: block._replace(data=memoryview(bytes(block.data) * 2)),
        "more bytes than were announced",
    ),
    "other bytes": (lambda block: block._replace(start=block.start + 1), "of a payload follow byte 0"),
}


@pytest.mark.parametrize("lie", LIES)
def test_whoever_sends_other_blocks_than_were_announced_is_told_of_as_a_liar(
    loop_name: str, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    change, what = LIES[lie]

    async def main() -> None:
        async with joined() as ends:
            await until_open(ends)
            sender = ends.sender._end.sender
            add = sender.add
            monkeypatch.setattr(
                sender,
                "add",
                lambda number, head, blocks, *more: add(number, head, map(change, blocks), *more),
            )
            ends.sender.write(1, push(5000), tensor(5000, 1), 1)
            await ends.theirs.until_closed()
            (breach,) = ends.theirs.breaches
            assert what in breach
            assert not ends.theirs.messages

    run_on(loop_name, main)


def test_whoever_sends_none_of_the_blocks_that_were_announced_is_hung_up_on(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more than that: on the next connection the payload comes whole."""
    monkeypatch.setattr("geomx.wire.flow.ends.STUCK_S", 0.3)

    async def main() -> None:
        async with joined() as ends:
            await until_open(ends)
            monkeypatch.setattr(ends.sender._end.sender, "next", lambda *_: None)
            write(ends, 1, tensor(5000, 1))
            assert "announced blocks, and sent none" in await ends.theirs.until_closed()
            assert not ends.theirs.breaches

    run_on(loop_name, main)
