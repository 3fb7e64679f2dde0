"""What the documents say of the code, held against the code; and that their links lead somewhere."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from geomx import cli
from geomx.config import Run
from geomx.wire.frames import PREFIX
from geomx.wire.messages import AnyMessage, Beat, decode_head
from geomx.wire.roster_messages import Message

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(language: str) -> list[tuple[str, str]]:
    """Every fenced block in a language: (page, content)."""
    form = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [(page.name, block) for page in PAGES for block in form.findall(page.read_text(encoding="utf-8"))]


def rows(page: str, heading: str) -> list[list[str]]:
    """The first table below a heading, without its head; cells without backquotes."""
    section = text_of(page).partition(f"\n## {heading}\n")[2]
    table = re.search(r"^\|.*?(?=\n\n|\n\Z)", section, re.DOTALL | re.MULTILINE)
    assert table is not None, f"{page} has no table below {heading}"
    return [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        for line in table[0].splitlines()[2:]
    ]


def test_the_wire_format_lists_every_message_with_its_fields() -> None:
    listed = {
        name: fields.split(", ") if fields else []
        for name, fields, *_ in rows("docs/wire-format.md", "Messages")
    }
    kinds: tuple[type[Message], ...] = get_args(AnyMessage)
    assert listed == {kind.__name__: list(kind.__struct_fields__) for kind in kinds}


@pytest.mark.parametrize(("constant", "value"), [row[:2] for row in rows("docs/wire-format.md", "Limits")])
def test_the_wire_format_has_the_limits_of_the_code(constant: str, value: str) -> None:
    module, _, name = constant.rpartition(".")
    assert getattr(importlib.import_module(module), name) == float(value)


def test_the_heartbeat_of_the_wire_format_is_one() -> None:
    shown = re.search(r"A heartbeat, whole:\n\n```text\n(.*?)```", text_of("docs/wire-format.md"), re.DOTALL)
    assert shown is not None
    frame = bytes.fromhex("".join(line.partition("   ")[0] for line in shown[1].splitlines()))
    number, size, head, priority = PREFIX.unpack_from(frame)
    assert (number, size, head, priority) == (0, len(frame) - PREFIX.size, size, 0)
    assert decode_head(frame[PREFIX.size :]) == Beat(7, 9, 0.0)


def test_the_final_table_is_the_same_wherever_it_is_quoted() -> None:
    quoted = {block for _, block in blocks("text") if "proved by the ledger" in block}
    assert len(quoted) == 1


def test_files_that_the_architecture_names_exist() -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text_of("docs/architecture.md")))
    assert len(named) > 20
    places = (ROOT / "src" / "geomx", ROOT)  # tests are named from the root
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []


def links_of(page: Path) -> list[str]:
    """To what lies beside it."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    return [target for target in found if not target.startswith("https://")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert sum(len(links_of(page)) for page in PAGES) > 50
    for target in links_of(page):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.is_file(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, target


@pytest.mark.parametrize(("page", "block"), blocks("toml"))
def test_descriptions_are_valid(page: str, block: str) -> None:
    tomllib.loads(block)
    if "[[party]]" in block:
        Run.parse(block, page)


COMMANDS = [
    (page, line) for page, block in blocks("sh") for line in block.splitlines() if line.startswith("geomx ")
]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_are_understood(page: str, line: str) -> None:
    assert callable(cli._parse(shlex.split(line, comments=True)[1:]).action)


def test_every_command_and_option_is_listed() -> None:
    listed = {
        row[0].split()[1]: set(re.findall(r"--[a-z-]+", row[2]))
        for row in rows("docs/commands.md", "On the command line")
    }
    (commands,) = (action for action in cli._parser()._actions if isinstance(action.choices, dict))
    (subjects,) = (
        action for action in commands.choices["inspect"]._actions if isinstance(action.choices, dict)
    )
    parsers = {**commands.choices, "inspect": subjects.choices["codec"]}
    known = {
        name: {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
        for name, parser in parsers.items()
    }
    assert listed == known


def test_make_lists_every_target() -> None:
    # As from a shell: make tells those that it has started which folder they enter.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    told = subprocess.run(
        ["make"], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    ).stdout
    listed = [line.split(maxsplit=2)[:2] for line in told.splitlines()]
    phony = re.search(r"^\.PHONY: (.*)$", text_of("Makefile"), re.MULTILINE)
    assert phony is not None
    assert sorted(listed) == sorted(["make", target] for target in phony[1].split())


def test_the_citation_is_of_this_version() -> None:
    (version,) = re.findall(r"^version: (.*)$", text_of("CITATION.cff"), re.MULTILINE)
    assert tomllib.loads(text_of("pyproject.toml"))["project"]["version"] == version


def test_every_variable_of_the_environment_is_listed() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert {row[0] for row in rows("docs/commands.md", "The environment")} == set(
        re.findall(r"GEOMX_[A-Z]+", code)
    )
