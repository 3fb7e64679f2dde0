"""A load that the receiver has not closed: its pieces, and what protects them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from geomx.wire.flow.lanes import Lane
from geomx.wire.flow.packets import MOST_IN_GROUP, MOST_PIECES, Head, Piece
from geomx.wire.flow.parity import GroupOut, ParityOut, groups

RELIABLE = 0
BEHIND, AT_THE_END = 2.0, 3.0  # deviations: how much more parity than what is lost on average
LAST = 1 << 62  # a priority behind all others


class BlockOut(NamedTuple):
    """A block: elements [start, stop) of a slice. `level`: its class, 0 is reliable, and below 0 it is not sent."""

    start: int
    stop: int
    data: memoryview
    level: int


class FlowTerms(NamedTuple):
    """What a sender and a receiver have agreed on.

    `tries`: how often a piece of class 1, 2, ... is sent at most. `grace`: how long the receiver waits behind a tail
    for what is not reliable, in round trips. `parity_share`: parity pieces for each piece, up to 1; 0: as many as the
    loss that is measured makes likely, of what is reliable.
    """

    tries: tuple[int, ...] = (1,)
    grace: float = 0.0
    parity_share: float = 0.0


class Item:
    """A piece, or a load's header, and how often it may be sent yet. `group`, `place`: where parity protects it."""

    __slots__ = ("group", "key", "load", "piece", "place", "sendings", "tries")

    def __init__(self, load: Outbox, piece: Piece | ParityOut | Head, key: Lane, tries: float) -> None:
        self.load = load
        self.piece = piece
        self.key = key
        self.tries = tries
        self.sendings = self.place = 0
        self.group: GroupOut[Item] | None = None


class Outbox:
    """See the module's text. `items`: what is to be sent, in order; `unsent`: pieces that have never been sent.

    `head`: the header of message `number`; if it is empty or too long, it comes on the connection alone. `piece_bytes`:
    the most bytes of a block in one datagram. `loss`: the share of datagrams that is lost now.
    """

    def __init__(
        self,
        load: int,
        number: int,
        head: bytes,
        blocks: Iterable[BlockOut],
        priority: int,
        piece_bytes: int,
        terms: FlowTerms,
        loss: float,
    ) -> None:
        self.number = load
        self.is_over = False
        self._priority, self._terms = priority, terms
        self._groups: list[GroupOut[Item]] = []  # those that are reliable
        self._head: Item | None = None
        self.items: list[Item] = []
        if 0 < len(head) <= piece_bytes:
            self._head = Item(self, Head(load, number, head), (priority, load, -1), inf)
            self.items.append(self._head)
        sent = [(block, out) for block, out in enumerate(blocks) if out.level >= RELIABLE]
        pieces = [piece for block, out in sent for piece in self._cut(block, out, piece_bytes)]
        self.unsent = len(pieces)
        for group in groups(pieces):
            self.items += self._grouped(group, loss)

    def _cut(self, block: int, out: BlockOut, piece_bytes: int) -> Iterator[Piece]:
        start, stop, data, level = out
        count = min(max(1, -(-len(data) // piece_bytes)), MOST_PIECES)
        step = -(-len(data) // count)
        for number in range(count):
            part = data[number * step : (number + 1) * step]
            yield Piece(self.number, block, number, count, level, start, stop, part)

    def _grouped(self, pieces: Sequence[Piece], loss: float) -> list[Item]:
        """The items of a group, with its parity; or of pieces that are in none."""
        level, tries = pieces[0].level, (inf, *self._terms.tries)
        key = (self._priority, self.number, level)
        items = [Item(self, piece, key, tries[min(level, len(tries) - 1)]) for piece in pieces]
        share = self._terms.parity_share
        if pieces[0].pieces > MOST_IN_GROUP or (level != RELIABLE and not share):
            return items
        group = GroupOut[Item](pieces)
        group.items = items
        for place, item in enumerate(items):
            item.group, item.place = group, place
        if level == RELIABLE:
            self._groups.append(group)
        count = math.ceil(share * len(pieces) - 1e-9) if share else group.wanted(loss, BEHIND)
        return [*items, *self._parity(group, count, key)]

    def _parity(self, group: GroupOut[Item], count: int, key: Lane) -> list[Item]:
        made = [Item(self, parity, key, 1) for parity in group.more(count)]
        for place, item in enumerate(made, len(group.items)):
            item.group, item.place = group, place
        group.items += made
        return made

    def protection(self, loss: float) -> list[Item]:
        """What protects it when nothing is left to be sent: its header once more, and more parity."""
        key = (LAST, self.number, RELIABLE)
        items = [
            item
            for group in self._groups
            for item in self._parity(group, group.wanted(loss, AT_THE_END), key)
        ]
        head = self._head
        return [head, *items] if head is not None and head.tries and head.sendings == 1 else items
