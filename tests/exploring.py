"""How many examples of a property are tried: a few that are always the same, or many new ones (`make explore`)."""

from __future__ import annotations

from pathlib import Path

from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

USUAL = 100
DATABASE = Path(__file__).parents[1] / ".hypothesis" / "examples"


def register() -> None:
    """The two profiles, and the one that is in force unless `--hypothesis-profile` names the other."""
    # A change is judged by the same examples everywhere, so that what fails has been broken by the change.
    settings.register_profile(
        "geomx", deadline=None, derandomize=True, database=None, print_blob=True, max_examples=USUAL
    )
    # What this finds is kept in the database until it is mended, and becomes an `@example`.
    settings.register_profile(
        "explore",
        deadline=None,
        derandomize=False,
        database=DirectoryBasedExampleDatabase(DATABASE),
        print_blob=True,
        max_examples=30 * USUAL,
    )
    settings.load_profile("geomx")


def examples(usual: int) -> settings:
    """For a property that needs more or fewer than the others: as a part of what the profile tries."""
    return settings(max_examples=max(1, usual * settings.default.max_examples // USUAL))
