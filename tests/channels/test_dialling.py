from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from wires import ANY_PORT, Witness, listening, on_each_loop, run_on

from geomx.channels import tcp
from geomx.channels.tcp import Tcp, split_address
from geomx.wire.messages import Ack


@on_each_loop
async def test_every_address_of_a_name_is_tried():
    async with listening(Tcp()) as (door, _):  # where localhost is IPv6 first, nobody is there
        _, port = split_address(door.address)
        (await Tcp().dial(f"localhost:{port}", Witness())).close("done")
    with pytest.raises(ConnectionRefusedError):
        await Tcp().dial(f"localhost:{port}", Witness())


def test_an_address_that_never_answers_leaves_time_for_the_next(monkeypatch):
    """Time does not pass: what is given to the first address is over at once, and nothing else ends."""
    limits: list[float] = []
    real = asyncio.timeout

    def timeout(limit_s: float) -> asyncio.Timeout:
        limits.append(limit_s)
        return real(0.0 if len(limits) == 2 else None)

    with contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # more than wait to be accepted: the kernel answers no other
            waits = sockets.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())

        async def main():
            witness = Witness()
            door = await Tcp().listen(ANY_PORT, witness, witness.accept)
            ways = [full.getsockname(), split_address(door.address)]
            found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", way) for way in ways]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            monkeypatch.setattr(asyncio, "timeout", timeout)
            connection = await Tcp().dial("site.example:7000", Witness())
            assert connection.peer_address == door.address
            assert limits == [tcp.DIAL_LIMIT_S, tcp.DIAL_LIMIT_S / 2, tcp.DIAL_LIMIT_S / 2]
            connection.close("done")
            await door.close()
            limits.clear()
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[:1])
            with pytest.raises(TimeoutError):
                await Tcp().dial("site.example:7000", Witness())

        run_on("asyncio", main)


@pytest.mark.parametrize("ends", ["", "soon", "at once"])
@on_each_loop
async def test_what_the_listener_says_first_is_heard_when_dial_has_returned(ends: str) -> None:
    """Also where it comes before, and where the listener has hung up since."""
    loop = asyncio.get_running_loop()

    def speak(connection: Any) -> None:
        theirs.accept(connection)
        connection.write(0, Ack(7), None, 0)
        if ends == "soon":
            loop.call_soon(connection.close, "done")
        elif ends:
            connection.close("done")

    theirs, seen = Witness(), []
    door = await Tcp().listen("127.0.0.1:0", theirs, speak)
    for _ in range(20):
        mine = Witness()
        connection = await Tcp().dial(door.address, mine)
        seen.append((list(mine.messages), list(mine.reasons)))
        await mine.until(lambda mine=mine: bool(mine.reasons if ends else mine.messages))
        assert mine.messages == [(0, Ack(7), None)]
        connection.close("done")
    assert seen == [([], [])] * 20
    await door.close()
