"""torch.amp.GradScaler on each worker: a step whose gradients overflow is left out of the mean."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from finite_runs import BAD_STEP, BAD_WORKER, STEPS, assert_same_runs, settings
from live_runs import begin, parts_of, place_of, small_model, train, weights

from geomx.errors import Unsupported
from geomx.train import LiveRun


@pytest.mark.parametrize(("place", "unscale"), [("server", True), ("workers", False)])
def test_a_grad_scaler_leaves_out_the_step_of_its_own_worker(unscale: bool, place: str) -> None:
    scales: dict[str, list[float]] = {}

    def main(value: float | None) -> Any:
        def script(run: LiveRun) -> dict[str, torch.Tensor]:
            model = small_model(seed=place_of(run), dtype=torch.float32)
            model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
            for step in range(STEPS):
                x, y = parts_of(step, len(run.workers), torch.float32)[place_of(run)]
                bad = step == BAD_STEP and run.name == BAD_WORKER
                run.weight(0 if bad and value is None else len(x))
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                if value is None:
                    loss.backward()
                    optimizer.step()
                    continue
                scaler.scale(loss * value if bad else loss).backward()
                if unscale:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                scales.setdefault(run.name, []).append(scaler.get_scale())
            return weights(model)

        return script

    more = settings(push_at="step", place=place)
    assert_same_runs(train([2, 1], main(math.inf), more)[0], train([2, 1], main(None), more)[0])
    assert scales == {"A/0": [1024.0] * 4, "A/1": [1024.0, 512.0, 512.0, 512.0], "B/0": [1024.0] * 4}


@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("more", [{"on_nonfinite": "stop", "push_at": "step"}, {"push_at": "backward"}])
def test_a_grad_scaler_needs_steps_that_can_be_skipped(more: dict[str, Any], unscale: bool) -> None:
    """Or a loop in bfloat16, which needs no scaling."""

    def script(run: LiveRun) -> None:
        model, optimizer = begin(run)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model(torch.ones(1, 20).double()).sum()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)

    with pytest.raises(Unsupported) as caught:
        train([], script, settings(**more))
    assert 'run.on_nonfinite = "skip" and worker.push_at = "step"' in str(caught.value)
    assert "bfloat16" in str(caught.value)
