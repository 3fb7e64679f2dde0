"""`clip_norm` means the same under every policy: the gradient that a step is taken with is no longer than that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import assert_close, assert_equal, begin, drawn, train, weights
from policy_runs import momentum, train_by
from torch import nn

from geomx.node.topology import Edge
from geomx.train import LiveRun, Settings

CLIP, STEPS = 0.1, 8


def script(clip: str, idle: bool = False) -> Any:
    """`clip`: "attach", or by its "own" hand. `idle`: one tensor gets no gradients in every other step."""

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, momentum, clip_norm=CLIP if clip == "attach" else None)
        for step in range(STEPS):
            x, y = drawn(run, step)
            optimizer.zero_grad()
            model[0].weight.requires_grad_(not (idle and step % 2))
            F.mse_loss(model(x), y).backward()
            if clip == "own":
                assert nn.utils.clip_grad_norm_(model.parameters(), CLIP) > CLIP
            optimizer.step()
        return weights(model)

    return main


@pytest.mark.parametrize(
    "policy", ["hfa k1=2 k2=2", "diloco every=4", "esync wait=true", "downpour n_push=3"]
)
def test_each_worker_clips_the_gradients_that_it_steps_with_itself(policy: str) -> None:
    (attached, _), (own, _) = (train_by(policy, [2, 1], script(clip)) for clip in ("attach", "own"))
    for worker, values in own.items():
        assert_equal(attached[worker], values)


@pytest.mark.parametrize(("shards", "idle"), [(1, True), (2, False)])
def test_with_mixed_the_mean_of_a_party_is_clipped(shards: int, idle: bool) -> None:
    """One party alone has nobody to part from: it does as FSA does."""
    alone, _ = train_by("mixed", [2], script("attach", idle), shards=shards)
    together, _ = train_by("fsa", [2], script("attach", idle), {"place": "server"}, shards=shards)
    assert_equal(alone["A/0"], together["A/0"])


@pytest.mark.parametrize(
    ("more", "on_server"), [({"clip_norm": None}, True), ({}, False), ({"overlap": "forward"}, True)]
)
def test_means_are_clipped_where_they_arrive_unless_the_servers_are_needed(
    more: dict[str, Any], on_server: bool
) -> None:
    def main(run: LiveRun) -> tuple[bool, str]:
        _, optimizer = begin(run, momentum, **{"clip_norm": CLIP, **more})
        return optimizer.on_server, run.policy  # type: ignore[attr-defined]

    results, _ = train_by("fsa", [1, 1], main, {"policy_spec": "fsa"})
    assert list(results.values()) == [(on_server, "fsa")] * 2


def test_clipped_means_travel_through_lossy_codecs() -> None:
    edge = Edge("int8", "int8")
    results, _ = train([1, 1], script("attach"), Settings(lossless_down=False), wan=edge)
    exact, _ = train([1, 1], script("attach"))
    assert_equal(results["A/0"], results["B/0"])
    assert_close(results["A/0"], exact["A/0"], 1e-2)
