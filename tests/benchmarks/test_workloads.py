"""The workloads' models have the parameters that their names promise."""

import pytest
import torch

from benchmarks import workloads
from benchmarks.cells import Cell
from benchmarks.suites import WORKLOADS
from benchmarks.training import Job


def parameters_of(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("workload", [name for name in WORKLOADS if name.startswith(("cnn", "gpt"))])
def test_a_model_has_the_parameters_that_its_workload_says(workload):
    is_gpt = workload.startswith("gpt")
    with torch.device("meta"):
        model = workloads.Gpt(*workloads.GPTS[workload]) if is_gpt else workloads.cnn(workload)
    assert parameters_of(model) == WORKLOADS[workload]["parameters"]


def test_the_gpt_does_not_see_what_is_to_come():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = workloads.Gpt(*workloads.GPTS["gpt-1m"]).eval()
    text = torch.randint(256, (1, workloads.CONTEXT))
    other = text.clone()
    other[0, -1] = (other[0, -1] + 1) % 256
    with torch.no_grad():
        assert torch.equal(model(text)[0, :-1], model(other)[0, :-1])


def test_synthetic_gradients_are_at_hand():
    task = workloads.task(Job(Cell("", "", "synthetic", 1003, ""), "A/0"))
    task.loss(task.model).backward()
    assert parameters_of(task.model) == 1003
    assert all(parameter.grad.abs().sum() > 0 for parameter in task.model.parameters())
