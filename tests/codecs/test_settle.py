"""What blocks carried that were not applied goes with the next payload, in codecs with feedback."""

from __future__ import annotations

import pytest
import torch
from codec_cases import SPECS, drawn, made, residual, shuffled, slice_of

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("inner_loops")

DATAGRAM = 1400
MOMENTUM = "bisparse ratio=0.1 momentum=0.9"


@pytest.mark.parametrize("spec", SPECS)
def test_what_was_not_applied_goes_with_the_next(spec: str) -> None:
    codec, slice_, values = made(spec), slice_of(3000, "float64"), drawn(3000, "float64")
    codec.settle(slice_, codec.cut(slice_, codec.encode(slice_, 0, values), DATAGRAM))
    torch.testing.assert_close(residual(codec, slice_), values, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("spec", SPECS)
def test_lost_blocks_go_with_the_next(spec: str) -> None:
    codec, slice_ = made(spec), slice_of(20_000, "float64")
    pushed, applied = torch.zeros(20_000, dtype=torch.float64), torch.zeros(20_000, dtype=torch.float64)
    for turn in range(12):
        values = drawn(20_000, "float64", turn)
        blocks = shuffled(codec.cut(slice_, codec.encode(slice_, turn, values), 300), turn)
        lost = turn % 4 * len(blocks) // 4
        codec.settle(slice_, blocks[:lost])
        applied += codec.decode_blocks(slice_, blocks[lost:])
        pushed += values
    torch.testing.assert_close(applied + residual(codec, slice_), pushed, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", [MOMENTUM, f"{MOMENTUM} values=float32"])
def test_with_momentum_the_residual_takes_back_what_was_lost_and_velocity_stays_masked(spec: str) -> None:
    codec, slice_ = made(spec), slice_of(20_000, "float64")
    velocity = torch.zeros(20_000, dtype=torch.float64)
    moved, applied = torch.zeros_like(velocity), torch.zeros_like(velocity)
    for turn in range(12):
        values = drawn(20_000, "float64", turn)
        moved += 0.9 * velocity + values
        payload = codec.encode(slice_, turn, values)
        sent = codec.decode(slice_, payload) != 0
        blocks = shuffled(codec.cut(slice_, payload, 300), turn)
        lost = turn % 4 * len(blocks) // 4
        codec.settle(slice_, blocks[:lost])
        applied += codec.decode_blocks(slice_, blocks[lost:])
        velocity = codec.state(slice_)["velocity"].clone()
        assert not velocity[sent].any()
        assert velocity[~sent].any()
        returned = codec.decode_blocks(slice_, blocks[:lost])
        kept = codec.state(slice_)["residual"]
        torch.testing.assert_close(kept[returned != 0], returned[returned != 0], rtol=2e-2, atol=1e-4)
    torch.testing.assert_close(applied + residual(codec, slice_), moved, rtol=1e-12, atol=1e-12)


def test_a_codec_without_feedback_takes_nothing_back() -> None:
    codec, slice_ = made("int8"), slice_of(3000)
    codec.feedback = False
    codec.settle(slice_, codec.cut(slice_, codec.encode(slice_, 0, drawn(3000)), DATAGRAM))
    assert codec.state(slice_) == {}


def test_models_in_half_precision_take_back_what_was_sent_and_not_its_rounding() -> None:
    codec, slice_, values = made("int8"), slice_of(3000, "bfloat16"), drawn(3000, "bfloat16")
    codec.settle(slice_, codec.cut(slice_, codec.encode(slice_, 0, values), DATAGRAM))
    torch.testing.assert_close(residual(codec, slice_), values.float(), rtol=1e-6, atol=1e-9)
