"""Whoever listens for datagrams: at which addresses, from which it answers, for how long, and what if it cannot."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import torch
from wires import Witness, listening, on_each_loop, tensor, until_open

from geomx.channels.block_classes import Alike
from geomx.channels.connection import format_address
from geomx.channels.contract import EdgeSettings
from geomx.channels.datagram import LEAST_TOGETHER, MOST_TOGETHER, Datagram
from geomx.channels.tcp import Tcp, split_address
from geomx.channels.udp import UdpSocket
from geomx.wire.flow.sender import FlowTerms
from geomx.wire.messages import Reading, Update

SECRET = b"s" * 32
SIZE = 100_000


def datagram() -> Datagram:
    return Datagram(EdgeSettings(), Alike())


@contextlib.asynccontextmanager
async def dialled(address: str, heard: Witness) -> AsyncIterator[tuple[Any, Any, Witness]]:
    """Who has dialled, who has accepted, and what the first of them hears; flows are open at both ends."""
    mine, before = Witness(), len(heard.accepted)
    near: Any = await datagram().dial(address, mine)
    await heard.until(lambda: len(heard.accepted) > before)
    far = heard.accepted[before]
    near.open_flow(SECRET, FlowTerms())
    far.open_flow(SECRET, FlowTerms())
    yield near, far, mine
    near.close("the test is over")


async def passes(sender: Any, witness: Witness) -> None:
    """A payload comes whole, and in datagrams: none of it is on the connection, which would have counted no piece."""
    before, pieces = len(witness.messages), sender.flow_counts.sent.get(0, 0)
    sender.write(before + 1, Update(1, before, "gradient", 1.0, None, Reading(), size=SIZE), tensor(SIZE), 1)
    await witness.until(lambda: len(witness.messages) > before)
    assert torch.equal(witness.messages[-1][2], tensor(SIZE))
    assert sender.flow_counts.sent[0] - pieces > SIZE / 1500


@pytest.mark.parametrize(
    ("everywhere", "host"), [("0.0.0.0", "127.0.0.1"), ("0.0.0.0", "127.0.0.2"), ("[::]", "[::1]")]
)
@on_each_loop
async def test_whoever_listens_everywhere_answers_from_the_address_that_was_dialled(
    everywhere: str, host: str
) -> None:
    async with listening(datagram(), f"{everywhere}:0") as (door, heard):
        port = split_address(door.address)[1]
        async with dialled(f"{host}:{port}", heard) as (near, far, mine):
            await until_open(near, far)
            await passes(near, heard)
            await passes(far, mine)


NAME = "several.test"


def several(hosts: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with these addresses, on loops that ask Python for them."""
    ask = socket.getaddrinfo

    def answered(host: Any, port: Any, *more: Any, **options: Any) -> list[Any]:
        asked = hosts if host == NAME else [host]
        return [info for each in asked for info in ask(each, port, *more, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", answered)


@pytest.mark.parametrize("hosts", [["127.0.0.1", "::1"], ["127.0.0.1", "127.0.0.3"]])
@on_each_loop
async def test_datagrams_pass_at_every_address_of_a_name(
    loop_name: str, hosts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if loop_name == "uvloop":
        pytest.skip("it asks the C library for addresses")
    several(hosts, monkeypatch)
    async with listening(datagram(), f"{NAME}:0") as (door, heard):
        assert sorted(name[0] for name in door.names) == hosts
        for name in door.names:
            async with dialled(format_address(name), heard) as (near, far, mine):
                await until_open(near, far)
                await passes(near, heard)
                await passes(far, mine)


@contextlib.contextmanager
def taken() -> Iterator[int]:
    """A port that is free for TCP, and where another program has UDP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            other.bind(free.getsockname())
        yield other.getsockname()[1]


@on_each_loop
async def test_where_another_program_has_the_port_both_ends_say_so_and_the_connection_carries_all() -> None:
    with taken() as port:
        async with listening(datagram(), f"127.0.0.1:{port}") as (door, heard):
            assert heard.refusals == [
                f"UDP port {port} is in use by another program, so TCP carries everything"
            ]
            async with dialled(door.address, heard) as (near, far, mine):
                await mine.until(lambda: bool(mine.flows))
                assert mine.flows == [False]
                assert mine.whys == ["its UDP port cannot be used; its log says why"]
                near.write(1, Update(1, 0, "gradient", 1.0, None, Reading(), size=SIZE), tensor(SIZE), 1)
                await heard.until(lambda: bool(heard.messages))
                assert torch.equal(heard.messages[0][2], tensor(SIZE))
                assert near.flow_state == far.flow_state == "waiting"
                assert heard.flows == []


@on_each_loop
async def test_any_free_port_is_free_for_datagrams_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has the first two that TCP finds: as programs that send datagrams have ports by the dozen."""
    others: list[socket.socket] = []
    listen = Tcp.listen

    async def listened(*arguments: Any) -> Any:
        listener = await listen(*arguments)
        if len(others) < 2:
            others.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            with contextlib.suppress(OSError):  # somebody else has it already
                others[-1].bind(listener.names[0])
        return listener

    monkeypatch.setattr(Tcp, "listen", listened)
    async with listening(datagram()) as (door, heard), dialled(door.address, heard) as (near, far, _):
        assert not heard.refusals
        await until_open(near, far)
        await passes(near, heard)
    for other in others:
        other.close()


@on_each_loop
async def test_where_another_program_has_one_of_two_ports_datagrams_pass_at_the_other(
    loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if loop_name == "uvloop":
        pytest.skip("it asks the C library for addresses")
    several(["127.0.0.1", "127.0.0.3"], monkeypatch)
    with taken() as port:
        async with listening(datagram(), f"{NAME}:{port}") as (_, heard):
            (said,) = heard.refusals
            assert said == (
                f"UDP port {port} of 127.0.0.1 is in use by another program, "
                "so TCP carries everything that comes there"
            )
            async with dialled(f"127.0.0.1:{port}", heard) as (_, _, mine):
                await mine.until(lambda: mine.flows == [False])
            async with dialled(f"127.0.0.3:{port}", heard) as (near, far, mine):
                await until_open(near, far)
                await passes(near, heard)


@on_each_loop
async def test_a_closed_door_leaves_flows_to_those_who_have_them_and_then_frees_its_port() -> None:
    async with listening(datagram()) as (door, heard), dialled(door.address, heard) as (near, far, mine):
        await until_open(near, far)
        await door.close()
        await passes(near, heard)
        await passes(far, mine)
        near.close("enough")
        await heard.until_closed()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(split_address(door.address))


@on_each_loop
async def test_whoever_listens_sends_several_datagrams_with_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as whoever dials: what belongs to one wake."""
    with contextlib.closing(UdpSocket(socket.AF_INET)) as any_socket:
        if not any_socket._sends_together:
            pytest.skip("this kernel sends datagrams one by one")
    runs: list[tuple[int, bool]] = []
    send = UdpSocket._send_run

    def sends(self: UdpSocket, run: Sequence[bytes], address: Any, source: Any) -> None:
        runs.append((len(run), address is not None and source is not None))
        send(self, run, address, source)

    monkeypatch.setattr(UdpSocket, "_send_run", sends)
    async with listening(datagram()) as (door, heard), dialled(door.address, heard) as (near, far, mine):
        await until_open(near, far)
        await passes(far, mine)
    assert max(count for count, is_answer in runs if is_answer) > 2


@on_each_loop
async def test_no_more_leaves_in_a_row_than_the_path_carries_meanwhile() -> None:
    async with listening(datagram()) as (door, heard), dialled(door.address, heard) as (near, far, _):
        await until_open(near, far)
        end, congestion = far._end, far._congestion
        assert far._most_together(end) == MOST_TOGETHER  # nothing is known of the path
        congestion.round_trip_s = 0.16
        for rate, most in ((1e5, LEAST_TOGETHER), (1e6, 6), (1e9, MOST_TOGETHER)):
            congestion.rate = rate  # bytes a second: 10 ms of 1 MB/s are 6.9 datagrams
            assert far._most_together(end) == most
