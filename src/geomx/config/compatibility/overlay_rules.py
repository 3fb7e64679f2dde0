"""The keys that only an overlay has a use for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from geomx.config.reading.problems import KeyPath, Problem, shown
from geomx.tree import GLOBAL

Values = dict[str, Any]


def keys_of_overlays(values: Values) -> Iterator[Problem]:
    """Addresses and neighbours, where there is an overlay; names of whom there are."""
    between, inside = values["run"].get("overlay"), values["lan"].get("overlay")
    servers = [(key, index, table) for key in ("party", "region") for index, table in enumerate(values[key])]
    names = {table.get("name") for _, _, table in servers} | {GLOBAL}
    for key, index, table in servers:
        path: KeyPath = (key, index)
        for name in ("address_wan", "listen_wan", "neighbours"):
            if table.get(name) and not between:
                yield Problem((*path, name), shown(table[name]), "only with run.overlay", "it has no effect")
        if table.get("listen_wan") and table.get("address_wan") == "":
            hint = "give `address_wan`, which others dial"
            allowed = "only together with `address_wan`"
            yield Problem((*path, "listen_wan"), shown(table["listen_wan"]), allowed, hint)
        for neighbour in table.get("neighbours") or ():
            if neighbour not in names or neighbour == table.get("name"):
                allowed = f"another party or region, or `{GLOBAL}`"
                yield Problem((*path, "neighbours"), shown(neighbour), allowed)
        given, workers = table.get("worker_addresses") or (), table.get("workers")
        if given and not inside:
            yield Problem(
                (*path, "worker_addresses"),
                f"{len(given)} of them",
                "only with lan.overlay",
                "it has no effect",
            )
        elif given and workers and len(given) != workers:
            yield Problem(
                (*path, "worker_addresses"), f"{len(given)} of them", f"{workers}, one for each worker"
            )
