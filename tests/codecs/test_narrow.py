"""Whole numbers in few bytes: they come back, compiled and not, and nonsense is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geomx.codecs.bundle import Bundle, Bundles, Entry
from geomx.codecs.pack import narrow, native
from geomx.errors import ProtocolError
from geomx.layout import Layout, Tensor

NUMBERS = st.one_of(st.just(0), st.integers(-300, 300), st.integers(-(1 << 63), (1 << 63) - 1))


@given(st.lists(st.one_of(NUMBERS, st.just(0)), max_size=300))
def test_numbers_come_back(numbers: list[int]) -> None:
    values = torch.tensor(numbers, dtype=torch.int64)
    packed = narrow.pack(values)
    assert torch.equal(narrow.unpack(packed, len(numbers)), values)
    with native.switched_off():
        assert torch.equal(narrow.pack(values), packed)
        assert torch.equal(narrow.unpack(packed, len(numbers)), values)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bytes_are_numbers_or_refused(data: bytes, count: int) -> None:
    packed = torch.tensor(list(data), dtype=torch.uint8)

    def tried() -> torch.Tensor | None:
        try:
            return narrow.unpack(packed, count)
        except ProtocolError:
            return None

    found = tried()
    with native.switched_off():
        other = tried()
    assert (found is None) == (other is None)
    if found is not None and other is not None:
        assert torch.equal(found, other)


def test_sums_of_few_rows_travel_in_few_bytes() -> None:
    slice_ = Layout((Tensor("calls", (9,), "uint8", role="call"),)).slices[0]
    values = torch.zeros(10_000, dtype=torch.int64)
    values[::50] = torch.arange(-100, 100) * 1000
    bundle = Bundle((Entry("sums", "sum", "int64", (100, 100)),), (values,))
    payload = Bundles().encode(slice_, 0, bundle)
    assert payload.numel() < 10_000 // 8 + 200 * 3 + 150
    back = Bundles().decode(slice_, payload)
    assert back.entries == bundle.entries
    assert torch.equal(back.arrays[0], values)
    payload[-20] = 255
    payload[60:1300] = 255
    with pytest.raises(ProtocolError):
        Bundles().decode(slice_, payload)
