"""Helpers of the channels' tests: a receiver that keeps what it hears, and loops to run on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest
import torch
import uvloop

from geomx.channels.tcp import Tcp, split_address
from geomx.codecs.contract import Block
from geomx.errors import GeomxError, ProtocolError
from geomx.wire.messages import PROTOCOL_VERSION, Challenge, Hello, Push, Reading, State, payload_size
from geomx.wire.proof import NONCE_BYTES, proof
from geomx.wire.roster_messages import Message

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
ANY_PORT = "127.0.0.1:0"
BLOCK_BYTES = 1400
PATIENCE_S = 300.0  # a test that waits for longer than this fails


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """For the `conftest.py` of a folder. A test that needs a short limit sets it itself, and waits for nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("geomx.channels.connection.CLOSE_LIMIT_S", PATIENCE_S)
        patch.setattr("geomx.channels.tcp.DIAL_LIMIT_S", PATIENCE_S)
        patch.setattr("geomx.channels.tcp.HANDSHAKE_LIMIT_S", PATIENCE_S)
        patch.setattr("geomx.channels.tls.HANDSHAKE_LIMIT_S", PATIENCE_S)
        yield


@pytest.fixture(params=LOOPS)
def loop_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run_on(loop_name: str, main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run `main()`; fails if anything reached the loop's exception handler, which prints tracebacks."""
    complaints: list[dict[str, Any]] = []

    async def bounded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(PATIENCE_S):
            return await main()

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        result = runner.run(bounded())
    assert not complaints, complaints
    return result


def on_each_loop(test: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., None]:
    """Makes of a coroutine a test that runs on each loop, of the fixture `loop_name` that a `conftest.py` imports."""
    asked = inspect.signature(test)
    name = inspect.Parameter("loop_name", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @functools.wraps(test)
    def on_loop(loop_name: str, **given: Any) -> None:
        given |= {"loop_name": loop_name} if "loop_name" in asked.parameters else {}
        run_on(loop_name, lambda: test(**given))

    others = [each for each in asked.parameters.values() if each.name != "loop_name"]
    on_loop.__signature__ = asked.replace(parameters=[name, *others])  # type: ignore[attr-defined]
    return on_loop


def state(size: int, token: int = 0) -> State:
    return State(token, 0, (), (), size)


class Witness:
    """A receiver: admits payloads up to `limit`, and keeps what it hears in order."""

    def __init__(self, limit: int = 1 << 26) -> None:
        self.limit = limit
        self.messages: list[tuple[int, Message, Any]] = []
        self.reasons: list[str] = []
        self.refusals: list[str] = []
        self.failures: list[GeomxError] = []
        self.breaches: list[str] = []
        self.accepted: list[Any] = []
        self.flows: list[bool] = []
        self.whys: list[str] = []  # of the flows
        self._changed = asyncio.Event()

    def admit(self, connection: Any, message: Message) -> None:
        if payload_size(message) > self.limit:
            raise ProtocolError("more than this edge may carry")

    def received(self, connection: Any, number: int, message: Message, payload: Any) -> None:
        self.messages.append((number, message, payload))
        self._changed.set()

    def broken(self, connection: Any, error: ProtocolError) -> None:
        self.breaches.append(str(error))
        self._changed.set()

    def closed(self, connection: Any, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.set()

    def failed(self, error: GeomxError) -> None:
        self.failures.append(error)
        self._changed.set()

    def no_datagrams(self, why: str) -> None:
        self.refusals.append(why)
        self._changed.set()

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)
        self._changed.set()

    def flow(self, connection: Any, passes: bool, why: str) -> None:
        self.flows.append(passes)
        self.whys.append(why)
        self._changed.set()

    def accept(self, connection: Any) -> None:
        self.accepted.append(connection)
        self._changed.set()

    @property
    def numbers(self) -> list[int]:
        return [number for number, _, _ in self.messages]

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until what it heard makes `ready()` true."""
        while not ready():
            self._changed.clear()
            await self._changed.wait()

    async def until_closed(self) -> str:
        await self.until(lambda: bool(self.reasons))
        return self.reasons[0]


class Records:
    """A recorder that can be waited on."""

    def __init__(self) -> None:
        self.records: list[tuple[str, dict[str, Any]]] = []
        self._changed = asyncio.Event()

    def record(self, name: str, level: str = "debug", /, **fields: Any) -> None:
        self.records.append((name, fields))
        self._changed.set()

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for each, fields in self.records if each == name]

    async def until(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        while len(self.named(name)) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.named(name)


@contextlib.asynccontextmanager
async def listening(
    channel: Tcp, address: str = ANY_PORT, limit: int = 1 << 26
) -> AsyncIterator[tuple[Any, Witness]]:
    """(a listener, what those hear whom it accepts)."""
    witness = Witness(limit)
    door = await channel.listen(address, witness, witness.accept)
    yield door, witness
    await door.close()


@contextlib.asynccontextmanager
async def pair(dialler: Tcp, listener: Tcp | None = None, limit: int = 1 << 26) -> AsyncIterator[Any]:
    """(connection, its witness, the accepted connection, its witness)."""
    ours = Witness()
    async with listening(listener or dialler, limit=limit) as (door, theirs):
        connection = await dialler.dial(door.address, ours)
        await theirs.until(lambda: bool(theirs.accepted))
        yield connection, ours, theirs.accepted[0], theirs
        connection.close("the test is over")


@contextlib.asynccontextmanager
async def stranger(limit: int = 1 << 26) -> AsyncIterator[tuple[socket.socket, Witness]]:
    """(a bare socket, the witness of the connection that it is to a listener)."""
    async with listening(Tcp(), limit=limit) as (door, witness):
        with socket.socket() as sock:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, split_address(door.address))
            await witness.until(lambda: bool(witness.accepted))
            yield sock, witness


async def until_open(*ends: Any) -> None:
    """Until datagrams pass from each of these ends."""
    while any(end.flow_state != "open" for end in ends):
        await asyncio.sleep(0.01)


def write_blocks(sender: Any, number: int, payload: torch.Tensor, level: int = 0) -> None:
    """Push a payload in blocks of a datagram each, all of one class."""
    size = payload.numel()
    starts = range(0, size, BLOCK_BYTES)
    blocks = [
        (Block(at, min(at + BLOCK_BYTES, size), payload[at : at + BLOCK_BYTES]), level) for at in starts
    ]
    sender.write_blocks(number, push_of(size), payload, 1, blocks)


def push_of(size: int) -> Push:
    return Push(1, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", Reading(), size=size)


def tensor(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


async def greet(connection: Any, witness: Witness, node: str = "A") -> None:
    """Say Hello as a node that a server of the run `test` expects, once it has said Challenge."""

    def challenges() -> list[Challenge]:
        return [message for _, message, _ in witness.messages if isinstance(message, Challenge)]

    await witness.until(lambda: bool(challenges()))
    nonce = bytes(NONCE_BYTES)
    proved = proof(b"", "dials", "test", node, 1, (challenges()[0].nonce, nonce))
    connection.write(0, Hello(PROTOCOL_VERSION, "test", node, 1, {}, 0, nonce, proved), None, 0)
