"""Parties whose workers reduce among themselves: real processes, gloo on loopback, and the servers of a run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import party_jobs
import pytest
from party_jobs import ended, play, start

from geomx.errors import ConfigError, NodeLost, RunFailed, Unsupported

pytestmark = pytest.mark.processes
ON_WORKERS = ("optimizer.place=workers",)
ADAMW: dict[str, Any] = {"optimizer": "adamw", "clip_norm": 0.5}
# Who is silent is lost, and who is stuck is ended, after so long: no load makes others silent or late for as long.
IMPATIENT = ("lan.heartbeat_s=0.5", "lan.timeout_s=20", "wan.timeout_s=60", "limits.stop_s=20")


def hashes(results: dict[str, Any]) -> set[str]:
    """Those of all workers who see the weights in full, at least one in each party."""
    found = {name: sha for name, (sha, _) in results.items() if sha is not None}
    assert {"A/0", "B/0"} <= found.keys()
    return set(found.values())


@pytest.fixture(scope="module")
def through_servers() -> dict[tuple[str, ...], set[str]]:
    """The weights of runs whose workers' gradients are added up by their local servers, by overrides."""
    ways = {"A": "server", "B": "server"}
    return {
        (): hashes(play(party_jobs.train, ways)),
        ON_WORKERS: hashes(play(party_jobs.train, ways, ON_WORKERS, **ADAMW)),
    }


@pytest.mark.parametrize(
    ("a", "b", "overrides"), [("plain", "ddp", ()), ("fsdp", "server", ()), ("fsdp", "ddp", ON_WORKERS)]
)
def test_all_ways_give_the_same_bits(
    through_servers: dict[Any, set[str]], a: str, b: str, overrides: tuple[str, ...]
) -> None:
    results = play(party_jobs.train, {"A": a, "B": b}, overrides, **(ADAMW if overrides else {}))
    assert hashes(results) == through_servers[overrides]
    assert {tuple(ledger) for _, ledger in results.values()} == {(10, 10, 10, 10)}


def test_plain_modules_may_be_three_and_have_unequal_shares() -> None:
    how: dict[str, Any] = {"overrides": ("party.A.workers=3",), "batches": 11}
    expected = hashes(play(party_jobs.train, {"A": "server", "B": "server"}, **how))
    results = play(party_jobs.train, {"A": "plain", "B": "server"}, **how)
    assert hashes(results) == expected
    assert results["A/0"][1] == [6] * 5  # two passes of 3, 2, 2, 2 and 2 batches


def test_a_model_may_be_in_three_parts() -> None:
    results = play(party_jobs.train, {"A": "fsdp", "B": "server"}, ("party.A.workers=3",), batches=15)
    assert len(hashes(results)) == 1  # B has it whole
    assert results["A/2"] == (None, [6] * 5)


WORKERS = ("A/0", "A/1", "B/0", "B/1")
LOCAL = ("sync.policy=diloco every=4",)


def test_replicas_that_leave_behind_the_same_step_take_part_in_the_last_mean() -> None:
    five = dict.fromkeys(WORKERS, 5)
    results = play(party_jobs.leave, {"A": "ddp", "B": "server"}, LOCAL, steps=five, backwards=five)
    assert len(hashes(results)) == 1
    assert all(warnings == [] for _, warnings in results.values())


def test_replicas_that_leave_behind_different_steps_are_told_so() -> None:
    backwards = dict.fromkeys(WORKERS, 6)
    steps = backwards | {"A/1": 5}
    results = play(party_jobs.leave, {"A": "ddp", "B": "server"}, LOCAL, steps=steps, backwards=backwards)
    for name in ("A/0", "A/1"):
        (warning,) = results[name][1]
        assert "left the loop at different steps (A/0 after step 6, A/1 after step 5)" in warning
        assert "all workers of the party leave the loop after the same step" in warning
    assert results["B/0"] == results["B/1"]
    assert results["B/0"][1] == []


@pytest.mark.faults
def test_a_replica_that_leaves_alone_leaves() -> None:
    """A/0 hangs in its next backward until the process of A/1 has ended."""
    steps = dict.fromkeys(WORKERS, 6) | {"A/1": 5}
    overrides = (*LOCAL, "lan.timeout_s=5")
    results = ended(party_jobs.leave, {"A": "ddp", "B": "server"}, overrides, steps=steps, backwards=steps)
    (warning,) = results["A/1"][1]
    assert "A/0 did not leave the loop within 10 s" in warning
    assert isinstance(results["A/0"], RuntimeError)  # gloo's: the process of A/1 has ended
    assert isinstance(results["B/0"], RunFailed)
    assert results["B/0"].node == "A/0"


def test_parties_need_not_wait_for_each_other() -> None:
    results = play(party_jobs.train, {"A": "plain", "B": "fsdp"}, ("sync.policy=mixed",))
    assert results["A/0"][0] == results["A/1"][0] != results["B/0"][0]
    assert results["A/0"][1][:2] == results["B/0"][1][2:] == [10, 10]


@pytest.mark.parametrize("overrides", [(), pytest.param(ON_WORKERS, marks=pytest.mark.grids)])
def test_a_model_in_parts_is_saved_whole_and_loaded(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    told = {"optimizer": "adamw", "path": str(tmp_path / "model.safetensors")}
    results = play(party_jobs.save_and_load, {"A": "fsdp", "B": "server"}, overrides, **told)
    assert results["A/1"] == [None, None]
    first, again = results["A/0"]
    assert first == again
    assert results["B/0"] == results["B/1"] == results["A/0"]


@pytest.mark.parametrize(
    ("a", "b", "push_at"),
    [("plain", "fsdp", "backward"), pytest.param("plain", "ddp", "step", marks=pytest.mark.grids)],
)
def test_what_is_not_finite_is_skipped(a: str, b: str, push_at: str) -> None:
    """Of a worker, where geomx adds; of a party, where NaN has spread before."""
    ways, overrides = {"A": a, "B": b}, ("run.on_nonfinite=skip", f"worker.push_at={push_at}")
    ours = play(party_jobs.skip, ways, overrides, spoiled={1: ["A/1"], 2: ["B/1"]})
    theirs = play(party_jobs.skip, ways, overrides, weightless={1: ["A/1"], 2: ["B/0", "B/1"]})
    assert len(hashes(ours)) == 1
    assert ours == theirs
    assert {tuple(ledger) for _, ledger in ours.values()} == {(4, 4, 4, 4)}


@pytest.mark.faults
def test_nobody_waits_in_a_collective_call_for_a_worker_that_has_nan() -> None:
    results = ended(party_jobs.skip, {"A": "plain", "B": "plain"}, IMPATIENT, spoiled={1: ["A/1"]})
    assert "A/1: the gradient of 0.weight holds NaN in step 2" in str(results.pop("A/1"))
    for result in results.values():
        assert isinstance(result, RunFailed)
        assert result.node == "A/1"


@pytest.mark.faults
def test_a_worker_that_is_killed_or_stopped_is_named_and_whoever_is_stuck_with_it_is_ended() -> None:
    """All at the same time, since silence takes its time."""
    killed = [
        start(party_jobs.end_early, {"A": way, "B": "plain"}, IMPATIENT, signal=signal.SIGKILL)
        for way in ("plain", "fsdp")
    ]
    stuck = start(party_jobs.end_early, {"A": "ddp", "B": "plain"}, IMPATIENT, signal=signal.SIGSTOP)
    stuck.pipes.pop("A/1")  # it never says anything again
    stopped = stuck.processes.pop("A/1")
    try:
        for job in killed:
            results = job.finish()
            assert results["A/1"] is None
            for name in ("A/0", "B/0", "B/1"):
                assert isinstance(results[name], NodeLost | RunFailed), results
                assert results[name].node == "A/1"
        results = stuck.finish()
        stuck.processes["A/0"].join(party_jobs.BOUND_S)
        assert stuck.processes["A/0"].exitcode == 1
        for name in ("B/0", "B/1"):
            assert "A/1" in str(results[name])
    finally:
        stopped.kill()
        for job in (*killed, stuck):
            job.stop()


def test_a_job_of_another_size_is_refused() -> None:
    job = start(party_jobs.attach_only, environment={"WORLD_SIZE": "3"})
    try:
        for name in job.pipes:
            assert job.pipes[name].poll(party_jobs.BOUND_S)
            error = job.pipes[name].recv()
            assert isinstance(error, ConfigError)
            assert "WORLD_SIZE: found 3; allowed: 2" in str(error)
    finally:
        job.stop()


@pytest.mark.parametrize(
    ("way", "override", "refusal"),
    [
        ("fsdp", "lan.codec_up=fp16", 'which only lan.codec_up = "dense" can send'),
        ("plain", "sync.policy=diloco", 'DistributedDataParallel; .* or set party.inside = "server"'),
    ],
)
def test_what_does_not_go_together_is_refused(way: str, override: str, refusal: str) -> None:
    with pytest.raises(Unsupported, match=refusal):
        play(party_jobs.attach_only, {"A": way, "B": way}, (override,))
