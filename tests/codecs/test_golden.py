"""Encoded forms, byte for byte: a change here breaks what is on the wire (`docs/wire-format.md`)."""

from __future__ import annotations

import pytest
import torch
from codec_cases import slice_of

from geomx.codecs.pack.noise import RngKey, key_of, uniform
from geomx.codecs.spec import make_codec

VALUES = [1.0, -2.0, 0.5, 0.0, -0.25, 3.0, 0.0, 0.125]
pytestmark = pytest.mark.usefixtures("inner_loops")
GOLDEN = {
    "dense": "0000803f000000c00000003f00000000000080be00004040000000000000003e",
    "fp16": "f3ff007000f4006c000000e8007600000064",
    "bf16": "803f00c0003f000080be40400000003e",
    "int8": "c23ca92b947f74fe7f84",
    "int4": "dc3e2978e677",
    "int4 stochastic=true": "dc3e3979e677",
    "sign": "5c3fed",
    "two_bit threshold=0.5": "0000003f1904",
    "topk ratio=0.25": "0200000000000000ff0022000000c000004040",
    "topk ratio=0.75 values=int2": "0600000000000000ff05b74040620b",
    "bisparse ratio=0.25": "0200000000000000ff0222f3ff00f40076",
    "mpq ratio=0.5 values=int8": "0400000000000000ff0327c23ca92b94fe",
}
KEY = 4767569915105451169
DRAWN = [6540257, 281660, 15112256]


@pytest.mark.parametrize("spec", GOLDEN)
def test_forms_are_what_they_were(spec: str) -> None:
    payload = make_codec(spec, RngKey(1, "A")).encode(slice_of(8), 3, torch.tensor(VALUES))
    assert bytes(payload.tolist()).hex() == GOLDEN[spec]


def test_chance_is_what_it_was() -> None:
    assert key_of(1, 3, 0, "A") == KEY
    assert [round(u * 2**24) for u in uniform(7, 3, torch.device("cpu")).tolist()] == DRAWN
