"""Writes `configuration.md`, the reference of a run's description, from the code that reads it.

python docs/make_configuration.py [--check]
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from geomx.channels import channels
from geomx.codecs import codecs
from geomx.config import AGREED, AGREED_OF_EACH, LinkTable, Run
from geomx.config.reading.fields import TABLES, as_table, is_listed, keys, words
from geomx.config.reading.problems import shown
from geomx.config.tables import BelowTable, LanTable, RegionTable, Table, WanTable
from geomx.config.tables.links import EventTable
from geomx.config.tables.members import ServerTable
from geomx.optim import compensations
from geomx.registry import Registry
from geomx.sync import policies

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

Every key of the TOML file that describes a run. Only `[[party]]` is required:

```toml
{EXAMPLE}```

`geomx check RUN.toml` draws the tree of nodes, or reports all mistakes at once, each with its key, line, allowed
values and the nearest valid name; so does `geomx run` before it starts. To check a file on a machine without the script
and the TLS files, add `--elsewhere`.

**Change keys on the command line:** `geomx run RUN.toml wan.link.rate_mbps=20 party.B.workers=3`. Parties have names,
or places from 0 (`party[1].workers`). Values are TOML; anything else is text (`worker.overlap=forward`).

**Each machine may have its own file.** Keys marked ● must be the same in all, and so must the names and the order of
the parties. A node whose file differs is refused, with a list of the differences. **Paths** are relative to the file's
folder; `~` is your home folder.

**Choices** may have parameters (`codec_up = "topk ratio=0.01"`), or be [your own class](extending.md)
(`codec_up = "my_codecs:Mine"`). Built in:

"""

DEFAULTS = {"run.name": "the file's name, without its ending"}
TYPES = {
    ("region", "name"): "as a party's",
    ("event", "party"): "a name",
}  # that would say again what another key has

CHOICES: dict[str, tuple[str, Registry[Any]]] = {
    "policy": ("[sync policy](sync.md)", policies),
    "codec_up": ("[codec](codecs.md)", codecs),
    "codec_down": ("[codec](codecs.md)", codecs),
    "compensation": ("[compensation](sync.md#mixedsync)", compensations),
    "channel": ("[channel](#channels)", channels),
}
CHANNELS = """\
`datagram` and `dgt` send contributions and updates in datagrams, for [links that lose packets](lossy-links.md), and
need a secret or TLS. Blocks of a contribution may be lost with `dgt` and with `deadline`; all else arrives. `dgt` also
needs the script's [training loss](training-loop.md#tell-the-loss), unless `adaptive=false`. You can
[write a channel](extending.md#write-a-channel).
"""

PARAMETERS = {
    "deadline": "Round trips since a slice's last block was sent, for which lost blocks of a contribution are sent "
    "again. 0: until all have arrived.",
    "fec": "Parity datagrams for each datagram, up to 1, from which lost ones are rebuilt. 0: as the measured loss "
    "asks for, of what must arrive.",
    "k": "Fraction of blocks, by contribution, that is sent until it has arrived; 0 to 1.",
    "k_least": "The least that `adaptive` makes of `k`, or `k` itself if that is less.",
    "channels": "Classes of the other blocks, 1 to 254. With 3: class 1 is sent up to 3 times, class 2 twice, class 3 "
    "once.",
    "alpha": "Weight of earlier rounds in a block's rank; 0 to below 1.",
    "adaptive": "Use `k` · loss / first loss, from `k_least` to 1; at a loss of 0 or below, `k`. The script must call "
    "`run.loss`; checkpoints keep the first loss.",
    "rank": "`contribution`, or `random` to compare with.",
    "drop": "`true`: do not send the other blocks at all, to compare with.",
}
FROM_TO = re.compile(r"(number )?≥ (\S+), ≤ (\S+)")


def reference() -> str:
    """The whole page."""
    Run.parse(EXAMPLE, "example.toml")
    sections = [f"{PREFACE}{_built_in()}\n"]
    for name, table in TABLES.items():
        title = f"[[{name}]]" if is_listed(name) else f"[{name}]"
        sections.append("\n".join(_section(f"`{title}`", name, table)))
        if table is RegionTable:
            sections.append("\n".join(_section("Below a region", "region.below", BelowTable)))
    sections.append("\n".join(_section("Links", "link", LinkTable)))
    sections.append("\n".join(_channels()))
    return "\n".join(sections)


def _built_in() -> str:
    named = {kind: ", ".join(f"`{name}`" for name in registry.names) for kind, registry in CHOICES.values()}
    return "\n".join(f"- {kind}: {names}" for kind, names in named.items())


def _section(title: str, name: str, table: type[Table]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{cleandoc(table.__doc__ or '')}\n"
    if table is LanTable:
        yield "It has the keys of `[wan]` except `pace_mbps`. Only those that differ are listed:\n"
    if table is RegionTable:
        alike = ", ".join(f"`{key}`" for key in keys(ServerTable) if key != "name")
        yield f"It has these keys of a [party](#party): {alike}; and its own:\n"
    if table is EventTable:
        new = ", ".join(f"`{key}`" for key in keys(LinkTable))
        yield f"New values of a [link](#links): {new}. Besides:\n"
    if table is BelowTable:
        yield "The table `below` of a region has the keys of `[wan]`. Only those that differ are listed:\n"
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key, field in keys(table).items():
        if table in (BelowTable, LanTable) and _is_as_over_the_wan(key, field):
            continue
        if table is RegionTable and key != "name" and key in keys(ServerTable):
            continue
        if table is EventTable and key in keys(LinkTable):
            continue
        mark = " ●" if _agreed(name, key) else ""
        cells = (
            f"`{key}`{mark}",
            TYPES.get((name, key)) or _type(key, field),
            _default(name, key, field),
            field.description or "",
        )
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _channels() -> Iterator[str]:
    """What the built-in channels are, with their parameters as the code has them."""
    yield f"## Channels\n\n{CHANNELS}"
    yield "| channel | parameter | default | meaning |"
    yield "|---|---|---|---|"
    for name in channels.names:
        parameters = inspect.signature(channels.find(name)).parameters.values()
        for parameter in (each for each in parameters if each.kind is each.KEYWORD_ONLY):
            default = shown(parameter.default).strip('"')
            yield f"| `{name}` | `{parameter.name}` | `{default}` | {PARAMETERS[parameter.name]} |"
    yield ""


def _is_as_over_the_wan(key: str, field: FieldInfo) -> bool:
    wan = keys(WanTable).get(key)
    return wan is not None and (wan.default, wan.description) == (field.default, field.description)


def _agreed(table: str, key: str) -> bool:
    kind, _, inner = table.partition(".")
    return f"{table}.{key}" in AGREED or f"{inner}.{key}".lstrip(".") in AGREED_OF_EACH.get(kind, ())


def _type(key: str, field: FieldInfo) -> str:
    if as_table(field.annotation) is LinkTable:
        return "[link](#links)"
    if as_table(field.annotation) is BelowTable:
        return "[edges](#below-a-region)"
    if key in CHOICES:
        return CHOICES[key][0]
    return FROM_TO.sub(r"\2 to \3", words(field))


def _default(table: str, key: str, field: FieldInfo) -> str:
    if text := DEFAULTS.get(f"{table}.{key}"):
        return text
    if field.is_required():
        return "**required**"
    if field.default_factory is not None:
        return "those of its table"
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
