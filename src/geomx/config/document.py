"""A description as it stands in its file: the values, and the line of each key."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geomx.config.problems import KeyPath, Problem, dotted, shown
from geomx.errors import ConfigError, Fault, nearest


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
            path = path[:-1]
        return self.places.get(path, "")


def _where(path: KeyPath, place: int | str) -> str:
    if isinstance(place, int):
        return f"{dotted(path)} (line {place})"
    return f"{dotted(path)} ({place})" if place else dotted(path)


def read_text(path: Path) -> str:
    """Raises `ConfigError` where there is no such text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        near = nearest(path.name, (other.name for other in path.parent.glob(f"*{path.suffix}")))
        fault = Fault(str(path), error.strerror or str(error), "a file that can be read", near)
    except UnicodeDecodeError as error:
        fault = Fault(str(path), f"byte {error.start} is no UTF-8", "a text file in UTF-8")
    raise ConfigError(str(path), [fault])


def read_toml(text: str, source: str) -> Document:
    """Raises `ConfigError` on a fault of syntax."""
    try:
        return Document(tomllib.loads(text), dict(_lines(text)))
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        match = re.search(r"\(at line (\d+)", reason)
        line = int(match[1]) if match else 0
        where = f"line {line}" if line else "end of the file"
        found = shown(text.rstrip().split("\n")[line - 1].strip())
        raise ConfigError(source, [Fault(where, found, "TOML", reason)]) from error


def read_json(text: str, source: str) -> Document:
    """What `Run.save` wrote; raises `ConfigError` where it is no JSON object."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        found = shown(text.split("\n")[error.lineno - 1].strip())
        raise ConfigError(source, [Fault(f"line {error.lineno}", found, "JSON", error.msg)]) from error
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
