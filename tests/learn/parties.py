"""A data set over three parties that have unequal shares of unlike rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from live_runs import place_of, train

from geomx.train import LiveRun


def unlike(x: Any, y: Any, parts: int) -> list[Any]:
    """Rows in unequal parts, each mostly of some labels: the places of their rows."""
    order = np.argsort(y + 0.3 * np.random.default_rng(0).standard_normal(len(y)) * np.std(y), kind="stable")
    shares = np.cumsum(np.arange(1, parts + 1)) / (parts * (parts + 1) / 2)
    return np.split(order, [int(share * len(y)) for share in shares[:-1]])


def over_parties(
    make: Callable[[], Any], x: Any, y: Any, use: Callable[[Any], Any], **more: Any
) -> list[Any]:
    """What every one of three parties has found."""
    parts = unlike(x, y, 3)

    def main(run: LiveRun) -> Any:
        own = parts[place_of(run)]
        given = {name: each[own] for name, each in more.items()}
        found = use(make().fit(x[own], y[own], **given, run=run))
        run.close()
        return found

    results, _ = train((1, 1, 1), main)
    return list(results.values())


def alone(make: Callable[[], Any], x: Any, y: Any, use: Callable[[Any], Any], **more: Any) -> Any:
    """The same on one machine, which has the rows in the order of the run."""
    rows = np.concatenate(unlike(x, y, 3))
    return use(make().fit(x[rows], y[rows], **{name: each[rows] for name, each in more.items()}))
