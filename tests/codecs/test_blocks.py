"""Payloads cut into blocks that decode on their own."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from codec_cases import DTYPES, SPECS, drawn, made, of_large, shuffled, slice_of
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.codecs.contract import Block, Codec
from geomx.codecs.error_feedback import Lossy
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.sparse import Sparse
from geomx.codecs.spec import make_codec
from geomx.codecs.topk import TopK
from geomx.codecs.whole import Every
from geomx.errors import ProtocolError
from geomx.layout import ITEM_BYTES, Slice

pytestmark = pytest.mark.usefixtures("inner_loops")

DATAGRAM = 1400
ALL = ["dense", *SPECS]
SPARSE = [spec for spec in SPECS if isinstance(of_large(made(spec)), Sparse)]
EVERY = [spec for spec in ALL if spec not in SPARSE]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def apart(blocks: list[Block]) -> list[Block]:
    """As they come from a network: each payload at an odd place of memory of its own."""
    found = []
    for start, stop, payload in blocks:
        memory = torch.empty(payload.numel() + 1, dtype=torch.uint8)
        memory[1:] = payload
        found.append(Block(start, stop, memory[1:]))
    return found


def encoded(spec: str, elements: int, dtype: str = "float32") -> tuple[Codec, Slice, torch.Tensor]:
    codec, slice_ = make_codec(spec, RngKey(7, "A")), slice_of(elements, dtype)
    codec.encode(slice_, 0, drawn(elements, dtype))
    return codec, slice_, codec.encode(slice_, 1, drawn(elements, dtype, 1))


# -- cut ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ALL)
def test_blocks_decode_on_their_own_and_some_in_any_order_give_zeros_elsewhere(spec: str) -> None:
    dtypes = [*DTYPES, "bfloat16", "float16"]
    for number, elements in enumerate((1, 2, 7, 64, 65, 1000, 1025, 5000, 20_003)):
        dtype, most_bytes = dtypes[number % 4], 300 if number % 3 else DATAGRAM
        codec, slice_, payload = encoded(spec, elements, dtype)
        blocks = codec.cut(slice_, payload, most_bytes)
        assert [block.start for block in blocks] == [0, *(block.stop for block in blocks[:-1])]
        assert blocks[-1].stop == elements
        whole, expected = codec.decode(slice_, payload), torch.zeros(elements, dtype=getattr(torch, dtype))
        came: list[Block] = []
        for block in apart(shuffled(blocks, number)):
            if len(came) in (0, len(blocks) // 3):
                assert same(codec.decode_blocks(slice_, came), expected)
            start, stop, part = block
            within = slice_.within(start, stop)
            assert codec.accepts(within, part.numel())
            expected[start:stop] = codec.decode(within, part.clone())
            came.append(block)
        assert same(expected, whole)
        assert same(codec.decode_blocks(slice_, came), whole)


@pytest.mark.parametrize("spec", EVERY)
def test_where_every_element_is_sent_blocks_are_as_large_as_can_be_and_the_same_each_round(spec: str) -> None:
    codec, slice_, payload = encoded(spec, 70_001)
    large = of_large(codec)
    grain = large.columns.grain if isinstance(large, Every) else 1
    again = codec.encode(slice_, 2, drawn(70_001, scale=10.0))
    for most_bytes in (1399, DATAGRAM, 4000):
        blocks = codec.cut(slice_, payload, most_bytes)
        (numbers,) = {stop - start for start, stop, _ in blocks[:-1]}
        assert max(block.payload.numel() for block in blocks) <= most_bytes
        assert numbers % grain == 0
        assert not any(codec.accepts(slice_of(numbers + grain), size) for size in range(most_bytes + 1))
        assert [block[:2] for block in codec.cut(slice_, again, most_bytes)] == [b[:2] for b in blocks]


@pytest.mark.parametrize("most_bytes", [-5, 0, 1])
@pytest.mark.parametrize(
    ("spec", "elements"),
    [("dense", 1), ("fp16", 1), ("bf16", 1), ("int8", 128), ("int4", 64), ("sign", 1024), ("two_bit", 4)],
)
def test_where_not_even_the_smallest_block_fits_it_is_made_all_the_same(
    spec: str, elements: int, most_bytes: int
) -> None:
    codec, slice_, payload = encoded(spec, 3000)
    blocks = codec.cut(slice_, payload, most_bytes)
    assert {stop - start for start, stop, _ in blocks[:-1]} == {elements}
    assert same(codec.decode_blocks(slice_, blocks), codec.decode(slice_, payload))


@pytest.mark.parametrize("spec", SPARSE)
def test_sparse_blocks_fit_and_but_for_the_last_are_nearly_full(spec: str) -> None:
    """Only so many more entries as the grain would fit."""
    codec, slice_ = made(spec), slice_of(131_072)
    large = of_large(codec)
    assert isinstance(large, Sparse)
    grain = large._form.columns.grain
    blocks = codec.cut(slice_, codec.encode(slice_, 1, drawn(131_072)), DATAGRAM)
    for start, stop, part in blocks[:-1]:
        count, size = large.read(stop - start, part)[0].numel(), part.numel()
        assert count % grain == 0
        assert size <= DATAGRAM or count == grain
        assert size + grain * size / count + 3 >= DATAGRAM - 20


def test_a_payload_without_entries_is_one_block() -> None:
    codec, slice_ = made("topk"), slice_of(100_000)
    payload = codec.encode(slice_, 0, torch.zeros(100_000))
    (block,) = codec.cut(slice_, payload, DATAGRAM)
    assert block.payload is payload
    assert not codec.decode_blocks(slice_, [block]).any()


@examples(80)
@given(st.data())
def test_any_entries_are_cut(data: st.DataObject) -> None:
    elements = data.draw(st.integers(1, 2000))
    form = data.draw(st.sampled_from(["float32", "bf16", "fp16", "int8", "int4", "int2", "sign"]))
    density = data.draw(st.sampled_from([0.002, 0.05, 0.3, 1.0]))
    most_bytes = data.draw(st.integers(20, 1500))
    codec, slice_ = TopK(RngKey(), values=form, ratio=density), slice_of(elements)
    values = drawn(elements, seed=data.draw(st.integers(0, 1000)))
    start = data.draw(st.integers(0, elements))
    values[start : start + data.draw(st.integers(0, 1000))] *= 100
    payload = codec.encode(slice_, 0, values)
    blocks = codec.cut(slice_, payload, most_bytes)
    grain = codec._form.columns.grain
    for begin, stop, part in blocks:
        assert part.numel() <= most_bytes or codec.read(stop - begin, part)[0].numel() <= grain
    assert same(codec.decode_blocks(slice_, shuffled(blocks)), codec.decode(slice_, payload))


# -- decode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ALL)
def test_blocks_of_several_sizes_can_be_joined(spec: str) -> None:
    """Nothing says that all blocks of a payload were cut with the same size in mind."""
    codec, slice_, payload = encoded(spec, 20_001)
    coarse, fine = (codec.cut(slice_, payload, size) for size in (1300, 130))
    bounds = {block.stop for block in coarse} & {block.stop for block in fine} | {0}
    common = sorted(bounds)[len(bounds) // 2]
    blocks = [*(b for b in coarse if b.stop <= common), *(b for b in fine if b.start >= common)]
    assert same(codec.decode_blocks(slice_, blocks), codec.decode(slice_, payload))


@pytest.mark.parametrize("spec", ["dense", "int4", "bisparse", "mpq", "tiny_fp16"])
def test_slices_of_tiny_tensors_have_blocks_too(spec: str) -> None:
    codec, slice_ = make_codec(spec, RngKey()), slice_of(5000, of_tensor=999)
    payload = codec.encode(slice_, 0, drawn(5000))
    blocks = codec.cut(slice_, payload, DATAGRAM)
    assert len(blocks) > 5
    assert same(codec.decode_blocks(slice_, shuffled(blocks)), codec.decode(slice_, payload))


@pytest.mark.parametrize("dtype", [dtype for dtype in ITEM_BYTES if dtype != "bool"])
def test_dense_blocks_of_any_dtype(dtype: str) -> None:
    codec, slice_ = make_codec("dense", RngKey()), slice_of(3001, dtype)
    values = torch.arange(3001).to(getattr(torch, dtype))
    blocks = codec.cut(slice_, codec.encode(slice_, 0, values), 100)
    assert torch.equal(codec.decode_blocks(slice_, apart(shuffled(blocks))), values)
    del blocks[1::2]
    assert int((codec.decode_blocks(slice_, blocks) != values).sum()) >= 1400 - 12


def test_one_dense_block_is_not_copied() -> None:
    codec, slice_, values = make_codec("dense", RngKey()), slice_of(300), drawn(300)
    blocks = codec.cut(slice_, codec.encode(slice_, 0, values), DATAGRAM)
    assert codec.decode_blocks(slice_, blocks).data_ptr() == values.data_ptr()


class Plain(Lossy):
    """Somebody's own, which says nothing of blocks."""

    def compress(self, slice_: Slice, turn: int, left: torch.Tensor, weight: float) -> torch.Tensor:
        sent = left.to(torch.bfloat16)
        left -= sent
        return sent.view(torch.uint8)

    def expand(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        return payload.view(torch.bfloat16).to(torch.float32)

    def possible(self, elements: int, size: int) -> bool:
        return size == 2 * elements


class OfCodec(Codec):
    """Somebody's own of the contract alone."""

    lossless, feedback = True, False

    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        return values.to(torch.float64).view(torch.uint8)

    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        return payload.view(torch.float64).to(torch.float32)

    def accepts(self, slice_: Slice, size: int) -> bool:
        return size == 8 * slice_.elements

    def cost_bytes(self, slice_: Slice) -> int:
        return slice_.size_bytes


@pytest.mark.parametrize(("codec", "item_bytes"), [(Plain(RngKey(), None), 2), (OfCodec(), 8)])
def test_a_codec_that_says_nothing_of_blocks_has_one(codec: Codec, item_bytes: int) -> None:
    slice_ = slice_of(1000)
    payload = codec.encode(slice_, 0, drawn(1000))
    (block,) = codec.cut(slice_, payload, DATAGRAM)
    expected = codec.decode(slice_, payload).clone()
    assert torch.equal(codec.decode_blocks(slice_, [block]), expected)
    halves = [
        Block(600, 1000, payload[600 * item_bytes :]),
        Block(0, 400, payload[: 400 * item_bytes]),
    ]
    expected[400:600] = 0
    assert torch.equal(codec.decode_blocks(slice_, apart(halves)), expected)
    for wrong, words in (
        ([block, halves[0]], "overlaps"),
        ([Block(0, 999, payload)], f"a block of {1000 * item_bytes} bytes"),
    ):
        with pytest.raises(ProtocolError, match=words):
            codec.decode_blocks(slice_, wrong)


# -- what comes from outside ----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ALL)
def test_blocks_that_do_not_go_together_are_refused(spec: str) -> None:
    elements = 200_001 if spec == "bisparse values=sign" else 20_001  # a block has 1024 entries, of 1 %
    codec, slice_, payload = encoded(spec, elements)
    blocks = codec.cut(slice_, payload, 130)
    one, last = blocks[1], blocks[-1]
    for wrong, words in (
        ([*blocks, one], "overlaps"),
        ([Block(0, elements, payload), one], "overlaps"),
        ([Block(-1024, one.stop - one.start - 1024, one.payload)], f"of {elements} elements"),
        ([Block(one.start, one.start, one.payload)], f"of {elements} elements"),
        ([Block(one.stop, one.start, one.payload)], f"of {elements} elements"),
        ([Block(last.start + 1024, last.stop + 1024, last.payload)], f"of {elements} elements"),
        ([Block(one.start, one.stop, one.payload[:3])], "bytes"),
        ([Block(one.start, one.stop, one.payload[:0])], "bytes"),
        ([Block(one.start, one.stop, torch.cat((payload, payload)))], "bytes|bits"),
    ):
        with pytest.raises(ProtocolError, match=words):
            codec.decode_blocks(slice_, wrong)


@pytest.mark.parametrize(("spec", "off"), [("int8", 64), ("int4", 32), ("sign", 512), ("two_bit", 2)])
def test_blocks_that_are_not_of_whole_grains_are_refused(spec: str, off: int) -> None:
    codec, slice_, payload = encoded(spec, 20_001)
    one = codec.cut(slice_, payload, 1)[1]
    for block in (
        Block(one.start + off, one.stop + off, one.payload),
        Block(one.start, one.stop - off, made(spec).encode(slice_of(off), 0, drawn(off))),
    ):
        with pytest.raises(ProtocolError, match="no multiples of"):
            codec.decode_blocks(slice_, [block])


@pytest.mark.parametrize("spec", ["topk values=int8", "bisparse values=sign"])
def test_sparse_blocks_that_are_not_of_whole_grains_are_refused(spec: str) -> None:
    codec, slice_ = made(spec), slice_of(20_001)
    block = Block(0, 1000, of_large(codec).encode(slice_of(1000), 0, drawn(1000)))
    with pytest.raises(ProtocolError, match="entries, no multiple of"):
        codec.decode_blocks(slice_, [block])


@pytest.mark.parametrize("spec", ["fp16", "two_bit threshold=0.01", "topk ratio=0.5 values=fp16"])
def test_blocks_of_two_payloads_are_refused_where_they_tell(spec: str) -> None:
    codec, slice_, payload = encoded(spec, 20_000)
    blocks = codec.cut(slice_, payload, 300)
    other = make_codec(spec, RngKey())
    start, stop, _ = blocks[3]
    foreign = other.encode(slice_of(stop - start), 0, 64 * drawn(stop - start), weight=8.0)
    with pytest.raises(ProtocolError, match="heads differ"):
        codec.decode_blocks(slice_, [*blocks[:3], Block(start, stop, foreign), *blocks[4:]])


@examples(40)
@given(st.data())
@pytest.mark.parametrize("spec", SPECS)
def test_damaged_bytes_are_refused_or_give_finite_numbers(spec: str, data: st.DataObject) -> None:
    """As a payload, and as one block among others."""
    elements = data.draw(st.sampled_from([1, 64, 200, 3000]))
    codec, slice_ = made(spec), slice_of(elements)
    whole = codec.encode(slice_, 0, drawn(elements))
    blocks = codec.cut(slice_, whole, data.draw(st.integers(1, 300)))
    place = data.draw(st.integers(0, len(blocks) - 1))
    damaged = damage(blocks[place].payload, data)
    some = [*blocks[:place][-3:], blocks[place]._replace(payload=damaged), *blocks[place + 1 :][:3]]
    outcomes = []
    payload = damage(whole, data)
    with suppress(ProtocolError):
        outcomes.append(codec.decode(slice_, payload))
        assert codec.accepts(slice_, payload.numel())
    with suppress(ProtocolError):
        outcomes.append(codec.decode_blocks(slice_, some))
    for decoded in outcomes:
        assert decoded.numel() == elements
        assert torch.isfinite(decoded).all()


def damage(payload: torch.Tensor, data: st.DataObject) -> torch.Tensor:
    """Some bytes are others, or the end is missing, or nothing of it is left."""
    if data.draw(st.integers(0, 3)) == 0:
        return torch.tensor(list(data.draw(st.binary(max_size=100))), dtype=torch.uint8)
    payload = payload.clone()
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, payload.numel() - 1))] = data.draw(st.integers(0, 255))
    return payload if data.draw(st.booleans()) else payload[: data.draw(st.integers(0, payload.numel()))]
