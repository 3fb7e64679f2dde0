"""Tables: rows by key, larger than any worker; what a worker says to a shard about them, and what the shard does.

`requests.py` is what is said. `ring.py` says which server has a row, `rows.py` keeps those of one, `inits.py` and
`rules.py` say what a row begins with and what an update does to it, `clocks.py` who waits for whom, `filters/` what a
worker does not send, `keys.py` which keys need not be sent again, `table.py` is one table; `shard.py` puts them
together. Rows move when a server comes or goes: `moving.py` is what it says, `holding.py` what others do meanwhile.
A worker's end is `geomx.train.calls.tables`; `geomx.node.requests` carries what both say, and what `sandblaster/` says.
After the parameter server of Li et al., OSDI 2014.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geomx.registry import Registry

if TYPE_CHECKING:
    from geomx.tables.filters.contract import Filter
    from geomx.tables.inits import Init
    from geomx.tables.rules import Rule

table_rules: Registry[type[Rule]] = Registry(
    "rule of a table",
    {name.lower(): f"geomx.tables.rules:{name}" for name in ("Add", "SGD", "Adagrad", "FTRL")},
)

table_inits: Registry[type[Init]] = Registry(
    "init of a table",
    {name.lower(): f"geomx.tables.inits:{name}" for name in ("Zeros", "Uniform", "Normal")},
)

table_filters: Registry[type[Filter]] = Registry(
    "filter of a table",
    {
        "zeros": "geomx.tables.filters.zeros:Zeros",
        "significant": "geomx.tables.filters.significant:Significant",
        "random-skip": "geomx.tables.filters.random_skip:RandomSkip",
    },
)
