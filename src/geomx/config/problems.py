"""One thing wrong at one key, before it is known where in the file that key stands."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

KeyPath = tuple[str | int, ...]

SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """A `geomx.errors.Fault` whose `where` is still a path of keys."""

    path: KeyPath
    found: str
    allowed: str
    hint: str = ""


def dotted(path: KeyPath) -> str:
    """`("party", 1, "link")` as a user writes it: `party[1].link`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def shown(value: Any) -> str:
    """A value much as TOML writes it, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def nearest(name: Any, names: Iterable[str]) -> str:
    """`did you mean ...?`, or nothing where no name is near."""
    if not isinstance(name, str):
        return ""
    lowered = {known.lower(): known for known in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f"did you mean `{lowered[close[0]]}`?" if close else ""
