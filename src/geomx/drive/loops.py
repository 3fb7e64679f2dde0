"""Event loops: uvloop where it is installed, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import torch

from geomx.channels.memory import reuse_freed_blocks
from geomx.config import Run
from geomx.drive.real import Driver, RecordSink
from geomx.drive.secret import secret_of
from geomx.drive.wiring import wire
from geomx.node.factory import make_node
from geomx.node.topology import Topology
from geomx.optim import optimizers

try:
    import uvloop

    _new_event_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
except ImportError:  # no uvloop for this platform
    _new_event_loop = asyncio.new_event_loop


def run_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run to its end on a new event loop."""
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(coroutine)


def serve(run: Run, name: str, recorder: RecordSink) -> None:
    """Run a server's node until the run has ended; raises `GeomxError`."""
    reuse_freed_blocks()
    torch.set_num_threads(1)  # a slice is too small to share out, and the other core has its own work
    if name in run.shard_names:
        optimizers.find("SGD")(
            "SGD"
        )  # torch imports for seconds at the first one: now, not between two heartbeats
    node = make_node(Topology.of(run, secret_of(run)), name, incarnation=time.time_ns())
    run_loop(Driver(node, wire(run, name), recorder).run())
