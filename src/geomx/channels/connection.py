"""One TCP (or TLS) connection: lanes on the way out, a parser on the way in.

States: OPEN until something ends it. `close` goes by way of CLOSING: what is queued at priority 0 leaves, then our
half is shut, and what the peer still sends is read and thrown away (a socket closed with unread bytes resets the
connection, and takes our last words with it). Whatever the peer or the network does leads to CLOSED at once, and
is told.

Out: chunks are taken from the lanes only while the transport holds nothing back, in one batch for each turn of
the loop, so that reading gets its turns and what is more urgent can still overtake. A shaped connection leaves that
to its `LinkPacer`. In: the parser says where the kernel shall put the next bytes, mostly the payload itself.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import count
from typing import Any, cast

import torch

from geomx.channels import delivery
from geomx.channels.contract import ConnectionHandler
from geomx.channels.emulation.pacing import LinkPacer
from geomx.channels.startup import Startup
from geomx.channels.tls import certified_uris, feed, reason_of
from geomx.errors import OutOfMemory, ProtocolError
from geomx.wire.frames import Parser
from geomx.wire.lanes import Chunk, Lanes
from geomx.wire.roster_messages import Message

CLOSE_LIMIT_S = 2.0
EARLY_BYTES = 4 << 10  # read at once while a connection is held: more than whoever listens says first
BATCH_BYTES = 64 << 10  # small frames are written together up to this
MOST_CONTROLS = (
    10_000  # of priority 0 that wait to be written: heartbeats of hours, or acknowledgements of a flood
)
_TLS_RECORDS = (
    b"\x15\x03",
    b"\x16\x03",
)  # how an alert and a handshake begin; a greeting of ours begins with 0


next_ident = count(1).__next__
"""Numbers the connections of this process, whatever their channel; 0 stands for none."""

_discarded = memoryview(bytearray(64 << 10))  # where bytes go that nobody reads


class _ConnectionState(Enum):
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class TcpConnection(asyncio.BufferedProtocol):
    """Keeps the contract of `geomx.channels.contract.Connection`.

    `bytes_sent` counts what was handed to the socket, `bytes_received` what was read from it; with TLS, what
    the ciphers add is not counted. `connected` is called as soon as the connection stands, with its socket.
    """

    def __init__(
        self,
        receiver: ConnectionHandler,
        chunk_bytes: int,
        pacer: LinkPacer | None,
        connected: Callable[[TcpConnection, Any], None],
    ) -> None:
        self.ident = next_ident()
        self.peer_address = ""
        self.certified: tuple[str, ...] | None = None
        self.serial: int | None = None  # of the peer's certificate
        self.bytes_sent = 0
        self.bytes_received = 0
        self._busy_s = 0.0  # in which something was waiting to leave
        self._busy_since: float | None = None
        self._carried = 0, 0.0
        self.heard_at = -math.inf  # when something came last, on the clock of `time.monotonic`
        self._receiver = receiver
        self._connected = connected
        self._lanes = Lanes(chunk_bytes)
        self._parser = Parser(lambda message: receiver.admit(self, message), allocate)
        self._pacer = pacer
        self._state = _ConnectionState.OPEN
        self._paused = False  # the transport holds bytes back
        self.startup: Startup | None = None  # while BBR is in it
        self._early: bytearray | None = None  # what has come while the receiver is to hear nothing
        self._into = _discarded
        self._ended_early = ""
        self._pump_due = False
        self._flying = 0  # chunks that the pacer has taken and not delivered
        self._deadline: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._transport: asyncio.Transport

    # -- for the session above ----------------------------------------------------------------------

    def hold(self) -> None:
        """Tell nothing to the receiver until `release`: whoever dials must first have the connection.

        What comes all the same is kept: uvloop begins to read behind `connection_made`, and then forgets the pause.
        """
        self._early, self._into = bytearray(), memoryview(bytearray(EARLY_BYTES))
        self._transport.pause_reading()

    def release(self) -> None:
        """Undo `hold`."""
        early, self._early = self._early, None
        if self._ended_early:
            self._receiver.closed(self, self._ended_early)
            return
        feed(self, early or b"")
        if self._state is not _ConnectionState.CLOSED:
            self._transport.resume_reading()

    def write(self, number: int, message: Message, payload: Any, priority: int) -> None:
        """Queue a message; see `Connection.write`. On a connection that has ended it is dropped."""
        if self._state is _ConnectionState.OPEN:
            self._lanes.put(number, message, None if payload is None else view_of(payload), priority)
            if self._busy_since is None:
                self._busy_since = time.monotonic()
            if self._lanes.waiting(0) > MOST_CONTROLS:
                self._loop.call_soon(self.fail, "it does not read what it is sent")
            self._wake()

    def close(self, reason: str) -> None:
        """See `Connection.close`. Takes at most 2 s and one delay of the link."""
        del reason  # it stands in the message that was written before
        if self._state is not _ConnectionState.OPEN:
            return
        self._state = _ConnectionState.CLOSING
        self.ended()
        self._lanes.clear(keep=0)
        delay_s = self._pacer.spec.delay_ms / 1e3 if self._pacer else 0.0
        self._deadline = self._loop.call_later(CLOSE_LIMIT_S + delay_s, self._transport.abort)
        self._wake()
        self._shut_if_flushed()

    def abort(self) -> None:
        """See `Connection.abort`."""
        if self._state is _ConnectionState.OPEN:
            self._state = _ConnectionState.CLOSING  # so that nobody is told
        self.fail("aborted")

    async def gone(self) -> None:
        """See `Connection.gone`."""
        await self._gone.wait()

    def pace(self, pacer: LinkPacer) -> None:
        """From now on, write as this pacer says; for a connection that has none yet."""
        assert self._pacer is None, "what the old pacer still holds would be overtaken"
        self._pacer = pacer
        self._wake()

    @property
    def busy_s(self) -> float:
        """For how many seconds something was waiting to leave."""
        since = self._busy_since
        return self._busy_s + (0.0 if since is None else time.monotonic() - since)

    def carried(self, every_s: float) -> tuple[int, float] | None:
        """See `MeasuringConnection`."""
        now, (sent, busy_s) = (self.bytes_sent, self.busy_s), self._carried
        self._carried = now
        if now[0] == sent or not self.is_open:
            return None
        if self._pacer is not None or not delivery.is_told():
            return now[0] - sent, now[1] - busy_s
        rate = delivery.delivery_rate(self.socket)
        return None if rate is None else (int(rate * every_s), every_s)

    def _look_idle(self) -> None:
        if self._busy_since is not None and not (self._lanes.queued_bytes or self._paused or self._flying):
            self._busy_s, self._busy_since = self.busy_s, None

    @property
    def is_open(self) -> bool:
        """Whether nothing has ended it."""
        return self._state is _ConnectionState.OPEN

    @property
    def socket(self) -> Any:
        """What options can be set on."""
        return self._transport.get_extra_info("socket")

    # -- out ------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """See to it that what is queued leaves; not now, for the next write may be more urgent."""
        if self._pacer is not None:
            self._pacer.want(self)
        elif not self._pump_due and not self._paused:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Write one batch, and come again if the transport took all of it."""
        self._pump_due = False
        if self._paused or self._pacer is not None or self._state is _ConnectionState.CLOSED:
            return
        batch: list[bytes | memoryview] = []
        size = 0
        while size < BATCH_BYTES and (chunk := self._lanes.next_chunk()) is not None:
            batch += chunk
            size += sum(map(len, chunk))
        if batch:
            self._write_out(batch, size)
        if self._lanes.queued_bytes:
            self._wake()
        else:
            self._look_idle()
            self._shut_if_flushed()

    def _write_out(self, buffers: Iterable[bytes | memoryview], size: int) -> None:
        self.bytes_sent += size
        if self.startup is not None:
            self._look_at(self.startup)
        self._transport.writelines(buffers)

    def _look_at(self, startup: Startup) -> None:
        try:
            startup.look()
            over = startup.has_ended
        except (OSError, struct.error):  # the kernel does not tell, or the socket has ended
            over = True
        if over:
            self.startup = None

    def _shut_if_flushed(self) -> None:
        """While closing, with nothing left to write: say so to the peer."""
        if self._state is not _ConnectionState.CLOSING or self._lanes.queued_bytes or self._flying:
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            try:
                self._transport.close()
            except RuntimeError:  # uvloop's, of TLS that the peer has ended at this moment
                self._transport.abort()

    def urgency(self) -> int | None:
        """For the pacer; see `Sender`."""
        return None if self._paused else self._lanes.most_urgent

    def take(self) -> Chunk:
        """For the pacer; see `Sender`."""
        chunk = self._lanes.next_chunk()
        assert chunk is not None
        self._flying += 1
        return chunk

    def deliver(self, chunk: Iterable[bytes | memoryview]) -> None:
        """For the pacer; see `Sender`."""
        self._flying -= 1
        self._write_out(chunk, sum(map(len, chunk)))
        self._look_idle()
        self._shut_if_flushed()

    # -- what the transport calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands, and TLS is agreed on."""
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1, low=0)  # with TLS, a high of 0 pauses for ever
        self.peer_address = format_address(transport.get_extra_info("peername"))
        certificate = transport.get_extra_info("peercert")
        self.certified = certified_uris(certificate)
        self.serial = int(certificate["serialNumber"], 16) if certificate else None
        self._connected(self, transport.get_extra_info("socket"))

    def pause_writing(self) -> None:
        """The kernel took less than it was given."""
        self._paused = True

    def resume_writing(self) -> None:
        """The kernel has it all now."""
        self._paused = False
        if self._pacer is None:
            self._pump()
        elif self._lanes.queued_bytes:
            self._pacer.want(self)
        else:
            self._look_idle()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes shall go."""
        if self._early is not None:
            return self._into
        return self._parser.buffer() if self._state is _ConnectionState.OPEN else _discarded

    def buffer_updated(self, nbytes: int) -> None:
        """They are there."""
        if self._early is not None:
            self._early += self._into[:nbytes]
            self._transport.pause_reading()
            return
        is_first = self.bytes_received == 0
        self.heard_at = time.monotonic()
        self.bytes_received += nbytes
        if self._state is not _ConnectionState.OPEN:
            return
        try:
            if is_first:
                _check_plain(self._parser.buffer()[:nbytes])
            for number, message, payload in self._parser.advance(nbytes):
                self.arrived_whole(number, message, payload)
                if self._state is not _ConnectionState.OPEN:
                    return
        except ProtocolError as error:
            self.fail(str(error))
        except OutOfMemory as error:
            self._receiver.failed(error)
            if self._state is _ConnectionState.OPEN:
                self.close(str(error))

    def arrived_whole(self, number: int, message: Message, payload: Any) -> None:
        """A message has come. Raises `ProtocolError`."""
        self._receiver.received(self, number, message, payload)

    def eof_received(self) -> bool:
        """The peer has shut its half; by our contract it has closed."""
        lost = self._parser.unfinished
        self.fail("closed by the peer" + (f" {lost}" if lost else ""))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        if self._deadline is not None:
            self._deadline.cancel()
        self.fail(_reason(exc))
        self._gone.set()

    def ended(self) -> None:
        """Nothing leaves any more, and nothing that comes is told."""

    def fail(self, reason: str) -> None:
        """The end that we did not choose."""
        state, self._state = self._state, _ConnectionState.CLOSED
        if state is _ConnectionState.CLOSED:
            return
        self.ended()
        self._lanes.clear()
        if self._pacer is not None:
            self._pacer.forget(self)
        self._transport.abort()
        if state is _ConnectionState.OPEN and self._early is not None:
            self._ended_early = reason
        elif state is _ConnectionState.OPEN:
            self._receiver.closed(self, reason)


def allocate(size: int) -> tuple[torch.Tensor, memoryview]:
    """A flat uint8 tensor of `size` bytes, not initialized, and a view through which it is filled.

    Raises `OutOfMemory`.
    """
    try:
        payload = torch.empty(size, dtype=torch.uint8)
    except (MemoryError, RuntimeError) as error:
        raise OutOfMemory(
            f"no memory for a message of {size / 1e6:.1f} MB that has come ({error})"
        ) from error
    return payload, view_of(payload)


def view_of(payload: torch.Tensor) -> memoryview:
    """The bytes of a flat uint8 tensor in the host's memory; they stay alive as long as the view does."""
    return memoryview(payload.numpy())  # type: ignore[arg-type]


def views_of(payloads: Iterable[torch.Tensor]) -> Iterator[memoryview]:
    """The same of many that share few pieces of memory, for a small part of the time."""
    wholes: dict[int, memoryview] = {}
    for payload in payloads:
        storage = payload.untyped_storage()
        whole = wholes.get(storage.data_ptr())
        if whole is None:
            everything = torch.empty(0, dtype=torch.uint8).set_(storage)
            whole = wholes[storage.data_ptr()] = view_of(everything)
        start = payload.storage_offset()
        yield whole[start : start + payload.numel()]


def _check_plain(start: memoryview) -> None:
    """Without this, a TLS handshake would pass for the prefix of a frame whose rest never comes."""
    if bytes(start[:2]) in _TLS_RECORDS:
        raise ProtocolError(
            "the peer speaks TLS, and this end does not: give both ends certificates, or neither"
        )


def format_address(name: Any) -> str:
    """`host:port` of what a socket calls its name; IPv6 hosts in brackets."""
    if not name:
        return "unknown"  # a peer that was gone before it could be asked
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: Exception | None) -> str:
    if error is None:
        return "closed"
    if isinstance(error, ssl.SSLError):
        return reason_of(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{type(error).__name__}: {error}"
