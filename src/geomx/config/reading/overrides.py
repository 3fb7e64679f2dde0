"""`key=value` on the command line: changes a description before it is validated.

Keys are dotted; an element of a list is named by its place (`party[0].workers`), a party by its name as well
(`party.A.workers`). Values are TOML, and what is no TOML is text: `wan.codec_up=dense`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from geomx.config.reading.document import Document
from geomx.config.reading.problems import KeyPath, dotted, shown
from geomx.errors import Fault, nearest

_KEY = re.compile(r"[A-Za-z0-9_-]+(\[\d+\])*(\.[A-Za-z0-9_-]+(\[\d+\])*)*")
_STEP = re.compile(r"\[(\d+)\]|([A-Za-z0-9_-]+)")


class _NoSuchKeyError(Exception):
    def __init__(self, found: str, allowed: str, hint: str = "") -> None:
        self.fault = (found, allowed, hint)


def apply_overrides(document: Document, overrides: Sequence[str]) -> list[Fault]:
    """Apply each override in turn to `document`; those that cannot be applied are the faults."""
    faults = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not _KEY.fullmatch(key.strip()):
            example = "`key=value`, such as `wan.link.rate_mbps=20`"
            faults.append(Fault(f"override `{override}`", "no key with a value", example))
            continue
        try:
            path = _assign(document.data, _steps(key), literal(value.strip()))
        except _NoSuchKeyError as error:
            faults.append(Fault(f"override `{override}`", *error.fault))
        else:
            within = len(path)
            document.places = {p: place for p, place in document.places.items() if p[:within] != path}
            document.places[path] = f"override `{override}`"
    return faults


def literal(text: str) -> Any:
    """A value as TOML writes it; what is no TOML value is text."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also of integers with thousands of digits, and deep nesting
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _steps(key: str) -> list[str | int]:
    return [int(match[1]) if match[1] else match[2] for match in _STEP.finditer(key)]


def _assign(data: dict[str, Any], steps: Sequence[str | int], value: Any) -> KeyPath:
    """Set the value; returns its path, in which parties are numbers. Missing tables are made."""
    path: KeyPath = ()
    node: Any = data
    for step in steps[:-1]:
        key = _find(node, step, path)
        path += (key,)
        node = node.setdefault(key, {}) if isinstance(node, dict) else node[key]
    key = _find(node, steps[-1], path)
    node[key] = value
    return (*path, key)


def _find(node: Any, step: str | int, path: KeyPath) -> str | int:
    """The key or index that `step` names in `node`, which stands at `path`."""
    if isinstance(node, dict) and isinstance(step, str):
        return step
    if isinstance(node, list) and isinstance(step, int):
        if step < len(node):
            return step
        raise _NoSuchKeyError(f"no {dotted((*path, step))}", f"{dotted(path)}[0] to [{len(node) - 1}]")
    if isinstance(node, list):
        names = [item.get("name") if isinstance(item, dict) else None for item in node]
        if step in names:
            return names.index(step)
        known = [name for name in names if isinstance(name, str)]
        allowed = ", ".join(f"{dotted(path)}.{name}" for name in known) or "a place: `[0]`"
        raise _NoSuchKeyError(f"no {dotted((*path, step))}", allowed, nearest(step, known))
    kind = "a table" if isinstance(node, dict) else shown(node)
    raise _NoSuchKeyError(
        f"{dotted(path)} is {kind}", "a key" if isinstance(node, dict) else "a key inside a table"
    )
