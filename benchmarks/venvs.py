"""A virtual environment for each system, made from its pinned requirements when it is first needed."""

import hashlib
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
        command = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "-r"]
        try:
            subprocess.run(
                [*command, str(requirements)], capture_output=True, text=True, check=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise InstallError(f"pip did not end within {LIMIT_S} s") from None
        except subprocess.CalledProcessError as error:
            last = (error.stderr.strip() or "pip said nothing").splitlines()[-1].strip()
            raise InstallError(f"it does not install: {last}") from None
        stamp.write_text(wanted)
    return python


def pins_in(requirements: Path) -> dict[str, str]:
    """The versions that a file of pinned requirements names, if there is one, by package."""
    text = requirements.read_text() if requirements.exists() else ""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return dict(line.split("==") for line in lines if line)
