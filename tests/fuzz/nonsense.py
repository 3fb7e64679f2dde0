"""Bodies of datagrams that nobody meant: random, mutated from real ones, cut, or in the right form and wrong."""

from __future__ import annotations

from collections import deque
from itertools import islice
from random import Random

import msgspec

from geomx.wire.flow.ends import FlowEnd
from geomx.wire.flow.packets import MOST_TAILS, MOST_TOLD, Head, Parity, Piece, Probe, Probed, Receipt, Tail
from geomx.wire.flow.path import SIZES
from geomx.wire.flow_messages import Beside
from geomx.wire.messages import Carried, Push, Reading, Update, encode_head

KEPT = 256
PUSH = Push(1, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", Reading())
UPDATE = Update(1, 0, "gradient", 1.0, None, Reading())


class Nonsense:
    """Makes bodies, from what it has heard so far and from what its victim has open."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.heard: deque[bytes] = deque([b"\1"], maxlen=KEPT)

    def body(self, victim: FlowEnd) -> bytes:
        """One for this end."""
        chance = self.chance
        kind = chance.randrange(7)
        if kind == 0:
            return chance.randbytes(chance.choice((0, 1, 8, 18, 30, 200, 1446)))
        if kind == 1:
            return bytes([chance.randrange(1, 8)]) + chance.randbytes(
                chance.choice((2, 8, 16, 17, 28, 40, 100))
            )
        if kind < 4:
            return self.packet(victim)
        real = bytearray(chance.choice(self.heard))
        if kind == 4:
            return bytes(real[: chance.randrange(len(real) + 1)])
        if kind == 5:
            for _ in range(chance.choice((1, 1, 2, 8))):
                real[chance.randrange(len(real))] = chance.choice((0, 1, 255, chance.randrange(256)))
        return bytes(real)

    def packet(self, victim: FlowEnd) -> bytes:
        """One that says what it says in the right form."""
        chance, load = self.chance, self.load(victim)
        kind = chance.randrange(12)
        if kind < 4:
            return self.piece(victim, load)
        if kind < 7:
            return self.parity(victim, load)
        if kind < 9:
            return self.ack(victim)
        if kind == 9:
            loads = tuple(
                self.load(victim) for _ in range(chance.choice((0, 1, 2, MOST_TAILS, MOST_TAILS + 1)))
            )
            return Tail(loads, chance.choice((0.0, 0.1, 1e9)), chance.choice((0.0, 0.1, 1e9))).pack()
        if kind == 10:
            header = encode_head(self.header(load))
            head = chance.choice((b"", b"\xc1", header, header, header))
            return Head(load, self.number(64), head[: chance.choice((3, 1400, 1400))]).pack()
        probe = Probe(chance.choice((3, *SIZES))), Probed(chance.choice((0, *SIZES)))
        return chance.choice(probe).pack()

    def piece(self, victim: FlowEnd, load: int) -> bytes:
        """One of a load that is open, or of none."""
        chance, size = self.chance, chance_size(self.chance)
        inbox = victim.receiver._inboxes.get(load)
        parts, level = chance.choice((1, 1, 1, 2, 255)), chance.choice((0, 0, 1, 2, 255))
        block, start = self.number(16), self.number(32)
        if inbox is not None and chance.random() < 0.9:
            block = chance.randrange(len(inbox.blocks))
            level = int(not inbox.reliable[block])
            start = chance.choice((0, block, size * block))
        stop = min(start + chance.choice((0, 1, size, size)), (1 << 32) - 1)
        return Piece(load, block, chance.randrange(parts), parts, level, start, stop, bytes(size)).pack()

    def parity(self, victim: FlowEnd, load: int) -> bytes:
        """One that fits a group of blocks that there is, or might be, or none."""
        chance, size = self.chance, chance_size(self.chance)
        inbox = victim.receiver._inboxes.get(load)
        block, blocks = chance.choice((0, 0, self.number(16))), chance.choice((1, 2, 9, 20, 200, 65_535))
        pieces, level = chance.choice((1, 1, 1, 2, 3, 255)), chance.choice((0, 0, 1, 1, 2))
        if inbox is not None and chance.random() < 0.9:
            block = chance.randrange(len(inbox.blocks))
            blocks = chance.randint(1, len(inbox.blocks) - block)
            level = int(not inbox.reliable[block])
            group = inbox.groups.get(block)
            if group is not None and chance.random() < 0.7:
                (block, blocks), pieces = group._span, group.pieces
                size = chance.choice((group._size, group._size, size))
        place = chance.choice((0, chance.randrange(9), chance.randrange(128), 255))
        data = chance.choice((bytes(size), chance.randbytes(size)))
        return Parity(load, block, blocks, pieces, level, place, data).pack()

    def ack(self, victim: FlowEnd) -> bytes:
        """Of what was sent, or not."""
        chance, sender = self.chance, victim.sender
        count = 2 * chance.choice((0, 1, 2, 2, MOST_TOLD))
        is_near = chance.random() < 0.7
        newest = sender._next_number
        ends = {
            max(newest - chance.randrange(2 * count), 0) if is_near else self.number(48) for _ in range(count)
        }
        down = sorted(ends, reverse=True)
        runs = tuple((first, last) for last, first in zip(down[::2], down[1::2], strict=False))
        below = chance.choice((0, 0, max(sender.next_load - chance.randrange(4), 0), self.number(32)))
        closed = chance.choice((0, 0, 1 << chance.randrange(64), self.number(64)))
        more = chance.choice((b"", b"", b"", b"\1\0\1\0", b"\1", bytes(4), b"\1\0" * 2 * MOST_TOLD))
        return Receipt(chance.choice((0.0, 0.01, 1e9)), below, closed, runs).pack() + more

    def header(self, load: int) -> Carried:
        """One that announces what cannot be, or may be."""
        chance, count = self.chance, self.chance.choice((1, 1, 2, 9, 300))
        size = chance.choice((0, 1, 100, 100, 1400, 1 << 20))
        message = msgspec.structs.replace(
            chance.choice((PUSH, UPDATE)),
            slice=chance.randrange(64),
            size=chance.choice((size, size, size, 1 << 40)),
        )
        bitmap = (count + 7) // 8
        reliable = chance.choice((None, None, None, bytes(bitmap), chance.randbytes(bitmap), b"\1"))
        if chance.random() < 0.1:
            count = chance.choice((0, -1, (1 << 16) + 1, 1 << 40))
        beside = Beside(load, count, reliable, size, chance.random() < 0.6)
        return msgspec.structs.replace(message, beside=beside)

    def load(self, victim: FlowEnd) -> int:
        """One that the victim has open, or any."""
        chance, inboxes = self.chance, victim.receiver._inboxes
        if inboxes and chance.random() < 0.7:
            return next(islice(inboxes, chance.randrange(min(len(inboxes), 32)), None))
        return self.number(32)

    def number(self, bits: int) -> int:
        """Small, large, or anything."""
        chance = self.chance
        most = (1 << bits) - 1
        return chance.choice((chance.randrange(4), chance.randrange(200), most, chance.randrange(most)))


def chance_size(chance: Random) -> int:
    """How many bytes a piece may have."""
    return chance.choice((0, 1, 10, 100, 100, 1400))
