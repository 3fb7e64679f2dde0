"""The workloads' models have the parameters that their names promise."""

from pathlib import Path

import pytest
import torch

from benchmarks import workloads
from benchmarks.cells import CNN_1M, CNN_10M, CNN_179K, GPT_10M
from benchmarks.training import Job


def parameters_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


def synthetic_job(parameters):
    place = {"name": "A/0", "party": 0, "rank": 0, "parties": 1, "workers": 1}
    work = {"workload": "synthetic", "parameters": parameters, "batch": 1, "step_ms": 0.0, "steps": 1}
    rest = {"evaluate_every": 0, "target_accuracy": None, "options": {}, "addresses": {}, "folder": Path()}
    return Job(**place, **work, **rest)


@pytest.mark.parametrize("workload", [CNN_179K, CNN_1M, CNN_10M])
def test_a_cnn_has_the_parameters_that_its_workload_says(workload):
    assert parameters_of(workloads.cnn(workload.name)) == workload.parameters


def test_the_gpt_has_the_parameters_that_its_workload_says():
    assert parameters_of(workloads.Gpt()) == GPT_10M.parameters


def test_the_gpt_does_not_see_what_is_to_come():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = workloads.Gpt().eval()
    text = torch.randint(256, (1, workloads.CONTEXT))
    other = text.clone()
    other[0, -1] = (other[0, -1] + 1) % 256
    with torch.no_grad():
        assert torch.equal(model(text)[0, :-1], model(other)[0, :-1])


def test_synthetic_gradients_are_at_hand():
    task = workloads.task(synthetic_job(1003))
    task.loss(task.model).backward()
    assert parameters_of(task.model) == 1003
    assert all(parameter.grad.abs().sum() > 0 for parameter in task.model.parameters())
