"""Which file is meant by a path that leads nowhere."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

MOST_ENTRIES = 2000  # of a folder that are looked at
MOST_SLIPS = 2  # parts of a path that may be wrong


def nearest_file(path: Path) -> str:
    """`did you mean ...?` with the file whose path differs least, or nothing.

    Args:
        path: absolute or relative. Any of its parts may be mistyped, also that of a folder.
    """
    here = Path(path.anchor)
    found = next(_alike(here, path.parts[1 if path.anchor else 0 :], MOST_SLIPS), None)
    return f"did you mean `{found}`?" if found is not None else ""


def _alike(here: Path, parts: tuple[str, ...], slips: int) -> Iterator[Path]:
    """Files below `here`, the most alike first."""
    if not parts:
        if _is(here, Path.is_file):
            yield here
        return
    wanted, rest = parts[0], parts[1:]
    for name in _entries(here, wanted, slips):
        yield from _alike(here / name, rest, slips - (name != wanted))


def _entries(folder: Path, wanted: str, slips: int) -> list[str]:
    """What in a folder is called so, or much like it."""
    names = [wanted] if _is(folder / wanted, Path.exists) else []
    if slips:
        lowered = {name.lower(): name for name in _names(folder) if name != wanted}
        names += [lowered[name] for name in difflib.get_close_matches(wanted.lower(), lowered)]
    return names


def _is(path: Path, what: Callable[[Path], bool]) -> bool:
    try:
        return what(path)
    except (OSError, ValueError):  # of a name that is too long, of a folder that may not be read
        return False


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in islice(folder.iterdir(), MOST_ENTRIES)]
    except OSError:
        return []
