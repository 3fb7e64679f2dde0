"""Every algorithm with every codec, number of shards and overlay: each trains, or is refused with its reason.

Leaves the outcome in out/matrix.json, of which `docs/make_matrix.py` makes the table in the documents.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from live_runs import place_of, train

from geomx.config import Run
from geomx.config.compatibility.choice_rules import check_choices
from geomx.errors import ConfigError
from geomx.node.topology import Edge
from geomx.sync import policies
from geomx.train import LiveRun, Settings

ROOT = Path(__file__).parents[2]
STEPS = 36
ALGORITHMS = {
    "FSA": ("fsa", ""),
    "MixedSync": ("mixed staleness=4", ""),
    "MixedSync, DC-ASGD": ("mixed", "dcasgd"),
    "HFA": ("hfa k1=2 k2=3", ""),
    "ESync": ("esync", ""),
    "DiLoCo": ("diloco every=6", ""),
    "streaming DiLoCo": ("diloco every=6 fragments=3 overlap=1", ""),
    "Downpour": ("downpour", ""),
}
CODECS = {
    "dense": "dense",
    "fp16": "fp16",
    "bisparse": "bisparse ratio=0.1",
    "mpq": "mpq ratio=0.1",
    "int4": "int4",
}
SHARDS = (1, 2)
OVERLAYS = ("", "ring")  # between parties, and among the workers of each


def regression(run: LiveRun, steps: int) -> tuple[float, float]:
    """Each worker has a part of one data set; its loss on all of it, before and after."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 24, generator=generator)
    y = torch.tanh(x @ torch.randn(24, 40, generator=generator)) @ torch.randn(40, 3, generator=generator)
    torch.manual_seed(place_of(run))
    model: nn.Module = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 3))
    model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.02))
    with torch.no_grad():
        before = F.mse_loss(model(x), y).item()
    mine = slice(place_of(run), None, len(run.workers))
    for _ in range(steps):
        run.weight(24)
        optimizer.zero_grad()
        F.mse_loss(model(x[mine]), y[mine]).backward()
        optimizer.step()
    with torch.no_grad():
        return before, F.mse_loss(model(x), y).item()


def cell(algorithm: str, codec: str, shards: int, overlay: str = "", steps: int = STEPS) -> dict[str, Any]:
    policy, compensation = ALGORITHMS[algorithm]
    spec = CODECS[codec]
    row = {"algorithm": algorithm, "overlay": overlay, "codec": codec, "shards": shards}
    row |= {"result": "trains", "reason": ""}
    description = (
        f'[run]\nname = "matrix"\nshards = {shards}\noverlay = "{overlay}"\n[sync]\npolicy = "{policy}"\n'
        f'[optimizer]\ncompensation = "{compensation}"\n[wan]\ncodec_up = "{spec}"\ncodec_down = "{spec}"\n'
        f'[lan]\noverlay = "{overlay}"\n'
        '[[party]]\nname = "A"\nworkers = 2\n[[party]]\nname = "B"\nworkers = 2\n'
    )
    try:
        check_choices(Run.parse(description, "matrix.toml"))
    except ConfigError as error:
        return row | {"result": "refused", "reason": error.faults[0].hint}
    settings = Settings(slice_elements=1024, pack_below=100, policy=policies.make(policy))
    edge = Edge(spec, spec)
    results, simulator = train(
        [2, 2],
        partial(regression, steps=steps),
        settings,
        shards,
        policy=policy,
        compensation=compensation,
        wan=edge,
        overlays=dict.fromkeys(("", "A", "B"), overlay) if overlay else {},
    )
    used = {node for _, node, fields in simulator.noted("overlay") if fields["state"] == "used"}
    assert used == ({"global/0", "A", "B"} if overlay else set())
    before, after = (sum(losses[part] for losses in results.values()) for part in (0, 1))
    assert after < 0.8 * before, (
        f"{algorithm}, {spec}, {shards} shards: the loss went from {before} to {after}"
    )
    return row


@pytest.mark.no_cover
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_goes_with_a_codec_and_a_number_of_shards(algorithm: str) -> None:
    """The diagonal; what each part does is tested by itself."""
    place = list(ALGORITHMS).index(algorithm)
    codec, shards = list(CODECS)[place % len(CODECS)], SHARDS[place % len(SHARDS)]
    policy = policies.make(ALGORITHMS[algorithm][0])
    overlay = OVERLAYS[place % 2] if policy.lockstep else ""
    assert cell(algorithm, codec, shards, overlay, steps=24)["result"] == "trains"


@pytest.mark.grids
@pytest.mark.no_cover
def test_every_algorithm_goes_with_every_codec_and_number_of_shards() -> None:
    cells = [
        cell(algorithm, codec, shards, overlay)
        for algorithm in ALGORITHMS
        for overlay in OVERLAYS
        for codec in CODECS
        for shards in SHARDS
    ]
    refused = {(each["algorithm"], each["overlay"]) for each in cells if each["result"] != "trains"}
    assert refused == {(name, "ring") for name in ("MixedSync", "MixedSync, DC-ASGD", "Downpour")}
    path = ROOT / "out" / "matrix.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"cells": cells}, indent=1) + "\n")
