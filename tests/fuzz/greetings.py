"""A stranger at the door of a real server, who knows the protocol and reads every answer.

    pip install -e ".[dev]"
    python tests/fuzz/greetings.py --number 100000
    python tests/fuzz/greetings.py --number 100000 --tls

Without TLS the server has a secret; with it, the stranger has a certificate of the run's authority that names somebody
else. A member stays connected meanwhile. Ends with an error where a greeting is welcome, an answer tells more than a
code, the member is sent away, or memory and descriptors do not come back to what they were.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch
import trustme

sys.path.insert(0, str(Path(__file__).parents[1]))

from certificates import issue
from fuzz.sieges import resident_mb
from wires import Records, Witness

from geomx.channels.tcp import Tcp
from geomx.channels.tls import Contexts, contexts
from geomx.drive.real import Driver, ListeningEdge, Wiring
from geomx.node.factory import make_node
from geomx.node.topology import Edge, Topology
from geomx.tree import TOP, Tree
from geomx.wire.messages import PROTOCOL_VERSION, Ack, Beat, Challenge, Hello, Leave, Refuse, Welcome
from geomx.wire.proof import NONCE_BYTES, Side, proof
from geomx.wire.roster_messages import Message

torch.set_num_threads(1)
RUN = "greetings"
MEMBER, VICTIM = "A/0", "A/1"
CODES = {"version", "proof", "certificate"}
AT_ONCE = 32
ANSWER_S = 20.0
SLACK_MB, SLACK_FILES = 32, 4


class End(Witness):
    """One end of a connection, of which each message is awaited; None: the last has come."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: asyncio.Queue[Message | None] = asyncio.Queue()

    def received(self, connection: Any, number: int, message: Message, payload: Any) -> None:
        self.heard.put_nowait(message)

    def closed(self, connection: Any, reason: str) -> None:
        self.heard.put_nowait(None)

    def broken(self, connection: Any, error: Exception) -> None:
        raise error

    def failed(self, error: Exception) -> None:
        raise error


class Stranger:
    """Makes greetings that are nearly right, from what it has heard so far."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.learned: set[tuple[Any, ...]] = set()
        self.heard_proofs = [b"", bytes(32)]

    def greeting(self, nonce: bytes) -> list[Message]:
        """What it says after a Challenge."""
        chance = self.chance
        node = chance.choice([MEMBER, VICTIM, "A", "B/0", "global/0", "", "\x1b[2J" * 100])
        run = chance.choice([RUN, RUN, "run", ""])
        incarnation = chance.choice([0, 1, 2, chance.getrandbits(62), 1 << 62])
        version = chance.choice([PROTOCOL_VERSION] * 5 + [1, 99])
        ours = secrets.token_bytes(NONCE_BYTES)
        key = chance.choice([b"", b"secret", chance.randbytes(32)])
        side: Side = chance.choice(["dials", "listens"])
        nonces = chance.choice([(nonce, ours), (ours, nonce), (nonce, nonce)])
        shown = chance.choice([proof(key, side, run, node, incarnation, nonces), *self.heard_proofs])
        self.heard_proofs[1:] = [shown]  # to be said again on another connection
        manifest = {f"key {n}": chance.getrandbits(30) for n in range(chance.choice([0, 1, 500]))}
        received = chance.choice([0, 1, 7, 1 << 62])
        hello = Hello(version, run, node, incarnation, manifest, received, ours, shown)
        others: list[Message] = [
            Welcome(node, 1, 0, shown),
            Beat(9, 9, 60.0),
            Ack(3),
            Leave({"": 1}, (node,)),
        ]
        return chance.choice([[hello]] * 6 + [[hello, hello], [chance.choice(others)], [hello, *others], []])

    async def call(self, tcp: Tcp, address: str) -> None:
        """Dial, greet, and note what comes back until the server has hung up."""
        end = End()
        try:
            connection = await tcp.dial(address, end)
        except (OSError, TimeoutError):
            self.learned.add(("no connection",))
            return
        try:
            while (message := await asyncio.wait_for(end.heard.get(), ANSWER_S)) is not None:
                if isinstance(message, Challenge):
                    said = self.greeting(message.nonce)
                    for each in said:
                        connection.write(0, each, None, 0)
                    if not said:
                        return
                else:
                    self.note(message)
        finally:
            connection.close("enough")

    def note(self, message: Message) -> None:
        if isinstance(message, Refuse):
            self.learned.add(("Refuse", *msgspec.structs.astuple(message)))
        else:
            self.learned.add((type(message).__name__, message))


def certified(folder: Path, authority: trustme.CA, *names: str) -> Contexts:
    return contexts(*issue(folder, authority, "127.0.0.1", *(f"geomx:{RUN}/{name}" for name in names)))


def resources() -> tuple[float, int]:
    """Resident memory in MB, and how many files are open."""
    return resident_mb(), len(list(Path("/proc/self/fd").iterdir()))


async def besiege(number: int, seed: int, ours: Contexts | None, theirs: Contexts | None) -> None:
    topology = Topology(RUN, Tree({MEMBER: TOP, VICTIM: TOP}), {TOP: Edge()})
    if ours is None:
        topology = replace(topology, secret=secrets.token_bytes(32))
    records = Records()
    server = Driver(
        make_node(topology, "global/0"), Wiring(ListeningEdge(Tcp(tls=ours), "127.0.0.1:0")), records
    )
    serving = asyncio.ensure_future(server.run())
    (listening,) = await records.until("listening")
    address = listening["address"]
    member = Driver(
        make_node(topology, MEMBER), Wiring(peers={"global/0": (Tcp(tls=ours), address)}), Records()
    )
    staying = asyncio.ensure_future(member.run())
    stranger, tcp, begun = Stranger(seed), Tcp(tls=theirs), time.monotonic()
    before: tuple[float, int] | None = None
    for done in range(0, number, AT_ONCE):
        await asyncio.gather(*(stranger.call(tcp, address) for _ in range(min(AT_ONCE, number - done))))
        if before is None and done >= number // 10:  # by then every cache is as full as it gets
            await asyncio.sleep(0.1)
            before = resources()
        if serving.done() or staying.done():
            break
    await asyncio.sleep(0.5)
    counts = Counter(name for name, _ in records.records)
    after, seconds = resources(), time.monotonic() - begun
    ended = [task for task in (serving, staying) if task.done()]
    for task in (serving, staying):
        task.cancel()
    await asyncio.gather(serving, staying, return_exceptions=True)
    assert before is not None
    print(f"{number} greetings in {seconds:.0f} s; before {before[0]:.1f} MB and {before[1]} files, ", end="")
    print(f"after {after[0]:.1f} MB and {after[1]} files; the server told {dict(counts)}")
    print("learned:", *sorted(map(str, stranger.learned)), sep="\n  ")
    assert not ended, f"a node has ended: {ended}"
    assert counts["joined"] == 1, "somebody else was welcome"
    assert not counts["resumed"] + counts["away"], "the member was sent away"
    told = [
        learned for learned in stranger.learned if learned not in {("Refuse", c, "", (), 0) for c in CODES}
    ]
    assert not told or told == [("no connection",)], f"more than codes: {told}"
    assert after[0] - before[0] < SLACK_MB, "memory was kept"
    assert after[1] - before[1] < SLACK_FILES, "files were kept"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tls", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ours = theirs = None
        if options.tls:
            authority = trustme.CA()
            ours = certified(Path(folder, "ours"), authority, "global", MEMBER)
            theirs = certified(Path(folder, "theirs"), authority, "Z")
        asyncio.run(besiege(options.number, options.seed, ours, theirs))


if __name__ == "__main__":
    main(sys.argv[1:])
