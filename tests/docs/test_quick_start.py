"""docs/quick-start.md as its reader follows it: files are written, commands run, and they print what the page shows.

*Install* is left out: it needs an index of packages, and `.ci/run` installs geomx in the same way. The two machines are
two folders of this one: their names become `localhost`, their ports free ones, and `scp` becomes `cp`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from following import begun, printed_by

from geomx.launch.local.ports import Ports

pytestmark = [pytest.mark.processes, pytest.mark.grids]

PAGE = Path(__file__).parents[2] / "docs" / "quick-start.md"
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE))
BLOCK = re.compile(r"([^\n]*)\n+^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (at the end of )?([\w.-]+)\n")
NUMBER = re.compile(r"\d[\d.,]*")
NODES = ("geomx serve ", "geomx worker ")


class Reader:
    """Follows the page below `folder`. `names`: what is written here in place of a name of the page."""

    def __init__(self, folder: Path, names: dict[str, str]) -> None:
        self._names = names
        self._paris, self._tokyo = folder / "quick-start", folder / "tokyo"
        self._paris.mkdir()
        self._tokyo.mkdir()
        self._nodes: list[tuple[str, Path]] = []
        self._printed = ""

    def follow(self, section: str) -> None:
        """Do what a section says. Raises where a command fails, or prints something else than the page shows."""
        for before, language, block in BLOCK.findall(SECTIONS[section]):
            if language == "sh":
                self._run(self._here(block), self._tokyo if before == "In Tokyo:" else self._paris)
            elif language == "text":
                if block.endswith("left\n"):
                    self.run_nodes()
                self._compare(block)
            else:
                self._write(self._here(block))

    def run_nodes(self) -> None:
        """Start every node that the page has named so far, and return when all have ended."""
        started = [begun(command, where) for command, where in self._nodes]
        try:
            self._printed = "".join([printed_by(node) for node in started])
        finally:
            for node in started:
                node.kill()

    def has(self, file: str) -> bool:
        return (self._paris / file).is_file()

    def _here(self, text: str) -> str:
        for name, here in self._names.items():
            text = text.replace(name, here)
        return text

    def _write(self, block: str) -> None:
        kind = FILE.match(block)
        assert kind is not None, f"a file without a name:\n{block}"
        with (self._paris / kind[2]).open("a" if kind[1] else "w", encoding="utf-8") as file:
            file.write(block)

    def _run(self, block: str, where: Path) -> None:
        if block.startswith(NODES):
            self._nodes += [(line, where) for line in block.splitlines()]
        else:
            self._printed = printed_by(begun(f"set -e\n{block}", where))

    def _compare(self, shown: str) -> None:
        """Line by line, but for numbers, spaces, and what `...` stands for."""
        printed = [plain(line) for line in self._printed.splitlines()]
        for line in shown.splitlines():
            assert line == "..." or any(each.startswith(plain(line)) for each in printed), (
                f"{line!r} is not in\n{self._printed}"
            )


def plain(line: str) -> str:
    return " ".join(NUMBER.sub("N", line).split())


def test_one_machine(tmp_path: Path) -> None:
    reader = Reader(tmp_path, {})
    reader.follow("Write a training script")
    assert reader.has("model.safetensors")
    reader.follow("Train in two data centers on one machine")
    assert reader.has("report.json")


def test_two_machines(tmp_path: Path) -> None:
    with Ports() as ports:
        free = {f":{port}": f":{ports.hold()}" for port in (7000, 7001, 7002)}
        copied = {"scp": "cp", "tokyo.example.org:quick-start": "../tokyo", "paris.example.org": "localhost"}
        reader = Reader(tmp_path, free | copied)
        reader.follow("Write a training script")
        reader.follow("Train on two machines")
        assert reader.has("model.safetensors")
        reader.follow("Encrypt with TLS")
        assert "[tls]" in (tmp_path / "tokyo" / "sites.toml").read_text(encoding="utf-8")
        reader.run_nodes()


def test_every_section_with_commands_is_followed() -> None:
    followed = {
        "Install",
        "Write a training script",
        "Train in two data centers on one machine",
        "Train on two machines",
        "Encrypt with TLS",
    }
    assert {title for title, text in SECTIONS.items() if BLOCK.search(text)} == followed
