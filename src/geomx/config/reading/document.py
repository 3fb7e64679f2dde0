"""A description as it stands in its file: the values, and the line of each key."""

from __future__ import annotations

import json
import math
import re
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geomx.config.paths import nearest_file
from geomx.config.reading.problems import KeyPath, Problem, dotted, odd_character, shown
from geomx.errors import ConfigError, Fault

MOST_BYTES = 4 << 20


@dataclass(slots=True)
class Document:
    """`places`: where a key stands, by path: a line's number, or words."""

    data: dict[str, Any]
    places: dict[KeyPath, int | str] = field(default_factory=dict)

    def faults(self, problems: Sequence[Problem]) -> list[Fault]:
        """The problems with their places, in the order of the file."""
        placed = [(self._place(problem.path), problem) for problem in problems]
        placed.sort(key=lambda item: item[0] if isinstance(item[0], int) else math.inf)
        return [
            Fault(_where(problem.path, place), problem.found, problem.allowed, problem.hint)
            for place, problem in placed
        ]

    def _place(self, path: KeyPath) -> int | str:
        """Where a key stands; for one that is not there, where the table does that it would stand in."""
        while path and path not in self.places:
            for inner, place in self.places.items():
                if inner[: len(path)] == path:  # of `[party.A]` only the table inside has a line
                    return place
            path = path[:-1]
        return self.places.get(path, "")


def _where(path: KeyPath, place: int | str) -> str:
    if isinstance(place, int):
        return f"{dotted(path)} (line {place})"
    return f"{dotted(path)} ({place})" if place else dotted(path)


def read_text(path: Path) -> str:
    """A description's text, without a byte-order mark. Raises `ConfigError` where there is no such text."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) <= MOST_BYTES:
            return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
        fault = Fault(str(path), f"more than {MOST_BYTES >> 20} MiB", "a run's description")
    except UnicodeDecodeError as error:
        if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            fault = Fault(str(path), "a text in UTF-16", "a text file in UTF-8", "save it as UTF-8")
        else:
            fault = Fault(str(path), f"byte {error.start} is no UTF-8", "a text file in UTF-8")
    except (OSError, ValueError) as error:  # ValueError: of a path that holds NUL
        why = getattr(error, "strerror", None) or str(error)
        fault = Fault(str(path), why, "a file that can be read", nearest_file(path))
    raise ConfigError(str(path), [fault])


def read_toml(text: str, source: str) -> Document:
    """Raises `ConfigError` on a fault of syntax."""
    try:
        return Document(tomllib.loads(text), dict(_lines(text)))
    except RecursionError as error:
        fault = Fault("the file", "brackets within brackets, far too deep", "TOML")
        raise ConfigError(source, [fault]) from error
    except ValueError as error:  # TOMLDecodeError; Python's own of an integer that has thousands of digits
        raise ConfigError(source, [_syntax(text, str(error))]) from error


def _syntax(text: str, reason: str) -> Fault:
    match = re.search(r"\(at line (\d+), column (\d+)", reason)
    if match is None and "end of document" not in reason:
        return Fault("the file", reason, "TOML")
    if match is None:
        return Fault("end of the file", shown(text.rstrip().rpartition("\n")[2].strip()), "TOML", reason)
    number, column = int(match[1]), int(match[2])
    line = text.split("\n")[number - 1]
    odd = odd_character(line[column - 1 : column])
    hint = reason
    if odd:
        hint = f"{reason}: {odd}"
    elif reason.startswith("Invalid value"):
        hint = f'{reason}: put text in "quotes"; write `true` and `false` in lower case'
    return Fault(f"line {number}", shown(line.strip()), "TOML", hint)


def read_json(text: str, source: str) -> Document:
    """What `Run.save` wrote; raises `ConfigError` where it is no JSON object."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        found = shown(text.split("\n")[error.lineno - 1].strip())
        raise ConfigError(source, [Fault(f"line {error.lineno}", found, "JSON", error.msg)]) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(source, [Fault("the file", str(error), "JSON, as `Run.save` writes it")]) from error
    if not isinstance(data, dict):
        raise ConfigError(source, [Fault("the file", shown(data), "a JSON object, as `Run.save` writes it")])
    return Document(data)


def _lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """The line of every key in a valid TOML text, tables before what stands in them."""
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    for line, statement, parsed in _statements(text):
        if statement.startswith("["):
            *outer, last = _header(parsed)
            table = (*_numbered(outer, counts), last)
            if statement.startswith("[["):
                counts[table] = counts.get(table, 0) + 1
            table = _numbered([*outer, last], counts)
            yield table, line
        else:
            for path in _paths(parsed):
                yield table + path, line


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Each `key = value` and each `[header]`: its first line, its text, and what it means by itself.

    A statement that is not complete yet has an open bracket or quote: it is no valid TOML.
    """
    pending, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        first = first if pending else number
        pending += f"{line}\n"
        if line.rstrip().endswith(",") and "#" not in line:
            continue  # no statement ends so: a long list is not parsed anew at each of its lines
        try:
            parsed = tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        if parsed:
            yield first, pending.strip(), parsed
        pending = ""


def _header(parsed: Any) -> tuple[str, ...]:
    """The keys of a header from what it means: `[[party.link]]` is `{"party": {"link": [{}]}}`."""
    names: tuple[str, ...] = ()
    while isinstance(parsed, dict) and parsed:
        ((name, parsed),) = parsed.items()
        names += (name,)
    return names


def _numbered(names: Sequence[str], counts: dict[KeyPath, int]) -> KeyPath:
    """The path that a header's keys name: where there are several tables of a name, the last of them."""
    path: KeyPath = ()
    for name in names:
        path += (name,)
        if path in counts:
            path += (counts[path] - 1,)
    return path


def _paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of a value's keys, at every depth."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))
