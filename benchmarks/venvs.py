"""A virtual environment for each system, made from its pinned requirements when it is first needed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "out" / "bench" / "venvs"
LIMIT_S = 1200


class InstallError(Exception):
    """A system's packages could not be installed; says pip's last words."""


def python_of(name: str, requirements: Path) -> Path:
    """The Python of the environment `name`; where there are no requirements, the one that runs now.

    Raises `InstallError`. An environment whose requirements have changed is made anew.
    """
    if not requirements.exists():
        return Path(sys.executable)
    folder = FOLDER / name
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    stamp, python = folder / "requirements.sha256", folder / "bin" / "python"
    if not (stamp.exists() and stamp.read_text() == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        print(f"installing {name} into {folder} ...", flush=True)
        venv.create(folder, with_pip=True)
        _pip(python, "install", "--quiet", "-r", str(requirements))
        stamp.write_text(wanted)
    return python


def versions_of(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """The versions of these packages in an environment, and of its Python."""
    script = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [str(python), "-c", script, *names], capture_output=True, text=True, check=True, timeout=60
    )
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def names_in(requirements: Path) -> tuple[str, ...]:
    """The packages that a file of pinned requirements names."""
    if not requirements.exists():
        return ()
    lines = [line.split("#")[0].strip() for line in requirements.read_text().splitlines()]
    return tuple(line.split("==")[0].split("[")[0].strip() for line in lines if line)


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise InstallError(f"pip did not end within {LIMIT_S} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip()] or ["pip said nothing"]
        raise InstallError(f"it does not install: {errors[-1].strip()}")
