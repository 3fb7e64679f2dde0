"""A training script's way into its run."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType

import torch
import torch.distributed as dist

from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec, size_bounds_of, slices_wanted
from geomx.config import Run, load_whole
from geomx.config.compatibility.choice_rules import check_choices
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
from geomx.launch.engines.keeper import LOST_STATUS
from geomx.launch.environment import (
    JOB_RANK,
    JOB_SIZE,
    ProcessPlace,
    TorchrunJob,
    apply_switches,
    read_job,
    read_place,
)
from geomx.launch.leave import Door
from geomx.launch.local.slow_worker import SlowWorker
from geomx.launch.verdict import by_hand, follows, status_of
from geomx.node.contract import asked_to_end
from geomx.observe.node_progress import NodeProgress
from geomx.observe.records import Recorder
from geomx.train.ending import why_ended
from geomx.train.run import LiveRun
from geomx.train.settings import Collective, Settings
from geomx.tree import Tree

# What another node, the run's description or the network brought about.
NOT_THE_SCRIPT = (ConfigError, Disagreement, NodeLost, Refused, RunFailed, WaitTimeout)
AMID_DATA = "its script ended in the middle of run.shard(loader), without run.close()"
TELL_S = 3.0  # a connection takes 2 s at most to end, and a cut link cannot be told

OVERLAY_SLICES = 3  # times as many, since more of them are under way on the longer ways of an overlay


def join(run: str | Path | Run | None = None, party: str | None = None, rank: int | None = None) -> LiveRun:
    """Join a run as one of its workers.

    `geomx run` and `geomx worker` set an environment that says which worker this process is: scripts that they start
    need no arguments. Without that environment and without `run`, the script trains by itself, as a run with one
    worker, and computes what plain PyTorch would.

    Returns at once; connecting goes on in the background. When the script ends, it leaves the run by itself; if it
    raises, is stopped by SIGTERM or Ctrl-C, or ends in the middle of `run.shard`, the run ends and names this worker.
    With `run.on_loss = "continue"`, SIGTERM asks this worker to leave: see `AskedToLeave`.

    Args:
        run: The run's description, or the path of its file. None: as the environment says.
        party: The name of this worker's party. None: as the environment says.
        rank: This worker's rank in its party, from 0. None: as the environment says. In a party with `inside =
            "collective"` it is the rank of the process group, or of torchrun.

    Returns:
        This worker's place in the run.

    Raises:
        ConfigError: The description has faults, or `party` and `rank` are missing or name no worker of the run.
        Refused: Later, from the first call that waits: the run did not let this worker in.
        WaitTimeout: Later, from the first call that waits: a node did not come within `limits.start_s`.
    """
    apply_switches()
    place = read_place()
    description = _description(run, place)
    if description is None:
        return _start_solo(place, party, rank)
    return _start_worker(description, place, party or place.party, place.rank if rank is None else rank)


def _description(run: str | Path | Run | None, place: ProcessPlace) -> Run | None:
    if isinstance(run, Run):
        check_choices(run)
        return run
    if run is not None:
        return load_whole(run, needed=("tls", "proof", "hand"))
    return None if place.run is None else load_whole(place.run, place.overrides, ("tls", "proof"))


def _start_solo(place: ProcessPlace, party: str | None, rank: int | None) -> LiveRun:
    given = {"party": party, "rank": rank}
    faults = [Fault(k, repr(v), "only together with `run`") for k, v in given.items() if v is not None]
    if faults:
        raise ConfigError("join()", faults)
    tree = Tree.solo()
    recorder = Recorder(place.records, tree.workers[0], place.trace, place.watched)
    thread = SoloThread(recorder)
    run = LiveRun(thread.port, name=tree.workers[0], tree=tree)
    _Stay(run, thread, recorder, place).begin()
    return run


def _start_worker(description: Run, place: ProcessPlace, party: str | None, rank: int | None) -> LiveRun:
    members = () if party is None else description.workers_of(party)
    if party is not None and description.party(party).inside == "collective":
        rank = _rank_in_job(party, members, rank)
    if party is None or rank is None:
        missing = [("party", f"one of {', '.join(description.servers)}")] if party is None else []
        missing += [("rank", "this worker's rank in its party")] if rank is None else []
        hint = "start the script with `geomx run` or `geomx worker`, or pass it to join()"
        raise ConfigError("join()", [Fault(key, "nothing", allowed, hint) for key, allowed in missing])
    if not 0 <= rank < len(members):
        fault = Fault("rank", str(rank), f"0 to {len(members) - 1}, since {party} has {len(members)} workers")
        raise ConfigError("join()", [fault])
    if description.worker.threads:
        torch.set_num_threads(description.worker.threads)
    progress = None if place.watched else NodeProgress().take
    recorder = Recorder(place.records, members[rank], place.trace, place.watched, progress)
    thread = WorkerThread(description, members[rank], recorder)
    settings = _settings(description, party, members[rank])
    run = LiveRun(
        thread.port,
        name=members[rank],
        tree=description.open_tree,
        settings=settings,
        party=members,
    )
    stay = _Stay(
        run, thread, recorder, place, may_return=settings.on_loss != "stop", stop_s=description.limits.stop_s
    )
    stay.begin()
    stay.door = Door(description.run.name, members[rank])
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
        hint = f"{inside}: torchrun must start as many processes"
        raise ConfigError("join()", [Fault(JOB_SIZE, str(job.size), str(len(members)), hint)])
    if rank not in (None, job.rank):
        hint = "leave it out: it is the rank in the process group"
        raise ConfigError("join()", [Fault("rank", str(rank), str(job.rank), hint)])
    return job.rank


def _settings(run: Run, party: str, worker: str) -> Settings:
    slow = run.party(party).worker_delay
    collective = None
    if run.party(party).inside == "collective":
        collective = Collective(run.limits.start_s, 2 * run.lan.timeout_s, run.lan.codec_up)
    return Settings.of(
        run,
        weight=run.sync.weight,
        dataset_size=run.party(party).dataset_size,
        slice_elements=run.layout.slice_elements,
        slices=slices_wanted(run.wan.codec_up, run.wan.codec_down) * (OVERLAY_SLICES if run.overlays else 1),
        pack_below=run.layout.pack_below,
        size_bounds=size_bounds_of(*run.codecs),
        collective=collective,
        after_step=None
        if slow is None
        else SlowWorker(slow.factor, slow.jitter, f"{run.run.seed} {worker}").after_step,
        seed=run.run.seed,
        ledger=run.run.ledger,
        calls=run.run.calls,
        buffers=run.sync.buffers,
        on_nonfinite=run.run.on_nonfinite,
        has_overlay=bool(run.overlays),
        room=make_codec(run.lan.codec_up, RngKey()).room,
        has_quorum=run.sync.quorum < 1.0,
    )


def script_ended(end: SystemExit | None) -> None:
    """For who runs the script: how it ended, by `sys.exit` or at its last line. Exit handlers are told neither."""
    for stay in _stays:
        stay.script_ended(end)


def has_joined() -> bool:
    """Whether this process has taken a place in a run."""
    return bool(_stays)


class _Stay:
    """This process's stay in a run: sees to it that it ends when the process does, in order or with an error."""

    def __init__(
        self,
        run: LiveRun,
        thread: WorkerThread | SoloThread,
        recorder: Recorder,
        place: ProcessPlace,
        may_return: bool = False,
        stop_s: float = 0.0,
    ) -> None:
        """`stop_s`: how long its script may take to leave once it is asked to."""
        self._run = run
        self._stop_s = stop_s
        self._is_asked = False  # to leave
        self.door: Door | None = None  # of a worker of a run of several
        self._thread = thread
        self._recorder = recorder
        self._watched = place.watched
        self._process = os.getpid()
        self._report = sys.excepthook
        self._may_return = may_return
        self._is_alone = isinstance(thread, SoloThread)
        self._ended_well = False  # as far as is known
        self._status = 0  # with which the process ends, where the script does not say

    def begin(self) -> None:
        self._thread.start()
        sys.excepthook = self._raised
        atexit.register(self._end)
        _stays.append(self)
        if (
            not self._is_alone
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # else the script has one of its own
        ):
            signal.signal(signal.SIGTERM, self._terminated)

    def watch(self, stop_s: float) -> None:
        """End the process where the run has failed, and its script is stuck in one of PyTorch's collective calls.

        Those hear nothing of the run; a script that waits in one of geomx's calls does.
        """

        def end() -> None:
            error = self._thread.port.unheard(stop_s)
            if error is not None and not self._run.is_closed:
                self._recorder.close()
                self._exit_failed(error)

        threading.Thread(target=end, name="geomx end", daemon=True).start()

    def script_ended(self, end: SystemExit | None) -> None:
        """See the function of that name."""
        if end is None or not end.code:
            self._ended_well = True
        elif os.getpid() == self._process and not self._run.is_closed:
            self._run.fail(why_ended(end))

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The script raised. What lies outside it needs no traceback of it."""
        told: BaseException | None = None
        if os.getpid() == self._process:
            told = self._run.outcome(error)
            self._run.end_with(error)
            self._status = status_of(told or error, self._may_return)
        if isinstance(told or error, NOT_THE_SCRIPT):
            self._say(told or error)
        else:
            self._report(kind, error, trace)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM: leave in order, where the others go on; the second one ends this process all the same.

        Else tell the run, and end as every process does that has no handler for it. Where workers that are started
        again may come back, whoever sends this does so next: nobody has failed.
        """
        is_in = os.getpid() == self._process and not self._run.is_closed
        if is_in and self._run.may_leave_early and not self._is_asked:
            self._is_asked = True
            self._run.ask_to_leave()
            threading.Thread(target=self._end_if_late, name="geomx leave", daemon=True).start()
            return
        signal.signal(number, signal.SIG_DFL)
        if is_in:
            if not self._may_return:
                self._run.fail(asked_to_end(signal.Signals(number).name))
            self._thread.stop(TELL_S)
            self._recorder.close()
        os.kill(os.getpid(), number)

    def _end_if_late(self) -> None:
        """End the process as lost where its script has not come to a step or a batch in time."""
        time.sleep(self._stop_s)
        if not self._run.is_closed:
            why = f"its script took no step and no batch for {self._stop_s:g} s (limits.stop_s)"
            print(f"geomx: {self._run.name} has not left in order: {why}", file=sys.stderr, flush=True)
            self._recorder.close()
            os._exit(128 + signal.SIGTERM)

    def _end(self) -> None:
        """The process ends. Of a fork of it, the run knows nothing."""
        if os.getpid() != self._process:
            return
        error: GeomxError | None = None
        try:
            self._leave()
        except GeomxError as caught:
            error = caught
        except KeyboardInterrupt as caught:
            self._run.fail(why_ended(caught))
            error = RunFailed(self._run.name, why_ended(caught))
        self._thread.stop()
        self._recorder.close()
        if error is not None:
            self._exit_failed(error)
        if self._run.has_left and self.door is not None:
            self.door.has_left()
        if self._status == LOST_STATUS:
            self._exit()

    def _leave(self) -> None:
        if self._run.is_amid_data and not (self._run.is_closed or self._ended_well or self._is_alone):
            self._run.fail(AMID_DATA)
            raise RunFailed(self._run.name, f"{AMID_DATA}; to leave early, call run.close()")
        self._run.close()

    def _say(self, error: BaseException) -> None:
        """What `geomx run` tells of others itself is not told by each that followed."""
        if not (self._watched and follows(error, self._run.name)):
            said = str(error) if self._watched or self._is_alone else by_hand(error)
            print(f"geomx: {said}", file=sys.stderr, flush=True)

    def _exit_failed(self, error: GeomxError) -> None:
        """End with a status that says so: an exit handler that raises would end with status 0."""
        self._say(error)
        self._status = status_of(error, self._may_return)
        self._exit()

    def _exit(self) -> None:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._status)


_stays: list[_Stay] = []
