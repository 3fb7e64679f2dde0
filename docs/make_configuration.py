"""Writes `configuration.md`, the reference of a run's description, from the code that reads it.

python docs/make_configuration.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

from pydantic.fields import FieldInfo

from geomx.config import AGREED, AGREED_OF_A_PARTY, LinkTable, Run
from geomx.config.fields import TABLES, as_table, is_listed, keys, words
from geomx.config.problems import shown
from geomx.config.tables import Table

TARGET = Path(__file__).with_name("configuration.md")

EXAMPLE = """\
[run]
script = "train.py"
shards = 2

[wan]
link = { rate_mbps = 100, delay_ms = 20 }

[[party]]
name = "A"
workers = 2

[[party]]
name = "B"
workers = 2
link = { rate_mbps = 20, delay_ms = 40, loss = 0.01 }

[[event]]
at_s = 30
for_s = 20
party = "B"
rate_mbps = 5
"""

PREFACE = f"""\
# Configuration

<!-- Made from the code by docs/make_configuration.py: change it there. -->

A run is described by one TOML file. Only `[[party]]` must be there; everything else has a default:

```toml
{EXAMPLE}```

`geomx check RUN.toml` validates a file and draws the tree of its nodes. All faults are named at once, each
with its key and line, what was found, what is allowed, and the nearest valid name. `geomx run` makes the same
checks before it starts anything. The training script and the TLS files must be on the machine; to check a file on
a machine that runs no node, add `--elsewhere`.

**Overrides.** `geomx run RUN.toml wan.link.rate_mbps=20 party.B.workers=3` changes keys before the file is
validated. Keys are dotted; a party is named (`party.B.workers`) or counted from 0 (`party[1].workers`). Values
are written as in TOML; what is no TOML value is text: `worker.overlap=forward`.

**Agreement.** The nodes of a run may have files of their own. Keys marked with ● must be the same in all of
them, and so must be the names and the order of the parties; a node that differs is refused, with the list of
differences.

**Paths** are relative to the folder of the file; `~` is your home folder.
"""

DEFAULTS = {"run.name": "the file's name"}


def reference() -> str:
    """The whole page."""
    Run.parse(EXAMPLE, "example.toml")
    sections = [PREFACE]
    for name, table in TABLES.items():
        title = f"[[{name}]]" if is_listed(name) else f"[{name}]"
        sections.append("\n".join(_section(f"`{title}`", name, table)))
    sections.append(
        "\n".join(_section("Links: `wan.link`, `lan.link`, `link` of a party", "link", LinkTable))
    )
    return "\n".join(sections)


def _section(title: str, name: str, table: type[Table]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{cleandoc(table.__doc__ or '')}\n"
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key, field in keys(table).items():
        mark = " ●" if _agreed(name, key) else ""
        cells = (f"`{key}`{mark}", _type(field), _default(name, key, field), field.description or "")
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _agreed(table: str, key: str) -> bool:
    return f"{table}.{key}" in AGREED or (table == "party" and key in AGREED_OF_A_PARTY)


def _type(field: FieldInfo) -> str:
    return "table, see Links" if as_table(field.annotation) is LinkTable else words(field)


def _default(table: str, key: str, field: FieldInfo) -> str:
    if text := DEFAULTS.get(f"{table}.{key}"):
        return text
    if field.is_required():
        return "**required**"
    return "none" if field.default is None else f"`{shown(field.default)}`"


def main() -> int:
    """Write the page, or with `--check` only compare; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/configuration.md from the code.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if the file is stale"
    )
    text = reference()
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.name} is stale: run `python docs/make_configuration.py`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
