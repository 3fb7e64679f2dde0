"""Who sends what to whom: tables of trees over the members of one tier, and the planners that make them.

`contract.py` first. One file a planner; `cost.py` says how long a table would take, and `tables.py` has what planners
share. Pure functions of what was measured: nothing here knows of nodes, connections or time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geomx.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from geomx.overlay.contract import Planner

overlays: Registry[Callable[..., Planner]] = Registry(
    "overlay",
    {
        "star": "geomx.overlay.star:Star",
        "ts": "geomx.overlay.ts:TSEngine",
        "trees": "geomx.overlay.trees:Trees",
        "ring": "geomx.overlay.ring:Ring",
        "butterfly": "geomx.overlay.butterfly:Butterfly",
        "binary-blocks": "geomx.overlay.butterfly:BinaryBlocks",
        "ps": "geomx.overlay.ps:ParameterServers",
    },
)
