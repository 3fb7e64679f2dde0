"""The examples: what `geomx examples` lists and runs.

Each is the description of a run. It begins with a comment, whose first line is the example's title. An installed
package has the examples beside its modules; in a clone of the repository they are in the folder `examples`.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import geomx
from geomx.config import EVERY_FILE, load_whole
from geomx.errors import ConfigError, ExamplesFailed, Fault, GeomxError, nearest
from geomx.launch.local.local_run import RunOptions, run_here
from geomx.observe.report import Report, size

ALL = "all"
NOT_HERE = ("fashion-mnist", "three-machines")  # they need a data set of their own, or more machines
NEEDS = {
    "trainer": "transformers",
    "lora": "peft",
    "lightning": "lightning",
    "actor_critic": "gymnasium",
}  # else not here either


TRAINERS = 'pip install -e ".[trainers,examples]" has what they need'


@dataclass(frozen=True, slots=True)
class Example:
    """A description that `geomx run` can run as it is."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def comment(self) -> str:
        """What the file says of itself: its first lines, without their `#`."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
        return "\n".join(line.removeprefix("#").removeprefix(" ") for line in comment)

    @property
    def title(self) -> str:
        return self.comment.partition("\n")[0]


def folder() -> Path:
    """Where the examples are."""
    package = Path(geomx.__file__).parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parents[1] / "examples"


def find_examples() -> dict[str, Example]:
    """All examples by name: runs as a whole first, then one for each technique."""
    here = folder()
    paths = [*sorted(here.glob("*.toml")), *sorted((here / "techniques").glob("*.toml"))]
    there = (path for path in paths if path.stem not in NOT_HERE)
    return {path.stem: Example(path) for path in there if _is_there(NEEDS.get(path.stem, "geomx"))}


def _is_there(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def choose(names: Sequence[str]) -> list[Example]:
    """The examples of these names, `all` for every one. Raises `ConfigError` for a name that is none."""
    known = find_examples()
    allowed = f"{', '.join(known)}, or {ALL}"
    faults = [
        Fault("NAME", name, f"what is here without {NEEDS[name]}: {TRAINERS}")
        if name in NEEDS
        else Fault("NAME", name, allowed, nearest(name, [*known, ALL]))
        for name in names
        if name not in (*known, ALL)
    ]
    if faults:
        raise ConfigError("the command line", faults)
    return list(known.values()) if ALL in names else [known[name] for name in dict.fromkeys(names)]


def listing() -> str:
    """Every example with its title, and how one is run."""
    examples = find_examples().values()
    width = max(len(example.name) for example in examples)
    lines = [f"{example.name:{width}}  {example.title}" for example in examples]
    if missing := [name for name, library in NEEDS.items() if not _is_there(library)]:
        lines.append(f"Not here: {', '.join(missing)}. {TRAINERS}")
    hint = f"`geomx examples NAME ...` runs some of them, `geomx examples {ALL}` all. The files are in {folder()}"
    return "\n".join([*lines, "", hint])


def run_examples(examples: Sequence[Example], plain: bool) -> None:
    """Run examples one after the other; after several, print a table of all.

    Raises what a run raises; of several, `ExamplesFailed` once the others have run.
    """
    results: dict[str, Report | None] = {}
    try:
        for example in examples:
            print(f"\n{example.name}: {example.comment}\n", flush=True)
            try:
                run = load_whole(example.path, needed=EVERY_FILE)
                results[example.name] = run_here(run, RunOptions(plain=plain))
            except GeomxError as error:
                if len(examples) == 1:
                    raise
                results[example.name] = None
                print(f"geomx: {example.name}: {error}", file=sys.stderr, flush=True)
    finally:
        if len(results) > 1:
            Console().print(results_table(results))
    if failed := [name for name, report in results.items() if report is None]:
        raise ExamplesFailed(f"{len(failed)} of {len(results)} examples failed: {', '.join(failed)}")


def results_table(results: Mapping[str, Report | None]) -> Table:
    """A row for each example. `results`: reports by name, None of one that failed."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("example")
    for heading in ("seconds", "result", "WAN up", "WAN down"):
        table.add_column(heading, justify="right")
    for name, report in results.items():
        table.add_row(name, *(_figures(report) if report is not None else ("", "failed", "", "")))
    return table


def _figures(report: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Seconds, accuracy or validation loss, bytes over the WAN up and down, as text."""
    accuracy, loss = report["final_accuracy"], report["final_validation_loss"]
    result = f"{accuracy:.2%}" if accuracy is not None else "" if loss is None else f"loss {loss:.3f}"
    return f"{report['wall_s']:.1f}", result, size(report["wan_bytes_up"]), size(report["wan_bytes_down"])
