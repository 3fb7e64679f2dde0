"""Arithmetic that says how large its results are: the bits of torch operations, and NaN and Inf wherever they are."""

from __future__ import annotations

import math

import pytest
import torch
from codec_cases import DTYPES, drawn, made, slice_of

from geomx.codecs.measure import largest, scaled, summed
from geomx.errors import NotFinite

pytestmark = pytest.mark.usefixtures("inner_loops")
SIZES = [1, 7, 64, 1025, 70_001]
ODD = [math.nan, math.inf, -math.inf]


def same(found: float, expected: float) -> bool:
    return found == expected or (math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", [1.0, 3.0, 0.1, -2.5, 1e38, 1e-42])
def test_scaled_is_a_product(dtype: str, weight: float) -> None:
    for elements in SIZES:
        x = drawn(elements, dtype, scale=3.0)
        expected, out = x * weight, torch.empty_like(x)
        assert same(scaled(x, weight, out), float(expected.abs().max()))
        assert torch.equal(out, expected)
        assert same(scaled(x, weight, x), float(expected.abs().max()))
        assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_summed_is_a_sum_from_left_to_right(dtype: str, count: int) -> None:
    for elements in SIZES:
        values = [drawn(elements, dtype, seed, 3.0) for seed in range(count)]
        expected = values[0].clone()
        for value in values[1:]:
            expected += value
        total, most = summed(values)
        assert torch.equal(total, expected)
        assert most == float(expected.abs().max())
        assert all(total.data_ptr() != value.data_ptr() for value in values)


@pytest.mark.parametrize("offset", range(9))
def test_parts_of_a_slice_may_lie_anywhere(offset: int) -> None:
    """Large results are written in another way where memory is aligned."""
    for elements in (100, 70_001):
        x, out = drawn(elements + 9)[offset : offset + elements], torch.zeros(elements + 9)
        assert scaled(x, 3.0, out[offset : offset + elements]) == float((x * 3.0).abs().max())
        assert torch.equal(out[offset : offset + elements], x * 3.0)
        assert out.count_nonzero() == elements
        assert torch.equal(summed([x, x]).values, x + x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_number_is_found_wherever_it_is(dtype: str, odd: float) -> None:
    for elements in SIZES:
        for place in {0, elements // 2, elements - 1}:
            x, y = drawn(elements, dtype), drawn(elements, dtype, 1)
            x[place] = odd
            assert same(largest(x), abs(odd))
            assert same(scaled(x, 2.0, torch.empty_like(x)), abs(odd))
            assert same(summed([x, y]).largest, abs(odd))
            assert same(summed([y, x, y]).largest, abs(odd))
            assert same(summed([x]).largest, abs(odd))


def test_sums_that_overflow_and_cancel_are_found() -> None:
    big = torch.full((100,), 3e38)
    assert summed([big, big]).largest == math.inf
    assert math.isnan(summed([big, big, torch.full((100,), -math.inf)]).largest)
    assert summed([big, -big]).largest == 0.0


ROOM = [
    ("fp16", "float32", 32752 * 2.0**113),
    ("fp16", "float64", math.nextafter(2.0**1015, 0)),
    ("bf16", "float32", torch.finfo(torch.bfloat16).max),
    ("bf16", "float64", torch.finfo(torch.bfloat16).max),
    ("topk ratio=1.0", "float64", torch.finfo(torch.float32).max),
    ("topk ratio=1.0 values=fp16", "float64", math.nextafter(2.0**1015, 0)),
    *((f"topk ratio=1.0 values={form}", "float32", None) for form in ("int8", "int4", "int2", "sign")),
    *((spec, "float64", None) for spec in ("int8", "int4", "sign")),
]


@pytest.mark.parametrize(("spec", "dtype", "most"), ROOM)
def test_a_codec_carries_what_it_says_it_has_room_for(spec: str, dtype: str, most: float | None) -> None:
    """Up to rounding, and no further: beyond it says so."""
    slice_ = slice_of(2048, dtype)
    room = made(spec).room(slice_)
    assert most is None or room.most == most
    values = torch.full((2048,), room.most, dtype=getattr(torch, dtype))
    codec = made(spec)
    decoded = codec.decode(slice_, codec.encode(slice_, 0, values))
    torch.testing.assert_close(decoded, values, rtol=2**-7, atol=0)
    beyond = torch.nextafter(values, torch.full_like(values, math.inf))
    if bool(beyond.isfinite().all()):
        with pytest.raises(NotFinite, match=rf"slice 0 holds .*, too large for {room.form} \(at most"):
            made(spec).encode(slice_, 0, beyond)
