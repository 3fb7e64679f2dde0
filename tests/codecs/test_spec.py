"""What a codec's spec says of the layout that suits it."""

from __future__ import annotations

import pytest
import torch

from geomx.codecs.dense import Dense
from geomx.codecs.pack import values
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec, ratio_of, size_bounds_of, slices_wanted
from geomx.errors import ConfigError


@pytest.mark.parametrize(
    ("spec", "ratio"),
    [
        ("dense", 1.0),
        ("fp16", 2.0),
        ("int8", 3.94),
        ("sign", 31.5),
        ("bisparse ratio=0.01", 124.0),
        ("bisparse ratio=0.01 size_lower_bound=200000", 124.0),
        ("tiny_fp16 size_lower_bound=200000", 1.0),
    ],
)
def test_how_much_less_a_codec_sends(spec: str, ratio: float) -> None:
    assert ratio_of(spec) == pytest.approx(ratio, rel=0.02)


def test_a_model_is_cut_into_fewer_slices_where_both_ways_send_less() -> None:
    assert slices_wanted("dense", "dense") == 64
    assert slices_wanted("bisparse", "dense") == 64
    assert slices_wanted("fp16", "int8") == 32
    assert slices_wanted("bisparse", "int4") == 8
    assert slices_wanted("bisparse", "bisparse") == 1


@pytest.mark.parametrize("spec", ["fp16", "int8", "sign", "bisparse values=int2"])
def test_defaults_of_a_script_have_no_part_in_it(spec: str) -> None:
    expected = ratio_of(spec)
    values._largest_scale.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):  # stands for a device that is not the CPU
            assert ratio_of(spec) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_is_no_codec_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a subclass of geomx\.codecs\.contract\.Codec"):
        make_codec("contextlib:nullcontext", RngKey())


def test_the_bounds_of_codecs_are_those_that_part_large_tensors_from_tiny_ones() -> None:
    assert size_bounds_of("dense", "fp16", "bf16") == ()
    assert size_bounds_of("dense", "int8", "topk", "test_spec:Whole") == (1000,)
    assert size_bounds_of("mpq size_lower_bound=200000", "tiny_fp16 size_lower_bound=300") == (300, 200_000)


class Whole(Dense):
    """Somebody's own, without a bound."""
