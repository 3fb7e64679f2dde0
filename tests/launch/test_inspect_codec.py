"""`geomx inspect codec`, as a user calls it."""

from __future__ import annotations

import re

import pytest

from geomx.cli import BAD_USAGE, OK, main

MODEL = """
import torch
def make():
    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Linear(50, 10))
    model[1].weight.requires_grad = False
    return model
def none():
    return 3
def broken():
    raise RuntimeError("no data here")
"""


@pytest.fixture(autouse=True)
def _beside_a_model(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine_to_inspect.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def test_what_codecs_send_of_one_tensor(capsys):
    assert main(["inspect", "codec", "int8", "bisparse ratio=0.01", "--parameters", "100000"]) == OK
    printed = capsys.readouterr().out
    assert "100,000 parameters" in printed
    megabytes = {
        name: float(size)
        for name, size in re.findall(r"│ (int8|bisparse [^ ]+) +│ +7 │ +([\d.]+)", printed)  # 7 slices
    }
    assert megabytes["int8"] == pytest.approx(0.102, abs=0.001)  # a byte each, and two for each 128
    assert megabytes["bisparse ratio=0.01"] < 0.006


def test_what_is_trained_of_a_model_counts(capsys):
    assert main(["inspect", "codec", "fp16", "--model", "mine_to_inspect:make"]) == OK
    printed = capsys.readouterr().out
    assert "5,060 parameters" in printed  # the frozen matrix is not sent


def test_every_codec_without_a_name(capsys):
    assert main(["inspect", "codec", "--parameters", "2000"]) == OK
    printed = capsys.readouterr().out
    for name in ("bf16", "two_bit", "mpq"):
        assert f"│ {name} " in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing_such"], "nothing_such: found no codec of that name"),
        (["int8", "--model", "mine_to_inspect"], "there is no colon"),
        (["int8", "--model", "mine_to_inspect:none"], "it gives no torch.nn.Module"),
        (["int8", "--model", "mine_to_inspect:broken"], "RuntimeError: no data here"),
        (["int8", "--model", "not_there:make"], "ModuleNotFoundError"),
        (["int8", "--parameters", "0"], "allowed: 1 or more"),
    ],
)
def test_mistakes_are_answered(arguments, said, capsys):
    assert main(["inspect", "codec", *arguments]) == BAD_USAGE
    assert said in capsys.readouterr().err
