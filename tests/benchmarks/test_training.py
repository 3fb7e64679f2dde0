"""What training processes share."""

import json

import pytest

from benchmarks.training import Watch, begin, publish, synthetic_sizes, wait_for, wan_counters

DEVICES = """Inter-|   Receive                    |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 999 9 0 0 0 0 0 0 999 9 0 0 0 0 0 0
   wan: 1000 3 0 0 0 0 0 0 2000 4 0 0 0 0 0 0
"""


@pytest.fixture
def job_file(tmp_path):
    fields = {
        "party_names": ["A", "B"],
        "parties": 2,
        "workers": 2,
        "workload": "synthetic",
        "parameters": 10,
    }
    fields |= {"batch": 4, "step_ms": 0.0, "steps": 4, "evaluate_every": 2, "target_accuracy": 0.5}
    path = tmp_path / "job.json"
    path.write_text(json.dumps(fields | {"options": {}, "addresses": {}}))
    return path


def lines(job):
    return [
        json.loads(line)
        for line in (job.folder / f"{job.name.replace('/', '.')}.steps.jsonl").read_text().splitlines()
    ]


def test_a_worker_knows_its_place(job_file):
    job, _ = begin(["train.py", str(job_file), "B/1"])
    assert (job.party, job.rank, job.place, job.everyone) == (1, 1, 3, 4)


def test_the_beginning_and_each_step_are_written_down(job_file):
    job, watch = begin(["train.py", str(job_file), "B/0"])
    assert list(watch.steps()) == [1, 2, 3, 4]
    assert [line["step"] for line in lines(job)] == [0, 1, 2, 3, 4]


def test_the_first_worker_looks_when_it_is_due(job_file):
    job, watch = begin(["train.py", str(job_file), "A/0"])
    for _ in watch.steps(lambda: 0.25):
        pass
    assert [line["step"] for line in lines(job) if "accuracy" in line] == [2, 4]


def test_the_others_do_not_look(job_file):
    job, watch = begin(["train.py", str(job_file), "A/1"])
    assert isinstance(watch, Watch)
    for _ in watch.steps(lambda: 0.25):
        pass
    assert not [line for line in lines(job) if "accuracy" in line]


def test_the_loopback_is_no_wan(tmp_path):
    (tmp_path / "dev").write_text(DEVICES)
    assert wan_counters(tmp_path / "dev") == (2000, 1000)


@pytest.mark.parametrize("parameters", [3, 10, 1_068_490])
def test_synthetic_tensors_have_all_parameters(parameters):
    sizes = synthetic_sizes(parameters)
    assert sum(sizes) == parameters
    assert max(sizes) - min(sizes) <= 1


def test_what_is_published_can_be_waited_for(tmp_path):
    publish(tmp_path / "peer", "here")
    assert wait_for(tmp_path / "peer") == "here"


def test_a_wait_ends(tmp_path):
    with pytest.raises(TimeoutError, match="peer"):
        wait_for(tmp_path / "peer", limit_s=0.0)
