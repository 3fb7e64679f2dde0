"""`geomx examples`: what it lists, and that it runs what it is asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from geomx import cli
from geomx.config import EVERY_FILE, Run, load_whole
from geomx.errors import ConfigError, RunFailed
from geomx.launch import examples
from geomx.launch.examples import choose, find_examples, listing, results_table, run_examples
from geomx.launch.local.local_run import RunOptions

ROOT = Path(__file__).parents[2]
TECHNIQUES = (
    "bisparse", "dcasgd", "dgt", "diloco", "downpour", "esync", "fp16", "fsa", "hfa", "mixedsync", "mpq", "multigps",
    "p3", "ring", "three-tiers", "trees", "tsengine", "two-bit",
)  # fmt: skip
QUICK = """# Two workers that agree on one weight.
#
# Look at it.

run.script = "quick.py"

[[party]]
name = "A"
workers = 2
"""
REPORT = {"wall_s": 12.34, "wan_bytes_up": 2_000_000, "wan_bytes_down": 999, "final_validation_loss": None}


@pytest.fixture
def _two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two examples of our own, in place of those that geomx has, and of their runs: `quick` and `broken`."""
    for name in ("quick", "broken"):
        (tmp_path / f"{name}.toml").write_text(QUICK.replace("quick", name))
        (tmp_path / f"{name}.py").touch()

    def run_here(run: Run, options: RunOptions) -> dict[str, Any]:
        if run.run.script.name == "broken.py":
            raise RunFailed("A/0", "ended with status 3")
        return REPORT | {"final_accuracy": 0.75}

    monkeypatch.setattr(examples, "folder", lambda: tmp_path)
    monkeypatch.setattr(examples, "run_here", run_here)


def test_every_technique_has_an_example() -> None:
    files = {path.stem for path in (ROOT / "examples" / "techniques").glob("*.toml")}
    assert files == set(TECHNIQUES)
    assert files | {"demo", "gpt"} <= find_examples().keys()


@pytest.mark.parametrize("name", sorted(find_examples()))
def test_an_example_can_be_run_as_it_is_and_says_what_it_is_for(name: str) -> None:
    example = find_examples()[name]
    load_whole(example.path, needed=EVERY_FILE)
    assert example.title.strip()
    assert all(len(line) <= 120 for line in example.comment.splitlines())
    assert f"{example.name} " in listing()
    assert example.title in listing()


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_says_what_to_look_at(name: str) -> None:
    comment = find_examples()[name].comment
    assert 6 <= len(comment.splitlines()) <= 16
    assert "Look at" in comment


def test_the_listing_imports_no_torch() -> None:
    program = (
        "import sys, geomx.cli\nassert geomx.cli.main(['examples']) == 0\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n{name} " in f"\n{done.stdout}" for name in TECHNIQUES)


def test_all_are_chosen_by_one_word_and_none_twice() -> None:
    assert [example.name for example in choose(["fsa", "hfa", "fsa"])] == ["fsa", "hfa"]
    assert [example.name for example in choose(["fsa", "all"])] == list(find_examples())


def test_a_name_that_is_none_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(["fsa", "bi-sparse", "three-machines"])
    assert [(fault.found, fault.hint) for fault in caught.value.faults] == [
        ("bi-sparse", "did you mean `bisparse`?"),
        ("three-machines", "did you mean `three-tiers`?"),
    ]
    assert cli.main(["examples", "esnyc"]) == 2
    assert "did you mean `esync`?" in capsys.readouterr().err


def test_the_table_has_what_each_example_came_to() -> None:
    results: dict[str, Any] = {
        "cnn": REPORT | {"final_accuracy": 0.975},
        "gpt": REPORT | {"final_accuracy": None, "final_validation_loss": 2.4},
        "broken": None,
    }
    console = Console(width=100)
    with console.capture() as captured:
        console.print(results_table(results))
    rows = {line.split()[0]: line.split()[1:] for line in captured.get().splitlines() if line.strip()}
    assert rows["cnn"] == ["12.3", "97.50%", "2", "MB", "999", "B"]
    assert rows["gpt"] == ["12.3", "loss", "2.400", "2", "MB", "999", "B"]
    assert rows["broken"] == ["failed"]


@pytest.mark.usefixtures("_two")
def test_an_example_that_fails_costs_no_other_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["examples", "broken", "quick", "--plain"]) == 1
    out, err = capsys.readouterr()
    assert "quick: Two workers that agree on one weight.\n\nLook at it.\n" in out
    assert "75.00%" in out.partition("WAN down")[2]
    assert "failed" in out.partition("WAN down")[2]
    assert "geomx: broken: " in err
    assert err.endswith("geomx: 1 of 2 examples failed: broken\n")


@pytest.mark.usefixtures("_two")
def test_what_ends_the_only_example_is_told_as_of_any_run() -> None:
    with pytest.raises(RunFailed, match="ended with status 3"):
        run_examples(choose(["broken"]), plain=True)
