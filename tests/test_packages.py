"""What is released, as `make packages` builds it: the contents of the sdist and the wheel, and that the wheel runs."""

from __future__ import annotations

import email
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"benchmarks", "docs", "examples", "lab", "src", "tests"}
FILES = {
    ".gitignore", "CHANGELOG.md", "CITATION.cff", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "Makefile",
    "PKG-INFO", "README.md", "SECURITY.md", "constraints.txt", "hatch_build.py", "pyproject.toml",
}  # fmt: skip

# Building takes some seconds, and so do the processes of a run.
pytestmark = [pytest.mark.grids, pytest.mark.processes]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist; beside it lies the wheel, which is built from the sdist and not from this tree."""
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    (built,) = sdist.parent.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel is installed, to be found before this tree."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target"]
    subprocess.run([*command, str(folder), str(wheel)], check=True)
    return folder


def in_tree(folder: Path) -> set[str]:
    """The files below a folder of this tree that somebody wrote."""
    made = {"__pycache__", "_build", "kernels.so"}
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {path.as_posix() for path in files if not made & set(path.parts)}


def below(prefix: str, names: Iterable[str]) -> set[str]:
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def geomx(site: Path, *arguments: str) -> str:
    """What the installed package's command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "geomx", *arguments],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_sdist_has_the_sources_and_nothing_that_lay_beside_them(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = below(sdist.name.removesuffix(".tar.gz") + "/", archive.getnames())
    assert {name for name in names if "/" not in name} == FILES
    assert {name.partition("/")[0] for name in names if "/" in name} == FOLDERS
    for folder in FOLDERS:
        assert below(f"{folder}/", names) == in_tree(ROOT / folder), folder


def test_the_wheel_has_the_package_the_examples_and_the_kernels(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    compiled = {"codecs/pack/kernels.so", "learn/trees/kernels.so"} if shutil.which("cc") else set()
    examples = {f"examples/{name}" for name in in_tree(ROOT / "examples")}
    assert names == {f"geomx/{name}" for name in in_tree(ROOT / "src" / "geomx") | examples | compiled}
    assert wheel.name.endswith("-none-any.whl") == (not compiled)


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = email.message_from_bytes(archive.read(metadata))
        assert metadata.replace("METADATA", "licenses/LICENSE") in archive.namelist()
    assert (told["Name"], told["License-Expression"], told["Requires-Python"]) == (
        "geomx",
        "Apache-2.0",
        ">=3.11",
    )
    assert "Typing :: Typed" in told.get_all("Classifier", [])
    assert told.get_all("Project-URL") is None  # there is no address yet that would stay true


def test_the_installed_wheel_runs_its_own_examples(site: Path, tmp_path: Path) -> None:
    (metadata,) = site.glob("geomx-*.dist-info")
    assert metadata.name == f"geomx-{geomx(site, '--version').split()[1]}.dist-info"
    assert f"The files are in {site / 'geomx' / 'examples'}" in geomx(site, "examples")
    example = site / "geomx" / "examples" / "techniques" / "fp16.toml"
    assert "frankfurt/0" in geomx(site, "check", str(example))
    report = tmp_path / "report.json"
    geomx(site, "run", str(example), "--plain", "--report", str(report), 'run.arguments=["--epochs", "1"]')
    assert json.loads(report.read_text(encoding="utf-8"))["ended"] == "well"
