"""One node on real sockets, and peers that do as the tests say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from certificates import issue
from trees import layout_of, topology_of
from wires import LOOPS, Records, Witness, greet, run_on

from geomx.channels.contract import Channel, Connection
from geomx.channels.emulation.link import LinkSpec
from geomx.channels.tcp import Tcp, split_address
from geomx.channels.tls import contexts
from geomx.drive.real import MOST_TURNED_AWAY, Driver, ListeningEdge, Wiring
from geomx.errors import ConfigError, GeomxError, ProtocolError
from geomx.node.contract import Called
from geomx.node.factory import make_node
from geomx.node.peers.handshake import LEAST_STRANGERS
from geomx.wire.messages import Ack, Failure, Welcome
from geomx.wire.roster_messages import Message

pytestmark = pytest.mark.parametrize("loop_name", LOOPS)
TOPOLOGY = topology_of([2])


@contextlib.asynccontextmanager
async def serving(channel: Channel) -> AsyncIterator[tuple[str, Records, asyncio.Task[None]]]:
    """The global server at a free port: its address, what it records, and its run."""
    records = Records()
    driver = Driver(make_node(TOPOLOGY, "global/0"), Wiring(ListeningEdge(channel, "127.0.0.1:0")), records)
    task = asyncio.get_running_loop().create_task(driver.run())
    (listening,) = await records.until("listening")
    try:
        yield listening["address"], records, task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, GeomxError):
            await task


async def member(address: str) -> tuple[Witness, Connection]:
    """Party A's local server, which has been let in."""
    mine = Witness()
    connection = await Tcp().dial(address, mine)
    await greet(connection, mine)
    await mine.until(lambda: bool(said(mine, Welcome)))
    return mine, connection


def said(witness: Witness, kind: type[Message]) -> list[Message]:
    return [message for _, message, _ in witness.messages if isinstance(message, kind)]


async def strangers(address: str, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    return [await asyncio.open_connection(*split_address(address)) for _ in range(count)]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_strangers_at_once_do_not_keep_a_member_out(loop_name):
    async def main():
        async with serving(Tcp()) as (address, records, task):
            crowd = await strangers(address, 3 * LEAST_STRANGERS)
            _, connection = await member(address)
            turned_out = crowd[: len(crowd) - LEAST_STRANGERS]
            for reader, _ in turned_out:
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()  # a Challenge, and then the end
            assert [fields["peer"] for fields in records.named("joined")] == ["A"]
            assert not task.done()
            for _, writer in crowd:
                writer.close()
            connection.close("done")

    run_on(loop_name, main)


def test_a_flood_of_strangers_that_never_hang_up_takes_few_descriptors(loop_name):
    async def main():
        async with serving(Tcp()) as (address, _, task):
            before = open_files()
            crowd = await strangers(address, 6 * LEAST_STRANGERS)
            await crowd[-1][0].readexactly(1)  # it was let in: the others have been turned away
            at_the_door = open_files() - before - len(crowd)
            assert at_the_door <= LEAST_STRANGERS + MOST_TURNED_AWAY + 1
            assert not task.done()
            for _, writer in crowd:
                writer.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("link", [None, LinkSpec(rate_mbps=100, delay_ms=40)])
def test_what_a_node_fails_with_reaches_its_peers_before_its_loop_may_end(loop_name, link):
    async def main():
        async with serving(Tcp(link)) as (address, _, task):
            mine, connection = await member(address)
            connection.write(0, Ack(99), None, 0)
            with pytest.raises(ProtocolError, match="A broke the protocol"):
                await task
            (failure,) = said(mine, Failure)
            assert "A broke the protocol: message 99 is acknowledged" in failure.reason

    run_on(loop_name, main)


def test_a_peer_that_never_reads_does_not_keep_a_node_from_ending(loop_name, monkeypatch):
    monkeypatch.setattr("geomx.channels.connection.CLOSE_LIMIT_S", 0.02)

    async def main():
        async with serving(Tcp()) as (address, _, task):
            _, deaf = await asyncio.open_connection(*split_address(address))
            _, connection = await member(address)
            connection.write(0, Ack(99), None, 0)
            with pytest.raises(ProtocolError):
                await task
            deaf.close()

    run_on(loop_name, main)


def test_who_has_no_certificate_is_recorded_with_the_reason(loop_name, tmp_path):
    paths = issue(tmp_path / "ours", trustme.CA())

    async def main():
        async with serving(Tcp(tls=contexts(*paths))) as (address, records, task):
            plain = Witness()
            connection = await Tcp().dial(address, plain)
            connection.write(0, Ack(1), None, 0)
            (refused,) = await records.until("refused")
            assert refused["peer"] == "somebody at the door"
            assert refused["reason"].startswith("TLS: ")
            assert await plain.until_closed()
            assert not task.done()

    run_on(loop_name, main)


def test_a_door_that_is_taken_says_which(loop_name):
    async def main():
        async with serving(Tcp()) as (address, _, _):
            second = Driver(make_node(TOPOLOGY, "global/0"), Wiring(ListeningEdge(Tcp(), address)), Records())
            with pytest.raises(
                ConfigError, match=f"address: found {address}; allowed: an address of this machine"
            ):
                await second.run()

    run_on(loop_name, main)


def test_a_script_may_call_before_its_node_has_opened_its_doors(loop_name, monkeypatch):
    """A worker that is dialled by others of its party listens first; what it is told meanwhile, it does then."""

    async def main() -> None:
        opens = asyncio.Event()

        async def listen(driver: Driver) -> None:
            await opens.wait()

        monkeypatch.setattr(Driver, "_listen", listen)
        driver = Driver(
            make_node(TOPOLOGY, "A/0"), Wiring(peers={"A": (Tcp(), "127.0.0.1:1")}), Records()
        )  # nobody is there
        task = asyncio.get_running_loop().create_task(driver.run())
        await asyncio.sleep(0)
        driver.deliver(Called("attach", (layout_of(2), {"optimizer": "torch.optim.SGD"})))
        opens.set()
        await asyncio.sleep(0.1)
        assert not task.done(), task
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, GeomxError):
            await task

    run_on(loop_name, main)
