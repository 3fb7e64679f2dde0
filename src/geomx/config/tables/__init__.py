"""The tables of a run's description: which keys there are, what they mean, what each allows by itself.

What keys must be to each other stands in `rules.py`. A key's attribute has the key's name, but for `global`
(a word of Python: `global_`) and those of which there may be several: `[[party]]` (`parties`), `[[region]]`
(`regions`), `[[event]]` (`events`), `[[site]]` (`sites`).
`description.py` has them all.
"""

from geomx.config.tables.base import Table
from geomx.config.tables.description import (
    Description,
    LayoutTable,
    LimitsTable,
    OptimizerTable,
    RunTable,
    StoreTable,
    SyncTable,
    WorkerTable,
)
from geomx.config.tables.edges import BelowTable, EdgeTable, LanTable, TlsTable, WanTable
from geomx.config.tables.links import DelayTable, EventTable, LinkTable
from geomx.config.tables.members import GlobalTable, PartyTable, RegionTable, ServerTable
from geomx.config.tables.sites import RestartTable, SiteTable

__all__ = [
    "BelowTable",
    "DelayTable",
    "Description",
    "EdgeTable",
    "EventTable",
    "GlobalTable",
    "LanTable",
    "LayoutTable",
    "LimitsTable",
    "LinkTable",
    "OptimizerTable",
    "PartyTable",
    "RegionTable",
    "RestartTable",
    "RunTable",
    "ServerTable",
    "SiteTable",
    "StoreTable",
    "SyncTable",
    "Table",
    "TlsTable",
    "WanTable",
    "WorkerTable",
]
