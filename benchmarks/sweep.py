"""What the measuring scripts share: rows as JSON lines in out/bench, runs over a grid, and tables for the terminal."""

import argparse
import itertools
import json
import tomllib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = dict[str, Any]
HERE = Path(__file__).parent
OUT = HERE.parent / "out" / "bench"


def table_of(name: str) -> Row:
    """What a script compares: NAME.toml beside it."""
    return tomllib.loads((HERE / f"{name}.toml").read_text("utf-8"))


def rows_of(path: Path) -> list[Row]:
    """The rows of a file, if there is one."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def grouped(rows: Iterable[Row], key: str) -> dict[Any, list[Row]]:
    """Rows by what they have there, in their order."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def keep(path: Path, rows: Iterable[Row], mode: str = "a") -> None:
    """Add rows to a file; `mode` "w": in the place of those that it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open(mode, encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def told(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show(title: str, rows: Sequence[Row]) -> None:
    """Print a table: names to the left, figures to the right."""
    table = Table(title=title, title_justify="left")
    for column, value in rows[0].items():
        table.add_column(column, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(told, row.values()))
    Console(width=140).print(table)


def parser_of(description: str, name: str) -> argparse.ArgumentParser:
    """Of a script whose rows lie in out/bench/NAME.jsonl."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT / f"{name}.jsonl")
    return parser


def run(measure: Callable[..., Row], grid: dict[str, Iterable[Any]], options: argparse.Namespace) -> None:
    """Call `measure` with each point of a grid, `jobs` at once; its row, which has the point in it, is kept."""
    known = rows_of(options.out) if options.missing else []
    keep(options.out, known, "w")
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    asked = [point for point in points if not any(point.items() <= row.items() for row in known)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(measure, **point) for point in asked]):
            keep(options.out, [done.result()])
            print("  ".join(f"{key} {told(value)}" for key, value in done.result().items()), flush=True)
