"""geomx trains one PyTorch model across data centers that are far apart.

    import geomx

    run = geomx.join()
    model, optimizer = run.attach(model, optimizer)
    for x, y in run.shard(loader): ...

Importing this package does nothing else: each name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geomx.config import Run
    from geomx.errors import (
        CheckpointError,
        ConfigError,
        DataMissing,
        Disagreement,
        GeomxError,
        GradientEdited,
        NodeLost,
        Refused,
        RunFailed,
        Unsupported,
        WeightUnknown,
    )
    from geomx.launch.join import join
    from geomx.train.run import LiveRun

    __version__: str

_HOMES = {"join": "geomx.launch.join", "LiveRun": "geomx.train.run", "Run": "geomx.config"}

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataMissing",
    "Disagreement",
    "GeomxError",
    "GradientEdited",
    "LiveRun",
    "NodeLost",
    "Refused",
    "Run",
    "RunFailed",
    "Unsupported",
    "WeightUnknown",
    "__version__",
    "join",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = importlib.import_module("importlib.metadata").version("geomx")
    elif name in __all__:
        value = getattr(importlib.import_module(_HOMES.get(name, "geomx.errors")), name)
    else:
        raise AttributeError(f"module 'geomx' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
