"""Mutation testing: of some small changes to the code, drawn by chance, how many do the tests notice?

    pip install -e ".[mutation]"
    python tests/mutation/mutants.py [--number 100] [--seed 1] [--seconds 60] [PACKAGE ...]

Cosmic Ray makes the changes. For each that is drawn, the tests that execute the changed line run in a copy of the
tree, the fastest first, until one fails or `--seconds` of a core are used up; the list says how many of them ran. Which
tests these are is found once, and again when anything in `src` or `tests` has changed. All of it is kept under
`out/mutation`.

Packages are drawn from in proportion to their *places*, the spots where an operator fits; each place is drawn once at
most, however many operators fit. A draw depends on the text at the places and not on the names of files, and a
smaller number draws the first of a larger one's.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import json
import math
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

import coverage
from forked import AT_ONCE, HUNG, OUT, PRISTINE, TEST_S, Job, Tests, copy_trees, run
from places import Place, draw, mutated, places
from rich.console import Console
from rich.table import Table

FIXED = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}  # read when a process starts
PACKAGES = [f"src/geomx/{name}" for name in ("wire", "rounds", "node", "sync", "codecs")]
OUTCOMES = ("killed", "survived", "timed out", "not covered")


@dataclass
class Mutant:
    """A change that was drawn, and what became of it."""

    package: str
    file: str
    line: int
    operator: str
    diff: str
    covering: int = 0  # tests that execute the line
    tests: list[str] = field(default_factory=list)  # those of them that run
    outcome: str = "not covered"
    by: str = ""  # the test that failed or hung; none if it did not get so far
    seconds: float = 0.0


def traced() -> Path:
    """The folder with what the tests execute and how long they take; filled where it is missing or out of date."""
    digest = hashlib.sha256()
    for path in sorted(
        path for top in ("src", "tests") for path in (PRISTINE / top).rglob("*") if path.is_file()
    ):
        name = str(path.relative_to(PRISTINE))
        if not name.startswith("tests/mutation/"):
            digest.update(name.encode() + path.read_bytes())
    folder = OUT / f"traced-{digest.hexdigest()[:12]}"
    if not folder.exists():
        print("running all tests, to see which of them execute which lines ...", flush=True)
        partial = folder.with_suffix(".partial")
        partial.mkdir(exist_ok=True)
        cover = ["tests", "--cov=geomx", "--cov-context=test", "--cov-report="]
        for job in run([Job(Tests(partial / f"{n}.report", share=n), cover) for n in range(AT_ONCE)]):
            assert os.waitstatus_to_exitcode(job.status) in (0, 1), f"pytest broke off, see {partial}"
            outcomes = Counter(outcome for outcome, _ in job.tests.outcomes().values())
            print(f"  {dict(outcomes)} in {job.seconds:.0f} s", flush=True)
        partial.rename(folder)
    return folder


def read(folder: Path) -> tuple[dict[str, float], dict[str, dict[int, set[str]]]]:
    """The seconds of each test that passes, and of each file the tests that execute its lines ("": an import)."""
    reports = [Tests(path).outcomes() for path in folder.glob("*.report")]
    seconds = {test: s for report in reports for test, (outcome, s) in report.items() if outcome == "passed"}
    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in folder.glob("*.lines"):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            here = lines["/".join(Path(file).relative_to(OUT).parts[1:])]
            for line, contexts in data.contexts_by_lineno(file).items():
                here[line] |= {context.rpartition("|")[0] for context in contexts}
    return seconds, lines


def covering(place: Place, lines: dict[str, dict[int, set[str]]], tests: Iterable[str]) -> set[str]:
    """The tests that execute a place: all of them if it is executed at import, before any test begins."""
    here = lines[place.file]
    found = here[place.line] or here[place.statement]
    return set(tests) if place.at_import or found == {""} else found - {""}


def try_all(mutants: Sequence[Mutant], code: dict[int, str], most_s: int) -> None:
    """Runs their tests, each in at most `most_s` of a core. What fails without a mutant too does not count."""
    logs = OUT / "logs"
    logs.mkdir(exist_ok=True)
    warm = [
        Job(Tests(logs / f"warm-{n}.report", share=n), ["tests", "--collect-only"]) for n in range(AT_ONCE)
    ]
    assert all(job.status == 0 for job in run(warm)), f"the tests cannot be collected, see {logs}/warm-0.log"
    unsound: set[str] = set()
    todo = [mutant for mutant in mutants if mutant.tests]
    while todo:
        jobs = []
        for number, mutant in enumerate(todo):
            mutant.tests = [test for test in mutant.tests if test not in unsound]
            tests = Tests(logs / f"{Path(mutant.file).stem}-{mutant.line}-{number}.report", mutant.tests)
            jobs.append(Job(tests, ["-x", *files_of(mutant.tests)], mutant.file, code[id(mutant)], most_s))
        by_job = {id(job): mutant for job, mutant in zip(jobs, todo, strict=True)}
        for done, job in enumerate(run(jobs), 1):
            judge(mutant := by_job[id(job)], job)
            print(
                f"{done}/{len(jobs)} {mutant.file}:{mutant.line} {mutant.operator}: {mutant.outcome}",
                flush=True,
            )
        killers = sorted({mutant.by for mutant in todo if mutant.by})
        checks = [
            Job(Tests(logs / f"check-{n}.report", killers, n), files_of(killers)) for n in range(AT_ONCE)
        ]
        outcomes = {test: said for job in run(checks) for test, (said, _) in job.tests.outcomes().items()}
        unsound |= {test for test in killers if outcomes.get(test) != "passed"}
        todo = [mutant for mutant in todo if mutant.by in unsound]  # once more, without that test
    for test in sorted(unsound):
        print(f"left out, since it fails without a mutant too: {test}")


def files_of(tests: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


def judge(mutant: Mutant, job: Job) -> None:
    """From how its pytest ended."""
    mutant.seconds, mutant.by = round(job.seconds, 1), ""
    if job.status == 0:
        mutant.outcome = "survived"
        return
    hung = os.WIFSIGNALED(job.status) and os.WTERMSIG(job.status) in HUNG
    mutant.outcome = "timed out" if hung else "killed"
    mutant.by = next(
        (test for test, (said, _) in job.tests.outcomes().items() if said in ("failed", "began")), ""
    )


def show(mutants: Sequence[Mutant], packages: Sequence[str]) -> None:
    """A table by package, and what survived."""
    table = Table("package", "mutants", *OUTCOMES, "noticed")
    for package in (*packages, "all"):
        counts = Counter(mutant.outcome for mutant in mutants if package in (mutant.package, "all"))
        noticed = f"{(counts['killed'] + counts['timed out']) / max(counts.total(), 1):.0%}"
        table.add_row(package, str(counts.total()), *(str(counts[outcome]) for outcome in OUTCOMES), noticed)
    for mutant in mutants:
        if mutant.outcome in ("survived", "not covered"):
            tests = f"{len(mutant.tests)} of {mutant.covering} tests"
            print(
                f"\n{mutant.file}:{mutant.line} {mutant.operator}: {mutant.outcome}, {tests}\n{mutant.diff}"
            )
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "packages", nargs="*", default=PACKAGES, metavar="PACKAGE", help="a folder below the root"
    )
    parser.add_argument("--number", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=60, help="of tests for each mutant")
    options = parser.parse_args()
    began = monotonic()
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as Ctrl-C does, it ends what runs in the copies
    OUT.mkdir(parents=True, exist_ok=True)
    copy_trees()
    seconds, lines = read(traced())
    mutants, code = [], {}
    drawn = draw(
        {package: places(PRISTINE, package, options.seed) for package in options.packages}, options.number
    )
    for package, spots in drawn.items():
        for place in spots:
            source = (PRISTINE / place.file).read_text()
            operator, changed = mutated(source, place)
            diff = difflib.unified_diff(source.splitlines(), changed.splitlines(), n=1, lineterm="")
            mutant = Mutant(package, place.file, place.line, operator, "\n".join([*diff][3:]))
            ranked = sorted(
                covering(place, lines, seconds), key=lambda test: (seconds.get(test, math.inf), test)
            )
            affordable = [test for test in ranked if seconds.get(test, math.inf) <= TEST_S / 3]
            spent = itertools.accumulate(seconds[test] for test in affordable)
            mutant.tests = [
                test for test, sum_s in zip(affordable, spent, strict=True) if sum_s <= options.seconds
            ]
            mutant.covering = len(ranked)
            mutants.append(mutant)
            code[id(mutant)] = changed
    try_all(mutants, code, 3 * options.seconds)
    show(mutants, options.packages)
    path = OUT / f"seed-{options.seed}-{options.number}.json"
    path.write_text(json.dumps([asdict(one) | {"tests": len(one.tests)} for one in mutants], indent=1))
    print(f"{monotonic() - began:.0f} s; all mutants in {path}")


if __name__ == "__main__":
    if not FIXED.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | FIXED)
    main()
