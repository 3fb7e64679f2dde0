from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from geomx.observe.records import Record
from geomx.observe.trace import Span, trace_events, without_overlap, write_trace


def span(node: str, track: str, label: str, start: float, stop: float, **more: object) -> Record:
    return Record(
        stop, node, "span", "debug", {"track": track, "label": label, "start": start, "stop": stop, **more}
    )


def test_nodes_are_processes_and_tracks_are_threads(tmp_path: Path) -> None:
    records = [
        span("A/0", "compute", "backward", 10.0, 10.5, turn=1),
        span("A/0", "wire", "slice 3", 10.2, 10.4),
        span("B/0", "compute", "backward", 10.1, 10.2),
        Record(11.0, "A", "round", "debug", {"turn": 1, "operation": "step()", "seconds": 0.75}),
        Record(11.0, "A", "joined", "info", {"peer": "A/0"}),
    ]
    path = tmp_path / "deep" / "trace.json"
    write_trace(records, path)
    events = json.loads(path.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {
        (processes[e["pid"]], threads[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"])
        for e in events
        if e["ph"] == "X"
    }
    assert found == {
        ("A/0", "compute", "backward", 0.0, 500_000.0),
        ("A/0", "wire", "slice 3", 200_000.0, 200_000.0),
        ("B/0", "compute", "backward", 100_000.0, 100_000.0),
        ("A", "rounds", "step() 1", 250_000.0, 750_000.0),
    }
    assert next(e["args"] for e in events if e["name"] == "backward" and e["ts"] == 0.0) == {"turn": 1}


def test_a_run_without_records_has_an_empty_trace() -> None:
    assert trace_events([]) == []


def test_overlapping_spans_of_a_track_get_threads_of_its_name() -> None:
    records = [span("A/0", "wire", f"slice {i}", i, i + 1.5) for i in range(4)]
    events = trace_events(records)
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["wire", "wire"]


def test_a_changed_link_is_a_box_at_its_party_until_the_next_change_or_the_end() -> None:
    def link(t: float, node: str, state: str) -> Record:
        return Record(t, node, "link", "info", {"party": "B", "at_s": t, "state": state})

    states = [(2.0, "cut"), (5.0, "5 Mbit/s")]
    records = [span("B", "slice 1", "x", 0.0, 1.0), *(link(t, "B", state) for t, state in states)]
    records += [link(2.1, "global/0", "cut"), span("A", "slice 1", "x", 6.0, 9.0)]
    events = trace_events(records)
    boxes = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["cat"] == "link"]
    assert sorted(boxes) == [("5 Mbit/s", 5e6, 4e6), ("cut", 2e6, 3e6)]


times = st.integers(0, 50)


@given(st.lists(st.tuples(times, times).map(sorted)))
def test_in_a_row_spans_are_apart_or_nested(bounds: list[list[int]]) -> None:
    spans = [Span("A", "t", str(i), start, stop, {}) for i, (start, stop) in enumerate(bounds)]
    rows = list(without_overlap(spans))
    assert sorted(s.label for row in rows for s in row) == sorted(s.label for s in spans)
    for row in rows:
        for one in row:
            for other in row:
                apart = one.stop <= other.start or other.stop <= one.start
                nested = (one.start >= other.start and one.stop <= other.stop) or (
                    other.start >= one.start and other.stop <= one.stop
                )
                assert apart or nested


def test_spans_that_fit_share_a_row() -> None:
    spans = [
        Span("A", "t", "step", 0, 10, {}),
        Span("A", "t", "inner", 2, 3, {}),
        Span("A", "t", "next", 10, 11, {}),
    ]
    assert len(list(without_overlap(spans))) == 1


def test_training_stands_above_the_slices_in_their_order() -> None:
    tracks = ("slice 10", "slice 2", "training", "rounds")
    events = trace_events([span("A/0", track, "x", 0.0, 1.0) for track in tracks])
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == ["rounds", "training", "slice 2", "slice 10"]
