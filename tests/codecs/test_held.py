"""What codecs hold back: with what they have sent, it is what they were given, so whoever leaves gives it up."""

from __future__ import annotations

import pytest
import torch
from codec_cases import SPECS, drawn, made, slice_of

from geomx.codecs.dense import Dense
from geomx.codecs.returning import Returning

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("inner_loops")


@pytest.mark.parametrize("spec", SPECS)
def test_what_is_held_and_what_was_sent_is_what_was_given(spec: str) -> None:
    codec, slice_ = made(spec), slice_of(3000, "float64")
    given, sent = torch.zeros(3000, dtype=torch.float64), torch.zeros(3000, dtype=torch.float64)
    assert codec.held(slice_) is None
    for turn in range(5):
        values = drawn(3000, "float64", turn)
        given += values
        sent += codec.decode(slice_, codec.encode(slice_, turn, values))
    held = codec.held(slice_)
    assert held is not None
    torch.testing.assert_close(sent + held, given, rtol=1e-12, atol=1e-12)


def test_tiny_tensors_that_go_dense_hold_nothing() -> None:
    codec, tiny = made("int8"), slice_of(10, of_tensor=10)
    codec.encode(tiny, 0, drawn(10))
    assert codec.held(tiny) is None


def test_without_feedback_nothing_is_held() -> None:
    codec, slice_ = made("int8"), slice_of(3000)
    codec.feedback = False
    codec.encode(slice_, 0, drawn(3000))
    assert codec.held(slice_) is None
    assert Dense().held(slice_) is None


def test_what_a_lossy_channel_has_lost_is_held_until_it_is_sent() -> None:
    codec, slice_, values = Returning(Dense()), slice_of(3000), drawn(3000)
    blocks = codec.cut(slice_, codec.encode(slice_, 0, values), 1400)
    codec.settle(slice_, blocks[:1])
    held = codec.held(slice_)
    assert held is not None
    assert torch.equal(held, codec.decode_blocks(slice_, blocks[:1]))
    codec.encode(slice_, 1, values)
    assert codec.held(slice_) is None
