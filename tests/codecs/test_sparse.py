from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geomx.codecs.bisparse import BiSparse
from geomx.codecs.pack.bits import pack, packed_bytes, unpack
from geomx.codecs.pack.indices import BITMAP, choose, pack_indices, size_bytes, unpack_indices
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.topk import TopK, largest
from geomx.errors import ProtocolError
from geomx.layout import Layout, Slice, Tensor

pytestmark = pytest.mark.usefixtures("inner_loops")


def slice_of(elements: int) -> Slice:
    return Layout((Tensor("t", (elements,), "float32"),), slice_elements=1 << 19).slices[0]


def drawn(elements: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 32), st.lists(st.integers(0, 2**32 - 1), max_size=70))
def test_fields_come_back(width: int, numbers: list[int]) -> None:
    fields = torch.tensor([n % (1 << width) for n in numbers], dtype=torch.int64)
    packed = pack(fields, width)
    assert packed.numel() == packed_bytes(len(numbers), width)
    assert unpack(packed, len(numbers), width).tolist() == fields.tolist()


def test_no_indices_take_no_bits() -> None:
    assert unpack_indices(torch.zeros(0, dtype=torch.uint8), 0, 100, 0, 0).numel() == 0
    with pytest.raises(ProtocolError):
        unpack_indices(torch.zeros(1, dtype=torch.uint8), 0, 100, 0, 8)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_bits_behind_the_last_field_are_refused(width: int) -> None:
    packed = pack(torch.zeros(5, dtype=torch.int64), width)
    packed[-1] |= 0x80
    with pytest.raises(ProtocolError, match="behind the last"):
        unpack(packed, 5, width)


@given(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 10_000))
def test_indices_come_back(elements: int, density: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    indices = (torch.rand(elements, generator=generator) < density).nonzero().view(-1)
    rice, unary = choose(indices, elements)
    packed = pack_indices(indices, elements, rice, unary)
    assert packed.numel() == size_bytes(indices.numel(), elements, rice, unary) <= packed_bytes(elements, 1)
    assert torch.equal(unpack_indices(packed, indices.numel(), elements, rice, unary), indices)


@pytest.mark.parametrize(("density", "most"), [(0.001, 1.03), (0.01, 1.01), (1 / 64, 1.02), (0.1, 1.05)])
def test_random_positions_cost_little_more_than_their_entropy(density: float, most: float) -> None:
    elements = 1 << 18
    entropy = math.log2(1 / density) + (1 - density) / density * math.log2(1 / (1 - density))
    count = round(density * elements)
    indices = torch.randperm(elements, generator=torch.Generator().manual_seed(1))[:count].sort().values
    bits = 8 * size_bytes(count, elements, *choose(indices, elements))
    assert bits / count <= most * entropy


@pytest.mark.parametrize(
    ("count", "rice", "unary"), [(5, 40, 6), (5, 2, 4), (5, 2, 1000), (101, BITMAP, 0), (5, BITMAP, 1)]
)
def test_forms_that_cannot_be_are_refused_before_they_are_read(count: int, rice: int, unary: int) -> None:
    with pytest.raises(ProtocolError):
        size_bytes(count, 100, rice, unary)


def test_indices_outside_the_slice_are_refused() -> None:
    indices = torch.tensor([3, 99])
    packed = pack_indices(indices, 100, *(form := choose(indices, 100)))
    with pytest.raises(ProtocolError, match="outside"):
        unpack_indices(packed, 2, 99, *form)


ODD = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -3e38, 7.25]


@given(st.lists(st.sampled_from(ODD), min_size=1, max_size=300), st.data())
def test_the_largest_are_the_largest_and_never_zeros(numbers: list[float], data: st.DataObject) -> None:
    x = torch.tensor(numbers, dtype=torch.float32)
    count = data.draw(st.integers(1, len(numbers)))
    found = largest(x, count).tolist()
    order = sorted(range(len(numbers)), key=lambda place: (-abs(numbers[place]), place))
    assert found == sorted(place for place in order[:count] if numbers[place])


def test_top_k_sends_exactly_so_many() -> None:
    codec, slice_, values = TopK(RngKey(), ratio=0.01), slice_of(100_000), drawn(100_000)
    decoded = codec.decode(slice_, codec.encode(slice_, 0, values))
    sent = decoded.nonzero().view(-1)
    assert sent.numel() == 1000
    assert torch.equal(decoded[sent], values[sent])
    assert float(values[sent].abs().min()) >= float(values[decoded == 0].abs().max())


def test_the_sampled_threshold_sends_about_so_many_and_a_misleading_sample_does_no_harm() -> None:
    """Large values at places that the sample misses or overrates: the exact threshold is taken."""
    slice_ = slice_of(300_000)
    for turn, stride_value in enumerate((None, 0.0, 5.0)):
        codec, values = BiSparse(RngKey(), ratio=0.01), 1e-3 * drawn(300_000)
        if stride_value is not None:
            values[::100] = stride_value
        sent = int((codec.decode(slice_, codec.encode(slice_, turn, values)) != 0).sum())
        assert 2000 <= sent <= 4500
    codec, values = BiSparse(RngKey(), ratio=0.01), 1e-3 * drawn(300_000)
    sample = codec._sample_for(slice_, 0, 3000)
    assert sample is not None
    values[sample.start :: sample.stride][:40] = 5.0
    assert int((codec.decode(slice_, codec.encode(slice_, 0, values)) != 0).sum()) == 3000


def test_bi_sparse_follows_the_paper() -> None:
    """u ← m·u + x, v ← v + u, the largest of v are sent, u and v are zeroed there."""
    codec, slice_ = BiSparse(RngKey(), ratio=0.1, momentum=0.9, values="float32"), slice_of(1000)
    u, v = torch.zeros(1000), torch.zeros(1000)
    for turn in range(20):
        x = drawn(1000, turn)
        u = 0.9 * u + x
        v = v + u
        expected = torch.zeros(1000)
        top = v.abs().topk(100).indices
        expected[top] = v[top]
        v[top] = u[top] = 0
        decoded = codec.decode(slice_, codec.encode(slice_, turn, x))
        assert torch.equal(decoded != 0, expected != 0)
        torch.testing.assert_close(decoded, expected)


def test_the_ratio_falls_in_the_warm_up() -> None:
    codec = BiSparse(RngKey(), ratio=0.001, warmup_rounds=4)
    assert [round(codec.ratio_in(turn), 4) for turn in (0, 2, 4, 100)] == [0.25, 0.0158, 0.001, 0.001]


def test_the_mean_gradient_is_clipped() -> None:
    codec, slice_ = BiSparse(RngKey(), ratio=1.0, values="float32", clip=1.0), slice_of(1000)
    values = drawn(1000)
    decoded = codec.decode(slice_, codec.encode(slice_, 0, 8 * values, weight=8.0))
    torch.testing.assert_close(decoded, 8 * values / values.norm())


def test_a_form_that_is_larger_than_a_bitmap_is_refused() -> None:
    """No encoder takes it, and no server has room for it."""
    one_element = bytearray([1, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 1, 0, 0, 128, 63])  # its index in two bytes
    with pytest.raises(ProtocolError, match="16 bytes for 1 elements"):
        BiSparse(RngKey(), values="float32").expand(
            slice_of(1), torch.frombuffer(one_element, dtype=torch.uint8)
        )
