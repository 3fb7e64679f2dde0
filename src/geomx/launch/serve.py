"""One server of a run in this process: what `geomx serve` does."""

from __future__ import annotations

import signal
import sys

from geomx.config import Run
from geomx.drive import loops
from geomx.errors import ConfigError, GeomxError, NodeLost
from geomx.launch.engines.keeper import LOST_STATUS
from geomx.launch.environment import read_place
from geomx.launch.leave import Door
from geomx.launch.verdict import FAILED, by_hand, follows, status_of
from geomx.observe.node_progress import NodeProgress
from geomx.observe.progress import ends_above
from geomx.observe.records import Recorder


def serve(run: Run, node: str, standby: int = 0) -> None:
    """Be the server `node` until the run has ended. Raises what ended it, or says it and raises SystemExit.

    Asked to end by SIGTERM or Ctrl-C it tells the others, and raises SystemExit with the status that a shell gives such
    an end (143, 130); where the run goes on without it, SIGTERM has it leave in order, or be
    started again. So it does, with status 1, where
    another node failed and `geomx run` tells that.

    `standby`: at which of its further addresses it stands by, counted from 1; 0: it does not.
    """
    place = read_place()
    progress = (
        None
        if place.watched
        else NodeProgress(() if node in run.tree.holders else ends_above(run.tree, node)).take
    )
    recorder = Recorder(place.records, node, place.trace, place.watched, progress)
    asked: list[int] = []
    door = Door(run.run.name, node)
    try:
        loops.serve(run, node, recorder, asked.append, standby)
        door.has_left()
    except GeomxError as error:
        if asked:
            name = signal.Signals(asked[0]).name
            print(
                f"geomx: {node} was asked to end ({name}), and so the run ends", file=sys.stderr, flush=True
            )
            raise SystemExit(128 + asked[0]) from error
        if isinstance(error, NodeLost) and error.node == node:  # it has stepped down
            print(f"geomx: {error}", file=sys.stderr, flush=True)
            raise SystemExit(LOST_STATUS) from error
        if place.watched and follows(error, node):
            raise SystemExit(FAILED) from error
        if place.watched or isinstance(error, ConfigError):
            raise
        print(f"geomx: {by_hand(error)}", file=sys.stderr, flush=True)
        raise SystemExit(status_of(error, run.run.on_loss != "stop")) from error
    finally:
        recorder.close()
        door.close()
