"""From a document to a table: the one collector of everything that is wrong with a description.

Rules run on descriptions that have other faults, too, so that a user hears of all faults at once. So they
read plain values, by table and key: a key that has a fault of its own is absent, and a rule that misses a key
does not judge. A key that was left out has its default, unless its table has an unknown key: that may be what
was meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from geomx.config.reading.document import Document
from geomx.config.reading.fields import field_problems, is_listed, keys, tables_of
from geomx.config.reading.problems import KeyPath, Problem, shown
from geomx.config.tables import Table
from geomx.errors import ConfigError, Fault

Values = dict[str, Any]  # key -> value, of a table key -> value, of several of a name a list of those
Rule = Callable[[Values], Iterable[Problem]]
AnyTable = TypeVar("AnyTable", bound=Table)


def checked(
    kind: type[AnyTable],
    document: Document,
    source: str,
    rules: Sequence[Rule] = (),
    context: Mapping[str, Any] | None = None,
    faults: Sequence[Fault] = (),
) -> AnyTable:
    """The table that a document describes.

    Raises `ConfigError` with every fault: of single fields, of what fields are to each other, and `faults`.
    """
    described, problems = None, []
    try:
        described = kind.model_validate(document.data, context=dict(context or {}))
    except ValidationError as error:
        problems = field_problems(error, kind)
    problems += broken(rules, kind, document.data, [problem.path for problem in problems])
    if faults or problems or described is None:
        raise ConfigError(source, [*document.faults(problems), *faults])
    return described


def broken(
    rules: Sequence[Rule], kind: type[Table], data: Mapping[str, Any], faulty: Iterable[KeyPath] = ()
) -> list[Problem]:
    """Every contradiction between keys of `data` that have no fault of their own."""
    values = _usable(kind, data, set(faulty))
    return [problem for rule in rules for problem in rule(values)]


def _usable(kind: type[Table], data: Mapping[str, Any], faulty: set[KeyPath]) -> Values:
    tables = tables_of(kind)
    unknown = any(name not in keys(kind) for name in data)
    values = {key: value for key, value in _row(kind, data, (), faulty).items() if key not in tables}
    for name, table in tables.items():
        given = data.get(name, {})
        if is_listed(name, kind):
            rows = list(given) if isinstance(given, (list, tuple)) else []
            values[name] = [_row(table, row, (name, i), faulty) for i, row in enumerate(rows)]
        elif name not in data and unknown:
            values[name] = {}
        else:
            values[name] = _row(table, given, (name,), faulty)
    return values


def _row(table: type[Table], given: Any, path: KeyPath, faulty: set[KeyPath]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        return {}
    suspect = {fault[len(path)] for fault in faulty if fault[: len(path)] == path and len(fault) > len(path)}
    complete = all(key in keys(table) for key in given)
    defaults = table.model_construct().model_dump(by_alias=True) if complete else {}
    return {key: value for key, value in {**defaults, **given}.items() if key not in suspect}


# -- rules that several kinds of description have --------------------------------------------------------------


def unique_names(values: Values, key: str) -> Iterator[Problem]:
    """No two tables of a kind have one name."""
    first: dict[str, int] = {}
    for index, row in enumerate(values[key]):
        name = row.get("name")
        if name is None:
            continue
        other = first.setdefault(name, index)
        if other != index:
            where = f"it is the name of {key}[{other}]"
            yield Problem((key, index, "name"), shown(name), f"a name that no other {key} has", where)


def change_something(values: Values, key: str, changing: Sequence[str]) -> Iterator[Problem]:
    """A table that is there for what it changes does change something."""
    for index, row in enumerate(values[key]):
        if all(name in row and row[name] is None for name in changing):
            yield Problem((key, index), "nothing that changes", ", ".join(f"`{name}`" for name in changing))
