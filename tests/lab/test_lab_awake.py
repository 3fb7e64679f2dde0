"""Cores that are kept awake."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import awake

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="SCHED_IDLE is of Linux")


def children():
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_each_core_has_a_process_that_gives_way(monkeypatch, tmp_path):
    monkeypatch.setattr(awake, "_QUOTA", tmp_path / "none")
    before = children()
    with awake.cores() as are_awake:
        assert are_awake
        busy = [int(pid) for pid in children() - before]
        assert {os.sched_getscheduler(pid) for pid in busy} == {os.SCHED_IDLE}
        cores = [os.sched_getaffinity(pid) for pid in busy]
        assert sorted(core for one in cores for core in one) == sorted(os.sched_getaffinity(0))
    assert children() == before


@pytest.mark.parametrize(("quota", "are_awake"), [("max 100000\n", True), ("50000 100000\n", False)])
def test_time_that_is_counted_out_is_left_to_those_who_work(monkeypatch, tmp_path, quota, are_awake):
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(awake, "_QUOTA", tmp_path / "cpu.max")
    before = children()
    with awake.cores() as found:
        assert found is are_awake
        assert bool(children() - before) is are_awake


def test_who_has_no_parent_any_more_ends():
    subprocess.run([sys.executable, awake.__file__, "0"], timeout=300, check=True)
