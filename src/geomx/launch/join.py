"""A training script's way into its run."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed as dist

from geomx.codecs.pack.noise import RngKey
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
from geomx.launch.environment import (
    JOB_RANK,
    JOB_SIZE,
    ProcessPlace,
    TorchrunJob,
    apply_switches,
    read_job,
    read_place,
)
from geomx.launch.slow_worker import SlowWorker
from geomx.observe.records import Recorder
from geomx.sync import policies
from geomx.train.run import LiveRun
from geomx.train.settings import Collective, Settings

SOLO = "solo/0"
# What another node, the run's description or the network brought about.
NOT_THE_SCRIPT = (ConfigError, Disagreement, NodeLost, Refused, RunFailed, WaitTimeout)


def join(run: str | Path | Run | None = None, party: str | None = None, rank: int | None = None) -> LiveRun:
    """Take this process's place in its run: a worker, which dials its local server.

    `run`: the run's description, or where it is. What is not given comes from the environment, which `geomx run` and
    `geomx worker` set; with neither, this is a run of one, and trains as plain PyTorch would. Where the workers of the
    party reduce among themselves, the rank is that of the process group, or of torchrun.

    The run is left in order when the script ends, and told when it raises. Raises `ConfigError` where the place
    is incomplete or does not exist; who refuses this worker, or is lost, is told by the first call that waits.
    """
    apply_switches()
    place = read_place()
    description = _description(run, place)
    if description is None:
        return _start_solo(place, party, rank)
    return _start_worker(description, place, party or place.party, place.rank if rank is None else rank)


def _description(run: str | Path | Run | None, place: ProcessPlace) -> Run | None:
    if isinstance(run, Run):
        return run
    if run is not None:
        return Run.load(run)
    return None if place.run is None else Run.load(place.run, place.overrides)


def _start_solo(place: ProcessPlace, party: str | None, rank: int | None) -> LiveRun:
    given = {"party": party, "rank": rank}
    faults = [Fault(k, repr(v), "only together with `run`") for k, v in given.items() if v is not None]
    if faults:
        raise ConfigError("join()", faults)
    recorder = Recorder(place.records, SOLO, place.trace)
    thread = SoloThread(recorder)
    run = LiveRun(thread.port, name=SOLO, members=(SOLO,), party_members=(SOLO,))
    _Stay(run, thread, recorder).begin()
    return run


def _start_worker(description: Run, place: ProcessPlace, party: str | None, rank: int | None) -> LiveRun:
    members = () if party is None else description.workers_of(party)
    if party is not None and description.party(party).inside == "collective":
        rank = _rank_in_job(party, members, rank)
    if party is None or rank is None:
        missing = [("party", f"one of {', '.join(description.servers)}")] if party is None else []
        missing += [("rank", "this worker's rank in its party")] if rank is None else []
        hint = "start the script with `geomx run` or `geomx worker`, or give it to join()"
        raise ConfigError("join()", [Fault(key, "nothing", allowed, hint) for key, allowed in missing])
    if not 0 <= rank < len(members):
        fault = Fault("rank", str(rank), f"0 to {len(members) - 1}, since {party} has {len(members)} workers")
        raise ConfigError("join()", [fault])
    if description.worker.threads:
        torch.set_num_threads(description.worker.threads)
    recorder = Recorder(place.records, members[rank], place.trace)
    thread = WorkerThread(description, members[rank], recorder)
    settings = _settings(description, party, members[rank])
    run = LiveRun(
        thread.port,
        name=members[rank],
        members=description.workers,
        party_members=members,
        settings=settings,
    )
    stay = _Stay(run, thread, recorder)
    stay.begin()
    if settings.collective is not None:
        stay.watch(description.limits.stop_s)
    return run


def _rank_in_job(party: str, members: Sequence[str], rank: int | None) -> int:
    """This worker's rank in the job that its party is; raises `ConfigError` where that is another one."""
    here = dist.is_available() and dist.is_initialized()
    job = TorchrunJob(dist.get_rank(), dist.get_world_size()) if here else read_job()
    inside = f'{party} has {len(members)} workers and inside = "collective"'
    if job is None:
        hint = f"{inside}: start them as one job, by torchrun or `geomx run`"
        raise ConfigError(
            "join()", [Fault(f"{JOB_RANK} and {JOB_SIZE}", "nothing", "as torchrun sets them", hint)]
        )
    if job.size != len(members):
        hint = f"{inside}: torchrun's processes must be as many as party.workers"
        raise ConfigError("join()", [Fault(JOB_SIZE, str(job.size), str(len(members)), hint)])
    if rank not in (None, job.rank):
        hint = "leave it out: it is that of the process group"
        raise ConfigError("join()", [Fault("rank", str(rank), str(job.rank), hint)])
    return job.rank


def _settings(run: Run, party: str, worker: str) -> Settings:
    slow = run.party(party).worker_delay
    collective = None
    if run.party(party).inside == "collective":
        collective = Collective(run.limits.start_s, 2 * run.lan.timeout_s, run.lan.codec_up)
    return Settings(
        weight=run.sync.weight,
        dataset_size=run.party(party).dataset_size,
        place=run.optimizer.place,
        rule=run.optimizer.rule,
        overlap=run.worker.overlap,
        push_at=run.worker.push_at,
        slice_elements=run.layout.slice_elements,
        slices=slices_wanted(run.wan.codec_up, run.wan.codec_down),
        size_lower_bound=run.layout.size_lower_bound,
        codec_momentum=_with_momentum(run),
        collective=collective,
        after_step=None
        if slow is None
        else SlowWorker(slow.factor, slow.jitter, f"{run.run.seed} {worker}").after_step,
        rejoin_s=run.lan.rejoin_s,
        seed=run.run.seed,
        ledger=run.run.ledger,
        policy=policies.make(run.sync.policy),
        buffers=run.sync.buffers,
    )


def _with_momentum(run: Run) -> str:
    """The codec on the way up that has momentum; "" where none has."""
    for spec in (run.wan.codec_up, run.lan.codec_up):
        if make_codec(spec, RngKey()).momentum:
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

    def watch(self, stop_s: float) -> None:
        """End the process where the run has failed, and its script is stuck in one of PyTorch's collective calls.

        Those hear nothing of the run; a script that waits in one of geomx's calls does.
        """

        def end() -> None:
            error = self._thread.port.unheard(stop_s)
            if error is not None and not self._run.is_closed:
                self._recorder.close()
                _exit_failed(error)

        threading.Thread(target=end, name="geomx end", daemon=True).start()

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The script raised. What lies outside it needs no traceback of it."""
        told: BaseException | None = None
        if os.getpid() == self._process:
            told = self._run.outcome(error)
            self._run.fail(f"{kind.__name__}: {error}".removesuffix(": "))
        if isinstance(told or error, NOT_THE_SCRIPT):
            print(f"geomx: {told or error}", file=sys.stderr, flush=True)
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
