import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geomx.codecs.dense import Dense
from geomx.errors import ProtocolError
from geomx.layout import ITEM_BYTES, Layout, Tensor

codec = Dense()


def slice_of(count, dtype):
    (slice_,) = Layout((Tensor("t", (count,), dtype),), slice_elements=1 << 20).slices
    return slice_


@given(st.sampled_from([dtype for dtype in ITEM_BYTES if dtype != "bool"]), st.data())
def test_decode_undoes_encode_bit_for_bit(dtype, data):
    slice_ = slice_of(data.draw(st.integers(1, 100)), dtype)
    content = data.draw(st.binary(min_size=slice_.size_bytes, max_size=slice_.size_bytes))
    bits = torch.tensor(list(content), dtype=torch.uint8)
    values = bits.clone().view(getattr(torch, dtype))
    payload = codec.encode(slice_, 0, values)
    assert torch.equal(payload, bits)
    assert codec.accepts(slice_, payload.numel())
    decoded = codec.decode(slice_, payload)
    assert decoded.dtype == values.dtype
    assert torch.equal(decoded.view(torch.uint8), bits)


def test_nothing_is_copied():
    slice_ = slice_of(3, "float32")
    values = torch.ones(3)
    payload = codec.encode(slice_, 0, values)
    assert payload.data_ptr() == codec.decode(slice_, payload).data_ptr() == values.data_ptr()
    assert codec.cost_bytes(slice_) == 0
    assert codec.held(slice_) is None


@pytest.mark.parametrize("size", [0, 11, 13, 16])
def test_payloads_of_another_size_are_refused(size):
    assert not codec.accepts(slice_of(3, "float32"), size)
    with pytest.raises(ProtocolError, match=f"slice 0: {size} bytes of dense values; expected 12"):
        codec.decode(slice_of(3, "float32"), torch.zeros(size, dtype=torch.uint8))


def test_shapes_alone_can_be_carried():
    slice_ = slice_of(3, "float32")
    payload = codec.encode(slice_, 0, torch.empty(3, device="meta"))
    assert payload.shape == (12,)
    assert codec.decode(slice_, payload).shape == (3,)
