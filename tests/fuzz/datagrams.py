"""Datagrams that nobody meant: random, mutated from real ones, cut, said again; with the flow's keys, and without.

    pip install -e ".[dev]"
    python tests/fuzz/datagrams.py --number 1000000

Members who know the keys send nonsense to both ends of a flow (`members.py`): whatever comes of it is `ProtocolError`
or nothing, and what an end keeps has bounds. Strangers send to a real socket: nothing changes, and nobody answers. Ends
with an error where one of these promises is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.members import to_the_ends
from fuzz.nonsense import KEPT, UPDATE
from fuzz.sieges import Siege
from relays import relay
from wires import ANY_PORT, Witness, tensor, until_open, write_blocks

from geomx.channels.block_classes import Alike
from geomx.channels.contract import EdgeSettings
from geomx.channels.datagram import Datagram
from geomx.channels.sealing import HEAD, SALT_BYTES, seals
from geomx.channels.tcp import split_address
from geomx.wire.flow.ends import FlowEnd
from geomx.wire.flow.outbox import FlowTerms

SECRET = b"s" * 32
SIZE = 50_000


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
        await until_open(member, listening)
        payload, update = tensor(SIZE), msgspec.structs.replace(UPDATE, size=SIZE)
        write_blocks(member, 1, payload)  # in blocks on its way up, and as it stands on its way down
        listening.write(1, update, payload, 1)
        await theirs.until(lambda: len(theirs.messages) == 1)
        await mine.until(lambda: len(mine.messages) == 1)
        await asyncio.sleep(0.3)  # until both ends have told everything
        ends = [member._end, listening._end]
        address, newest = listening._answers.address, listening._newest
        before = [heard_by(end) for end in ends]
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
        assert listening.bytes_received > bytes_before, "nothing that was said again has arrived"
        assert [heard_by(end) for end in ends] == before, "a stranger was heard"
        assert (listening._answers.address, listening._newest) == (address, newest), (
            "answers go to a stranger"
        )
        assert not any(end.receiver._early or end.receiver._early_tails for end in ends)
        try:
            answer: bytes | None = stranger.recv(1 << 16)
        except BlockingIOError:
            answer = None
        assert answer is None, "a stranger was answered"
        write_blocks(member, 2, payload)
        listening.write(2, update, payload, 1)
        await theirs.until(lambda: len(theirs.messages) == 2)
        await mine.until(lambda: len(mine.messages) == 2)
        reasons = [*mine.reasons, *theirs.reasons]
        assert not reasons, f"the connection has ended: {reasons}"
        member.close("done")
    stranger.close()
    await door.close()
    return siege.counts


def heard_by(end: FlowEnd) -> tuple[Any, ...]:
    """What an end has counted of what came, and acknowledged."""
    receiver = end.receiver
    return (
        receiver._numbers.runs,
        dict(receiver.came),
        dict(receiver.late),
        receiver.dropped,
        receiver.rebuilt,
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    number, seed = options.number, options.seed
    sieges: dict[str, tuple[int, Callable[[int], Counter[str]]]] = {
        "a member, to both ends": (number * 3 // 4, lambda n: to_the_ends(n, seed)),
        "a stranger, to the seal": (number // 8, lambda n: to_the_seal(n, seed)),
        "a stranger, to the socket": (number // 8, lambda n: asyncio.run(to_the_port(n, seed))),
    }
    for name, (share, siege) in sieges.items():
        begun = time.monotonic()
        counts = siege(share)
        print(f"{name}: {share} datagrams in {time.monotonic() - begun:.0f} s, {dict(counts)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
