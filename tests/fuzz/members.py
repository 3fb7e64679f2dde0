"""A member of the run who knows the keys, and says what nobody meant: to either end of a flow, in the other's name.

Whatever comes of it is `ProtocolError` or nothing, and what an end keeps has bounds.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain, pairwise
from math import inf, isfinite
from random import Random

import msgspec
import pytest
from fuzz.nonsense import PUSH, UPDATE, Nonsense
from fuzz.sieges import Siege

from geomx.errors import ProtocolError
from geomx.node.peers.peer import Peer, check_beside
from geomx.wire.flow import receiver as receiver_module
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.ends import FlowEnd, OnConnection, Outgoing
from geomx.wire.flow.inbox import LEAST_PIECE_BYTES, Blocks, Delivered
from geomx.wire.flow.numbers import Numbers
from geomx.wire.flow.outbox import BlockOut, FlowTerms
from geomx.wire.flow.packets import MOST_BLOCKS, MOST_OPEN, MOST_RUNS, PIECE_COST_BYTES, Parity
from geomx.wire.flow.path import SIZES
from geomx.wire.flow.receiver import FlowReceiver
from geomx.wire.flow.sender import LOST_KEPT, FlowSender
from geomx.wire.flow_messages import FlowBroken
from geomx.wire.messages import Carried
from geomx.wire.roster_messages import Message
from geomx.wire.session import Patience, Session

LIVES, OF_EACH = (500, 2000, 20_000), (12, 6, 1)  # after so many datagrams two others talk
ROOM_BYTES = (1 << 16, 8 << 20)  # the usual room for what is early, and for parity, takes long to fill
ENVELOPE_BYTES = 54
MOST_BYTES = 1 << 20  # of a payload


def admit(peer: Peer, message: Message) -> None:
    """As nodes do, this one refuses what goes the other way, sizes that no slice has, and more blocks than elements."""
    check_beside(peer, message, has_flow=True)
    assert isinstance(message, Carried)
    beside = message.beside
    if not 0 <= message.size <= MOST_BYTES:
        raise ProtocolError("more bytes than the slice has")
    if beside is None or beside.is_whole:
        return
    if not 0 < beside.blocks <= 100 or not 0 <= beside.size <= MOST_BYTES:
        raise ProtocolError("more blocks than elements")


class Side:
    """One end of a flow, what it was given to send, and the numbers that are said in its name."""

    def __init__(self, now: float, *, dials: bool) -> None:
        terms = FlowTerms((2, 1), 0.5, parity_share=0.3)
        self.admit = partial(
            admit, Peer("the other", Session("the other", 0, Patience(), now), dialled=dials)
        )
        self.end = FlowEnd(Congestion(1500), terms, self.admit, now, dials=dials)
        self.dials = dials
        self.number = 0
        self.written: set[int] = set()  # and did not fall back
        self._named = self.end.sender.number()

    def name(self, chance: Random) -> int:
        """A number for a datagram: the next ones, or the last one again."""
        for _ in range(chance.choice((0, 1, 1, 1, 2, 5))):
            self._named = self.end.sender.number()
        return self._named


class Player:
    """Two ends that talk, and somebody who says other things in the name of either.

    `is_wild`: that one gives datagrams numbers behind which there is nothing. `talks`: how often the two do.
    """

    def __init__(self, chance: Random, nonsense: Nonsense) -> None:
        self.chance, self.nonsense = chance, nonsense
        self.is_wild, self.talks = chance.random() < 0.2, chance.choice((0.02, 0.1, 0.2))
        self.now = 0.0
        self.sides = Side(0.0, dials=True), Side(0.0, dials=False)

    def pair(self) -> tuple[Side, Side]:
        """A victim, and in whose name it hears things."""
        one, other = self.sides
        return (one, other) if self.chance.random() < 0.5 else (other, one)

    def talk(self) -> None:
        """A little of what both ends say to each other."""
        chance, self.now = self.chance, self.now + self.chance.choice((0.0, 1e-4, 0.01, 0.3))
        for side, other in (self.sides, self.sides[::-1]):
            if chance.random() < 0.2:
                self._write(side)
            self.say(side, other)

    def _write(self, side: Side) -> None:
        chance = self.chance
        side.number += 1
        data: list[BlockOut] | memoryview
        if side.dials and chance.random() < 0.6:
            levels = range(-1, 4)
            data = [
                BlockOut(
                    place, place + 1, memoryview(bytes(chance.choice((1, 1400, 3000)))), chance.choice(levels)
                )
                for place in range(chance.choice((1, 2, 20)))
            ]
            size = sum(len(block.data) for block in data)
        else:
            data = memoryview(bytes(chance.choice((1, 100, 1400, 3000, 30_000))))
            size = len(data)
        message = msgspec.structs.replace(
            PUSH if side.dials else UPDATE, slice=chance.randrange(4), size=size
        )
        whole = OnConnection(side.number, message, b"", chance.randrange(3))
        if side.end.write(Outgoing(whole, data), self.now):
            side.written.add(side.number)

    def say(self, side: Side, other: Side) -> None:
        """What is due at one end, of which most comes at the other; behind what is refused nothing comes."""
        chance, now = self.chance, self.now
        if side.end.why_stuck(now, now):
            raise ProtocolError("nothing comes of what was announced")
        for delivery in side.end.closed(now):
            check_delivery(delivery)
        side.end.news(now)
        to_write = side.end.to_write(now, now)
        for number in (each.number for each in to_write if each.payload is not None):
            side.written.remove(number)
        datagrams = list(side.end.datagrams(now, ENVELOPE_BYTES, 8))
        self.nonsense.heard += [body for _, body in datagrams]
        for number, message, payload, _ in to_write:
            if isinstance(message, FlowBroken):
                other.end.broken(message)
            elif payload is None:
                assert isinstance(message, Carried)
                other.end.announced(number, message, now)
        for number, body in datagrams:
            if chance.random() < 0.7:
                other.end.received(number, body, now)

    def announce(self, victim: Side) -> None:
        """A header that nobody meant, on the connection."""
        chance, nonsense = self.chance, self.nonsense
        load = chance.choice((-1, 1 << 40, nonsense.number(32), nonsense.number(12)))
        header = nonsense.header(load)
        victim.admit(header)
        victim.end.announced(7, header, self.now)

    def break_(self, victim: Side) -> None:
        """Datagrams are said not to pass."""
        below = self.chance.choice((-1, 1 << 40, self.nonsense.number(6)))
        victim.end.broken(FlowBroken(below))

    def lie(self, victim: Side, liar: Side) -> None:
        """A datagram that nobody meant."""
        chance, nonsense = self.chance, self.nonsense
        number = liar.name(chance)
        if chance.random() < 0.2:
            other = nonsense.number(48) % ((1 << 48) - 1)
            if other < 1 << 40 or (self.is_wild and chance.random() < 0.01):
                number = other
        victim.end.received(number, nonsense.body(victim.end), self.now)


def to_the_ends(number: int, seed: int) -> Counter[str]:
    """Nonsense to both ends of a flow."""
    with pytest.MonkeyPatch.context() as patch:
        return _to_the_ends(number, Random(seed), patch)


def _to_the_ends(number: int, chance: Random, patch: pytest.MonkeyPatch) -> Counter[str]:
    siege, nonsense = Siege(), Nonsense(chance)
    player, ends_at = Player(chance, nonsense), 0
    for done in range(number + 1):
        if done == ends_at:
            player = Player(chance, nonsense)
            (life,) = chance.choices(LIVES, OF_EACH)
            ends_at += life
            room_bytes = chance.choice(ROOM_BYTES)
            for name in ("EARLY_BYTES", "PARITY_BYTES"):
                patch.setattr(receiver_module, name, room_bytes)
        victim, liar = player.pair()
        kind = chance.random()
        if kind < player.talks:
            siege.attempt(player.talk)
        elif kind > 0.99:
            siege.attempt(lambda p=player, v=victim: p.announce(v))
        elif kind > 0.989:
            siege.attempt(lambda p=player, v=victim: p.break_(v))
        siege.attempt(lambda p=player, v=victim, w=liar: p.lie(v, w))
        if done % 16 == 0:
            siege.attempt(lambda p=player, v=victim, w=liar: p.say(v, w))
        if done % 256 == 0:
            for side in player.sides:
                check(side, player.now)
        siege.look(done, number)
    return siege.counts


# -- what holds whatever was said -----------------------------------------------------------------------------------


def check(side: Side, now: float) -> None:
    """What an end keeps has bounds, and is in order."""
    check_numbers(side.end.receiver._numbers)
    check_receiver(side.end.receiver)
    check_sender(side.end.sender, now)
    check_end(side)


def check_delivery(delivery: Delivered) -> None:
    """It is as it was announced."""
    message, payload = delivery.message, delivery.payload
    assert isinstance(message, Carried)
    if message.beside is None:
        assert isinstance(payload, bytearray)
        assert len(payload) == message.size <= MOST_BYTES
    else:
        assert isinstance(payload, Blocks)
        assert not message.beside.is_whole
        assert len(payload.came) == message.beside.blocks
        assert sum(payload.came) == len(payload.blocks)
        assert payload.nbytes <= message.beside.size


def check_numbers(numbers: Numbers) -> None:
    """Few runs, in order and apart."""
    runs = numbers.runs
    assert len(runs) <= MOST_RUNS
    assert all(first <= last for first, last in runs)
    assert all(newer[0] > older[1] + 1 for newer, older in pairwise(runs))


def check_receiver(receiver: FlowReceiver) -> None:
    """What is kept early, of parity, and of loads."""
    early = [piece for pieces in receiver._early.values() for piece in pieces]
    early_bytes = sum(len(piece.data) + PIECE_COST_BYTES for piece in early)
    assert receiver._early_bytes == early_bytes <= receiver_module.EARLY_BYTES
    parities = sum(len(piece.data) + PIECE_COST_BYTES for piece in early if isinstance(piece, Parity))
    groups = {group for inbox in receiver._inboxes.values() for group in inbox.groups.values()}
    parity_bytes = sum(group.nbytes for group in groups) + parities
    assert receiver._parity_bytes == parity_bytes <= receiver_module.PARITY_BYTES
    assert len(receiver._early) <= MOST_OPEN
    assert len(receiver._early_tails) <= MOST_OPEN
    assert len(receiver._inboxes) <= MOST_OPEN
    assert len(receiver._closed) <= MOST_OPEN
    assert 0 <= receiver._closed_below < 1 << 32
    slices = [inbox.message.slice for inbox in receiver._inboxes.values()]
    assert len(slices) == len(set(slices)), "more is open than a model has"
    assert receiver._slices.issuperset(slices)
    assert all(0 < len(inbox.blocks) <= MOST_BLOCKS for inbox in receiver._inboxes.values())
    for inbox in receiver._inboxes.values():
        parts = sum(map(len, chain(inbox.parts.values(), inbox.sizes.values())))
        assert parts <= 2 * MOST_BYTES // LEAST_PIECE_BYTES, "of blocks in two pieces or more"


def check_sender(sender: FlowSender, now: float) -> None:
    """What is remembered of what was sent; it goes on at a rate."""
    congestion = sender._congestion
    assert len(sender._lost) <= LOST_KEPT
    assert sender._tails.keys() <= sender._loads.keys()
    assert len(sender._loads) <= MOST_OPEN
    assert congestion.under_way == sum(sent.mark.size for sent in sender._under_way.values())
    for value in (congestion.rate, congestion.round_trip_s, congestion.wander_s):
        assert isfinite(value)
        assert value >= 0.0
    assert sender.silent_since == inf or sender.silent_since <= now


def check_end(side: Side) -> None:
    """What was given to it is under way, or waits for what is, once; it goes on at a time."""
    end, sender = side.end, side.end.sender
    assert end._under_way.keys() == sender.open_loads
    held = [outgoing.whole.number for outgoing in chain(end._under_way.values(), end._waiting)]
    assert len(held) == len(set(held))
    assert side.written.issuperset(held)
    if end._waiting and sender.has_room:
        slices = {outgoing.message.slice for outgoing in end._under_way.values()}
        assert end._waiting[0].message.slice in slices, "something waits for nothing"
    headers = [each.number for each in end._to_write]
    assert len(headers) == len(set(headers))
    assert side.written.issuperset(headers)
    assert all(each.payload is None for each in end._to_write)
    assert end.next_at() == end.next_at(), "a time that is NaN"
    assert end.path.datagram_bytes in (0, *SIZES)
