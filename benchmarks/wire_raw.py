"""What the wire can do: two raw blocking sockets, and the bare TCP channel, in the same exchange over loopback.

    python benchmarks/wire_raw.py [--messages 64] [--size-mib 1] [--runs 7] [--loop uvloop|asyncio]

*One way*: the client sends all messages, the server answers the last one with a single byte. *Both ways*: the
server answers each message with one of the same size, as a push is answered by its update. Client and server are
two processes. The runs alternate between the kinds, so that a noisy machine treats them alike; medians are printed.
`raw` and `channel` start a server process and yield a function that does one exchange and returns its seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import queue
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

import torch
import uvloop

from geomx.channels.memory import reuse_freed_blocks
from geomx.channels.tcp import Tcp
from geomx.protocol.messages import Ack, Message, State


@dataclass(frozen=True)
class Exchange:
    """What is sent: `messages` of `size_bytes` each, answered by equal ones if `both_ways`."""

    messages: int
    size_bytes: int
    both_ways: bool

    @property
    def total_bytes(self) -> int:
        return self.messages * self.size_bytes * (2 if self.both_ways else 1)


@contextlib.contextmanager
def _server(target: Callable[..., None], *arguments: Any) -> Iterator[int]:
    """A process that runs `target(pipe, *arguments)`, sends its port and ends with its connection; yields the port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.join()


# -- raw sockets -------------------------------------------------------------------------------------


@contextlib.contextmanager
def raw(exchange: Exchange) -> Iterator[Callable[[], float]]:
    """Two blocking sockets, a thread for each direction, one buffer for each message, no headers."""
    with _server(_raw_server, exchange) as port, socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outgoing = [memoryview(bytearray(exchange.size_bytes)) for _ in range(exchange.messages)]
        incoming = [memoryview(bytearray(exchange.size_bytes)) for _ in range(exchange.messages)]
        answers = incoming if exchange.both_ways else [memoryview(bytearray(1))]

        def once() -> float:
            started = time.perf_counter()
            sender = threading.Thread(target=_send_all, args=(sock, outgoing))
            sender.start()
            for buffer in answers:
                _receive(sock, buffer)
            took = time.perf_counter() - started
            sender.join()
            return took

        yield once


def _raw_server(pipe: Pipe, exchange: Exchange) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        pipe.send(door.getsockname()[1])
        sock, _ = door.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffers = [memoryview(bytearray(exchange.size_bytes)) for _ in range(exchange.messages)]
    answers: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
    writer = threading.Thread(target=_send_all, args=(sock, iter(answers.get, None)))
    writer.start()
    with sock, contextlib.suppress(EOFError):
        while True:
            for buffer in buffers:
                _receive(sock, buffer)
                if exchange.both_ways:
                    answers.put(buffer)
            if not exchange.both_ways:
                answers.put(memoryview(b"."))
    answers.put(None)
    writer.join()


def _send_all(sock: socket.socket, buffers: Iterator[memoryview]) -> None:
    for buffer in buffers:
        sock.sendall(buffer)


def _receive(sock: socket.socket, buffer: memoryview) -> None:
    filled = 0
    while filled < len(buffer):
        count = sock.recv_into(buffer[filled:])
        if count == 0:
            raise EOFError
        filled += count


# -- the channel -------------------------------------------------------------------------------------


@contextlib.contextmanager
def channel(exchange: Exchange, loop_name: str = "uvloop", **settings: Any) -> Iterator[Callable[[], float]]:
    """One connection of `geomx.channels.tcp.Tcp(**settings)`; nothing above it."""
    reuse_freed_blocks()
    with (
        _server(_channel_server, exchange, loop_name, settings) as port,
        asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner,
    ):
        client = _Client(exchange)
        runner.run(client.dial(port, settings))
        yield lambda: runner.run(client.once())
        runner.run(client.hang_up())


class _Peer:
    """A receiver that lets everything in; see `geomx.channels.base.Receiver`."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.count = 0
        self.done = asyncio.Event()

    def admit(self, connection: Any, message: Message) -> None:
        """Everybody is welcome."""

    def closed(self, connection: Any, reason: str) -> None:
        self.done.set()


class _Client(_Peer):
    """Writes every message at once and waits for all answers."""

    connection: Any

    async def dial(self, port: int, settings: dict[str, Any]) -> None:
        size = self.exchange.size_bytes
        self.payloads = [torch.zeros(size, dtype=torch.uint8) for _ in range(self.exchange.messages)]
        self.message = State(0, 0, (), (), size)
        self.connection = await Tcp(**settings).dial(f"127.0.0.1:{port}", self)

    async def once(self) -> float:
        self.done.clear()
        self.count = self.exchange.messages if self.exchange.both_ways else 1
        started = time.perf_counter()
        for number, payload in enumerate(self.payloads, 1):
            self.connection.write(number, self.message, payload, number)
        await self.done.wait()
        return time.perf_counter() - started

    def received(self, connection: Any, number: int, message: Message, payload: Any) -> None:
        self.count -= 1
        if not self.count:
            self.done.set()

    async def hang_up(self) -> None:
        self.connection.close("done")


class _Echo(_Peer):
    """Answers each message with itself, or all of them with a word."""

    def received(self, connection: Any, number: int, message: Message, payload: Any) -> None:
        self.count += 1
        if self.exchange.both_ways:
            connection.write(number, message, payload, number)
        elif self.count % self.exchange.messages == 0:
            connection.write(0, Ack(self.count), None, 0)


def _channel_server(pipe: Pipe, exchange: Exchange, loop_name: str, settings: dict[str, Any]) -> None:
    async def serve() -> None:
        echo = _Echo(exchange)
        listener = await Tcp(**settings).listen("127.0.0.1:0", echo, lambda _: None)
        pipe.send(int(listener.address.rpartition(":")[2]))
        await echo.done.wait()
        await listener.close()

    reuse_freed_blocks()
    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.run(serve())


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}

# -- the comparison -----------------------------------------------------------------------------------


def compare(exchange: Exchange, runs: int, loop_name: str = "uvloop", **settings: Any) -> tuple[float, float]:
    """Median GB/s of raw sockets and of the channel, from alternating runs behind one to warm up."""
    with raw(exchange) as raw_once, channel(exchange, loop_name, **settings) as channel_once:
        seconds = [(raw_once(), channel_once()) for _ in range(runs + 1)][1:]
    raw_s, channel_s = (statistics.median(column) for column in zip(*seconds, strict=True))
    return exchange.total_bytes / raw_s / 1e9, exchange.total_bytes / channel_s / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=64)
    parser.add_argument("--size-mib", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--loop", choices=tuple(LOOPS), default="uvloop")
    parser.add_argument("--chunk-kib", type=int, default=None)
    arguments = parser.parse_args()
    settings = {} if arguments.chunk_kib is None else {"chunk_bytes": arguments.chunk_kib << 10}
    for both_ways in (False, True):
        exchange = Exchange(arguments.messages, int(arguments.size_mib * (1 << 20)), both_ways)
        raw_rate, rate = compare(exchange, arguments.runs, arguments.loop, **settings)
        print(
            f"{'both ways' if both_ways else 'one way':9}  raw {raw_rate:.2f} GB/s  "
            f"channel {rate:.2f} GB/s  {rate / raw_rate:.0%}"
        )


if __name__ == "__main__":
    main()
