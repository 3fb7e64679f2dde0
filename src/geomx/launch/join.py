"""A training script's way into its run."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from pathlib import Path
from types import TracebackType

import torch

from geomx.codecs.noise import Stream
from geomx.codecs.spec import make_codec, slices_wanted
from geomx.config import Run
from geomx.drive.threads import SoloThread, WorkerThread
from geomx.errors import (
    ConfigError,
    Disagreement,
    Fault,
    GeomxError,
    NodeLost,
    Refused,
    RunFailed,
    WaitTimeout,
)
from geomx.launch.environment import Place, read_place
from geomx.observe.records import Recorder
from geomx.sync.base import policies
from geomx.torch.delay import Delay
from geomx.torch.run import LiveRun
from geomx.torch.settings import Settings

SOLO = "solo/0"
# What another node, the run's description or the network brought about.
NOT_THE_SCRIPT = (ConfigError, Disagreement, NodeLost, Refused, RunFailed, WaitTimeout)


def join(run: str | Path | Run | None = None, party: str | None = None, rank: int | None = None) -> LiveRun:
    """Take this process's place in its run: a worker, which dials its local server.

    `run`: the run's description, or where it is. What is not given comes from the environment, which `geomx run` and
    `geomx worker` set; with neither, this is a run of one, and trains as plain PyTorch would.

    The run is left in order when the script ends, and told when it raises. Raises `ConfigError` where the place
    is incomplete or does not exist; who refuses this worker, or is lost, is told by the first call that waits.
    """
    place = read_place()
    description = _description(run, place)
    if description is None:
        return _start_solo(place, party, rank)
    return _start_worker(description, place, party or place.party, place.rank if rank is None else rank)


def _description(run: str | Path | Run | None, place: Place) -> Run | None:
    if isinstance(run, Run):
        return run
    if run is not None:
        return Run.load(run)
    return None if place.run is None else Run.load(place.run, place.overrides)


def _start_solo(place: Place, party: str | None, rank: int | None) -> LiveRun:
    given = {"party": party, "rank": rank}
    faults = [Fault(k, repr(v), "only together with `run`") for k, v in given.items() if v is not None]
    if faults:
        raise ConfigError("join()", faults)
    recorder = Recorder(place.records, SOLO, place.trace)
    thread = SoloThread(recorder)
    run = LiveRun(thread.port, name=SOLO, members=(SOLO,), party_members=(SOLO,))
    _Stay(run, thread, recorder).begin()
    return run


def _start_worker(description: Run, place: Place, party: str | None, rank: int | None) -> LiveRun:
    if party is None or rank is None:
        missing = [("party", f"one of {', '.join(description.servers)}")] if party is None else []
        missing += [("rank", "this worker's rank in its party")] if rank is None else []
        hint = "start the script with `geomx run` or `geomx worker`, or give it to join()"
        raise ConfigError("join()", [Fault(key, "nothing", allowed, hint) for key, allowed in missing])
    members = description.workers_of(party)
    if not 0 <= rank < len(members):
        fault = Fault("rank", str(rank), f"0 to {len(members) - 1}, since {party} has {len(members)} workers")
        raise ConfigError("join()", [fault])
    if description.worker.threads:
        torch.set_num_threads(description.worker.threads)
    recorder = Recorder(place.records, members[rank], place.trace)
    thread = WorkerThread(description, members[rank], recorder)
    run = LiveRun(
        thread.port,
        name=members[rank],
        members=description.workers,
        party_members=members,
        settings=_settings(description, party, members[rank]),
    )
    _Stay(run, thread, recorder).begin()
    return run


def _settings(run: Run, party: str, worker: str) -> Settings:
    slow = run.party(party).worker_delay
    return Settings(
        weight=run.sync.weight,
        dataset_size=run.party(party).dataset_size,
        place=run.optimizer.place,
        overlap=run.worker.overlap,
        push_at=run.worker.push_at,
        slice_elements=run.layout.slice_elements,
        slices=slices_wanted(run.wan.codec_up, run.wan.codec_down),
        size_lower_bound=run.layout.size_lower_bound,
        codec_momentum=_with_momentum(run),
        delay=None if slow is None else Delay(slow.factor, slow.jitter, f"{run.run.seed} {worker}"),
        seed=run.run.seed,
        ledger=run.run.ledger,
        policy=policies.make(run.sync.policy),
        buffers=run.sync.buffers,
    )


def _with_momentum(run: Run) -> str:
    """The codec on the way up that has momentum; "" where none has."""
    for spec in (run.wan.codec_up, run.lan.codec_up):
        if getattr(make_codec(spec, Stream()), "momentum", 0.0):
            return spec
    return ""


class _Stay:
    """This process's stay in a run: sees to it that it ends when the process does, in order or with an error."""

    def __init__(self, run: LiveRun, thread: WorkerThread | SoloThread, recorder: Recorder) -> None:
        self._run = run
        self._thread = thread
        self._recorder = recorder
        self._process = os.getpid()
        self._report = sys.excepthook

    def begin(self) -> None:
        self._thread.start()
        sys.excepthook = self._raised
        atexit.register(self._end)

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The script raised. What lies outside it needs no traceback of it."""
        if os.getpid() == self._process:
            self._run.fail(f"{kind.__name__}: {error}".removesuffix(": "))
        if isinstance(error, NOT_THE_SCRIPT):
            print(f"geomx: {error}", file=sys.stderr, flush=True)
        else:
            self._report(kind, error, trace)

    def _end(self) -> None:
        """The process ends. Of a fork of it, the run knows nothing."""
        if os.getpid() != self._process:
            return
        error: GeomxError | None = None
        try:
            self._run.close()
        except GeomxError as caught:
            error = caught
        self._thread.stop()
        self._recorder.close()
        if error is not None:
            _exit_failed(error)


def _exit_failed(error: GeomxError) -> None:
    """End with a status that says so: an exit handler that raises would end with status 0."""
    print(f"geomx: {error}", file=sys.stderr)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
