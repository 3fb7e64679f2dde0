"""What a datagram of a flow says, before it is sealed. All numbers are little-endian.

    1 PIECE    load u32, block u16, piece u8, pieces u8, class u8, start u32, stop u32, and the bytes
               A part of a block: elements [start, stop) of the load's slice. A block is the bytes of all its pieces.
    2 TAIL     round_trip_us u32, grace_us u32, and loads: u32 each
               Every block of these loads has been sent at least once. The sender's round trip, and how long it wants
               what is still on its way, or sent again, to be awaited beyond reordering.
    3 ACK      held_us u32, closed_below u32, closed u64, newest u48, and lengths: u16 each
               Which datagrams have come, by number, and since when the newest of them is here: as many as the first
               length up to `newest`; before them as many are missing as the second says, and so on. Loads below
               `closed_below` are closed, and the i-th behind it if bit i of `closed` is set: nothing of them is needed.
    4 PROBE    size u16, and zeros up to that size
    5 PROBED   size u16: a probe of that size has come
    6 HEAD     load u32, number u64, and the header of the load's message, which travels on the connection as well: the
               first of the two that comes announces the load. See `ends.py` for which loads have one
    7 PARITY   load u32, block u16, blocks u16, pieces u8, class u8, parity u8, and the bytes
               Parity piece `parity` of a group: of the reliable blocks (class 0) or the others (1) among `blocks`
               blocks from `block` on, of `pieces` pieces each. `parity.py` says how it is made.

Datagrams of each direction have numbers of their own, which never repeat: what is sent again has a new number.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from geomx.errors import ProtocolError
from geomx.wire.flow.erasure import MOST_SYMBOLS

_PIECE = struct.Struct("<BIHBBBII")
_TAIL = struct.Struct("<BII")
_LOAD = struct.Struct("<I")
_ACK = struct.Struct("<BIIQIH")
_PROBE = struct.Struct("<BH")
_HEAD = struct.Struct("<BIQ")
_PARITY = struct.Struct("<BIHHBBB")

PIECE_HEAD_BYTES, PARITY_HEAD_BYTES = _PIECE.size, _PARITY.size
MOST_BLOCKS, MOST_PIECES = (1 << 16) - 1, 255  # as many as their fields can count
MOST_OPEN = 4096  # from the oldest load that is open to the newest
MOST_RUNS = MOST_TAILS = 64
MOST_TOLD = 16  # runs in an acknowledgement: so at 5 % loss, what has come of each window is told forty times
_MOST_LENGTH = (1 << 16) - 1
CLOSED_SHOWN = 64
PIECE_COST_BYTES = 512  # what a piece that is kept takes beside its bytes
MOST_IN_GROUP = MOST_SYMBOLS  # pieces: with as many parity pieces, a code over GF(2^8) has room for them
_MOST_US = (1 << 32) - 1


class Piece(NamedTuple):
    """A part of a block. `level`: the block's class, 0 is reliable."""

    load: int
    block: int
    piece: int
    pieces: int
    level: int
    start: int
    stop: int
    data: bytes | memoryview

    def pack(self) -> bytes:
        return b"".join((_PIECE.pack(1, *self[:-1]), self.data))


class Tail(NamedTuple):
    """Every block of these loads has been sent at least once."""

    loads: tuple[int, ...]
    round_trip_s: float
    grace_s: float

    def pack(self) -> bytes:
        return _TAIL.pack(2, _us(self.round_trip_s), _us(self.grace_s)) + b"".join(
            map(_LOAD.pack, self.loads)
        )


class Receipt(NamedTuple):
    """Which datagrams have come: runs of numbers, both ends inside, the newest first."""

    held_s: float
    closed_below: int
    closed: int
    runs: tuple[tuple[int, int], ...]

    def pack(self) -> bytes:
        newest = self.runs[0][1] if self.runs else 0
        lengths: list[int] = []
        below = newest + 1
        for first, last in self.runs[:MOST_TOLD]:
            came, missing = last - first + 1, below - last - 1
            if missing > _MOST_LENGTH:
                break  # the sender has long known what lies so far back, and what of a long run
            lengths += [missing, min(came, _MOST_LENGTH)]
            if came > _MOST_LENGTH:
                break
            below = first
        head = _ACK.pack(
            3, _us(self.held_s), self.closed_below, self.closed, newest & 0xFFFFFFFF, newest >> 32
        )
        return head + struct.pack(f"<{max(len(lengths) - 1, 0)}H", *lengths[1:])

    def has(self, number: int) -> bool:
        """Whether the datagram of this number has come."""
        for first, last in self.runs:
            if number > last:
                return False
            if number >= first:
                return True
        return False

    def has_closed(self, load: int) -> bool:
        """Whether nothing of a load is needed any more."""
        place = load - self.closed_below
        return place < 0 or (place < CLOSED_SHOWN and bool(self.closed >> place & 1))


class Probe(NamedTuple):
    """Tries whether a datagram passes whose body has so many bytes."""

    size: int

    def pack(self) -> bytes:
        return _PROBE.pack(4, self.size) + bytes(self.size - _PROBE.size)


class Probed(NamedTuple):
    """It has."""

    size: int

    def pack(self) -> bytes:
        return _PROBE.pack(5, self.size)


class Head(NamedTuple):
    """The header of a load's message, and its number in the session."""

    load: int
    number: int
    head: bytes

    def pack(self) -> bytes:
        return _HEAD.pack(6, self.load, self.number) + self.head


class Parity(NamedTuple):
    """A parity piece of a group: of the blocks of a class (0: reliable, 1: not) among `blocks` from `block` on."""

    load: int
    block: int
    blocks: int
    pieces: int
    level: int
    parity: int
    data: bytes | memoryview

    def pack(self) -> bytes:
        return b"".join((_PARITY.pack(7, *self[:-1]), self.data))


Packet = Piece | Tail | Receipt | Probe | Probed | Head | Parity


def unpack(body: bytes | memoryview) -> Packet:
    """The packet in the body of a datagram; a piece's data are a view of it. Raises `ProtocolError`."""
    kind = body[0] if body else 0
    try:
        if kind == 1:
            _, load, block, piece, pieces, level, start, stop = _PIECE.unpack_from(body)
            if piece >= pieces or start >= stop:
                raise ProtocolError(f"piece {piece} of {pieces} of elements {start} to {stop}")
            return Piece(load, block, piece, pieces, level, start, stop, memoryview(body)[PIECE_HEAD_BYTES:])
        if kind == 2:
            _, round_trip, grace = _TAIL.unpack_from(body)
            loads = tuple(load for (load,) in _LOAD.iter_unpack(memoryview(body)[_TAIL.size :]))
            if not 0 < len(loads) <= MOST_TAILS:
                raise ProtocolError(f"a tail of {len(loads)} loads")
            return Tail(loads, round_trip / 1e6, grace / 1e6)
        if kind == 3:
            return _unpack_ack(body)
        if kind == 4 and len(body) == (size := _PROBE.unpack_from(body)[1]):
            return Probe(size)
        if kind == 5:
            return Probed(_PROBE.unpack(body)[1])
        if kind == 6:
            _, load, number = _HEAD.unpack_from(body)
            return Head(load, number, bytes(memoryview(body)[_HEAD.size :]))
        if kind == 7:
            _, load, block, blocks, pieces, level, parity = _PARITY.unpack_from(body)
            if parity >= MOST_IN_GROUP or level > 1 or not blocks * pieces:
                raise ProtocolError(
                    f"parity piece {parity} of class {level}, of {blocks} blocks in {pieces} pieces"
                )
            return Parity(load, block, blocks, pieces, level, parity, memoryview(body)[_PARITY.size :])
    except struct.error as error:
        raise ProtocolError(f"a datagram of kind {kind} with {len(body)} bytes") from error
    raise ProtocolError(f"a datagram of kind {kind} with {len(body)} bytes")


def _unpack_ack(body: bytes | memoryview) -> Receipt:
    _, held, closed_below, closed, low, high = _ACK.unpack_from(body)
    count, rest = divmod(len(body) - _ACK.size, 2)
    if rest or (count and not count % 2) or count > 2 * MOST_TOLD:
        raise ProtocolError(f"an acknowledgement of {len(body)} bytes")
    lengths = [0, *struct.unpack_from(f"<{count}H", body, _ACK.size)] if count else []
    runs: list[tuple[int, int]] = []
    above = (low | high << 32) + 1
    for missing, came in zip(lengths[::2], lengths[1::2], strict=True):
        last = above - missing - 1
        first = last - came + 1
        if not came or first < 0 or (runs and not missing):
            raise ProtocolError(f"an acknowledgement of datagrams {first} to {last}, behind {above}")
        runs.append((first, last))
        above = first
    return Receipt(held / 1e6, closed_below, closed, tuple(runs))


def _us(seconds: float) -> int:
    return int(min(max(seconds * 1e6, 0.0), _MOST_US))
