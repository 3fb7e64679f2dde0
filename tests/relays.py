"""A relay between two ends on this machine: TCP passes, and datagrams as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

from geomx.channels.tcp import split_address


class Relay:
    """Forwards to `target`. `passes(datagram)`: whether one passes, and how many times; up and down alike."""

    def __init__(self, target: str) -> None:
        self.target = split_address(target)
        self.address = ""
        self.passes: Callable[[bytes], int] = lambda datagram: 1
        self.datagrams = [0, 0]  # that came: up, down
        self._far: dict[Any, socket.socket] = {}  # by the near end's address: as a NAT has it
        self._near: socket.socket
        self._tasks: set[asyncio.Task[None]] = set()
        self._pipes: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server

    async def open(self) -> None:
        self._near = _udp()
        while not self.address:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            port = self._server.sockets[0].getsockname()[1]
            try:
                self._near.bind(("127.0.0.1", port))
                self.address = f"127.0.0.1:{port}"
            except OSError:  # another program has this one
                self._server.close()
        asyncio.get_running_loop().add_reader(self._near, self._up)

    async def close(self) -> None:
        self.rebind()
        asyncio.get_running_loop().remove_reader(self._near)
        self._near.close()
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rebind(self) -> None:
        """Forget who sends from where: what comes next leaves from other ports; answers to the old ones are lost."""
        for far in self._far.values():
            asyncio.get_running_loop().remove_reader(far)
            far.close()
        self._far.clear()

    def break_connections(self) -> None:
        """All TCP connections end, without a word."""
        for writer in self._pipes:
            writer.transport.abort()
        self._pipes.clear()

    def _up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                datagram, near = self._near.recvfrom(1 << 16)
                self.datagrams[0] += 1
                far = self._far.get(near)
                if far is None:
                    far = self._far[near] = _udp()
                    far.connect(self.target)
                    asyncio.get_running_loop().add_reader(far, self._down, far, near)
                for _ in range(self.passes(datagram)):
                    far.send(datagram)

    def _down(self, far: socket.socket, near: Any) -> None:
        with contextlib.suppress(OSError):
            while True:
                datagram = far.recv(1 << 16)
                self.datagrams[1] += 1
                for _ in range(self.passes(datagram)):
                    self._near.sendto(datagram, near)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self.target)
        self._pipes |= {writer, back}
        for task in (self._pipe(reader, back), self._pipe(there, writer)):
            running = asyncio.create_task(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()


def losing(share: float, seed: int = 0) -> Callable[[bytes], int]:
    """Loses this share of datagrams, and doubles as many."""
    chance = Random(seed)
    return lambda datagram: (chance.random() >= share) * (1 + (chance.random() < share))


@contextlib.asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    made = Relay(target)
    await made.open()
    yield made
    await made.close()


def _udp() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return made
