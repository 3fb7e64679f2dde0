"""Records of a run: kept, logged, read again, and told in words."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest
import torch
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import RecordsUnreadable
from geomx.observe.records import Record, Recorder, RecordFiles
from geomx.observe.sentences import counted, sentence


def lines_of(path: Path) -> list[dict[str, object]]:
    """What was recorded; every process's first line tells of its clock."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["name"] == "clock"
    return [line for line in lines if line["name"] != "clock"]


def test_a_record_is_one_line_with_its_fields_apart_for_the_user_alone(tmp_path: Path) -> None:
    """A script's last words may hold its arguments. What JSON lacks does not stop a run."""
    path = tmp_path / "A.jsonl"
    recorder = Recorder(path, "A")
    recorder.record("failed", "debug", node="A/1", reason="boom", name="x", level="y")
    recorder.record("log", loss=torch.tensor(0.5), diverged=float("nan"), where=Path("x"))
    recorder.close()
    assert path.stat().st_mode & 0o777 == 0o600
    line, log = lines_of(path)
    assert isinstance(line.pop("t"), float)
    assert line == {
        "node": "A",
        "name": "failed",
        "level": "debug",
        "fields": {"node": "A/1", "reason": "boom", "name": "x", "level": "y"},
    }
    assert log["fields"] == {"loss": 0.5, "diverged": None, "where": "x"}


def test_what_geomx_run_shows_itself_is_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "geomx")
    reason = "A/0 is lost (silence)"
    for watched in (True, False):
        recorder = Recorder(tmp_path / f"{watched}.jsonl", "A", watched=watched)
        recorder.record("first_weights", "warning", share=0.4, arrived_mb=2.0, of_mb=5.0)
        recorder.record("lost", "warning", peer="A/0", reason="silence")
        recorder.record("torn", "warning", turn=7, cohort="", whom="A/0")
        recorder.record("roster", "info", number=1, members=2, out="A/0", joined="", turns={}, reason=reason)
        recorder.close()
        first, *others = lines_of(tmp_path / f"{watched}.jsonl")
        assert (first["fields"], len(others)) == ({"share": 0.4, "arrived_mb": 2.0, "of_mb": 5.0}, 3)
    assert caplog.messages == [
        "first weights: 40%, 2.0 of 5.0 MB",
        "A/0 is lost: silence",
        "turn 7 is torn: it lost A/0 in the middle, so slices of its step are means over different workers",
        "A/0 is lost (silence); workers below that take part: 2",
    ]


def test_every_record_of_every_thread_is_kept_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "A.jsonl"
    recorder = Recorder(path, "A")

    def write(thread: int) -> None:
        for number in range(200):
            recorder.record("step", thread=thread, number=number)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    fields = [line["fields"] for line in lines_of(path)]
    for thread in range(4):
        assert [f["number"] for f in fields if f["thread"] == thread] == list(range(200))


def test_a_record_is_in_the_file_without_close(tmp_path: Path) -> None:
    files = RecordFiles(tmp_path)
    recorder = Recorder(files.path_of("A/0"), "A/0")
    recorder.record("step", turn=1)
    found: list[Record] = []
    patience = threading.Event()
    for _ in range(30_000):
        found += [record for record in files.new() if record.name != "clock"]
        if found:
            break
        patience.wait(0.01)
    recorder.close()
    assert [(record.node, record.fields) for record in found] == [("A/0", {"turn": 1})]


def test_spans_are_kept_only_for_a_trace(tmp_path: Path) -> None:
    for trace in (False, True):
        path = tmp_path / f"{trace}.jsonl"
        recorder = Recorder(path, "A", trace)
        recorder.record("span", track="t", label="l", start=0.0, stop=1.0)
        recorder.close()
        assert len(lines_of(path)) == int(trace)


def test_without_a_path_it_only_logs(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(None, "A")
    with caplog.at_level(logging.DEBUG, "geomx"):
        recorder.record("joined", "info", peer="A/0")
        recorder.record("step", turn=1)
        recorder.record("waiting", "warning", whom="A/1", turn=3, seconds=30.2)
    recorder.close()
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "A/0 joined"),
        ("WARNING", "waiting for A/1, 30 s so far"),
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_is_told_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(Path("/dev/full"), "A")
    recorder.record("step", turn=1)
    recorder.close()
    recorder.record("step", turn=2)
    recorder.close()
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == ["A is no longer recorded"]


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    files = RecordFiles(tmp_path)
    whole = b'{"t":1.0,"node":"A","name":"joined","level":"info","fields":{"peer":"A/0"}}\n'
    with files.path_of("A").open("ab", buffering=0) as file:
        file.write(whole + whole[:20])
        assert len(files.new()) == 1
        assert files.new() == []
        file.write(whole[20:])
        assert files.new() == [Record(1.0, "A", "joined", "info", {"peer": "A/0"})]


def test_records_of_all_nodes_come_in_the_order_of_time(tmp_path: Path) -> None:
    files = RecordFiles(tmp_path)
    for node, times in (("A", (1, 4)), ("B/0", (2, 3))):
        line = '{{"t":{},"node":"{}","name":"x","level":"info","fields":{{}}}}\n'
        files.path_of(node).write_text("".join(line.format(t, node) for t in times))
    assert [record.t for record in files.new()] == [1, 2, 3, 4]


@pytest.mark.parametrize("left", ["", '{"t":1.0,"no', "x" * 200_000])
def test_half_a_line_of_a_process_that_was_killed_is_taken_off(tmp_path: Path, left: str) -> None:
    files = RecordFiles(tmp_path)
    for turn in (1, 2):
        recorder = Recorder(tmp_path, "A/0")
        recorder.record("step", turn=turn)
        recorder.close()
        if turn == 1:
            with files.path_of("A/0").open("a") as file:
                file.write(left)
    assert [record.fields["turn"] for record in files.new() if record.name == "step"] == [1, 2]


def test_records_of_one_node_are_read_alone(tmp_path: Path) -> None:
    for node in ("A/0", "A/1"):
        recorder = Recorder(tmp_path, node)
        recorder.record("step")
        recorder.close()
    files = RecordFiles(tmp_path)
    assert [record.name for record in files.of("A/1")] == ["clock", "step"]
    assert files.of("A/1") == files.of("B") == []
    assert {record.node for record in files.new()} == {"A/0"}


def test_records_of_several_machines_meet_in_unix_time(tmp_path: Path) -> None:
    files = RecordFiles(tmp_path)
    line = '{{"t":{},"node":"{}","name":"{}","level":"info","fields":{}}}\n'
    span = '{"track":"x","label":"y","start":5.0,"stop":6.0}'
    files.path_of("A").write_text(
        line.format(5, "A", "clock", '{"unix_s":1005.0}') + line.format(6, "A", "span", span)
    )
    files.path_of("B").write_text(
        line.format(90, "B", "clock", '{"unix_s":1001.0}')
        + line.format(94.5, "B", "step", "{}")
        + line.format(3, "B", "clock", '{"unix_s":1100.0}')  # that machine was started again
        + line.format(4, "B", "step", "{}")
    )
    found = [(r.node, r.name, r.t) for r in files.in_unix_time() if r.name != "clock"]
    assert found == [("B", "step", 1005.5), ("A", "span", 1006.0), ("B", "step", 1101.0)]
    (moved,) = [r.fields for r in RecordFiles(tmp_path).in_unix_time() if r.name == "span"]
    assert (moved["start"], moved["stop"]) == (1005.0, 1006.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json\n", "A.jsonl: no record at byte 0"),
        ('{"t":1.0,"node":"A","name":"x","level":"info","fields":{}}\n', "A.jsonl does not begin"),
    ],
)
def test_what_is_no_file_of_records_is_named(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "A.jsonl").write_text(text)
    with pytest.raises(RecordsUnreadable, match=says):
        RecordFiles(tmp_path).in_unix_time()


@examples(20)
@given(st.sampled_from(["joined", "failed", "waiting", "unheard"]), st.dictionaries(st.text(), st.integers()))
def test_any_note_has_a_sentence(name: str, fields: dict[str, int]) -> None:
    assert sentence(name, fields)


def test_an_unknown_note_lists_its_fields() -> None:
    assert sentence("melted", {"peer": "A", "degrees": 3}) == "melted: peer=A, degrees=3"
    assert sentence("joined", {}) == "joined"


def test_a_worker_tells_less_of_a_roster_than_a_server() -> None:
    told = {"number": 2, "out": 3, "reason": "A/0 is back"}
    assert sentence("roster", told) == "A/0 is back; workers that take no part: 3"
    assert sentence("anew", {"reason": "A was restarted"}) == "begins anew: A was restarted"


def test_counted() -> None:
    assert [counted(1, "party"), counted(2, "party"), counted(1200, "worker")] == [
        "1 party", "2 parties", "1,200 workers",
    ]  # fmt: skip
