"""A server whose process is asked to end tells the others, on every event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator

import pytest
from trees import topology_of
from wires import ANY_PORT, LOOPS, Witness, greet, run_on

from geomx.channels.tcp import Tcp
from geomx.drive.loops import _until_asked
from geomx.drive.real import Driver, ListeningEdge, Wiring
from geomx.errors import RunFailed
from geomx.node.factory import make_node
from geomx.node.topology import Topology
from geomx.rounds.losses import Losses
from geomx.wire.messages import Failure, Welcome
from geomx.wire.roster_messages import Retire


class Address:
    """A recorder that waits for where the node listens."""

    def __init__(self) -> None:
        self.known: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def record(self, name: str, level: str = "debug", /, **fields: str) -> None:
        if name == "listening":
            self.known.set_result(fields["address"])


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@contextlib.asynccontextmanager
async def running(
    topology: Topology, name: str, peer: str, asked: list[int], softly: str
) -> AsyncIterator[tuple[asyncio.Task[None], Witness]]:
    """A node, and a peer of it that it has let in."""
    address, mine = Address(), Witness()
    uplinks = {} if name in topology.tree.shards else {"global/0": (Tcp(), "127.0.0.1:1")}
    driver = Driver(make_node(topology, name), Wiring(ListeningEdge(Tcp(), ANY_PORT), uplinks), address)
    task = asyncio.get_running_loop().create_task(_until_asked(driver, asked.append, softly))
    await greet(await Tcp().dial(await address.known, mine), mine, peer)
    await mine.until(lambda: any(isinstance(m, Welcome) for _, m, _ in mine.messages))
    yield task, mine


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_server_that_is_asked_to_end_tells_its_peers(loop_name: str, number: signal.Signals) -> None:
    asked: list[int] = []

    async def main() -> None:
        async with running(topology_of([2]), "global/0", "A", asked, softly="") as (task, mine):
            os.kill(os.getpid(), number)
            with pytest.raises(RunFailed, match="the run failed at global/0: it was asked to end"):
                await task
            await mine.until_closed()
            told = [message for _, message, _ in mine.messages if isinstance(message, Failure)]
            assert told == [Failure("global/0", "RunFailed", f"it was asked to end ({number.name})")]

    run_on(loop_name, main)
    assert asked == [number]


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_server_that_may_leave_is_asked_to_by_sigterm(loop_name: str) -> None:
    asked: list[int] = []

    async def main() -> None:
        topology = topology_of([2], losses=Losses("continue"))
        async with running(topology, "A", "A/0", asked, softly="retire") as (task, mine):
            os.kill(os.getpid(), signal.SIGTERM)
            await mine.until(lambda: any(isinstance(m, Retire) for _, m, _ in mine.messages))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    run_on(loop_name, main)
    assert asked == []


DEAF = """
    import asyncio, os, signal, sys
    from geomx.drive import loops

    class Deaf:
        def deliver(self, event):
            os.kill(os.getpid(), signal.SIGTERM)

        async def run(self):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(600)

    print(loops._new_event_loop.__module__, flush=True)
    loops.run_loop(loops._until_asked(Deaf(), lambda number: print("asked", flush=True)))
"""


@pytest.mark.processes
def test_a_second_signal_kills_a_server_that_does_not_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DEAF)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout.split()[1:]) == (-signal.SIGTERM, ["asked"]), done.stderr
