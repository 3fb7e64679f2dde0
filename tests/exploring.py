"""How much is tried: of a property, a few examples that are always the same or many new ones; of a grid, its pairs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

USUAL = 100
DATABASE = Path(__file__).parents[1] / ".hypothesis" / "examples"


def register() -> None:
    """The two profiles, and the one that is in force unless `--hypothesis-profile` names the other."""
    # On a busy machine anything is drawn slowly.
    patient = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
    # A change is judged by the same examples everywhere, so that what fails has been broken by the change.
    settings.register_profile("geomx", **patient, derandomize=True, database=None, max_examples=USUAL)
    # What this finds is kept in the database until it is mended, and becomes an `@example`.
    settings.register_profile(
        "explore",
        **patient,
        derandomize=False,
        database=DirectoryBasedExampleDatabase(DATABASE),
        max_examples=10 * USUAL,
    )
    settings.load_profile("geomx")


def pairwise(*axes: Iterable[Any]) -> list[Any]:
    """The cells of a grid, for `parametrize`; those that add no new pair of values are left to `make grids`."""
    cells = list(product(*(list(enumerate(axis)) for axis in axes)))
    pairs_of = [
        set(combinations([(axis, place) for axis, (place, _) in enumerate(cell)], 2)) for cell in cells
    ]
    missing, chosen = set().union(*pairs_of), set[int]()
    while missing:
        best = max(range(len(cells)), key=lambda number: len(pairs_of[number] & missing))
        chosen.add(best)
        missing -= pairs_of[best]
    rest = pytest.mark.grids
    return [
        pytest.param(*(value for _, value in cell), marks=() if number in chosen else rest)
        for number, cell in enumerate(cells)
    ]


def each_value(*axes: Iterable[Any]) -> list[Any]:
    """The cells of a grid; but for a few that have each value once, they are left to `make grids`."""
    values = [list(axis) for axis in axes]
    chosen = {tuple(n % len(axis) for axis in values) for n in range(max(map(len, values)))}
    cells = product(*(range(len(axis)) for axis in values))
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(values, cell, strict=True)),
            marks=() if cell in chosen else pytest.mark.grids,
        )
        for cell in cells
    ]


def examples(usual: int) -> settings:
    """For a property that needs more or fewer than the others: as a part of what the profile tries."""
    return settings(max_examples=max(1, usual * settings.default.max_examples // USUAL))
