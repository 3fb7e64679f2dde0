"""What every lossy codec promises, whatever its form."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product

import pytest
import torch
from codec_cases import DTYPES, SPECS, drawn, made, of_large, residual, slice_of

from geomx.codecs import codecs
from geomx.codecs.by_size import LARGEST_BOUND
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.errors import ConfigError, NotFinite, ProtocolError

pytestmark = pytest.mark.usefixtures("inner_loops")


BOUNDED = ["int8", "int4", "sign", "two_bit", "topk", "bisparse", "mpq", "tiny_fp16"]


def test_every_codec_that_keeps_something_of_large_tensors_is_tried() -> None:
    assert {spec.split()[0] for spec in SPECS} | {"dense", "tiny_fp16"} == set(codecs.names)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", SPECS)
def test_nothing_is_lost_for_good(spec: str, dtype: str) -> None:
    """What was sent and what is held back are what was given; whoever leaves a run gives up what is held."""
    rounding = 1e-6 if dtype == "float32" else 1e-12
    for elements, turns in ((1, 3), (7, 3), (65, 3), (1023, 3), (1025, 3), (3000, 30), (300_000, 2)):
        codec, slice_ = made(spec), slice_of(elements, dtype)
        assert codec.held(slice_) is None
        total, arrived = (
            torch.zeros(elements, dtype=torch.float64),
            torch.zeros(elements, dtype=torch.float64),
        )
        for turn in range(turns):
            values = drawn(elements, dtype, turn)
            before = values.clone()
            payload = codec.encode(slice_, turn, values)
            assert torch.equal(values, before)
            assert payload.dtype == torch.uint8
            assert codec.accepts(slice_, payload.numel())
            decoded = codec.decode(slice_, payload)
            assert decoded.dtype == values.dtype
            total += values
            arrived += decoded
        held = codec.held(slice_)
        assert held is not None
        assert torch.equal(held, residual(codec, slice_))
        torch.testing.assert_close(arrived + held, total, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("spec", ["int8", "fp16", "mpq"])
@pytest.mark.parametrize("of_tensor", [10, LARGEST_BOUND])
def test_without_feedback_nothing_is_held_nor_taken_back(spec: str, of_tensor: int) -> None:
    codec, slice_, values = made(spec), slice_of(10, of_tensor=of_tensor), drawn(10)
    codec.feedback = False
    first, second = (codec.encode(slice_, turn, values) for turn in range(2))
    assert torch.equal(first, second)
    codec.settle(slice_, codec.cut(slice_, first, 1400))
    assert codec.held(slice_) is None
    assert codec.state(slice_) == {}


def test_chance_differs_between_origins_turns_and_slices() -> None:
    slice_, values = slice_of(3000), drawn(3000)
    forms = {
        bytes(made("int4 stochastic=true", origin).encode(slice_, turn, values).tolist())
        for origin in ("A", "B")
        for turn in (0, 1)
    }
    assert len(forms) == 4


def test_stochastic_rounding_is_right_on_average() -> None:
    codec, slice_ = made("int4 stochastic=true"), slice_of(64)
    codec.feedback = False
    values = drawn(64)
    mean = torch.stack(
        [codec.decode(slice_, codec.encode(slice_, turn, values)) for turn in range(2000)]
    ).mean(0)
    step = float(values.abs().max()) / 7
    assert float((mean - values).abs().max()) < 5 * step / 2000**0.5


@pytest.mark.parametrize("spec", SPECS)
def test_zeros_stay_zeros_and_extreme_numbers_finite(spec: str) -> None:
    for elements in (1, 64, 3000):
        codec, slice_ = made(spec), slice_of(elements)
        assert not codec.decode(slice_, codec.encode(slice_, 0, torch.zeros(elements))).any()
    for value in (3.3e38, -3.3e38, 1e-45, 1e30):
        codec, slice_, values = made(spec), slice_of(200), drawn(200)
        values[17] = value
        decoded = codec.decode(slice_, codec.encode(slice_, 0, values))
        assert torch.isfinite(decoded).all(), value
        assert torch.isfinite(residual(codec, slice_)).all(), value


@pytest.mark.parametrize("spec", [*SPECS, "tiny_fp16"])
def test_numbers_that_are_none_are_refused(spec: str) -> None:
    odd = {float("nan"): "NaN", float("inf"): "Inf", -float("inf"): "Inf"}
    places = ((3, 1, 3), (200, 3, LARGEST_BOUND), (20_003, 3, LARGEST_BOUND), (20_003, 20_002, LARGEST_BOUND))
    for (elements, place, of_tensor), (value, word) in product(places, odd.items()):
        codec, slice_ = made(spec), slice_of(elements, of_tensor=of_tensor)
        codec.encode(slice_, 0, drawn(elements))
        values = drawn(elements)
        values[place] = value
        with pytest.raises(NotFinite, match=f"slice 0 holds {word}"):
            codec.encode(slice_, 1, values)


def test_a_residual_that_overflows_is_not_sent() -> None:
    codec, slice_ = made("topk ratio=0.1 values=fp16"), slice_of(1000)
    for turn in range(2):
        with pytest.raises(NotFinite) if turn else nullcontext():
            codec.encode(slice_, turn, torch.full((1000,), 2e38))


@pytest.mark.parametrize("spec", SPECS)
def test_a_checkpoint_goes_on_to_the_same_bits(spec: str) -> None:
    slice_ = slice_of(3000)
    one, other = made(spec), made(spec)
    for turn in range(3):
        one.encode(slice_, turn, drawn(3000, seed=turn))
    other.restore(slice_, {name: tensor.clone() for name, tensor in one.state(slice_).items()})
    for turn in range(3, 6):
        values = drawn(3000, seed=turn)
        assert torch.equal(one.encode(slice_, turn, values), other.encode(slice_, turn, values))
    assert all(torch.equal(tensor, other.state(slice_)[name]) for name, tensor in one.state(slice_).items())


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("bound", [1, 300, 1000, 200_000])
def test_a_codec_has_a_bound_of_its_own_between_tiny_and_large(name: str, bound: int) -> None:
    codec = made(name if bound == 1000 else f"{name} size_lower_bound={bound}")
    large, tiny = ("dense", "fp16") if name == "tiny_fp16" else (name, "fp16" if name == "mpq" else "dense")
    values = drawn(100)
    for size, expected in ((bound, large), (bound - 1, tiny)):
        slice_ = slice_of(100, of_tensor=size)
        payload = codec.encode(slice_, 0, values)
        assert torch.equal(payload, of_large(made(expected)).encode(slice_, 0, values))
        assert codec.accepts(slice_, payload.numel())
        assert (codec.held(slice_) is None) == (expected == "dense")


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("bound", [0, -1, 1 << 41])
def test_bounds_that_no_tensor_has_are_refused(name: str, bound: int) -> None:
    with pytest.raises(ConfigError, match="size_lower_bound: found"):
        made(f"{name} size_lower_bound={bound}")


def test_tiny_fp16_keeps_a_residual_of_tiny_tensors_alone() -> None:
    codec, tiny, large = made("tiny_fp16"), slice_of(999, of_tensor=999), slice_of(5000)
    values = drawn(5000)
    payload = codec.encode(large, 0, values)
    assert torch.equal(codec.decode(large, payload), values)
    assert codec.state(large) == {}
    assert codec.feedback
    sent = codec.decode(tiny, codec.encode(tiny, 0, values[:999]))
    torch.testing.assert_close(sent + residual(codec, tiny), values[:999], rtol=1e-6, atol=1e-9)
    codec.feedback = False
    assert not codec.feedback
    first, second = (codec.encode(tiny, turn, values[:999]) for turn in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_models_in_half_precision_keep_their_residuals_in_float32(dtype: str) -> None:
    codec, slice_ = made("bisparse ratio=0.1"), slice_of(3000, dtype)
    decoded = codec.decode(slice_, codec.encode(slice_, 0, drawn(3000, dtype)))
    assert decoded.dtype == getattr(torch, dtype)
    assert residual(codec, slice_).dtype == torch.float32


# -- what comes from outside ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["int8", "int4"])
def test_a_code_that_no_encoder_writes_is_refused(spec: str) -> None:
    """Codes lie in ±127 and ±7, of which each is written as a number without a sign: one is left over."""
    codec, slice_ = made(spec), slice_of(64)
    payload = codec.encode(slice_, 0, drawn(64))
    payload[-1] = 0xFF
    with pytest.raises(ProtocolError, match="a code lies outside its range"):
        codec.decode(slice_, payload)


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
@pytest.mark.parametrize(
    ("spec", "dtype"),
    [("fp16", torch.float16), ("bf16", torch.bfloat16), ("topk ratio=1.0", torch.float32)],
)
def test_a_number_that_is_none_is_refused_in_a_payload(spec: str, dtype: torch.dtype, value: float) -> None:
    codec, slice_ = made(spec), slice_of(64)
    payload = codec.encode(slice_, 0, drawn(64))
    payload[-dtype.itemsize :] = torch.tensor([value], dtype=dtype).view(torch.uint8)
    with pytest.raises(ProtocolError, match="not finite"):
        codec.decode(slice_, payload)


@pytest.mark.parametrize("step", [0.0, -1.0, float("nan"), float("inf")])
def test_a_threshold_that_cannot_be_is_refused(step: float) -> None:
    codec, slice_ = made("two_bit threshold=0.01"), slice_of(64)
    payload = codec.encode(slice_, 0, drawn(64))
    payload[:4] = torch.tensor([step]).view(torch.uint8)
    with pytest.raises(ProtocolError, match=f"a threshold of {step}"):
        codec.decode(slice_, payload)


# -- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("bisparse ratoi=0.1", "an unknown parameter"),
        ("bisparse ratio=much", "'much'"),
        ("bisparse ratio=0", "a number above 0"),
        ("bisparse momentum=1", "below 1"),
        ("topk values=int3", "int4"),
        ("int8 stochastic=yes", "true or false"),
        ("fp16 stochastic=true", "an unknown parameter"),
        ("bisparse clip=nan", "a number"),
        ("two_bit threshold=inf", "a number"),
        ("two_bit threshold=-1", "a number above 0"),
        ("dense ratio=1", "an unknown parameter"),
    ],
)
def test_a_wrong_parameter_is_named(spec: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_codec(spec, RngKey())
    assert words in str(caught.value)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean `bisparse`"):
        make_codec("bisprase", RngKey())
