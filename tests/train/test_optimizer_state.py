"""`optimizer.state_dict()` is torch's own, whichever place the optimizer runs in."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import pairwise
from live_runs import (
    Make,
    assert_close,
    assert_equal,
    begin,
    drawn,
    lockstep,
    plain,
    small_model,
    train,
    weights,
)
from torch import nn

from geomx.errors import Refused
from geomx.train import LiveRun, Settings

CUT = Settings(slice_elements=512, pack_below=100)
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "plain SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5, centered=True),
    "Adadelta": lambda m: torch.optim.Adadelta(m.parameters()),
    "Adamax": lambda m: torch.optim.Adamax(m.parameters()),
    "NAdam": lambda m: torch.optim.NAdam(m.parameters()),
    "RAdam": lambda m: torch.optim.RAdam(m.parameters()),
    "ASGD": lambda m: torch.optim.ASGD(m.parameters(), t0=2),
    "Rprop": lambda m: torch.optim.Rprop(m.parameters()),
}
FIRST, LAST = range(4), range(4, 8)


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_plain_optimizer_goes_on_from_a_run(name: str) -> None:
    make = OPTIMIZERS[name]

    def script(run: LiveRun) -> tuple[Any, Any, Any]:
        model, optimizer = begin(run, make)
        lockstep(run, model, optimizer, FIRST)
        state = through_a_file(optimizer.state_dict()), weights(model)
        lockstep(run, model, optimizer, LAST)
        return *state, weights(model)

    results, _ = train([1, 1], script, CUT, shards=2)
    state, middle, end = results["A/0"]
    model = small_model()
    reference = make(model)
    plain(model, reference, FIRST, 2)
    expected = reference.state_dict()
    assert state["param_groups"] == expected["param_groups"]
    for index, theirs in expected["state"].items():
        ours = state["state"].get(index, {})
        for key, value in theirs.items():
            if value is not None:
                assert ours[key].shape == value.shape
                assert ours[key].dtype == value.dtype
                torch.testing.assert_close(ours[key], value, rtol=1e-9, atol=1e-12)
        assert {key for key in ours if ours[key] is not None} == {k for k in theirs if theirs[k] is not None}
    going_on = small_model()
    going_on.load_state_dict(middle)
    optimizer = make(going_on)
    optimizer.load_state_dict(state)
    plain(going_on, optimizer, LAST, 2)
    assert_close(weights(going_on), end, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "how", "place"), pairwise(OPTIMIZERS, ["before attach", "after attach"], ["auto", "workers"])
)
def test_a_run_goes_on_from_a_plain_optimizer(name: str, how: str, place: Any) -> None:
    make = OPTIMIZERS[name]
    model = small_model()
    reference = make(model)
    plain(model, reference, FIRST, 2)
    state, middle = copy.deepcopy(reference.state_dict()), weights(model)
    state["param_groups"][0]["lr"] *= 0.5
    reference.param_groups[0]["lr"] *= 0.5
    expected = plain(model, reference, LAST, 2)

    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model()
        model.load_state_dict(middle)
        optimizer = make(model)
        if how == "before attach":
            optimizer.load_state_dict(copy.deepcopy(state))  # torch keeps the tensors that it is given
        model, optimizer = run.attach(model, optimizer)
        if how == "after attach":
            optimizer.load_state_dict(copy.deepcopy(state))
        lockstep(run, model, optimizer, LAST)
        return weights(model)

    results, _ = train([1, 1], script, Settings(slice_elements=512, pack_below=100, place=place))
    assert_close(results["B/0"], expected, rtol=1e-9)
    assert_equal(results["B/0"], results["A/0"])


def test_parameters_without_a_gradient_have_no_state() -> None:
    def script(run: LiveRun) -> Any:
        model, optimizer = begin(run, OPTIMIZERS["Adam"], nn.ModuleList([small_model(), small_model(1)]))
        x, y = drawn(run, 0)
        F.mse_loss(model[0](x), y).backward()
        optimizer.step()
        return optimizer.state_dict()

    results, _ = train([1, 1], script, CUT)
    assert set(results["B/0"]["state"]) == {0, 1, 2, 3}


def test_workers_own_states_must_agree() -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        optimizer = OPTIMIZERS["Adam"](model)
        if run.is_first:
            plain(model, optimizer, FIRST, 1)
        run.attach(model, optimizer)

    with pytest.raises(Refused, match=r"optimizer\.state"):
        train([2], script, Settings(place="workers"))


def test_the_optimizer_says_where_it_runs() -> None:
    def script(run: LiveRun) -> str:
        return repr(begin(run, OPTIMIZERS["plain SGD"])[1])

    here, _ = train([1], script, Settings(place="workers"))
    there, _ = train([1], script)
    assert here["A/0"].endswith("on this worker")
    assert there["A/0"].endswith("on the global servers")
    assert "lr: 0.1" in there["A/0"]


def test_hooks_of_the_optimizer() -> None:
    """Those registered before attach and after it run once a step, in both places."""

    def script(run: LiveRun) -> list[str]:
        model, heard = small_model(), list[str]()
        optimizer = OPTIMIZERS["SGD"](model)
        optimizer.register_step_pre_hook(lambda *_: heard.append("before"))
        model, optimizer = run.attach(model, optimizer)
        optimizer.register_step_post_hook(lambda *_: heard.append("after"))
        lockstep(run, model, optimizer, range(2))
        return heard

    for place in ("server", "workers"):
        results, _ = train([1], script, Settings(place=place))  # type: ignore[arg-type]
        assert results["A/0"] == ["before", "after"] * 2
