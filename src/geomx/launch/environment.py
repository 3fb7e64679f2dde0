"""The environment, which nothing else in geomx reads: what a process is told about its place in a run.

GEOMX_RUN      path of the run's description
GEOMX_SET      settings in place of the description's, as a shell would split them
GEOMX_PARTY    the worker's party
GEOMX_RANK     the worker's rank in its party
GEOMX_RECORDS  path of the file that the node's records go to, or of a folder for it
GEOMX_TRACE    1: record the spans of a trace, too
GEOMX_WATCHED  1: `geomx run` watches this process, and tells of failures of other nodes itself
GEOMX_NATIVE   0: codecs without their compiled kernels

A party whose workers reduce among themselves is a job of torchrun, which tells each of them RANK, WORLD_SIZE and where
the first is (MASTER_ADDR, MASTER_PORT); its RANK stands for GEOMX_RANK.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from geomx.errors import ConfigError, Fault

RUN, SET, PARTY, RANK = "GEOMX_RUN", "GEOMX_SET", "GEOMX_PARTY", "GEOMX_RANK"
RECORDS, TRACE, NATIVE = "GEOMX_RECORDS", "GEOMX_TRACE", "GEOMX_NATIVE"
WATCHED = "GEOMX_WATCHED"
JOB_RANK, JOB_SIZE = "RANK", "WORLD_SIZE"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """A process's place in a run, as far as its environment tells."""

    run: Path | None = None
    overrides: tuple[str, ...] = ()
    party: str | None = None
    rank: int | None = None
    records: Path | None = None
    trace: bool = False
    watched: bool = False


@dataclass(frozen=True, slots=True)
class TorchrunJob:
    """A process's place in a job of torchrun."""

    rank: int
    size: int


def apply_switches() -> None:
    """Switch off what the environment says; before a node of this process is made."""
    if os.environ.get(NATIVE) == "0":
        from geomx.codecs.pack import native  # noqa: PLC0415 (it imports torch, which takes seconds)

        native.switch_off()


def read_job() -> TorchrunJob | None:
    """The job that this process is part of; None: it is none's. Raises `ConfigError`."""
    rank, size = _number(JOB_RANK), _number(JOB_SIZE)
    return None if rank is None or size is None else TorchrunJob(rank, size)


def job_environment(rank: int, size: int, port: int) -> dict[str, str]:
    """What torchrun tells one of `size` processes on this machine, the first of which listens at `port`."""
    numbers = {
        JOB_RANK: rank,
        JOB_SIZE: size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_PORT": port,
    }
    return {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


def read_place() -> ProcessPlace:
    """This process's place. Raises `ConfigError` where a variable makes no sense."""
    run, records = os.environ.get(RUN), os.environ.get(RECORDS)
    return ProcessPlace(
        run=Path(run) if run else None,
        overrides=tuple(shlex.split(os.environ.get(SET, ""))),
        party=os.environ.get(PARTY) or None,
        rank=_number(RANK),
        records=Path(records) if records else None,
        trace=os.environ.get(TRACE) == "1",
        watched=os.environ.get(WATCHED) == "1",
    )


def _number(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigError("the environment", [Fault(name, repr(text), "integer ≥ 0")])
    return int(text)


def environment_of(place: ProcessPlace, threads: int | None = None) -> dict[str, str]:
    """This process's environment, changed for a process at `place`.

    `threads`: of its arithmetic; None: as they are set.
    """
    told = {
        RUN: place.run and str(place.run.absolute()),
        SET: shlex.join(place.overrides),
        PARTY: place.party,
        RANK: None if place.rank is None else str(place.rank),
        RECORDS: place.records and str(place.records.absolute()),
        TRACE: "1" if place.trace else None,
        WATCHED: "1" if place.watched else None,
    }
    environment = {key: value for key, value in os.environ.items() if key not in told}
    environment |= {key: value for key, value in told.items() if value}
    if threads is not None:
        environment |= dict.fromkeys(THREADS, str(threads))
    environment["PYTHONUNBUFFERED"] = "1"  # what a node prints is seen when it is printed
    return environment


def import_beside(run: Path) -> None:
    """Let this process, and those that it starts, import what lies beside a run's description.

    The codecs and policies of a user's own are there, which the description names as `module:Class`.
    """
    folder = str(run.absolute().parent)
    sys.path.append(folder)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*known, folder]))


def threads_each(processes: int) -> int | None:
    """Threads for each of so many processes of this machine; None where the user has set them."""
    if any(os.environ.get(name) for name in THREADS):
        return None
    return max(1, len(os.sched_getaffinity(0)) // processes)
