"""`geomx replay`: what global servers have decided, once more, and whether the same comes of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from geomx.config import Run
from geomx.drive.durable import log_of
from geomx.drive.past import Found, repeat
from geomx.errors import ConfigError, Fault, RunFailed
from geomx.node.factory import make_node
from geomx.node.topology import Topology

MOST_NAMES = 4


def replay(run: Run, shard: int | None, first: int, last: int, file: Path | None) -> None:
    """Repeat it, and print each turn.

    Raises:
        ConfigError: The run has no store, or no such shard.
        StoreError: There is no log.
        RunFailed: Something else has come of it than was written.
    """
    if not run.store.url:
        raise ConfigError("replay", [Fault("store.url", "nothing", "the URL of the run's store")])
    if shard is not None and not 0 <= shard < run.run.shards:
        raise ConfigError("replay", [Fault("--shard", str(shard), f"0 to {run.run.shards - 1}")])
    names = run.shard_names if shard is None else (run.shard_names[shard],)
    topology = Topology.of(run)
    every = {name: repeat(make_node(topology, name), log_of(run, name), first, last) for name in names}
    for name, found in every.items():
        _tell(name, found)
    if file is not None:
        file.write_text(json.dumps({name: asdict(found) for name, found in every.items()}, indent=1) + "\n")
    for name, found in every.items():
        if found.differ:
            slices = ", ".join(map(str, found.differ[:MOST_NAMES]))
            raise RunFailed(
                name,
                f"repeated, {len(found.differ)} of its slices ({slices}) are not what it wrote: its memory or its "
                "processor errs, or this is another version of geomx or PyTorch",
            )


def _tell(name: str, found: Found) -> None:
    print(f"{name}: {len(found.turns) or 'none of these'} turns")
    for each in found.turns:
        cohort = f" of {each.cohort}" if each.cohort else ""
        more = len(each.workers) - MOST_NAMES
        who = ", ".join(each.workers[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        print(
            f"  turn {each.turn}{cohort}: {each.kind} of {who or 'nobody'}, weight {each.weight:g}, "
            f"state {each.digest[:12]}"
        )
    if found.differ is None:
        print("  nothing to compare: it has written its state less than twice")
    elif not found.differ:
        print(f"  its state of {found.compared} turns later: the same, bit for bit, as it has written")
