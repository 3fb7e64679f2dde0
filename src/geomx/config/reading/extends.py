"""A description that goes on from another one: `extends = "train.toml"` above its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geomx.config.reading.document import Document, read_text, read_toml
from geomx.errors import ConfigError, Fault

KEY = "extends"


def extended(document: Document, source: str) -> Document:
    """With what the file says that it extends: tables are joined key by key, all else stands in place of the other's.

    Raises `ConfigError` where there is no such file beside it, or that one extends another.
    """
    if KEY not in document.data:
        return document
    name = document.data.pop(KEY)
    where = f"{KEY} (line {document.places.pop((KEY,), '')})"
    if not isinstance(name, str) or not name.endswith(".toml") or Path(name).name != name:
        fault = Fault(where, repr(name), "the name of a `.toml` file in the same folder")
        raise ConfigError(source, [fault])
    path = Path(source).parent / name
    base = read_toml(read_text(path), str(path))
    if KEY in base.data:
        fault = Fault(where, f"{name}, which extends another itself", "a file that stands alone")
        raise ConfigError(source, [fault])
    places: dict[Any, int | str] = {key: f"{name}, line {line}" for key, line in base.places.items()}
    return Document(_joined(base.data, document.data), places | document.places)


def _joined(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    joined = dict(base)
    for key, value in own.items():
        before = joined.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            joined[key] = _joined(before, value)
        else:
            joined[key] = value
    return joined
