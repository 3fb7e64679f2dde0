"""What is no slice and travels as a payload: the layout of `Attach`, and the turns of `Attached`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from geomx.errors import ProtocolError, Unsupported
from geomx.layout import Layout

TURN_BYTES = 16  # of each slice


def pack_layout(layout: Layout) -> torch.Tensor:
    """Flat uint8: msgpack."""
    return torch.frombuffer(bytearray(msgspec.msgpack.encode(layout)), dtype=torch.uint8)


def unpack_layout(payload: torch.Tensor | None, fingerprint: str) -> Layout:
    """A layout that can be cut into slices; raises `ProtocolError` for any other, and for another fingerprint."""
    if payload is None:
        raise ProtocolError("no layout came with Attach")
    try:
        layout = msgspec.msgpack.decode(bytes(payload.numpy()), type=Layout)
        layout.slices  # noqa: B018 - they are cut here, where it is known who sent them
    except (msgspec.MsgspecError, Unsupported) as error:
        raise ProtocolError(f"no layout came with Attach: {error}") from error
    if layout.fingerprint != fingerprint:
        raise ProtocolError("the layout is not the one of its fingerprint")
    return layout


def pack_turns(turns: Sequence[int]) -> torch.Tensor:
    """Flat uint8: two int64 for each slice."""
    return torch.tensor(turns, dtype=torch.int64).view(torch.uint8)


def unpack_turns(payload: torch.Tensor | None) -> list[int]:
    """The inverse; empty where there is no payload."""
    return [] if payload is None else payload.view(torch.int64).tolist()
