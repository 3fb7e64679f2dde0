"""What a setting is known to cost is said when the optimizer is known; with `run.strict` it is refused."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
from live_runs import begin, train
from torch import nn

from geomx.config import Run
from geomx.config.compatibility.choices import Choices
from geomx.config.compatibility.decision import decide
from geomx.config.compatibility.script import Script
from geomx.errors import Unsupported
from geomx.train import Settings
from geomx.train.model.support import kept_by

PARTIES = '[[party]]\nname = "A"\nworkers = 2\n[[party]]\nname = "B"\nworkers = 1\n'
OPTIMIZERS: dict[str, Any] = {
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
}


def told(codec_up: str, optimizer: str, strict: bool = False) -> set[tuple[str, str]]:
    """By whom, and what."""
    run = Run.parse(PARTIES, "run.toml", [f"wan.codec_up={codec_up}"])

    settings = Settings.of(run.changed([f"run.strict={str(strict).lower()}"]))
    main = partial(begin, make=lambda model: OPTIMIZERS[optimizer](model.parameters()))
    _, simulator = train([2, 1], main, settings)
    notes = [*simulator.noted("advice"), *simulator.noted("advised")]
    return {(node, fields["text"]) for _, node, fields in notes}


@pytest.mark.parametrize(
    ("codec", "optimizer", "says"),
    [
        ("bisparse ratio=0.01", "AdamW", "on gradients with AdamW .*slow-link"),
        ("mpq ratio=0.01", "Adagrad", "on gradients with Adagrad"),
        ("topk ratio=0.05", "SGD with momentum", "with the momentum of SGD diverged.*momentum=0.9"),
    ],
)
def test_a_setting_that_costs_accuracy_is_told_of_once_a_party(codec: str, optimizer: str, says: str) -> None:
    found = told(codec, optimizer)
    assert {node for node, _ in found} == {"A/0", "B/0"}
    assert all(re.search(says, text) for _, text in found)
    with pytest.raises(Unsupported, match=says):
        told(codec, optimizer, strict=True)


def test_the_lan_s_codec_is_looked_at_as_well() -> None:
    run = Run.parse(PARTIES, "run.toml", ["lan.codec_up=topk ratio=0.01"])
    (cost,) = decide(Choices.of(run), Script()).costs
    assert cost.text.startswith("lan.codec_up")
    assert not cost.is_certain


@pytest.mark.parametrize(
    ("codec", "optimizer"),
    [
        ("dense", "AdamW"),
        ("int4", "AdamW"),
        ("bisparse ratio=0.01", "SGD"),
        ("bisparse ratio=0.01 momentum=0.9", "SGD"),
        ("topk ratio=0.5", "AdamW"),
    ],
)
def test_others_are_not(codec: str, optimizer: str) -> None:
    assert not told(codec, optimizer, strict=True)


def test_what_an_optimizer_keeps() -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

    def kept(make: Any) -> str:
        return kept_by(make(nn.Linear(2, 2).parameters()))

    for name in ("Adam", "NAdam", "RMSprop", "Adadelta", "Adafactor"):
        assert kept(getattr(torch.optim, name)) == "squares", name
    assert kept(torch.optim.ASGD) == "nothing"
    assert kept(Own) == "unknown"
