"""The GPT's model, data and schedule, and a run of one that goes on from its checkpoint."""

import importlib
import re
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def gpt(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("gpt")


def test_a_byte_is_foretold_from_those_before_it_alone(gpt):
    torch.manual_seed(0)
    model = gpt.Gpt()
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_288_640
    text = torch.randint(gpt.TOKENS, (2, gpt.CONTEXT))
    other = text.clone()
    other[:, 40:] = (other[:, 40:] + 1) % gpt.TOKENS
    logits, others = model(text), model(other)
    assert logits.shape == (2, gpt.CONTEXT, gpt.TOKENS)
    assert torch.allclose(logits[:, :40], others[:, :40], atol=1e-5)
    assert not torch.allclose(logits[:, 40:], others[:, 40:], atol=1e-3)


def test_matrices_decay_and_nothing_else_does(gpt):
    model = gpt.Gpt()
    decaying, kept = gpt.build_optimizer(model, 1e-3).param_groups
    assert (decaying["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert {parameter.dim() for parameter in decaying["params"]} == {2}
    assert {parameter.dim() for parameter in kept["params"]} == {1}
    assert len(decaying["params"]) + len(kept["params"]) == len(list(model.parameters()))


def test_the_rate_rises_linearly_and_falls_as_half_a_cosine(gpt):
    rates = [gpt.share_of_lr(step, warmup=10, steps=110) for step in range(111)]
    assert rates[:10] == pytest.approx([n / 10 for n in range(1, 11)])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert (rates[10], rates[60], rates[110]) == pytest.approx((1.0, 0.55, gpt.LEAST_LR))


def test_windows_hold_the_text_and_what_follows_each_byte(gpt):
    windows = gpt.Windows(torch.arange(2 * gpt.CONTEXT + 1, dtype=torch.uint8))
    assert len(windows) == 2
    text, following = windows[1]
    assert text.tolist() == list(range(64, 128))
    assert following.tolist() == list(range(65, 129))


def test_training_goes_on_from_its_checkpoint(gpt, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpt, "VALIDATED_ON", 64)

    def steps_taken(steps):
        words = ["--steps", steps, "--validate-every", "1", "--batch", "2", "--accumulate", "2"]
        monkeypatch.setattr("sys.argv", ["gpt.py", *words, "--checkpoint", str(tmp_path / "gpt.safetensors")])
        gpt.main()
        return re.findall(r"^step +(\d+) ", capsys.readouterr().out, re.MULTILINE)

    assert steps_taken("2") == ["1", "2"]
    assert steps_taken("3") == ["3"]
