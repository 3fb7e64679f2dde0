"""Runs pytest in copies of the tree, each time in a fork of a process that has imported PyTorch, and geomx not."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, process_time

# What takes long to import.
import hypothesis
import pytest
import torch.distributed.fsdp

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "mutation"
MARKS = "not processes and not lab"  # those run geomx in processes of their own, where no line is traced
AT_ONCE = 2
TEST_S = 30  # of a core: who takes longer has hung, as has one that four times as much has passed over
MEMORY_BYTES = 8 << 30  # whatever a mutant does to a size
HUNG = (signal.SIGALRM, signal.SIGPROF, signal.SIGXCPU)  # what ends a process at one of these limits
TREES = [OUT / f"tree-{n}" for n in range(AT_ONCE)]
PRISTINE = OUT / "tree"


class Tests:
    """A plugin for pytest: which tests run and in which order, and what becomes of each."""

    def __init__(self, report: Path, chosen: Sequence[str] | None = None, share: int | None = None) -> None:
        self.report = report
        self.rank = None if chosen is None else {test: rank for rank, test in enumerate(chosen)}
        self.share = slice(share, None, None if share is None else AT_ONCE)
        self.limit_s = TEST_S if share is None else 0
        self.outcome, self.began = "", 0.0

    def outcomes(self) -> dict[str, tuple[str, float]]:
        """Of each test: passed, failed, skipped, or began; and its seconds of a core."""
        lines = self.report.read_text().splitlines() if self.report.exists() else []
        return {test: (outcome, seconds) for test, outcome, seconds in map(json.loads, lines)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        settings = hypothesis.settings  # noqa: TID251 (a profile of its own)
        settings.register_profile("mutation", settings.default, derandomize=True, database=None)
        settings.load_profile("mutation")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if "geomx" in sys.modules:
            assert Path(str(sys.modules["geomx"].__file__)).is_relative_to(Path.cwd()), "not the copy's geomx"
        if (rank := self.rank) is not None:
            items[:] = [item for item in items if item.nodeid in rank]
            items.sort(key=lambda item: rank[item.nodeid])
        items[:] = items[self.share]
        for item in items:  # whatever CI leaves out of coverage
            item.own_markers = [mark for mark in item.own_markers if mark.name != "no_cover"]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        set_limit(self.limit_s)
        self.outcome, self.began = "passed", process_time()
        self._write(nodeid, "began")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.outcome = report.outcome
        if report.when == "teardown":
            self._write(report.nodeid, self.outcome)

    def _write(self, test: str, outcome: str) -> None:
        with self.report.open("a") as file:
            file.write(json.dumps([test, outcome, round(process_time() - self.began, 4)]) + "\n")


def set_limit(test_s: float) -> None:
    """Ends this process unless it is called again before; 0: no limit."""
    signal.setitimer(signal.ITIMER_PROF, test_s)
    signal.setitimer(signal.ITIMER_REAL, 4 * test_s)


@dataclass
class Job:
    """One pytest: of the tree as it is, or with one file changed; `most_s`: of a core, all tests together."""

    tests: Tests
    arguments: list[str]
    file: str = ""
    code: str = ""
    most_s: int = 0
    status: int = 0
    seconds: float = 0.0


def copy_trees() -> None:
    """The tree as it stands, for each of the forks that run at once, and one to put files back from."""
    unneeded = shutil.ignore_patterns(
        ".git", ".venv*", "out", "__pycache__", ".*_cache", ".hypothesis", "_build"
    )
    for tree in (PRISTINE, *TREES):
        shutil.rmtree(tree, ignore_errors=True)
        shutil.copytree(ROOT, tree, ignore=unneeded)


def run(jobs: Sequence[Job]) -> Iterator[Job]:
    """Some at once, each in a tree of its own; yields them as they end."""
    waiting, free = list(reversed(jobs)), list(TREES)
    running: dict[int, tuple[Job, Path, float]] = {}
    try:
        while waiting or running:
            while waiting and free:
                job, tree = waiting.pop(), free.pop()
                job.tests.report.unlink(missing_ok=True)
                if job.file:
                    (tree / job.file).write_text(job.code)
                running[fork(job, tree)] = job, tree, monotonic()
            pid, status = os.wait()
            end(pid)
            job, tree, began = running.pop(pid)
            job.status, job.seconds = status, monotonic() - began
            if job.file:
                # Its old time too: compiled code is valid again.
                shutil.copy2(PRISTINE / job.file, tree / job.file)
            free.append(tree)
            yield job
    finally:
        for pid in running:
            end(pid)


def end(pid: int) -> None:
    """A fork and whatever its tests have left behind."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def fork(job: Job, tree: Path) -> int:
    """Starts a job."""
    assert "geomx" not in sys.modules
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    status = 3
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(tree)
        log = os.open(job.tests.report.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        lines = job.tests.report.with_suffix(".lines")
        os.environ |= {"PYTHONPATH": str(tree / "src"), "COVERAGE_FILE": str(lines)}
        sys.path.insert(0, str(tree / "src"))
        if job.file:  # the others leave compiled code behind
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            sys.dont_write_bytecode = True
            resource.setrlimit(resource.RLIMIT_CPU, (job.most_s, job.most_s + 5))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        set_limit(job.tests.limit_s)  # for the imports
        torch.set_num_threads(1)
        arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tree), "-m", MARKS, *job.arguments]
        # Of what this process has imported before.
        arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = int(pytest.main(arguments, plugins=[job.tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
