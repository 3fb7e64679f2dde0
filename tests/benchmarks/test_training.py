"""What training processes share."""

import json
import sys

import pytest

from benchmarks.cells import Cell
from benchmarks.training import Job, Watch, publish, synthetic_sizes, wait_for, wan_counters

DEVICES = """Inter-|   Receive                    |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 999 9 0 0 0 0 0 0 999 9 0 0 0 0 0 0
   wan: 1000 3 0 0 0 0 0 0 2000 4 0 0 0 0 0 0
"""


@pytest.fixture
def job_of(tmp_path, monkeypatch):
    """The job of a worker, as its process gets it."""

    def job(name):
        cell = Cell("", "", "synthetic", 10, "", batch=4, rounds_a_turn=3, warmup=1)
        cell.evaluate_every, cell.target_accuracy = 2, 0.5
        path = tmp_path / "job.json"
        path.write_text(Job(cell, "").text)
        monkeypatch.setattr(sys, "argv", ["train.py", str(path), name])
        return Job.here()

    return job


def lines(job):
    path = job.folder / f"{job.name.replace('/', '.')}.steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_worker_knows_its_place_and_writes_down_the_beginning_and_each_step(job_of):
    job = job_of("B/1")
    assert (job.party, job.place, job.everyone, job.cell.steps) == ("B", 3, 4, 4)
    assert list(Watch(job).steps()) == [1, 2, 3, 4]
    assert [line["step"] for line in lines(job)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("name", "looks"), [("A/0", [2, 4]), ("A/1", [])])
def test_the_first_worker_alone_looks_when_it_is_due(name, looks, job_of):
    job = job_of(name)
    for _ in Watch(job).steps(lambda: 0.25):
        pass
    assert [line["step"] for line in lines(job) if "accuracy" in line] == looks


def test_the_loopback_is_no_wan(tmp_path):
    (tmp_path / "dev").write_text(DEVICES)
    assert wan_counters(tmp_path / "dev") == (2000, 1000)


@pytest.mark.parametrize("parameters", [3, 10, 1_068_490])
def test_synthetic_tensors_have_all_parameters(parameters):
    sizes = synthetic_sizes(parameters)
    assert sum(sizes) == parameters
    assert max(sizes) - min(sizes) <= 1


def test_what_is_published_can_be_waited_for_and_a_wait_ends(tmp_path):
    with pytest.raises(TimeoutError, match="peer"):
        wait_for(tmp_path / "peer", limit_s=0.0)
    publish(tmp_path / "peer", "here")
    assert wait_for(tmp_path / "peer") == "here"
