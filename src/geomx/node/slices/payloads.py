"""Payloads: the layout of `Attach`, the turns of `Attached`, and how large those of slices may be."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from geomx.codecs.contract import Codec
from geomx.errors import ProtocolError, Unsupported
from geomx.layout import Layout, Slice
from geomx.wire.messages import Push
from geomx.wire.presence import is_absent

TURN_BYTES = 16  # of each slice
MOST_WEIGHT = 1e300  # of one contribution, so that sums are finite
PLANES_LIMIT = 16


def check_weight(push: Push) -> None:
    """Raise `ProtocolError` for a contribution that weighs what none can."""
    if not 0.0 <= push.weight <= MOST_WEIGHT:
        raise ProtocolError(f"a push for slice {push.slice} weighs {push.weight}")


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
    except (msgspec.MsgspecError, ValueError, RecursionError, Unsupported) as error:
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


def has_values(push: Push, slice_: Slice) -> bool:
    """Whether a push carries anything."""
    return not is_absent(push.present, len(slice_.parts))


def check_size(push: Push, slice_: Slice, codec: Codec) -> None:
    """Whether a push may announce that many bytes; raises `ProtocolError`."""
    carries = has_values(push, slice_)
    is_call = slice_.role == "call"
    if is_call != (push.kind == "call") and not (push.kind == "assign" and not push.size):
        raise ProtocolError(f"a push of kind {push.kind} for slice {slice_.index}, which is of {slice_.role}")
    if push.drains and slice_.row:
        raise ProtocolError(f"slice {slice_.index} is drained, of which nobody holds anything back")
    if push.kind == "assign":
        count = carries + len(push.planes)
        fits = len(push.planes) <= PLANES_LIMIT and push.size == count * slice_.size_bytes
    else:
        fits = codec.accepts(slice_, push.size) if carries else push.size == 0
    if not fits:
        raise ProtocolError(f"{push.size} bytes are announced for slice {slice_.index}, which do not fit it")
