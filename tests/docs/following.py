"""Runs the commands of a page as its reader does, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WITHIN_S = 300
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
}


def begun(command: str, where: Path) -> subprocess.Popen[str]:
    """Begin a command in a folder that is the reader's home as well."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    environment = ENVIRONMENT | {"HOME": str(where)}
    return subprocess.Popen(["bash", "-c", command], cwd=where, env=environment, **output)


def printed_by(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, output
    return output
