"""What a node that was started by hand says of its progress."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from geomx.observe.node_progress import NodeProgress
from geomx.observe.records import Record, Recorder


def lines(*told: tuple[float, str, dict[str, Any]]) -> list[str]:
    progress = NodeProgress(("global/0", "global/1"), every_s=10.0)
    found = (progress.take(Record(t, "A", name, "debug", fields)) for t, name, fields in told)
    return [line for line in found if line]


def a_round(cohort: str = "", kind: str = "gradient") -> dict[str, Any]:
    return {"cohort": cohort, "kind": kind}


def usage(sent: int, received: int) -> dict[str, Any]:
    return {"sent": {"global/0": sent}, "received": {"global/0": received, "A/0": 77}}


def test_a_local_server_tells_its_rounds_and_the_wan() -> None:
    told: list[tuple[float, str, dict[str, Any]]] = [(0.0, "round", a_round(kind="assign"))]
    for second in range(12):
        told += [(float(second), "usage", usage(250_000 * second, 500_000 * second))]
        told += [(float(second), "round", a_round())]
    assert lines(*told) == ["round 11, 1 rounds/s, WAN up 2.0 down 4.0 Mbit/s"]


def test_a_local_server_tells_which_share_of_its_datagrams_was_lost() -> None:
    told: list[tuple[float, str, dict[str, Any]]] = []
    for second in range(12):
        counts = {"flows": {"global/0": {"sent": {"1": 1 + 98 * second}, "again": {"1": 2 * second}}}}
        counts["blocks"] = {"given": {}, "answered": {"1": 10 * second}, "returned": {"1": 3 * second}}
        told += [(float(second), "usage", usage(0, 0) | counts), (float(second), "round", a_round())]
    assert lines(*told) == ["round 11, 1 rounds/s, 2.0% of datagrams sent again, 30.0% of blocks lost"]


def test_rounds_are_those_of_the_cohort_that_has_had_most() -> None:
    told = [(float(t), "round", a_round("A" if t % 3 else "B")) for t in range(12)]
    assert lines(*told)[0].startswith("round 7, ")


def test_a_worker_tells_its_steps_and_its_loss() -> None:
    told = [(float(t), "step", {"samples": 8.0}) for t in range(10)]
    told += [(9.5, "log", {"loss": 0.25, "accuracy": 0.9}), (9.6, "log", {"accuracy": 0.9})]
    assert lines(*told, (10.0, "step", {"samples": 8.0})) == ["step 11, loss 0.2500, 8 samples/s"]
    uncounted = [
        (t, name, fields | {"samples": 0.0} if name == "step" else fields) for t, name, fields in told
    ]
    assert lines(*uncounted, (10.0, "step", {"samples": 0.0})) == ["step 11, loss 0.2500"]
    assert lines(*told[:10], (20.0, "step", {"samples": 8.0}))[0].startswith("step 11, ")


def test_who_takes_no_part_is_told() -> None:
    rounds = [(float(t), "round", a_round()) for t in range(12)]
    out = {"number": 1, "out": "A/0, B/0, B/1", "joined": "", "members": 1, "reason": ""}
    assert lines((0.0, "roster", out), *rounds) == ["round 11, 1 rounds/s, A/0, B/0 and 1 more out"]
    assert lines((0.0, "roster", out), (0.0, "roster", out | {"out": ""}), *rounds) == [
        "round 11, 1 rounds/s"
    ]
    steps = [(float(t), "step", {"samples": 8.0}) for t in range(11)]
    for count, words in ((0, ""), (1, ", 1 worker out"), (2, ", 2 workers out")):
        told = (0.0, "roster", {"number": 1, "out": count, "reason": ""})
        assert lines(told, *steps) == [f"step 11, 8 samples/s{words}"]


def test_nothing_is_said_before_something_is_done() -> None:
    assert lines(*[(float(t), "usage", usage(t, t)) for t in range(100)]) == []


def test_a_recorder_logs_such_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "geomx")
    recorder = Recorder(
        None, "A/0", progress=lambda record: f"at {record.name}" if record.name == "step" else None
    )
    recorder.record("step", samples=1.0)
    recorder.record("log", loss=1.0)
    recorder.close()
    assert [record.message for record in caplog.records] == ["at step"]


@pytest.mark.parametrize("loss", ["diverged", None, True, 10**400])
def test_what_is_no_number_is_no_loss(loss: object) -> None:
    told = [(float(t), "step", {"samples": 8.0}) for t in range(11)]
    assert lines((0.0, "log", {"loss": loss}), *told) == ["step 11, 8 samples/s"]
    (line,) = lines((0.0, "log", {"loss": 0.5}), (0.1, "log", {"loss": loss}), *told)
    assert line == "step 11, loss 0.5000, 8 samples/s"
