"""The trace of a run, as Chrome's and Perfetto's viewers read it: a process a node, a thread a track.

Format: "Trace Event Format" (Google), complete events (`ph: X`), times in microseconds. A viewer shows the events of
one thread as nested boxes and garbles those that overlap otherwise; slices on their way do overlap, so a track
takes as many threads as it needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from geomx.observe.files import write_whole
from geomx.observe.records import Record

ROUNDS, LINK = "rounds", "link"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time on one node. `start` and `stop` in seconds."""

    node: str
    track: str
    label: str
    start: float
    stop: float
    details: dict[str, Any]


def write_trace(records: Iterable[Record], path: Path) -> None:
    """Write the spans and rounds of all nodes to `path`; open it at ui.perfetto.dev. Raises `FileUnwritable`."""
    write_whole(path, msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": trace_events(records)}))


def trace_events(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The events of a trace; time 0 is where the first span starts."""
    tracks: dict[tuple[str, str], list[Span]] = defaultdict(list)
    records = list(records)
    for span in (*filter(None, map(_span, records)), *_links(records)):
        tracks[span.node, span.track].append(span)
    zero = min((span.start for spans in tracks.values() for span in spans), default=0.0)
    processes = {node: number for number, node in enumerate(sorted({node for node, _ in tracks}), start=1)}
    events = [_named("process_name", pid, 0, node) for node, pid in processes.items()]
    threads: dict[str, int] = defaultdict(int)
    for (node, track), spans in sorted(tracks.items(), key=lambda item: _place(*item[0])):
        for thread in without_overlap(spans):
            threads[node] += 1
            pid, tid = processes[node], threads[node]
            events.append(_named("thread_name", pid, tid, track))
            events.extend(_event(span, pid, tid, zero) for span in thread)
    return events


def _place(node: str, track: str) -> tuple[str, bool, int, str]:
    """Where a track stands: training and rounds before the slices, slice 2 before slice 10."""
    return node, track.startswith("slice"), len(track), track


def _span(record: Record) -> Span | None:
    fields = dict(record.fields)
    if record.name == "span":
        track, label, start, stop = (fields.pop(key) for key in ("track", "label", "start", "stop"))
        return Span(record.node, track, label, start, stop, fields)
    if record.name == "round":
        label = f"{fields.get('operation', 'turn')} {fields['turn']}"
        return Span(record.node, ROUNDS, label, record.t - fields["seconds"], record.t, fields)
    return None


def _links(records: Sequence[Record]) -> Iterator[Span]:
    """What events made of each party's link, at its local server: until the next change, or to the end."""
    end = max((record.t for record in records), default=0.0)
    until: dict[str, float] = {}
    for record in reversed(records):
        if record.name == LINK and record.fields["party"] == record.node:
            stop = until.get(record.node, end)
            yield Span(record.node, LINK, record.fields["state"], record.t, stop, dict(record.fields))
            until[record.node] = record.t


def without_overlap(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """Deal spans to as few rows as the first that fits gives: in a row, two spans are apart or nested."""
    rows: list[tuple[list[Span], list[float]]] = []  # the spans, and when those around the next one stop
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        for row, around in rows:
            while around and around[-1] <= span.start:
                around.pop()
            if not around or span.stop <= around[-1]:
                row.append(span)
                around.append(span.stop)
                break
        else:
            rows.append(([span], [span.stop]))
    return (row for row, _ in rows)


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _event(span: Span, pid: int, tid: int, zero: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.label,
        "cat": span.track,
        "pid": pid,
        "tid": tid,
        "ts": round((span.start - zero) * 1e6, 3),
        "dur": round((span.stop - span.start) * 1e6, 3),
        "args": span.details,
    }
