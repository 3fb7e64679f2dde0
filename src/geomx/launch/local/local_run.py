"""A whole run on this machine: what `geomx run` does."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from geomx.config import Run
from geomx.config.files import file_problems
from geomx.config.reading.document import Document
from geomx.config.reading.problems import Problem
from geomx.drive.secret import make_secret
from geomx.errors import ConfigError, FileUnwritable
from geomx.launch.engines.keeper import LOST_STATUS
from geomx.launch.environment import ProcessPlace, environment_of, job_environment, threads_each
from geomx.launch.local.child import Command, Ended
from geomx.launch.local.outputs import check_outputs, write_outputs
from geomx.launch.local.ports import Ports
from geomx.launch.local.processes import Outcome, Supervisor
from geomx.launch.verdict import check_result, first_failure, tells_failure
from geomx.observe.live import RunView, view_of
from geomx.observe.members import MemberChanges
from geomx.observe.records import Record, RecordFiles
from geomx.observe.report import How, Report, closing_table, make_report, write_report
from geomx.observe.trace import write_trace

SHOW_S = 0.25
MOST_RESTARTS, WITHIN_S = 5, 600.0
DESCRIPTION = "run.json"
OTHER_FOLDER = "TMPDIR may name another folder for the run's files"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user wants of a run besides the run. `keep`: the run's folder, with its records."""

    report: Path | None = None
    trace: Path | None = None
    keep: bool = False
    plain: bool = False


def run_here(run: Run, options: RunOptions) -> Report:
    """Run every node of `run` on this machine, to the end; gives its report.

    Report and trace are written however it ended, of what was done until then. Raises `RunFailed`, which names the
    node that failed first and says why, KeyboardInterrupt after Ctrl-C, `FileUnwritable`, and `ConfigError` where there
    is no script, a file could not be written, or an address is taken. Raises `ResultWrong` where all nodes have ended
    well, and what they came to cannot be right.
    """
    _check_script(run)
    check_outputs({"--report": options.report, "--trace": options.trace})
    console = Console()
    with _folder(run, options.keep, console) as folder, Ports() as ports:
        run = _settled(run, folder.path, ports)
        records = RecordFiles(folder.records)
        started = time.monotonic()
        with view_of(run, console, options.plain) as view:
            members = MemberChanges(run)
            supervisor = Supervisor(
                view.line,
                _Tick(view, records, members),
                run.limits.stop_s,
                view.say,
                _NotJoined(run, records).lack_of,
                _end_s(run),
                _Losses(run, folder.records).goes_on,
                members.is_out,
                _Restarts(run).again,
            )
            outcome = supervisor.run(commands(run, folder.path, ports, trace=options.trace is not None))
        wall_s = time.monotonic() - started
        return _conclude(run, options, outcome, wall_s, folder, console)


def _conclude(
    run: Run, options: RunOptions, outcome: Outcome, wall_s: float, folder: _Folder, console: Console
) -> Report:
    """Print what a run came to, and write its files; gives its report. Raises where it did not end well."""
    kept = RecordFiles(folder.records).new()
    failure = first_failure(outcome, kept, shown=True) if outcome.failures else None
    ended: How = "failed" if failure else "interrupted" if outcome.interrupted else "well"
    lost = {loss.name: loss.how for loss in outcome.lost}
    report = make_report(run, kept, wall_s, ended, str(failure) if failure else None, lost)
    ended_well = failure is None and not outcome.interrupted
    folder.keep = folder.keep or bool(ended_well and report["wrong"])
    if failure is None:
        console.print(closing_table(report))
    hint = f"`geomx report {folder.path / DESCRIPTION} {folder.records} --json FILE --trace FILE` makes them again"
    try:
        write_outputs(
            {
                options.report: lambda path: write_report(report, path),
                options.trace: lambda path: write_trace(kept, path),
            },
            hint,
        )
    except FileUnwritable as error:
        folder.keep = True
        if failure is None:
            raise
        print(f"geomx: {error}", file=sys.stderr, flush=True)
    if failure is not None:
        raise failure
    if outcome.interrupted:
        raise KeyboardInterrupt
    check_result(report, folder.records)
    return report


def rehearse(run: Run, enough: Callable[[Sequence[Record]], bool]) -> list[Record]:
    """Run every node of `run` on this machine until `enough(its records)`, or to the end; gives the records.

    Shows nothing. Raises as `run_here` does.
    """
    _check_script(run)
    kept: list[Record] = []
    with _folder(run, False, Console()) as folder, Ports() as ports:
        run = _settled(run, folder.path, ports)
        records = RecordFiles(folder.records)

        def tick() -> None:
            kept.extend(records.new())
            if enough(kept):
                supervisor.stop()

        supervisor = Supervisor(lambda *_: None, tick, run.limits.stop_s)
        outcome = supervisor.run(commands(run, folder.path, ports, trace=False))
        kept.extend(records.new())
    if outcome.failures:
        raise first_failure(outcome, kept)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return kept


def _settled(run: Run, folder: Path, ports: Ports) -> Run:
    """The run with a secret and all its addresses, which nobody else has; its description is in the folder then."""
    for node, address in run.addresses.items():
        if address:
            ports.claim(run, node, by="geomx run")
    run = with_free_ports(run, ports)
    if run.run.secret_file is None:
        make_secret(folder / "secret")
        run = run.changed([f"run.secret_file={json.dumps(str(folder / 'secret'))}"])
    try:
        run.save(folder / DESCRIPTION)
    except OSError as error:
        raise FileUnwritable(folder / DESCRIPTION, error.strerror or str(error), OTHER_FOLDER) from error
    return run


def _end_s(run: Run) -> float:
    """How long others may take to end once all workers have: an orderly end, and one of them may be away."""
    return run.limits.stop_s + max(run.lan.timeout_s, run.wan.timeout_s)


class _NotJoined:
    """Knows which workers' scripts have ended without having joined: nobody has recorded anything as them."""

    def __init__(self, run: Run, records: RecordFiles) -> None:
        self._run, self._records = run, records

    def lack_of(self, worker: str) -> str:
        """See `Supervisor`."""
        if self._records.path_of(worker).exists():
            return ""
        return f"without joining the run: {self._run.run.script} did not call geomx.join()"


class _Losses:
    """Knows whether the run goes on without a process that has ended: as `run.on_loss` says, and what it recorded.

    A global server is never lost, nor is who has recorded nothing, or has told that the run failed.
    """

    def __init__(self, run: Run, records: Path) -> None:
        self._run, self._records = run, records

    def goes_on(self, ended: Ended) -> str:
        """See `Supervisor`."""
        tree, told = self._run.tree, RecordFiles(self._records).of(ended.name)
        if self._run.run.on_loss == "stop" or tree.is_shard(ended.name) or not told:
            return ""
        if any(tells_failure(record, tree) for record in told):
            return ""
        if ended.overdue:
            return "stopping it"
        if self._run.run.on_loss == "wait":
            return f"the run waits up to {self._run.run.wait_s:g} s for it to be started again"
        return "the run goes on without it"


class _Restarts:
    """Knows whether a process is started again: a global server that has a log, and did not end by what it decided."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._at: list[float] = []

    def again(self, ended: Ended) -> str:
        """See `Supervisor`."""
        now = time.monotonic()
        self._at = [at for at in self._at if now - at < WITHIN_S]
        can = self._run.is_durable and self._run.tree.is_shard(ended.name)
        was_lost = ended.status < 0 or ended.status == LOST_STATUS
        if not can or not was_lost or len(self._at) >= MOST_RESTARTS:
            return ""
        self._at.append(now)
        return "it is started again, from its log"


class _Tick:
    """Shows the records that have come, a few times a second, and learns from them who takes part."""

    def __init__(self, view: RunView, records: RecordFiles, members: MemberChanges) -> None:
        self._view, self._records, self._members = view, records, members
        self._shown = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._shown >= SHOW_S:
            self._shown = now
            new = self._records.new()
            self._view.show(new, now)
            for record in new:
                self._members.take(record)


def commands(run: Run, folder: Path, ports: Ports, *, trace: bool) -> Iterator[Command]:
    """The processes of a run whose description and records are in `folder`: servers first, then workers."""
    description = folder / DESCRIPTION
    records = RecordFiles(folder / "records")
    each = threads_each(len(run.tree.nodes))
    place = ProcessPlace(trace=trace, watched=True)
    geomx = (sys.executable, "-m", "geomx")

    def server(name: str, *role: str) -> Command:
        environment = environment_of(replace(place, records=records.path_of(name)), each)
        return Command(name, (*geomx, "serve", str(description), *role), environment, serves=True)

    for shard, name in enumerate(run.shard_names):
        yield server(name, "--role", "global", "--shard", str(shard))
    for region in run.regions:
        yield server(region.name, "--role", "region", "--region", region.name)
    for name in run.servers:
        yield server(name, "--role", "local", "--party", name)
    script = (sys.executable, str(run.run.script), *run.run.arguments)
    for party in run.parties:
        job_port = ports.hold() if party.inside == "collective" else None
        for rank, name in enumerate(party.worker_names):
            environment = environment_of(replace(place, records=records.path_of(name)), each)
            if job_port is not None:
                environment |= job_environment(rank, party.workers, job_port)
            where = ("--party", party.name, "--rank", str(rank))
            yield Command(name, (*geomx, "worker", str(description), *where, "--", *script), environment)


def with_free_ports(run: Run, ports: Ports) -> Run:
    """Give a free port of this machine to every server that has no address."""
    without = [node for node, address in run.addresses.items() if not address]
    known = run.with_addresses({node: f"127.0.0.1:{ports.hold()}" for node in without})
    return known.with_addresses_beside(lambda _: f"127.0.0.1:{ports.hold()}") if known.overlays else known


def _check_script(run: Run) -> None:
    problems = list(file_problems(run, ("script",)))
    if run.run.script is None:
        problems = [Problem(("run", "script"), "nothing", "path of the training script that workers run")]
    if problems:
        raise ConfigError(f"run {run.run.name}", Document({}).faults(problems))


class _Folder:
    """A run's files: its description, and the nodes' records. `keep`: it stays."""

    def __init__(self, path: Path, keep: bool) -> None:
        self.path = path
        self.records = path / "records"
        self.keep = keep
        self.records.mkdir()


@contextmanager
def _folder(run: Run, keep: bool, console: Console) -> Iterator[_Folder]:
    """A fresh folder for the run's files; removed at the end unless it is to be kept."""
    try:
        folder = _Folder(Path(tempfile.mkdtemp(prefix=f"geomx-{run.run.name}-")), keep)
    except OSError as error:
        raise FileUnwritable(
            "a folder for the run's files", error.strerror or str(error), OTHER_FOLDER
        ) from error
    try:
        yield folder
    finally:
        if folder.keep:
            console.print(f"The run's files are in {folder.path}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(folder.path, ignore_errors=True)
