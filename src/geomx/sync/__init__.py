"""When nodes answer, and what a worker contributes: one file a sync policy, `contract.py` first, then `fsa.py`.

Policies decide and compute nothing: no torch, no sockets, no clock. From outside: the contract and the registry here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geomx.registry import Registry

if TYPE_CHECKING:
    from geomx.sync.contract import Policy

policies: Registry[type[Policy]] = Registry(
    "sync policy",
    {
        "fsa": "geomx.sync.fsa:FSA",
        "mixed": "geomx.sync.mixed:MixedSync",
        "hfa": "geomx.sync.hfa:HFA",
        "esync": "geomx.sync.esync:ESync",
        "diloco": "geomx.sync.diloco:DiLoCo",
        "downpour": "geomx.sync.downpour:Downpour",
    },
)
