from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from geomx.channels.memory import reuse_freed_blocks

def faults_of_a_round():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(b"x") * (1 << 20) for _ in range(64)]
    del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if {reuse}:
    assert reuse_freed_blocks()
faults_of_a_round()
print(faults_of_a_round())
"""


def faults(reuse: bool) -> int:
    command = [sys.executable, "-c", PROGRAM.format(reuse=reuse)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_second_round_of_blocks_touches_no_new_pages():
    assert faults(reuse=True) < faults(reuse=False) / 4
