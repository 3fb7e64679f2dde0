"""What a field allows, in words; and the faults of single fields in those words."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from geomx.config.reading.forms import UNFIT, Form, names_of
from geomx.config.reading.problems import KeyPath, Problem, dotted, shown
from geomx.config.tables import Description, Table
from geomx.errors import nearest

_PLAIN = {str: "text", bool: "true or false", int: "integer", float: "number", Path: "path of a file"}
# What stands elsewhere than among the keys, where it may be looked for.
_ELSEWHERE = {
    "size_lower_bound": "it is a parameter of codecs, as in `mpq size_lower_bound=200000`; which tensors share "
    "slices is `layout.pack_below`",
}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def keys(table: type[Table]) -> dict[str, FieldInfo]:
    """A table's fields by the keys that a user writes."""
    return {field.alias or name: field for name, field in table.model_fields.items()}


def words(field: FieldInfo) -> str:
    """What a field allows: `integer ≥ 1`."""
    if get_origin(field.annotation) is tuple and as_table(field.annotation):
        tables, lengths = f"`[[{field.alias}]]`", _lengths(field.metadata)
        return f"{lengths} {tables} tables" if lengths else f"one {tables} table or more"
    return _words(field.annotation, field.metadata)


def _words(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    for item in metadata:
        if isinstance(item, Form):
            return item.words
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, types.UnionType):  # `X | None` allows what X does: TOML has no None
        return _words(inner[0], (*metadata, *inner[1:]))
    if origin is Literal:
        return ", ".join(f'"{name}"' for name in inner)
    if table := as_table(annotation):
        return f"table of {', '.join(f'`{key}`' for key in keys(table))}"
    if origin is tuple:
        return f"list of {_words(inner[0])}"
    return f"{_PLAIN[annotation]} {', '.join(_bounds(metadata))}".strip()


def _bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for item in metadata:
        if isinstance(item, FieldInfo):  # the bounds of `X` in `X | None`
            yield from _bounds(item.metadata)
        for name, sign in _SIGNS.items():
            if hasattr(item, name):
                yield f"{sign} {getattr(item, name)}"


def _lengths(metadata: Sequence[Any]) -> str:
    """`2 to 32`, where there is a most."""
    least = next((item.min_length for item in metadata if hasattr(item, "min_length")), 0)
    return next((f"{least} to {item.max_length}" for item in metadata if hasattr(item, "max_length")), "")


def as_table(annotation: Any) -> type[Table] | None:
    """The table inside an annotation, also inside `X | None` and `tuple[X, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    return next(filter(None, map(as_table, get_args(annotation))), None)


def tables_of(kind: type[Table]) -> dict[str, type[Table]]:
    """The tables that stand in a table, by key."""
    return {key: table for key, field in keys(kind).items() if (table := as_table(field.annotation))}


TABLES = tables_of(Description)


def is_listed(name: str, kind: type[Table] = Description) -> bool:
    """Whether there may be several tables of a name: `[[party]]`, `[[event]]`."""
    return get_origin(keys(kind)[name].annotation) is tuple


def _names(field: FieldInfo) -> tuple[str, ...]:
    """The names that are probably meant where the field has a wrong one."""
    if get_origin(field.annotation) is Literal:
        return get_args(field.annotation)
    return names_of(field.metadata)


def _table_of(path: KeyPath, kind: type[Table]) -> type[Table]:
    """The table in which the last key of `path` stands."""
    table = kind
    for key in path[:-1]:
        if isinstance(key, str):
            table = as_table(keys(table)[key].annotation) or table
    return table


def _homes(key: str, table: type[Table], prefix: str = "") -> Iterator[str]:
    """Where a key would be at home: `wan.codec_up`, `lan.codec_up`."""
    for name, field in keys(table).items():
        if name == key:
            yield f"`{prefix}{key}`"
        if inner := as_table(field.annotation):
            yield from _homes(key, inner, f"{prefix}{name}.")


def _unknown(path: KeyPath, value: Any, kind: type[Table]) -> Problem:
    known, key = keys(_table_of(path, kind)), str(path[-1])
    homes = list(_homes(key, kind))
    hint = _ELSEWHERE.get(key) or (f"there is {', '.join(homes)}" if homes else nearest(key, known))
    what = "an unknown table" if isinstance(value, dict) else "an unknown key"
    return Problem(path, what, ", ".join(f"`{name}`" for name in known), hint)


def _wrong(item: ErrorDetails, kind: type[Table]) -> Problem:
    named = path = item["loc"]
    value = item["input"]
    while isinstance(named[-1], int):
        named = named[:-1]
    field = keys(_table_of(named, kind))[str(named[-1])]
    if item["type"] == "missing":
        return Problem(path, "nothing", words(field))
    if item["type"] == "too_long":
        return Problem(path, f"{len(value)} of them", words(field))
    if item["type"] == UNFIT:
        said = item["ctx"]
        return Problem(path, said["found"] or shown(value), said["allowed"] or words(field), said["hint"])
    return Problem(path, shown(value), words(field), nearest(value, _names(field)))


def field_problems(error: ValidationError, kind: type[Table]) -> list[Problem]:
    """Each fault that pydantic found in a table, in our words."""
    problems: dict[str, Problem] = {}
    items = error.errors(include_url=False)
    outer = {item["loc"][:depth] for item in items for depth in range(len(item["loc"]))}
    for item in items:
        path = item["loc"]
        if item["type"] == "too_short" and path in outer:
            continue  # tables that have faults of their own were not counted
        unknown = item["type"] == "extra_forbidden"
        problem = _unknown(path, item["input"], kind) if unknown else _wrong(item, kind)
        problems.setdefault(dotted(path), problem)
    return list(problems.values())
