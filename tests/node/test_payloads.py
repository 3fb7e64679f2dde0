"""What members send as a model is one, or is refused."""

from __future__ import annotations

import pytest
import torch
from trees import layout_of

from geomx.errors import ProtocolError
from geomx.node.slices.payloads import pack_layout, unpack_layout

LAYOUT = layout_of(2)


def test_a_layout_comes_back_as_it_was() -> None:
    assert unpack_layout(pack_layout(LAYOUT), LAYOUT.fingerprint) == LAYOUT


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"conv", b"\xff\xff\xff\xff"), (b"float32", b"floatxx"), (b"conv.bias", b"conv"), (b"", b"\xc1")],
)
def test_bytes_that_are_no_layout_are_refused(old: bytes, new: bytes) -> None:
    payload = bytes(pack_layout(LAYOUT).tolist()).replace(old, new)
    with pytest.raises(ProtocolError):
        unpack_layout(torch.frombuffer(bytearray(payload), dtype=torch.uint8), LAYOUT.fingerprint)
