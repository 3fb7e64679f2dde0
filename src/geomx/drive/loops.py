"""Event loops: uvloop where it is installed, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import torch

from geomx.channels.memory import reuse_freed_blocks
from geomx.config import Run
from geomx.drive.durable import Durable
from geomx.drive.real import Driver, RecordSink
from geomx.drive.secret import secret_of
from geomx.drive.wiring import wire
from geomx.node.contract import Called, asked_to_end
from geomx.node.factory import make_node
from geomx.node.topology import Topology
from geomx.optim import optimizers
from geomx.tree import ROW_SERVERS

try:
    import uvloop

    _new_event_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
except ImportError:  # no uvloop for this platform
    _new_event_loop = asyncio.new_event_loop


def run_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run to its end on a new event loop."""
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(coroutine)


def serve(
    run: Run,
    name: str,
    recorder: RecordSink,
    asked: Callable[[int], object] = lambda number: None,
    place: int = 0,
) -> None:
    """Run a server's node until the run has ended; raises `GeomxError`. `place`: of its addresses, where it is.

    SIGTERM and Ctrl-C have the node tell its peers that it was asked to end, and fail; the second one kills. Where the
    run goes on without whoever is lost, SIGTERM has a server that is no shard leave in order; so do both,
    always, with a row server. `asked` is given the number of a signal that ends the run.
    """
    reuse_freed_blocks()
    torch.set_num_threads(1)  # a slice is too small to share out, and the other core has its own work
    if name in run.shard_names:
        optimizers.find("SGD")(
            "SGD"
        )  # torch imports for seconds at the first one: now, not between two heartbeats
    durable = Durable(run, name, place) if run.store.url and name in run.shard_names else None
    if durable is None:
        incarnation, term = time.time_ns(), 0
    elif durable.wait(recorder.record):
        incarnation, term = durable.term.incarnation, durable.term.number
    else:
        return
    node = make_node(Topology.of(run, secret_of(run)), name, incarnation, term)
    if run.is_durable and name in run.shard_names:
        softly = "step_down"
    elif name in ROW_SERVERS:
        softly = "retire_soon"
    else:
        softly = "retire" if run.run.on_loss == "continue" and name not in run.shard_names else ""
    run_loop(_until_asked(Driver(node, wire(run, name, place), recorder, durable=durable), asked, softly))


async def _until_asked(driver: Driver, asked: Callable[[int], object], softly: str = "") -> None:
    """`softly`: the node's method that SIGTERM calls, where it does not end the run.

    A signal's own handler could be called within any callback of the loop, and what it raises be swallowed there."""
    loop = asyncio.get_running_loop()
    heard: list[int] = []

    def ask(number: int) -> None:
        if heard:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        heard.append(number)
        if softly and (number == signal.SIGTERM or softly == "retire_soon"):
            why = (asked_to_end(signal.Signals(number).name),) if softly == "step_down" else ()
            driver.deliver(Called(softly, why))
            return
        asked(number)
        driver.deliver(Called("fail", (asked_to_end(signal.Signals(number).name),)))

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask, number)
    await driver.run()
