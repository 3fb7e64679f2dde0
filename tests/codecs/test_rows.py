"""Rows on the wire: what is given comes back, and what `encode` cannot have written is refused."""

from __future__ import annotations

import math

import pytest
import torch

from geomx.codecs.measure import largest
from geomx.codecs.rows import Rows, indices_of, made, no_rows, summed, taken, write
from geomx.errors import ProtocolError
from geomx.layout import Layout, Slice, Tensor
from geomx.node.slices.accumulate import accumulator
from geomx.node.slices.patched import MOST_PATCHES, Patched, patched, whole

CODEC = Rows()


def slices_of(rows: int, row: int, dtype: str = "float32", stored: str = "") -> tuple[Slice, ...]:
    table = Tensor("table", (rows, row), dtype, stored=stored, row=row)
    return Layout((Tensor("first", (9,), "float32"), table), slice_elements=16).slices[1:]


def drawn(slice_: Slice, indices: list[int], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, slice_.dtype)
    values = torch.randn(len(indices) * slice_.row, generator=generator, dtype=torch.float64).to(dtype)
    return made(slice_, torch.tensor(indices, dtype=torch.int64), values)


def test_a_table_is_cut_between_rows_and_never_packed() -> None:
    slices = slices_of(100, 7)
    assert [slice_.rows for slice_ in slices] == [18, 18, 18, 18, 18, 10]
    assert all(slice_.row == 7 and len(slice_.parts) == 1 for slice_ in slices)
    (small,) = slices_of(2, 3)
    assert (small.rows, small.row) == (2, 3)
    assert [slice_.rows for slice_ in slices_of(3, 5000)] == [1, 1, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("indices", [[], [0], [17], [2, 3, 5, 16], list(range(18))])
def test_rows_come_back_as_they_were(dtype: str, indices: list[int]) -> None:
    slice_ = slices_of(18, 5, dtype)[0]
    rows = drawn(slice_, indices)
    payload = CODEC.encode(slice_, 0, rows)
    assert CODEC.accepts(slice_, payload.numel())
    assert payload.numel() <= 8 + 8 * math.ceil(len(indices) / 2) + len(indices) * 5 * (
        8 if "64" in dtype else 4
    )
    back = CODEC.decode(slice_, payload)
    assert torch.equal(back.to_dense(), rows.to_dense())
    assert torch.equal(indices_of(back), torch.tensor(indices, dtype=torch.int64))


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_half_precision_travels_in_its_own_size(stored: str) -> None:
    slice_ = slices_of(18, 8, stored=stored)[0]
    rows = drawn(slice_, [1, 4, 9])
    payload = CODEC.encode(slice_, 0, rows)
    assert payload.numel() <= 8 + 16 + 3 * 8 * 2 + 4
    assert torch.allclose(CODEC.decode(slice_, payload).to_dense(), rows.to_dense(), rtol=0.01)


SLICE = slices_of(18, 5)[0]


def changed(place: int, value: int) -> torch.Tensor:
    payload = CODEC.encode(SLICE, 0, drawn(SLICE, [2, 3, 9]))
    payload[place] = value
    return payload


@pytest.mark.parametrize(
    "payload",
    [
        torch.zeros(0, dtype=torch.uint8),
        torch.zeros(7, dtype=torch.uint8),
        torch.zeros(9, dtype=torch.uint8),
        changed(0, 2),  # of fewer rows than there are
        changed(0, 19),
        changed(7, 255),  # of fewer than none
        changed(8, 3),  # the same row twice
        changed(16, 18),  # behind the last
        changed(15, 255),  # before the first
        CODEC.encode(SLICE, 0, drawn(SLICE, [2, 3, 9]))[:-4],
    ],
)
def test_what_nobody_can_have_encoded_is_refused(payload: torch.Tensor) -> None:
    with pytest.raises(ProtocolError, match="slice"):
        CODEC.decode(SLICE, payload)


def test_sums_are_in_the_order_of_their_terms_and_the_caller_s_own() -> None:
    one, other, third = drawn(SLICE, [0, 4], 1), drawn(SLICE, [4, 9], 2), no_rows(SLICE)
    total = summed([one, third, other])
    assert torch.equal(total.to_dense(), one.to_dense() + other.to_dense())
    measured = accumulator(torch.float32).measure([one])
    assert measured is not None
    assert measured.largest == largest(one) == float(one.values().abs().max())
    measured.values.mul_(3.0)
    assert torch.equal(one.to_dense(), drawn(SLICE, [0, 4], 1).to_dense())


def test_joiners_get_values_with_all_the_rows_since_and_steps_copy_no_table() -> None:
    weights = torch.randn(SLICE.elements)
    first = held = weights.clone().view(torch.uint8)
    copies = 0
    for step in range(2 * MOST_PATCHES):
        rows = drawn(SLICE, sorted({step % 18, (5 * step + 1) % 18}), step)
        write(SLICE, weights, rows)
        before = held
        held = patched(SLICE, held, CODEC.encode(SLICE, step, taken(SLICE, weights, rows)))
        copies += isinstance(before, Patched) and held.values is not before.values
    assert torch.equal(whole(held).view(torch.float32), weights)
    assert 0 < copies < 2 * MOST_PATCHES // 4
    assert not torch.equal(first.view(torch.float32), weights)
