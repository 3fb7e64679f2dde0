"""One server of a run in this process: what `geomx serve` does."""

from __future__ import annotations

import signal

from geomx.config import Run
from geomx.drive import loops
from geomx.launch.environment import read_place
from geomx.observe.records import Recorder


def serve(run: Run, node: str) -> None:
    """Be the server `node` until the run has ended. Raises what ended it: SIGTERM counts as Ctrl-C."""
    place = read_place()
    recorder = Recorder(place.records, node, place.trace)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        loops.serve(run, node, recorder)
    finally:
        recorder.close()
