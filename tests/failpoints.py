"""Processes that kill themselves, as `kill -9` does, at a place in the code: before or after a call of it."""

from __future__ import annotations

import functools
import importlib
import os
import signal
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forks import geomx_command

KEY = "FAILPOINT"
POINTS = {
    "receive": "geomx.node.server:Server._on_push",
    "sum": "geomx.node.root:Root.closed",
    "write": "geomx.store.log:Log.write",
    "sync": "geomx.store.folder:sync",
    "manifest": "geomx.store.log:Log.cut",
    "answer": "geomx.node.server:Server._answer",
}


def struck_command(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    output: Connection,
    namespace: str = "",
) -> None:
    """`geomx ARGUMENTS` in a new process, which dies where the environment says so: `before write 40`."""
    environment = dict(environment)
    if point := environment.pop(KEY, ""):
        moment, name, count = point.split()
        arm(POINTS[name], moment, int(count))
    geomx_command(arguments, environment, folder, output, namespace)


def arm(place: str, moment: str, count: int) -> None:
    """Die at so many calls of a function or method, such as `module:Class.method`."""
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    owner: Any = functools.reduce(getattr, outer, importlib.import_module(module))
    function, calls = getattr(owner, name), 0

    @functools.wraps(function)
    def armed(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **options)
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, armed)
