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
from geomx.drive.secret import make_secret
from geomx.errors import ConfigError, Fault, RunFailed
from geomx.launch.child import Command
from geomx.launch.environment import ProcessPlace, environment_of, job_environment, threads_each
from geomx.launch.ports import Ports
from geomx.launch.processes import Outcome, Supervisor
from geomx.observe.live import RunView, view_of
from geomx.observe.records import Record, RecordFiles
from geomx.observe.report import closing_table, make_report, write_report
from geomx.observe.trace import write_trace

SHOW_S = 0.25


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user wants of a run besides the run. `keep`: the run's folder, with its records."""

    report: Path | None = None
    trace: Path | None = None
    keep: bool = False
    plain: bool = False


def run_here(run: Run, options: RunOptions) -> None:
    """Run every node of `run` on this machine, to the end.

    Raises `RunFailed`, which names the node that failed first and says why, KeyboardInterrupt after Ctrl-C, and
    `ConfigError` where no script is named.
    """
    _check_script(run)
    make_folders_of(options.report, options.trace)
    console = Console()
    with _folder(run, options.keep, console) as folder, Ports() as ports:
        run = _settled(run, folder, ports)
        records = RecordFiles(folder / "records")
        started = time.monotonic()
        with view_of(run, console, options.plain) as view:
            supervisor = Supervisor(view.line, _Tick(view, records), run.limits.stop_s)
            outcome = supervisor.run(commands(run, folder, ports, trace=options.trace is not None))
        wall_s = time.monotonic() - started
        kept = RecordFiles(folder / "records").new()
        if options.trace is not None:
            write_trace(kept, options.trace)
        _check_ended_well(outcome, kept)
        report = make_report(run, kept, wall_s)
        if options.report is not None:
            write_report(report, options.report)
        console.print(closing_table(report))


def rehearse(run: Run, enough: Callable[[Sequence[Record]], bool]) -> list[Record]:
    """Run every node of `run` on this machine until `enough(its records)`, or to the end; gives the records.

    Shows nothing. Raises as `run_here` does.
    """
    _check_script(run)
    kept: list[Record] = []
    with _folder(run, False, Console()) as folder, Ports() as ports:
        run = _settled(run, folder, ports)
        records = RecordFiles(folder / "records")

        def tick() -> None:
            kept.extend(records.new())
            if enough(kept):
                supervisor.stop()

        supervisor = Supervisor(lambda *_: None, tick, run.limits.stop_s)
        outcome = supervisor.run(commands(run, folder, ports, trace=False))
        kept.extend(records.new())
    _check_ended_well(outcome, kept)
    return kept


def _settled(run: Run, folder: Path, ports: Ports) -> Run:
    """The run with all its addresses and a secret; its description is in the folder then."""
    run = with_free_ports(run, ports)
    if run.run.secret_file is None:
        make_secret(folder / "secret")
        run = run.changed([f"run.secret_file={json.dumps(str(folder / 'secret'))}"])
    run.save(folder / "run.json")
    return run


def _check_ended_well(outcome: Outcome, records: Sequence[Record]) -> None:
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.failures:
        raise first_failure(outcome, records)


class _Tick:
    """Shows the records that have come, a few times a second."""

    def __init__(self, view: RunView, records: RecordFiles) -> None:
        self._view, self._records = view, records
        self._shown = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._shown >= SHOW_S:
            self._shown = now
            self._view.show(self._records.new(), now)


def commands(run: Run, folder: Path, ports: Ports, *, trace: bool) -> Iterator[Command]:
    """The processes of a run whose description and records are in `folder`: servers first, then workers."""
    description = folder / "run.json"
    records = RecordFiles(folder / "records")
    processes = len(run.shard_names) + len(run.servers) + len(run.workers)
    each = threads_each(processes)
    place = ProcessPlace(trace=trace)
    geomx = (sys.executable, "-m", "geomx")

    def server(name: str, *role: str) -> Command:
        environment = environment_of(replace(place, records=records.path_of(name)), each)
        return Command(name, (*geomx, "serve", str(description), *role), environment, serves=True)

    for shard, name in enumerate(run.shard_names):
        yield server(name, "--role", "global", "--shard", str(shard))
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
    return run.with_addresses({node: f"127.0.0.1:{ports.hold()}" for node in without})


def first_failure(outcome: Outcome, records: Sequence[Record]) -> RunFailed:
    """The failure that brought about the others, with the node's last words.

    It is that of a process that a signal killed, else of the first node that told of a failure of its own, else
    of the first node that others told about (it may have fallen silent), else the first that was noticed. What
    processes tell that have not ended by themselves says nothing: they were stopped.
    """
    ended = {failure.name: failure for failure in outcome.failures}
    told = [record for record in records if record.name == "failed" and record.node in ended]
    reasons = {
        record.node: record.fields["reason"] for record in told if record.node == record.fields["node"]
    }
    killed = [failure.name for failure in outcome.failures if failure.status < 0]
    of_others = [record.fields["node"] for record in told]
    node = [*killed, *reasons, *of_others, *ended][0]
    if node not in ended:
        return RunFailed(node, next(r.fields["reason"] for r in told if r.fields["node"] == node))
    how = f"it {ended[node].how}" + (f": {reasons[node]}" if node in reasons else "")
    lines = "".join(f"\n  {line}" for line in ended[node].last_lines)
    return RunFailed(node, f"{how}; its last lines:{lines}" if lines else how)


def _check_script(run: Run) -> None:
    script = run.run.script
    if script is None or not script.is_file():
        found = "nothing" if script is None else f"no file {script}"
        fault = Fault("run.script", found, "path of the training script that workers run")
        raise ConfigError(f"run {run.run.name}", [fault])


def make_folders_of(*files: Path | None) -> None:
    """Before anything runs: a run should not fail at its end for a folder that cannot be made (`ConfigError`)."""
    for path in filter(None, files):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fault = Fault(str(path), error.strerror or str(error), "a file that can be written")
            raise ConfigError("the command line", [fault]) from error


@contextmanager
def _folder(run: Run, keep: bool, console: Console) -> Iterator[Path]:
    """A fresh folder for the run's files; removed at the end unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix=f"geomx-{run.run.name}-"))
    (folder / "records").mkdir()
    try:
        yield folder
    finally:
        if keep:
            console.print(f"The run's files are in {folder}", highlight=False, soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
