"""A script that `geomx worker` runs sees and does what it would with `python SCRIPT`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from geomx.launch import script
from geomx.launch.script import through

OURS = script.__file__


@pytest.mark.parametrize("options", [[], ["-u"], ["-uB", "-W", "error", "-X", "dev"], ["-P"]])
def test_a_script_of_python_is_run_through(tmp_path: Path, options: list[str]) -> None:
    path = str(tmp_path / "train.py")
    Path(path).touch()
    assert through(["python3", *options, path, "-m", "x"]) == ["python3", *options, OURS, path, "-m", "x"]
    assert through(["python", *options, "-m", "pkg.train", "x"]) == [
        *("python", *options, OURS),
        *("-m", "pkg.train", "x"),
    ]


def test_other_commands_are_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "train.py")
    Path(path).touch()
    for command in (
        ["torchrun", path],
        ["bash", path],
        ["python"],
        ["python", "-"],
        ["python", "-c", "print()", path],
        ["python", "-i", path],
        ["python", "-m"],
        ["python", str(tmp_path / "missing.py")],
        ["python", str(tmp_path)],
    ):
        assert through(command) == command


def both(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], ...]:
    """What Python makes of a command line, without us and with us."""
    command = [sys.executable, *words]
    return tuple(
        subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
        for argv in (command, through(command))
    )


def written(folder: Path, text: str) -> str:
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "helper.py").write_text("here = __name__")
    (folder / "sub" / "train.py").write_text(textwrap.dedent(text))
    return "sub/train.py"


SEES = """
    import sys, os, pickle, helper
    class Sample:
        pass
    if __name__ == "__main__":
        names = ("__name__", "__file__", "__package__", "__spec__", "__cached__", "__doc__")
        print(sys.argv, sys.path[0], [globals()[name] for name in names])
        print(sys.modules["__main__"].Sample is Sample, type(pickle.loads(pickle.dumps(Sample()))).__module__)
        print(type(__loader__).__name__, __builtins__.__name__, sorted(vars()))
"""


MODULE = "import sys\nprint(__name__, __spec__.name, __package__, sys.argv, sys.path[0])"


@pytest.mark.parametrize(
    ("text", "words"), [(SEES, ("sub/train.py", "--lr", "-m")), (MODULE, ("-m", "sub.train", "x"))]
)
def test_a_script_or_a_module_sees_what_it_would_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, text)
    plain, ours = both(tmp_path, *words)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert (ours.returncode, ours.stdout, ours.stderr) == (0, plain.stdout, "")


ENDS = {
    "raises": "import helper\ndef f():\n    raise ValueError('boom')\nf()",
    "raises within": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "exits with a status": "raise SystemExit(3)",
    "exits with words": "import sys\nsys.exit('enough')",
    "is no Python": "x = = 1",
    "is interrupted": "raise KeyboardInterrupt",
    "has a hook": "import sys\nsys.excepthook = lambda kind, e, tb: print(kind, e, tb.tb_lineno)\n1 / 0",
    "has an exit handler": "import atexit\natexit.register(print, 'bye')\nraise SystemExit(4)",
    "starts others": """
        import multiprocessing
        class Sample:
            def __init__(self, x): self.x = x
        def double(sample): return Sample(2 * sample.x)
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print([sample.x for sample in pool.map(double, [Sample(1), Sample(2)])])
    """,
}


@pytest.mark.parametrize("how", ENDS)
def test_a_script_ends_as_it_would_end(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain, ours = both(tmp_path, written(tmp_path, ENDS[how]))
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


JOINED = """
    import sys, types
    def joined(): return sys.argv[1] == "joined"
    def ended(end): print("told", end)
    told = types.SimpleNamespace(has_joined=joined, script_ended=ended)
    sys.modules["geomx.launch.join"] = told
    if len(sys.argv) > 2:
        sys.exit(int(sys.argv[2]))
"""


def here(folder: Path, *words: str, **place: str) -> subprocess.CompletedProcess[str]:
    """`JOINED`, run through, as of that place."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GEOMX_")}
    command = [sys.executable, OURS, "train.py", *words]
    return subprocess.run(command, cwd=folder, env=kept | place, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("status", "told"), [([], "told None\n"), (["0"], "told 0\n"), (["3"], "told 3\n")])
def test_who_joined_is_told_how_the_script_ended(tmp_path: Path, status: list[str], told: str) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(JOINED))
    done = here(tmp_path, "joined", *status)
    assert (done.returncode, done.stdout, done.stderr) == (int((status or ["0"])[0]), told, "")


@pytest.mark.parametrize(("status", "is_told"), [([], True), (["0"], True), (["3"], False)])
def test_a_script_that_has_not_joined_is_told_so(tmp_path: Path, status: list[str], is_told: bool) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(JOINED))
    place = {"GEOMX_PARTY": "A", "GEOMX_RANK": "1"}
    done = here(tmp_path, "away", *status, **place)
    says = f"geomx: {tmp_path}/train.py has ended without calling geomx.join(): the run still waits for A/1"
    assert done.stderr.startswith(says) is is_told
    assert here(tmp_path, "away", *status, **place, GEOMX_WATCHED="1").stderr == ""  # `geomx run` tells it
