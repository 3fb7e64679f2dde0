"""One thing wrong at one key, before it is known where in the file that key stands."""

from __future__ import annotations

import json
import unicodedata
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
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except ValueError:  # Python writes no integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def odd_character(text: Any) -> str:
    """A hint where a text has a character that looks like another one, or like nothing."""
    for character in text if isinstance(text, str) else "":
        if not " " <= character <= "~":
            code = f"U+{ord(character):04X}"
            named = f"{code}, {name}" if (name := unicodedata.name(character, "")) else code
            return f"`{character}` is {named}" if character.isprintable() else f"it has the character {named}"
    return ""
