"""Nothing that a channel loses is lost for good, whatever the codec."""

from __future__ import annotations

import math

import pytest
import torch
from codec_cases import SPECS, drawn, made, residual, shuffled, slice_of
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.codecs.by_size import BySize
from geomx.codecs.contract import Block, Codec
from geomx.codecs.dense import Dense
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.returning import Returning, for_lossy_channel, goes_whole, takes_back
from geomx.codecs.spec import make_codec
from geomx.errors import NotFinite, ProtocolError
from geomx.layout import Slice

pytestmark = pytest.mark.usefixtures("inner_loops")

DATAGRAM = 1400
KEPT = ("residual", "returned")
MOMENTUM = "bisparse ratio=0.1 momentum=0.9"


def without_feedback(spec: str) -> Codec:
    codec = make_codec(spec, RngKey(7, "A"))
    codec.feedback = False
    return codec


def held_back(codec: Codec, slice_: Slice) -> torch.Tensor:
    state = codec.state(slice_)
    held = [state[name].to(torch.float64) for name in KEPT if name in state]
    return sum(held, torch.zeros(slice_.elements, dtype=torch.float64))


def lose(blocks: list[Block], seed: int) -> tuple[list[Block], list[Block]]:
    """Which came and which were lost: of each turn's, another share."""
    generator = torch.Generator().manual_seed(seed)
    share = float(torch.rand(1, generator=generator)) * 1.2 - 0.1
    draws = torch.rand(len(blocks), generator=generator).tolist()
    order = torch.randperm(len(blocks), generator=generator).tolist()
    return (
        [blocks[place] for place in order if draws[place] >= share],
        [blocks[place] for place in order if draws[place] < share],
    )


def turn_of(
    codec: Codec, slice_: Slice, turn: int, values: torch.Tensor, most_bytes: int = 300
) -> torch.Tensor:
    """Push values over a channel that loses blocks; returns what was applied."""
    blocks = codec.cut(slice_, codec.encode(slice_, turn, values), most_bytes)
    came, lost = lose(blocks, turn)
    applied = codec.decode_blocks(slice_, came).to(torch.float64)
    codec.settle(slice_, lost)
    return applied


# -- the property ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spec", ["dense", "tiny_fp16", *SPECS])
def test_what_was_applied_and_what_is_held_back_are_what_was_pushed(spec: str, dtype: str) -> None:
    codec, slice_ = for_lossy_channel(make_codec(spec, RngKey(7, "A"))), slice_of(5000, dtype)
    pushed, applied = torch.zeros(5000, dtype=torch.float64), torch.zeros(5000, dtype=torch.float64)
    for turn in range(15):
        values = drawn(5000, dtype, turn)
        before = values.clone()
        applied += turn_of(codec, slice_, turn, values)
        pushed += values
        assert torch.equal(values, before)
    rounding = 1e-6 if dtype == "float32" else 1e-14
    torch.testing.assert_close(applied + held_back(codec, slice_), pushed, rtol=rounding, atol=rounding)


@examples(60)
@given(st.data())
def test_integers_arrive_exactly(data: st.DataObject) -> None:
    """In every form that has whole numbers of this size, feedback on or off."""
    spec = data.draw(
        st.sampled_from(["dense", "tiny_fp16", "fp16", "bf16", "topk ratio=1.0", "topk ratio=0.2"])
    )
    dtype = data.draw(st.sampled_from(["float32", "float64", "bfloat16", "float16"]))
    feedback = data.draw(st.booleans()) and spec != "dense"
    made = make_codec(spec, RngKey(7, "A")) if feedback else without_feedback(spec)
    codec, slice_ = for_lossy_channel(made), slice_of(data.draw(st.integers(1, 2000)), dtype)
    pushed = torch.zeros(slice_.elements, dtype=torch.float64)
    applied = torch.zeros_like(pushed)
    expects_all = feedback or "0.2" not in spec
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10_000)))
    for turn in range(data.draw(st.integers(1, 8))):
        values = torch.randint(-8, 9, (slice_.elements,), generator=generator).to(getattr(torch, dtype))
        applied += turn_of(codec, slice_, turn, values, data.draw(st.integers(30, DATAGRAM)))
        pushed += values
        if expects_all:
            assert torch.equal(applied + held_back(codec, slice_), pushed)


@pytest.mark.parametrize("spec", SPECS)
def test_a_lossy_codec_without_feedback_loses_its_rounding_alone(spec: str) -> None:
    """What was applied and what came back are what the payloads carried."""
    codec, alone = Returning(without_feedback(spec)), without_feedback(spec)
    slice_ = slice_of(5000, "float64")
    carried, applied = torch.zeros(5000, dtype=torch.float64), torch.zeros(5000, dtype=torch.float64)
    returned = torch.zeros(5000, dtype=torch.float64)
    for turn in range(10):
        values = drawn(5000, "float64", turn)
        payload = alone.encode(slice_, turn, values + returned)
        carried += alone.decode(slice_, payload) - returned
        applied += turn_of(codec, slice_, turn, values)
        returned = held_back(codec, slice_)
    assert returned.any()
    torch.testing.assert_close(applied + returned, carried, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_that_a_half_precision_dtype_has_no_room_for_are_sent_in_parts(dtype: str) -> None:
    codec, slice_ = Returning(Dense()), slice_of(1000, dtype)
    pushed, applied = torch.zeros(1000, dtype=torch.float64), torch.zeros(1000, dtype=torch.float64)
    for turn in range(20):
        values = drawn(1000, dtype, turn, scale=7.7e3)
        pushed += values
        applied += turn_of(codec, slice_, turn, values)
        torch.testing.assert_close(applied + held_back(codec, slice_), pushed, rtol=1e-6, atol=1e-2)


def test_a_sum_beyond_the_largest_float16_is_sent_as_far_as_it_goes() -> None:
    codec, slice_ = Returning(Dense()), slice_of(4, "float16")
    values = torch.tensor([60000.0, -60000.0, 1.0, 0.0], dtype=torch.float16)
    codec.settle(slice_, codec.cut(slice_, codec.encode(slice_, 0, values), DATAGRAM))
    sent = codec.decode(slice_, codec.encode(slice_, 1, values))
    assert sent.tolist() == [65504.0, -65504.0, 2.0, 0.0]
    assert codec.state(slice_)["returned"].tolist() == [54496.0, -54496.0, 0.0, 0.0]
    rest = codec.decode(slice_, codec.encode(slice_, 2, torch.zeros_like(values)))
    assert rest.tolist() == [54496.0, -54496.0, 0.0, 0.0]
    assert codec.state(slice_) == {}


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


def test_models_in_half_precision_take_back_what_was_sent_and_not_its_rounding() -> None:
    codec, slice_, values = made("int8"), slice_of(3000, "bfloat16"), drawn(3000, "bfloat16")
    codec.settle(slice_, codec.cut(slice_, codec.encode(slice_, 0, values), DATAGRAM))
    torch.testing.assert_close(residual(codec, slice_), values.float(), rtol=1e-6, atol=1e-9)


# -- one block after another ----------------------------------------------------------------------------------


def test_while_nothing_was_lost_nothing_is_copied() -> None:
    codec, slice_ = Returning(Dense()), slice_of(3000)
    values = drawn(3000)
    for turn in range(3):
        payload = codec.encode(slice_, turn, values)
        assert payload.data_ptr() == values.data_ptr()
        assert codec.cost_bytes(slice_) == 0
        codec.settle(slice_, [])
    lost = codec.cut(slice_, payload, 300)[3]
    codec.settle(slice_, [lost])
    assert codec.cost_bytes(slice_) == 3 * 12_000
    kept = codec.state(slice_)["returned"]
    assert codec.held(slice_) is kept
    assert torch.equal(kept[lost.start : lost.stop], values[lost.start : lost.stop])
    before = values.clone()
    payload = codec.encode(slice_, 3, values)
    assert torch.equal(values, before)
    assert torch.equal(codec.decode(slice_, payload), values + kept)
    assert codec.held(slice_) is None
    assert codec.encode(slice_, 4, values).data_ptr() == values.data_ptr()


def test_what_is_lost_is_kept_apart_from_the_senders_memory() -> None:
    codec, slice_, values = Returning(Dense()), slice_of(10), drawn(10)
    blocks = codec.cut(slice_, codec.encode(slice_, 0, values), DATAGRAM)
    codec.settle(slice_, blocks)
    expected = values.clone()
    values.zero_()
    assert torch.equal(codec.state(slice_)["returned"], expected)
    codec.settle(slice_, blocks)
    assert torch.equal(codec.state(slice_)["returned"], expected)


def test_several_pushes_can_be_lost_before_the_next() -> None:
    codec, slice_, values = Returning(Dense()), slice_of(1000), torch.full((1000,), 2.0)
    pushes = [codec.cut(slice_, codec.encode(slice_, turn, values), 400) for turn in range(3)]
    for blocks in pushes:
        codec.settle(slice_, blocks[:5])
    assert codec.decode(slice_, codec.encode(slice_, 3, values)).tolist() == [8.0] * 500 + [2.0] * 500


def test_slices_keep_what_is_their_own() -> None:
    codec, one = Returning(Dense()), slice_of(10)
    other = Slice(1, "float32", 0, "weight", 10, one.parts)
    codec.settle(one, codec.cut(one, codec.encode(one, 0, torch.ones(10)), DATAGRAM))
    assert codec.decode(other, codec.encode(other, 0, torch.ones(10))).tolist() == [1.0] * 10
    assert codec.decode(one, codec.encode(one, 1, torch.ones(10))).tolist() == [2.0] * 10


@pytest.mark.parametrize("spec", ["dense", "tiny_fp16"])
def test_a_checkpoint_goes_on_to_the_same_bits(spec: str) -> None:
    of_tensor = 10 if spec == "tiny_fp16" else 1 << 40
    slice_ = slice_of(3000, of_tensor=of_tensor)
    one, other = Returning(make_codec(spec, RngKey())), Returning(make_codec(spec, RngKey()))
    for turn in range(4):
        one.settle(slice_, one.cut(slice_, one.encode(slice_, turn, drawn(3000, seed=turn)), 300)[1:4])
    state = {name: held.clone() for name, held in one.state(slice_).items()}
    assert state.keys() == ({"returned"} if spec == "dense" else {"returned", "residual"})
    other.settle(slice_, other.cut(slice_, other.encode(slice_, 0, drawn(3000)), 300))
    other.restore(slice_, state)
    for turn in range(4, 8):
        values = drawn(3000, seed=turn)
        assert torch.equal(turn_of(one, slice_, turn, values), turn_of(other, slice_, turn, values))
    other.restore(slice_, {})
    assert other.state(slice_) == {}


def test_what_is_lost_of_other_dtypes_is_added_as_well() -> None:
    codec, slice_ = Returning(Dense()), slice_of(10, "int64")
    values = torch.full((10,), 2**53 + 1)
    codec.settle(slice_, codec.cut(slice_, codec.encode(slice_, 0, values), DATAGRAM))
    assert codec.decode(slice_, codec.encode(slice_, 1, values)).tolist() == [2**54 + 2] * 10


def test_feedback_can_be_switched_off() -> None:
    codec, slice_ = Returning(Dense()), slice_of(10)
    codec.feedback = False
    codec.settle(slice_, codec.cut(slice_, codec.encode(slice_, 0, torch.ones(10)), DATAGRAM))
    assert codec.state(slice_) == {}


# -- what is no number ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "Inf")])
def test_lost_numbers_that_are_none_are_refused(value: float, word: str) -> None:
    codec, slice_ = Returning(Dense()), slice_of(1000)
    values = drawn(1000)
    blocks = codec.cut(slice_, codec.encode(slice_, 0, values), 400)
    codec.settle(slice_, blocks[:3])
    before = codec.state(slice_)["returned"].clone()
    values[250] = value
    with pytest.raises(NotFinite, match=f"slice 0 holds {word}"):
        codec.settle(slice_, blocks)
    with pytest.raises(NotFinite, match=f"slice 0 holds {word}"):
        codec.encode(slice_, 1, values)
    assert torch.equal(codec.state(slice_)["returned"], before)


def test_sums_that_overflow_are_refused() -> None:
    codec, slice_, values = Returning(Dense()), slice_of(10), torch.full((10,), 3e38)
    blocks = codec.cut(slice_, codec.encode(slice_, 0, values), DATAGRAM)
    codec.settle(slice_, blocks)
    for call in (lambda: codec.settle(slice_, blocks), lambda: codec.encode(slice_, 1, values)):
        with pytest.raises(NotFinite, match="slice 0 holds Inf"):
            call()
        assert codec.state(slice_)["returned"].tolist() == values.tolist()


def test_a_number_without_room_is_refused_by_name_and_a_sum_without_room_is_sent_in_parts() -> None:
    codec, slice_ = Returning(without_feedback("bf16")), slice_of(2)
    most = codec.room(slice_).most
    lost = torch.tensor([2.0**120, 0.0])
    codec.settle(slice_, codec.cut(slice_, codec.encode(slice_, 0, lost), DATAGRAM))
    with pytest.raises(NotFinite, match="too large for bf16"):
        codec.encode(slice_, 1, torch.tensor([3.395e38, 1.0]))
    values = torch.tensor([most - 2.0**119, 1.0])
    assert codec.decode(slice_, codec.encode(slice_, 1, values)).tolist() == [most, 1.0]
    assert codec.state(slice_)["returned"].tolist() == [2.0**119, 0.0]


def test_blocks_that_do_not_go_together_are_not_kept() -> None:
    codec, slice_ = Returning(Dense()), slice_of(1000)
    blocks = codec.cut(slice_, codec.encode(slice_, 0, drawn(1000)), 400)
    with pytest.raises(ProtocolError, match="overlaps"):
        codec.settle(slice_, [blocks[0], blocks[0]])
    assert codec.state(slice_) == {}


# -- which codecs need it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_codecs_with_feedback_need_nothing(spec: str) -> None:
    """Nor do their large slices. Tiny ones beside them stay whole, and come back when they are late."""
    codec, tiny, large = made(spec), slice_of(40, of_tensor=40), slice_of(5000)
    wrapped = for_lossy_channel(codec)
    assert takes_back(wrapped, tiny)
    assert takes_back(wrapped, large)
    assert not goes_whole(wrapped, large)
    if not isinstance(codec, BySize) or takes_back(codec, tiny):
        assert wrapped is codec
        return
    assert isinstance(wrapped, BySize)
    assert wrapped.large is codec.large
    assert goes_whole(wrapped, tiny)
    values = drawn(40)
    payload = wrapped.encode(tiny, 0, values)
    wrapped.settle(tiny, [Block(0, 40, payload)])
    assert torch.equal(
        codec.decode(tiny, wrapped.encode(tiny, 1, torch.zeros(40))), codec.decode(tiny, payload)
    )
    with pytest.raises(NotFinite):
        wrapped.encode(tiny, 2, torch.full((40,), math.nan))


@pytest.mark.parametrize("spec", ["dense", "tiny_fp16"])
def test_codecs_that_send_large_slices_dense_are_wrapped(spec: str) -> None:
    codec = make_codec(spec, RngKey())
    wrapped = for_lossy_channel(codec)
    assert isinstance(wrapped, Returning)
    assert wrapped.codec is codec
    assert wrapped.size_lower_bound == codec.size_lower_bound
    assert wrapped.feedback
    assert not wrapped.lossless
    assert for_lossy_channel(wrapped) is wrapped


class Kept(Dense):
    """Says that it has feedback, and leaves `settle` as it is."""

    feedback = True


def test_codecs_that_take_nothing_back_are_wrapped_whatever_they_say() -> None:
    off = [without_feedback(spec) for spec in ("fp16", "int8", "mpq")]
    for codec in (*off, Kept(), BySize(Kept(), Dense(), 1000)):
        wrapped = for_lossy_channel(codec)
        assert isinstance(wrapped, Returning)
        assert wrapped.codec is codec


@pytest.mark.parametrize("spec", ["dense", "int8", "topk"])
def test_it_answers_for_the_codec_that_it_wraps(spec: str) -> None:
    codec, slice_ = made(spec), slice_of(3000)
    wrapped = Returning(codec)
    payload = wrapped.encode(slice_, 0, drawn(3000))
    assert torch.equal(wrapped.decode(slice_, payload), codec.decode(slice_, payload))
    assert wrapped.room(slice_) == codec.room(slice_)
    assert wrapped.ratio == codec.ratio
    assert wrapped.cost_bytes(slice_) == codec.cost_bytes(slice_)
    for size in (payload.numel(), payload.numel() + 20_000):
        assert wrapped.accepts(slice_, size) == codec.accepts(slice_, size)
