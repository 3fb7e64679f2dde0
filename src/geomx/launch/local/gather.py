"""The report of a run whose nodes were on several machines: what `geomx report` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from geomx.config import Run
from geomx.errors import ConfigError, Fault
from geomx.launch.local.outputs import check_outputs, write_outputs
from geomx.launch.verdict import blames, check_result, lost_link
from geomx.observe.members import MemberChanges
from geomx.observe.records import CLOCK, Record, RecordFiles
from geomx.observe.report import How, closing_table, make_report, write_report
from geomx.observe.sentences import sentence
from geomx.observe.trace import write_trace


def gather(run: Run, folder: Path, report_to: Path | None = None, trace_to: Path | None = None) -> None:
    """Make the report of the records in `folder`, one file a node, and print its table.

    Of nodes without records, and of a failure, a line comes first. What those told without which the run went on, or
    before they were started again, is no failure of the run. `report_to`, `trace_to`: files that are written.
    Raises `ConfigError` where there are no records, or some of another run, `RecordsUnreadable` and
    `FileUnwritable`, and `ResultWrong` as `geomx run` does.
    """
    nodes = run.tree.nodes
    records = RecordFiles(folder).in_unix_time()
    told = {record.node for record in records}
    if not told:
        raise _wrong(folder, "no records", "a folder with the files (*.jsonl) that GEOMX_RECORDS has named")
    if strangers := sorted(told.difference(nodes)):
        raise _wrong(folder, f"records of {', '.join(strangers)}", f"records of {', '.join(nodes)}")
    check_outputs({"--json": report_to, "--trace": trace_to})
    console = Console()
    if silent := [node for node in nodes if node not in told]:
        console.print(f"no records of {', '.join(silent)}: they are left out of the report", markup=False)
    members = MemberChanges(run)
    for record in records:
        members.take(record)
    failed = [record for record in blames(_of_last_processes(records)) if not members.is_out(record.node)]
    failure = _told_once(failed) if failed else None
    if failure:
        console.print(failure, markup=False)
    finished = {record.node for record in records if record.name == "finished"}
    has_ended = finished.issuperset(worker for worker in run.workers if not members.is_out(worker))
    if has_ended:
        failure = None  # who was refused may have come back
    ended: How = "failed" if failure else "well"
    report = make_report(run, records, records[-1].t - records[0].t, ended, failure)
    console.print(closing_table(report))
    write_outputs(
        {
            report_to: lambda path: write_report(report, path),
            trace_to: lambda path: write_trace(records, path),
        }
    )
    if failure is None and has_ended:
        check_result(report, folder)


def _of_last_processes(records: Sequence[Record]) -> list[Record]:
    """Without those of processes in whose place others were started."""
    started = {record.node: record.t for record in records if record.name == CLOCK}
    return [record for record in records if record.t >= started.get(record.node, record.t)]


def _told_once(failed: Sequence[Record]) -> str:
    """The failure that was told first, by the node itself where it has told one."""
    if link := lost_link(failed):
        return ": ".join(link)
    first = next((record for record in failed if record.node == record.fields["node"]), failed[0])
    return f"{first.node}: {sentence(first.name, first.fields)}"


def _wrong(folder: Path, found: str, allowed: str) -> ConfigError:
    return ConfigError("the command line", [Fault("RECORDS", f"{folder}: {found}", allowed)])
