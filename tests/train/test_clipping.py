"""`clip_norm` means the same under every policy: the gradient that a step is taken with is no longer than that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import assert_close, assert_equal, parts_of, place_of, small_model, train, weights
from policy_runs import momentum, settings
from torch import nn

from geomx.node.topology import Edge
from geomx.sync import policies
from geomx.train import LiveRun, Settings

CLIP, STEPS = 0.1, 12


def script(clip: str, idle: bool = False) -> Any:
    """`clip`: "attach", or by its "own" hand. `idle`: one tensor gets no gradients in every other step."""

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model()
        model, optimizer = run.attach(model, momentum(model), clip_norm=CLIP if clip == "attach" else None)
        for step in range(STEPS):
            x, y = parts_of(step, len(run.workers))[place_of(run)]
            run.weight(len(x))
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
    runs = [
        train([2, 1], script(clip), settings(policies.make(policy)), policy=policy)
        for clip in ("attach", "own")
    ]
    (attached, _), (own, _) = runs
    for worker, values in own.items():
        assert_equal(attached[worker], values)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("idle", [False, True])
def test_with_mixed_the_mean_of_a_party_is_clipped(shards: int, idle: bool) -> None:
    """One party alone has nobody to part from: it does as FSA does."""
    alone, _ = train([2], script("attach", idle), settings(policies.make("mixed")), shards, policy="mixed")
    together, _ = train([2], script("attach", idle), settings(policies.make("fsa"), place="server"), shards)
    assert_equal(alone["A/0"], together["A/0"])
    several, _ = train(
        [2, 1], script("attach", idle), settings(policies.make("mixed")), shards, policy="mixed"
    )
    assert several["A/0"].keys() == together["A/0"].keys()


@pytest.mark.parametrize(
    ("more", "on_server"),
    [
        ({}, False),
        ({"place": "server"}, True),
        ({"lossless_down": False}, True),
        ({"overlap": "forward"}, True),
        ({"on_loss": "wait"}, True),
        ({"policy": policies.make("mixed"), "policy_spec": "mixed"}, True),
    ],
)
def test_means_are_clipped_where_they_arrive_unless_the_servers_are_needed(
    more: dict[str, Any], on_server: bool
) -> None:
    found = []

    def main(run: LiveRun) -> None:
        model = small_model()
        _, optimizer = run.attach(model, momentum(model), clip_norm=CLIP)
        found.append((optimizer.on_server, run.policy))  # type: ignore[attr-defined]

    name = more.get("policy_spec", "fsa")
    train([1, 1], main, Settings(**more), policy=name)
    assert found == [(on_server, name)] * 2


def test_without_clipping_the_servers_run_the_optimizer() -> None:
    def main(run: LiveRun) -> bool:
        model = small_model()
        _, optimizer = run.attach(model, momentum(model))
        return bool(optimizer.on_server)  # type: ignore[attr-defined]

    results, _ = train([1, 1], main)
    assert results == {"A/0": True, "B/0": True}


def test_clipped_means_travel_through_lossy_codecs() -> None:
    edge = Edge("int8", "int8")
    results, _ = train([1, 1], script("attach"), Settings(lossless_down=False), wan=edge)
    exact, _ = train([1, 1], script("attach"))
    assert_equal(results["A/0"], results["B/0"])
    assert_close(results["A/0"], exact["A/0"], 1e-2)
