"""How messages lie on a byte stream: frames, and the parser that takes them apart.

Rules
1. A frame is a prefix of 16 bytes, little-endian `<QIHH`, and a body:

       number    u64   the message's number in its session (0: outside of any session)
       size      u32   bytes of body in this frame, at least 1
       head      u16   how many of them, at the front, are the message's header (msgpack)
       priority  u16   of the message; 0 is the most urgent

2. A message is its header and then `payload_size(message)` raw bytes. `head` is non-zero in a message's first
   frame alone, and the whole header is in that frame. Frames of other messages may stand between two of its.
3. A message without payload is one frame. Of a number there is never more than one unfinished message, and a message
   that begins while others are unfinished is more urgent than each of them: so there are at most as many as lanes.
4. A frame has no more body than is left of its message.
5. Whatever breaks a rule, or cannot be decoded, raises `ProtocolError` before memory is taken for it. A parser
   that has raised is of no more use, and neither is its stream.

Theory of operation

The parser owns no socket. It says where the next bytes of the stream are to be put (`buffer`), and is told how
many came (`advance`). Mostly that place is the *scratch*, one buffer of fixed size in which many small frames, or
the front of a large one, are taken apart. Where much is left of a frame it is the message's own payload: large
payloads are written once, by the kernel, where they will stay.

Memory that a peer can make us take: the scratch (64 KiB), and the payloads of unfinished messages, one for each lane
at most, each of which `admit` has let in by its header. Pages of a payload are touched only as its bytes come.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from geomx.errors import ProtocolError
from geomx.wire.messages import HEAD_LIMIT_BYTES, decode_head, payload_size
from geomx.wire.roster_messages import Message

PREFIX = struct.Struct("<QIHH")
PREFIX_BYTES = PREFIX.size
PRIORITY_LIMIT = 65_535
PAYLOAD_LIMIT_BYTES = 1 << 32

SCRATCH_BYTES = PREFIX_BYTES + HEAD_LIMIT_BYTES + 1  # the longest that may have to wait for its last byte
DIRECT_BYTES = 32 << 10  # with as much left of a frame, reading straight into the payload beats a copy


class Arrival(NamedTuple):
    """A whole message. `payload` is what `allocate` returned, now filled; None where there are no bytes."""

    number: int
    message: Message
    payload: Any


class _Partial:
    """A message of which payload bytes are missing."""

    __slots__ = ("filled", "message", "number", "payload", "priority", "view")

    def __init__(self, number: int, message: Message, priority: int, payload: Any, view: memoryview) -> None:
        self.number = number
        self.message = message
        self.priority = priority
        self.payload = payload
        self.view = view
        self.filled = 0


class Parser:
    """Bytes of one stream in, messages out; see the module's rules.

    `admit(message)` is asked as soon as a header is decoded and refuses by raising `ProtocolError`.
    `allocate(size)` then returns a payload of that many bytes and a writable memoryview of it.
    """

    __slots__ = (
        "_admit",
        "_allocate",
        "_current",
        "_direct",
        "_end",
        "_left",
        "_partials",
        "_scratch",
    )

    def __init__(
        self, admit: Callable[[Message], None], allocate: Callable[[int], tuple[Any, memoryview]]
    ) -> None:
        self._admit = admit
        self._allocate = allocate
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._end = 0  # scratch[:_end] has come, and is less than a prefix with its header
        self._partials: dict[int, _Partial] = {}  # by number, the most urgent last
        self._current: _Partial | None = None  # whose bytes come next
        self._left = 0  # how many of them are left of this frame
        self._direct = False  # whether `buffer` gave a part of the payload

    @property
    def unfinished(self) -> str:
        """What would be lost if the stream ended here; empty at a boundary between messages."""
        partial = self._current or next(iter(self._partials.values()), None)
        if partial is not None:
            name, total = type(partial.message).__name__, len(partial.view)
            return f"in message {partial.number} ({name}), after {partial.filled} of {total} payload bytes"
        return "in a frame" if self._end else ""

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream are to be put; never empty."""
        self._direct = self._left >= DIRECT_BYTES
        if self._direct:
            partial = self._current
            assert partial is not None
            return partial.view[partial.filled : partial.filled + self._left]
        return self._scratch[self._end :]

    def advance(self, count: int) -> Iterator[Arrival]:
        """`count` bytes have been put into `buffer()`; to be iterated to the end. Raises `ProtocolError`."""
        if not self._direct:
            return self._take_apart(self._end + count)
        self._left -= count
        partial = self._current
        assert partial is not None
        partial.filled += count
        if self._left or partial.filled < len(partial.view):
            return iter(())
        return iter((self._finish(partial),))

    def _take_apart(self, end: int) -> Iterator[Arrival]:
        """The frames in scratch[:end]; what is not yet enough to go on stays, at the front."""
        scratch, at = self._scratch, 0
        while True:
            if self._left:
                stop = min(at + self._left, end)
                if (partial := self._copy(scratch[at:stop])) is not None:
                    yield self._finish(partial)
                at = stop
            if end - at < PREFIX_BYTES:
                break
            number, size, head, priority = PREFIX.unpack_from(scratch, at)
            if head == 0:
                self._go_on(number, size)
                at += PREFIX_BYTES
                continue
            body = at + PREFIX_BYTES
            _check_first(number, size, head)
            if end - body < head:
                break
            message = _decode(number, scratch[body : body + head])
            payload_bytes = self._open(number, message, priority, size - head)
            if payload_bytes == 0:
                yield Arrival(number, message, None)
            at = body + head
        self._end = end - at
        if at and self._end:
            scratch[: self._end] = bytes(scratch[at:end])

    def _go_on(self, number: int, size: int) -> None:
        """A further frame of a message that is under way."""
        partial = self._partials.get(number)
        if partial is None:
            raise ProtocolError(f"a frame goes on with message {number}, of which none is under way")
        left = len(partial.view) - partial.filled
        if not 0 < size <= left:
            raise ProtocolError(
                f"a frame of message {number} has {size} bytes; {left} are left of its payload"
            )
        self._current, self._left = partial, size

    def _open(self, number: int, message: Message, priority: int, present: int) -> int:
        """A message begins, with `present` payload bytes in its first frame; returns its payload's size."""
        size = payload_size(message)
        name = type(message).__name__
        if not 0 <= size <= PAYLOAD_LIMIT_BYTES:
            raise ProtocolError(
                f"message {number} ({name}) claims {size} payload bytes; at most {PAYLOAD_LIMIT_BYTES}"
            )
        if present > size:
            raise ProtocolError(
                f"message {number} ({name}) of {size} payload bytes has {present} in its first frame"
            )
        if number in self._partials:
            raise ProtocolError(f"message {number} ({name}) begins while another of that number is under way")
        overtaken = next(reversed(self._partials.values()), None)  # the most urgent of them
        if overtaken is not None and overtaken.priority <= priority:
            raise ProtocolError(
                f"message {number} ({name}) of priority {priority} overtakes one of priority {overtaken.priority}"
            )
        self._admit(message)
        if size:
            payload, view = self._allocate(size)
            self._partials[number] = self._current = _Partial(number, message, priority, payload, view)
            self._left = present
        return size

    def _copy(self, chunk: memoryview) -> _Partial | None:
        """Payload bytes that came by way of the scratch; returns their message if they complete it."""
        partial = self._current
        assert partial is not None
        filled = partial.filled + len(chunk)
        partial.view[partial.filled : filled] = chunk
        partial.filled = filled
        self._left -= len(chunk)
        return partial if filled == len(partial.view) else None

    def _finish(self, partial: _Partial) -> Arrival:
        del self._partials[partial.number]
        self._current = None
        return Arrival(partial.number, partial.message, partial.payload)


def _check_first(number: int, size: int, head: int) -> None:
    if head > size:
        raise ProtocolError(
            f"the first frame of message {number} has {size} bytes, fewer than its header of {head}"
        )


def _decode(number: int, head: memoryview) -> Message:
    try:
        return decode_head(head)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"the header of message {number} cannot be decoded: {error}") from error
