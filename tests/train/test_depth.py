"""Training over trees of three tiers: policies against their equations, checkpoints, every policy with any codec."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from exploring import each_value
from live_runs import (
    adam,
    apply,
    assert_alike,
    assert_close,
    assert_equal,
    gradients,
    sgd,
    small_model,
    weights,
)
from policy_runs import ALGORITHMS, script, train_by
from test_local_policies import average
from test_residuals import begun, resumed

from geomx.node.topology import Edge

PARTIES = [2, 1, 2, 1]
WORKERS = sum(PARTIES)
REGIONS = {"east": ("A", "B"), "west": ("C",)}  # D hangs on the global servers


def test_hfa_has_a_period_for_each_tier_and_a_shallow_branch_takes_part_with_its_highest_mean() -> None:
    parties, regions = [[0, 1], [2], [3, 4], [5]], [[0, 1, 2], [3, 4], [5]]
    tiers = [(8, [list(range(WORKERS))]), (4, regions), (2, parties)]
    models = [copy.deepcopy(small_model(seed=0)) for _ in range(WORKERS)]
    optimizers = [adam(model) for model in models]
    for step in range(12):
        for place, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            apply(model, optimizer, gradients(model, step, [place], WORKERS))
        for places in next((groups for period, groups in tiers if (step + 1) % period == 0), []):
            average(models, places)
    results, _ = train_by("hfa k1=2 k2=2 k3=2", PARTIES, script(adam, 12), shards=2, regions=REGIONS)
    # the steps end with a mean of regions: those of the run have been followed by 4 steps
    for place, name in enumerate(("A/0", "A/1", "B/0", "C/0", "C/1", "D/0")):
        assert_close(results[name], weights(models[place]))
    assert not torch.equal(weights(models[0])["0.weight"], weights(models[5])["0.weight"])


@pytest.mark.parametrize("algorithm", ["diloco every=5", "hfa k1=5 k2=2"])
def test_a_policy_makes_of_three_tiers_what_it_makes_of_two(algorithm: str) -> None:
    two, _ = train_by(algorithm, PARTIES, script(sgd))
    three, _ = train_by(algorithm, PARTIES, script(sgd), regions=REGIONS)
    for name, values in three.items():
        assert_close(values, two[name])


ENDS_ALIKE = ("fsa", "hfa k1=2 k2=2", "diloco every=4")  # after 8 steps all have the weights of a mean
CODECS = ["dense", "fp16", "int4", "bisparse ratio=0.1", "mpq ratio=0.1 size_lower_bound=100"]


@pytest.mark.parametrize(
    ("algorithm", "codec"), each_value([*ALGORITHMS, "hfa k1=2 k2=2 k3=2"], [*CODECS[1:], CODECS[0]])
)
def test_every_policy_trains_with_every_codec_at_any_depth(algorithm: str, codec: str) -> None:
    results, _ = train_by(
        algorithm,
        [2, 1, 1, 1],
        script(sgd, 8),
        {"ledger": True},
        regions={"world": ("east", "D"), "east": ("A", "B")},
        wan=Edge(codec, codec),
        below=Edge(codec, "wan"),
    )
    assert all(torch.isfinite(values).all() for each in results.values() for values in each.values())
    if algorithm in ENDS_ALIKE:
        assert_alike(results)


EDGES: dict[str, dict[str, Any]] = {
    "lossy above, dense below": {"wan": Edge("int4", "int4")},
    "each tier its own": {
        "wan": Edge("int4", "int4"),
        "below": Edge("bisparse ratio=0.1", "int8"),
        "lan": Edge("fp16", "fp16"),
    },
}


@pytest.mark.parametrize("edges", EDGES.values(), ids=EDGES)
def test_a_run_that_goes_on_from_a_checkpoint_has_the_bits_of_one_that_never_stopped(
    tmp_path: Path, edges: dict[str, Any]
) -> None:
    path = tmp_path / "model.safetensors"
    more = {"regions": {"east": ("A", "B"), "west": ("C", "D")}, **edges}
    first, _ = train_by("fsa", [1, 1, 1, 1], begun(path, sgd, torch.float32), **more)
    again, _ = train_by("fsa", [1, 1, 1, 1], resumed(path, sgd, torch.float32), **more)
    for name, values in first.items():
        assert_equal(again[name], values)
