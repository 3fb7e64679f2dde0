"""Training over trees of three tiers: policies against their equations, checkpoints, every policy with any codec."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from live_runs import (
    adam,
    apply,
    assert_close,
    assert_equal,
    gradients,
    samples_of,
    sgd,
    small_model,
    train,
    weights,
)
from policy_runs import ALGORITHMS, STEPS, script, settings
from test_local_policies import averaged, set_weights
from test_residuals import begun, resumed

from geomx.node.topology import Edge
from geomx.sync import policies
from geomx.sync.hfa import HFA

PARTIES = [2, 1, 2, 1]
WORKERS = sum(PARTIES)
REGIONS = {"east": ("A", "B"), "west": ("C",)}  # D hangs on the global servers


def test_hfa_has_a_period_for_each_tier_and_a_shallow_branch_takes_part_with_its_highest_mean() -> None:
    parties, regions = [[0, 1], [2], [3, 4], [5]], [[0, 1, 2], [3, 4], [5]]
    tiers = [(20, [list(range(WORKERS))]), (10, regions), (5, parties)]
    models = [copy.deepcopy(small_model(seed=0)) for _ in range(WORKERS)]
    optimizers = [adam(model) for model in models]
    for step in range(STEPS):
        for place, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            apply(model, optimizer, gradients(model, step, [place], WORKERS))
        for places in next((groups for period, groups in tiers if (step + 1) % period == 0), []):
            mean = averaged([models[p] for p in places], [samples_of(p) for p in places])
            for place in places:
                set_weights(models[place], mean)
    policy = HFA(k1=5, k2=2, k3=2)
    results, _ = train(PARTIES, script(adam, STEPS), settings(policy), shards=2, regions=REGIONS)
    # STEPS end with a mean of regions: those of the run have been followed by 10 steps
    for place, name in enumerate(("A/0", "A/1", "B/0", "C/0", "C/1", "D/0")):
        assert_close(results[name], weights(models[place]))
    assert not torch.equal(weights(models[0])["0.weight"], weights(models[5])["0.weight"])


@pytest.mark.parametrize("algorithm", ["fsa", "diloco every=5", "hfa k1=5 k2=2", "mixed staleness=0"])
def test_a_policy_makes_of_three_tiers_what_it_makes_of_two(algorithm: str) -> None:
    policy = policies.make(algorithm)
    two, _ = train(PARTIES, script(sgd), settings(policy), policy=algorithm)
    three, _ = train(
        PARTIES, script(sgd), settings(policies.make(algorithm)), policy=algorithm, regions=REGIONS
    )
    if algorithm.startswith("mixed"):  # the order in which parties come is the network's
        return
    for name, values in three.items():
        assert_close(values, two[name])


ENDS_ALIKE = ("fsa", "hfa k1=2 k2=2", "diloco every=4")  # after 12 steps all have the weights of a mean
CODECS = ["dense", "fp16", "int4", "bisparse ratio=0.1", "mpq ratio=0.1 size_lower_bound=100"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "hfa k1=2 k2=2 k3=2"])
def test_every_policy_trains_with_every_codec_at_any_depth(algorithm: str, codec: str) -> None:
    policy = policies.make(algorithm)
    results, _ = train(
        PARTIES,
        script(sgd, 12),
        settings(policy, ledger=True),
        policy=algorithm,
        regions={"world": ("east", "D"), "east": ("A", "B")},
        wan=Edge(codec, codec),
        below=Edge(codec, "wan"),
    )
    assert all(torch.isfinite(values).all() for each in results.values() for values in each.values())
    if algorithm in ENDS_ALIKE:
        for values in results.values():
            assert_equal(values, results["A/0"])


EDGES: dict[str, dict[str, Any]] = {
    "lossy above, dense below": {"wan": Edge("int4", "int4")},
    "lossy above and below": {"wan": Edge("int4", "int4"), "below": Edge("int8", "wan")},
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
    first, _ = train([1, 1, 1, 1], begun(path, sgd, torch.float32), settings(policies.make("fsa")), **more)
    again, _ = train([1, 1, 1, 1], resumed(path, sgd, torch.float32), settings(policies.make("fsa")), **more)
    for name, values in first.items():
        assert_equal(again[name], values)
