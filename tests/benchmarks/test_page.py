"""The benchmark page shows what its file of figures has."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks import page, sweep, tables
from benchmarks.cells import Cell, Result, write_results
from benchmarks.suites import SUITES
from benchmarks.tables import Part, Table

DOCS = Path(__file__).parents[2] / "docs"
KNOWN = tables.read_parts(DOCS / "data" / "benchmarks.jsonl")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["page.py", *arguments])
    return page.main()


def test_the_page_is_what_its_words_and_figures_make() -> None:
    assert (DOCS / "benchmarks.md").read_text("utf-8") == page.page(KNOWN)


@pytest.mark.parametrize("name", page.SHOWN["table"])
def test_what_a_table_shows_is_there(name: str) -> None:
    asked = page.SHOWN["table"][name]
    table = KNOWN[tuple(asked["part"])].table
    assert set(asked.get("columns", ())) <= set(table.columns)
    found = table.chosen(rows=asked.get("rows", ()))
    known = "\n".join([*(f"{row[0]}; {row[1]}" for row in found.rows), *found.missing])
    assert [row for row in asked.get("rows", ()) if row not in known] == []


@pytest.mark.parametrize("name", page.SHOWN["across"])
def test_what_a_table_over_several_parts_shows_is_there(name: str) -> None:
    asked = page.SHOWN["across"][name]
    found = [KNOWN[asked["section"], title].table for title in asked["parts"].values()]
    assert all(set(asked["figures"]) <= set(table.columns) for table in found)
    for row in asked["rows"]:
        assert any(table.cell(row, asked["figures"][0]) != tables.NOTHING for table in found), row


def test_every_table_of_the_file_of_choices_has_a_place_and_every_picture_a_file() -> None:
    places = set(page.PLACE.findall(page.TEMPLATE))
    assert places == {*page.SHOWN["table"], *page.SHOWN["across"], "versions", "settings"}
    shown = re.findall(r"\(pictures/(bench-[^)]*)\.svg\)", page.page(KNOWN))
    files = {path.stem for path in (DOCS / "pictures").glob("bench-*.svg")}
    assert set(shown) == files


def test_policies_are_those_of_the_rows_that_were_kept() -> None:
    made = page.policies(sweep.rows_of(DOCS / "data" / "algorithms.jsonl"))
    found = {part.title: (part.told, part.table) for part, _ in made}
    assert found == {
        part.title: (part.told, part.table) for part in KNOWN.values() if part.section == page.POLICIES
    }


def test_every_row_and_column_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--table") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for part in KNOWN.values() for line in part.table.lines() if line not in lines] == []
    assert run(monkeypatch, "--table", "gpt") == 0
    headings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("#")]
    assert len(headings) == 2
    assert "GPT" in headings[1]
    assert run(monkeypatch, "--table", "no such heading") == 1
    assert "no such heading" in capsys.readouterr().err


def test_parts_come_back_as_they_were_written(tmp_path: Path) -> None:
    part = Part(
        "section", "title", Table(["a", "b"], [["1", "–"]], ["who: why"]), "told", "measured", "picture"
    )
    tables.write_parts(tmp_path / "parts.jsonl", [part])
    assert tables.read_parts(tmp_path / "parts.jsonl") == {("section", "title"): part}


def test_new_figures_take_the_place_of_their_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "docs" / "data" / "benchmarks.jsonl"
    results = tmp_path / "results"
    results.mkdir()
    tables.write_parts(data, KNOWN.values())
    cell = Cell("geomx", "dense", "synthetic", 10, "100mbit-30ms", parties=1)
    turns = [{"at": "2026-01-02T03:04:05", "load": 1.5, "state": "ok", "round_s_median": 0.25}]
    write_results(results / "scale.jsonl", [Result.of(cell, round_s_median=0.25, turns=turns, commit="abc")])
    assert run(monkeypatch, "--results", str(results), "--docs", str(tmp_path / "docs")) == 0
    now = tables.read_parts(data)
    scale = SUITES["scale"]["title"], ""
    assert now[scale].table.rows == [["1", "0.250", "–", "–", "–", "–"]]
    assert {key: part for key, part in now.items() if key != scale} == {
        key: part for key, part in KNOWN.items() if key != scale
    }
    assert "commit abc" in (tmp_path / "docs" / "benchmarks.md").read_text("utf-8")


def test_without_figures_there_is_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--results", str(tmp_path), "--docs", str(tmp_path)) == 1
    assert not (tmp_path / "benchmarks.md").exists()
