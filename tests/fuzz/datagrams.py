"""Datagrams that nobody meant: random, mutated from real ones, cut, said again; with the flow's keys, and without.

    pip install -e ".[dev]"
    python tests/fuzz/datagrams.py --number 1000000

Members who know the keys send nonsense to both ends of a flow: whatever comes of it is `ProtocolError` or nothing, and
what an end keeps has bounds. Strangers send to a real socket: nothing changes, and nobody answers. Ends with an error
where one of these promises is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from relays import relay
from wires import ANY_PORT, Witness

from geomx.channels.block_classes import Alike
from geomx.channels.contract import EdgeSettings
from geomx.channels.datagram import Datagram
from geomx.channels.sealing import HEAD, SALT_BYTES, seals
from geomx.channels.tcp import split_address
from geomx.codecs.contract import Block
from geomx.errors import ProtocolError
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.ends import ReceivingEnd, SendingEnd, Whole
from geomx.wire.flow.outbox import BlockOut, FlowTerms
from geomx.wire.flow.packets import (
    MOST_OPEN,
    MOST_RUNS,
    PIECE_COST_BYTES,
    Ack,
    Head,
    Parity,
    Piece,
    Probe,
    Probed,
    Tail,
    unpack,
)
from geomx.wire.flow.path import SIZES
from geomx.wire.flow.receiver import EARLY_BYTES, PARITY_BYTES
from geomx.wire.flow.sender import LOST_KEPT
from geomx.wire.messages import Beside, Message, Push, encode_head

SLACK_MB = 48
KEPT, AFRESH = 256, 20_000
PUSH = Push(1, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", False)
SECRET = b"s" * 32
Act = Callable[[], Any]


class Nonsense:
    """Makes bodies of datagrams, from what it has heard so far."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.heard: deque[bytes] = deque([b"\1"], maxlen=KEPT)

    def body(self) -> bytes:
        chance = self.chance
        kind = chance.randrange(6)
        if kind == 0:
            return chance.randbytes(chance.choice((0, 1, 8, 18, 30, 200, 1446)))
        if kind == 1:
            return bytes([chance.randrange(1, 8)]) + chance.randbytes(
                chance.choice((2, 8, 16, 17, 28, 40, 100))
            )
        if kind == 2:
            return self.packet()
        real = bytearray(chance.choice(self.heard))
        if kind == 3:
            return bytes(real[: chance.randrange(len(real) + 1)])
        if kind == 4:
            for _ in range(chance.choice((1, 1, 2, 8))):
                real[chance.randrange(len(real))] = chance.choice((0, 1, 255, chance.randrange(256)))
        return bytes(real)

    def packet(self) -> bytes:
        """One that says what it says in the right form."""
        chance = self.chance
        load, size = self.number(32), chance.choice((0, 1, 100, 1400))
        kind = chance.randrange(11)
        if kind == 8:
            head = chance.choice(
                (b"", b"\xc1", encode_head(self.header(load)), encode_head(self.header(load)))
            )
            return Head(load, self.number(64), head[: chance.choice((3, 1400))]).pack()
        if kind > 8:
            return self.parity(load, size)
        if kind < 4:
            parts = chance.choice((1, 1, 2, 255))
            start, level = self.number(32), chance.choice((0, 0, 1, 2, 255))
            stop = min(start + chance.choice((0, 1, 350)), (1 << 32) - 1)
            part = chance.randrange(parts)
            return Piece(load, self.number(16), part, parts, level, start, stop, bytes(size)).pack()
        if kind == 4:
            loads = tuple(self.number(32) for _ in range(chance.choice((0, 1, 2, 64, 65))))
            return Tail(loads, chance.choice((0.0, 0.1, 1e9)), chance.choice((0.0, 0.1, 1e9))).pack()
        if kind == 5:
            ends = sorted(
                {self.number(48) for _ in range(2 * chance.choice((0, 1, 2, 64, 65)))}, reverse=True
            )
            runs = tuple((first, last) for last, first in zip(ends[::2], ends[1::2], strict=False))
            return Ack(chance.choice((0.0, 0.01, 1e9)), load, self.number(64), runs).pack()
        return (Probe(chance.choice((3, *SIZES))) if kind == 6 else Probed(chance.choice((0, *SIZES)))).pack()

    def parity(self, load: int, size: int) -> bytes:
        """One that fits a group of blocks, or none."""
        chance = self.chance
        blocks, pieces = chance.choice((1, 2, 9, 20, 128, 255)), chance.choice((1, 1, 1, 2, 3, 255))
        parities = chance.choice((1, 2, 9, min(blocks * pieces, 255)))
        place = chance.choice((0, chance.randrange(parities), chance.randrange(parities), 255))
        data = chance.choice((bytes(size), chance.randbytes(size)))
        block = chance.choice((0, 0, self.number(16)))
        return Parity(load, block, blocks, pieces, parities, place, data).pack()

    def header(self, load: int) -> Push:
        """One that announces what cannot be, or may be."""
        chance, count = self.chance, self.chance.choice((1, 2, 9, 300))
        reliable = chance.choice((None, bytes((count + 7) // 8), chance.randbytes((count + 7) // 8), b"\1"))
        beside = Beside(load, count, reliable, chance.choice((0, 100, 1 << 20)))
        return msgspec.structs.replace(PUSH, beside=beside)

    def number(self, bits: int) -> int:
        """Small, large, or anything."""
        chance = self.chance
        most = (1 << bits) - 1
        return chance.choice((chance.randrange(4), chance.randrange(200), most, chance.randrange(most)))


class Siege:
    """Counts what came of each attempt. Whatever is neither nothing nor `ProtocolError` comes through."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._before: float | None = None
        self._after = 0.0

    def attempt(self, act: Act) -> bool:
        """Whether it was not refused."""
        try:
            act()
        except ProtocolError:
            self.counts["refused"] += 1
            return False
        self.counts["taken"] += 1
        return True

    def look(self, done: int, number: int) -> None:
        """Memory behind the first fifth and at the end: by then everything is as full as it gets."""
        if self._before is None and done >= number // 5:
            self._before = resident_mb()
        if done >= number:
            self._after = resident_mb()
            assert self._before is not None
            assert self._after - self._before < SLACK_MB, f"{self._before} MB grew to {self._after} MB"
            self.counts["MB more"] = round(self._after - self._before)


def resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


# -- a member ---------------------------------------------------------------------------------------------------


def admit(message: Message) -> None:
    """Whoever listens refuses some of what it is told."""
    if isinstance(message, Push) and message.beside is not None and message.beside.blocks > 100:
        raise ProtocolError("more blocks than elements")


class Player:
    """A sender and a receiver that talk, and somebody who says other things in the name of one of them."""

    def __init__(self, chance: Random, nonsense: Nonsense) -> None:
        self.chance, self.nonsense = chance, nonsense
        self.now, self.number = 0.0, 0
        self.sending = SendingEnd(Congestion(1500), FlowTerms((2, 1), 0.5, parity_share=0.3), 0.0)
        self.receiving = ReceivingEnd(admit)
        self.broken: set[str] = set()

    def talk(self) -> None:
        """A little of what both ends say to each other; the other side of a broken end says nothing more."""
        chance, self.now = self.chance, self.now + self.chance.choice((0.0, 1e-4, 0.01, 0.3))
        if chance.random() < 0.2:
            blocks = [
                BlockOut(
                    place,
                    place + 1,
                    memoryview(bytes(chance.choice((1, 1400, 3000)))),
                    chance.randrange(-1, 4),
                )
                for place in range(chance.choice((1, 2, 20)))
            ]
            header = self.sending.write(Whole(self.number, PUSH, b"", chance.randrange(3)), blocks, self.now)
            self.number += 1
            if header is not None and chance.random() < 0.9:
                self.receiving.announced(self.number, header, self.now)
        for number, body in self.sending.datagrams(self.now, 54, 8):
            self.nonsense.heard.append(body)
            if chance.random() < 0.7:
                self.receiving.received(number, body, self.now)
        if self.sending.fallen_back(self.now, self.now):
            self.receiving.receiver.forget(self.sending.sender.next_load)
        list(self.receiving.closed(self.now, self.now))
        for body in self.receiving.bodies(self.now):
            self.nonsense.heard.append(body)
            if chance.random() < 0.7:
                self.sending.received(body, self.now)
        self.sending.news()


def to_the_receiver(number: int, seed: int) -> Counter[str]:
    """A sender's nonsense."""
    chance, siege = Random(seed), Siege()
    nonsense = Nonsense(chance)
    player, next_number = Player(chance, nonsense), 0
    for done in range(number + 1):
        if done % AFRESH == 0:
            player, next_number = Player(chance, nonsense), 1 << 20
        end, now = player.receiving, player.now
        kind = chance.random()
        if kind < 0.02:
            siege.attempt(player.talk)
        elif kind < 0.03:
            load = chance.choice((-1, 1 << 40, nonsense.number(32), nonsense.number(12)))
            header = nonsense.header(load)
            siege.attempt(lambda e=end, n=now, h=header: e.announced(7, h, n))
        elif kind < 0.031:
            below = chance.choice((-1, 1 << 40, nonsense.number(6)))
            siege.attempt(lambda e=end, b=below: e.receiver.forget(b))
        next_number += chance.choice((0, 1, 1, 1, 2, 5))
        name = chance.choice((next_number, next_number, next_number, nonsense.number(48) % ((1 << 48) - 1)))
        if name > 1 << 40 and chance.random() < 0.99:
            name = next_number  # behind such a number nothing else is new
        body = nonsense.body()
        siege.attempt(lambda e=end, n=now, i=name, b=body: e.received(i, b, n))
        if done % 16 == 0:
            siege.attempt(lambda e=end, n=now: list(e.closed(n, n)))
            for answer in end.bodies(now):
                unpack(answer)
        if done % 512 == 0:
            check_receiver(end)
        siege.look(done, number)
    return siege.counts


def check_receiver(end: ReceivingEnd) -> None:
    """What it keeps has bounds, and is in order."""
    receiver = end.receiver
    runs = receiver._numbers.runs
    assert len(runs) <= MOST_RUNS
    assert all(first <= last for first, last in runs)
    assert all(newer[0] > older[1] + 1 for newer, older in pairwise(runs))
    early = [piece for pieces in receiver._early.values() for piece in pieces]
    assert receiver._early_bytes == sum(len(piece.data) + PIECE_COST_BYTES for piece in early) <= EARLY_BYTES
    parities = sum(len(piece.data) + PIECE_COST_BYTES for piece in early if isinstance(piece, Parity))
    groups = {group for inbox in receiver._inboxes.values() for group in inbox.groups.values()}
    assert receiver._parity_bytes == sum(group.nbytes for group in groups) + parities <= PARITY_BYTES
    assert len(receiver._early) <= MOST_OPEN
    assert len(receiver._early_tails) <= MOST_OPEN
    assert len(receiver._inboxes) <= MOST_OPEN
    assert len(receiver._closed) <= MOST_OPEN
    assert 0 <= receiver._closed_below < 1 << 32
    assert end.next_at() == end.next_at(), "a time that is NaN"
    assert not end._answers


def to_the_sender(number: int, seed: int) -> Counter[str]:
    """A receiver's nonsense."""
    chance, siege = Random(seed), Siege()
    nonsense = Nonsense(chance)
    player = Player(chance, nonsense)
    for done in range(number + 1):
        if done % AFRESH == 0:
            player = Player(chance, nonsense)
        end, now = player.sending, player.now
        if chance.random() < 0.2:
            siege.attempt(player.talk)
        body = nonsense.body()
        siege.attempt(lambda e=end, n=now, b=body: e.received(b, n))
        if done % 128 == 0:
            check_sender(end, player.now)
        siege.look(done, number)
    return siege.counts


def check_sender(end: SendingEnd, now: float) -> None:
    """What it keeps has bounds, and it goes on at a time and a rate."""
    sender, congestion = end.sender, end.sender._congestion
    assert len(sender._lost) <= LOST_KEPT
    assert sender._tails.keys() <= sender._loads.keys()
    assert len(sender._loads) <= MOST_OPEN
    assert end._wholes.keys() >= sender._loads.keys()
    assert congestion.under_way == sum(sent.mark.size for sent in sender._under_way.values())
    for value in (congestion.rate, congestion.round_trip_s, congestion.wander_s):
        assert isfinite(value)
        assert value >= 0.0
    assert end.next_at() == end.next_at(), "a time that is NaN"
    assert end.path.datagram_bytes in (0, *SIZES)
    assert sender.silent_since == inf or sender.silent_since <= now


# -- a stranger ---------------------------------------------------------------------------------------------------


def forged(chance: Random, real: deque[bytes]) -> bytes:
    """A datagram that is nearly one of those that were heard."""
    datagram = bytearray(chance.choice(real))
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.choice((0, 1, 9, 10, 25, 26, 27, 100, 1472)))
    if kind == 1:
        return bytes(datagram[: chance.randrange(len(datagram))])
    if kind == 2:  # of the right flow
        return bytes(datagram[:4]) + chance.randbytes(chance.choice((22, 40, 1400)))
    if kind == 3:  # under another number
        flow, low, high = HEAD.unpack_from(datagram)
        return HEAD.pack(flow, (low + chance.choice((1, 1 << 20))) % (1 << 32), high) + datagram[HEAD.size :]
    if kind == 4:
        return bytes(datagram) + chance.randbytes(chance.choice((1, 16)))
    place = chance.randrange(len(datagram))
    datagram[place] ^= 1 << chance.randrange(8)
    return bytes(datagram)


def to_the_seal(number: int, seed: int) -> Counter[str]:
    """Whatever is not what the other end has sealed is not opened."""
    chance, siege = Random(seed), Siege()
    up, down = seals(7, bytes(SALT_BYTES), SECRET)
    others = seals(7, bytes(SALT_BYTES), b"t" * 32)[0], seals(7, b"s" * SALT_BYTES, SECRET)[0], down
    real = deque((up.close(n, chance.randbytes(chance.choice((0, 3, 100, 1446)))) for n in range(KEPT)), KEPT)
    for other in others:
        assert all(other.open(datagram) is None for datagram in real)
    for done in range(number + 1):
        datagram = forged(chance, real)
        assert datagram in real or up.open(datagram) is None
        siege.counts["refused"] += 1
        siege.look(done, number)
    return siege.counts


async def to_the_port(number: int, seed: int) -> Counter[str]:
    """Over real sockets, while a member's payloads pass: strangers change nothing, and get no answer."""
    chance, siege, real = Random(seed), Siege(), deque[bytes](maxlen=KEPT)
    mine, theirs = Witness(), Witness()
    door = await Datagram(EdgeSettings(), Alike()).listen(ANY_PORT, theirs, theirs.accept)
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stranger.setblocking(False)
    stranger.connect(split_address(door.address))
    async with relay(door.address) as between:

        def heard(datagram: bytes) -> int:
            real.append(datagram)
            return 1

        between.passes = heard
        member = await Datagram(EdgeSettings(), Alike()).dial(between.address, mine)
        await theirs.until(lambda: bool(theirs.accepted))
        (listening,) = theirs.accepted
        member.open_flow(SECRET, FlowTerms())
        listening.open_flow(SECRET, FlowTerms())
        while member.flow_state != "open":
            await asyncio.sleep(0.01)
        write(member, 1)
        await theirs.until(lambda: len(theirs.messages) == 1)
        await asyncio.sleep(0.3)  # until both ends have told everything
        receiver, address, newest = listening._receiving.receiver, listening._address, listening._newest
        before = (
            [repr(run) for run in receiver._numbers.runs],
            dict(receiver.came),
            dict(receiver.late),
            receiver.dropped,
        )
        bytes_before = listening.bytes_received
        for done in range(0, number + 1, 32):
            for _ in range(32):
                # Of each four, one is a datagram that has come before, from another address.
                said = chance.choice(real) if chance.random() < 0.25 else forged(chance, real)
                stranger.send(said)
            for _ in range(3):
                await asyncio.sleep(0)
            siege.counts["sent"] += 32
            siege.look(done, number // 32 * 32)
        await asyncio.sleep(0.2)
        after = (
            [repr(run) for run in receiver._numbers.runs],
            dict(receiver.came),
            dict(receiver.late),
            receiver.dropped,
        )
        assert listening.bytes_received > bytes_before, "nothing that was said again has arrived"
        assert after == before, "a stranger was heard"
        assert (listening._address, listening._newest) == (address, newest), "answers go to a stranger"
        assert not receiver._early
        assert not receiver._early_tails
        try:
            answer: bytes | None = stranger.recv(1 << 16)
        except BlockingIOError:
            answer = None
        assert answer is None, "a stranger was answered"
        write(member, 2)
        await theirs.until(lambda: len(theirs.messages) == 2)
        assert not theirs.reasons, f"the connection has ended: {theirs.reasons}"
        member.close("done")
    stranger.close()
    await door.close()
    return siege.counts


def write(member: Any, number: int) -> None:
    payload = torch.zeros(50_000, dtype=torch.uint8)
    ranges = [(start, min(start + 1400, 50_000)) for start in range(0, 50_000, 1400)]
    blocks = [(Block(start, stop, payload[start:stop]), 0) for start, stop in ranges]
    member.write_blocks(number, msgspec.structs.replace(PUSH, size=50_000), payload, 1, blocks)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    number, seed = options.number, options.seed
    sieges: dict[str, tuple[int, Callable[[int], Counter[str]]]] = {
        "a member, to the receiver": (number // 2, lambda n: to_the_receiver(n, seed)),
        "a member, to the sender": (number // 4, lambda n: to_the_sender(n, seed)),
        "a stranger, to the seal": (number // 8, lambda n: to_the_seal(n, seed)),
        "a stranger, to the socket": (number // 8, lambda n: asyncio.run(to_the_port(n, seed))),
    }
    for name, (share, siege) in sieges.items():
        begun = time.monotonic()
        counts = siege(share)
        print(f"{name}: {share} datagrams in {time.monotonic() - begun:.0f} s, {dict(counts)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
