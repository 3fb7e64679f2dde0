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
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    return subprocess.Popen(["bash", "-c", command], cwd=where, env=ENVIRONMENT, **output)


def printed_by(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, output
    return output
