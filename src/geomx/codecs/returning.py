"""Codecs without feedback on channels that lose blocks: what was lost goes with the next encoding.

    total ← values + returned;   payload ← encode(total);   returned ← total − what was given to encode
    settle:   returned ← returned + decode(lost blocks)

The rest of `total` is 0 unless the slice's dtype is too small for the sum. So over many rounds, what was applied plus
`returned` is what was pushed. Codecs with feedback do the same with their residuals, and need none of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from geomx.codecs.by_size import BySize
from geomx.codecs.contract import Block, Codec, Room, room_of
from geomx.codecs.error_feedback import working
from geomx.codecs.measure import summed
from geomx.codecs.pack.values import peak
from geomx.layout import Slice

RETURNED = "returned"  # its name in checkpoints


class Returning(Codec):
    """Wraps a codec that keeps nothing, and adds what lost blocks carried to the next encoding of their slice.

    While nothing was lost, it encodes as the wrapped codec does, and copies nothing itself.

    Args:
        codec: The codec that encodes and decodes.
    """

    lossless = False  # what is decoded has what was lost before in it

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.feedback = True
        self.ratio, self.momentum, self.decay = codec.ratio, codec.momentum, codec.decay
        self.size_lower_bound = codec.size_lower_bound
        self._returned: dict[int, torch.Tensor] = {}

    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        returned = self._returned.get(slice_.index)
        if returned is None:
            return self.codec.encode(slice_, turn, values, weight)
        sent, rest = self._split(slice_, values, returned)
        payload = self.codec.encode(slice_, turn, sent, weight)
        if rest is None:
            del self._returned[slice_.index]
        else:
            self._returned[slice_.index] = rest
        return payload

    def _split(
        self, slice_: Slice, values: torch.Tensor, returned: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What can be sent of the sum, in the dtype of `values`, and what is left, if there is anything.

        Raises:
            NotFinite: `values` holds NaN, Inf or a number out of `room`; or the sum overflows.
        """
        room = self.room(slice_)
        total, largest = summed((values.to(returned.dtype), returned))
        fits = largest <= room.most
        if fits and total.dtype == values.dtype:
            return total, None
        if not fits:
            room.check(slice_, peak(values))
            _check_finite(slice_, largest)
            sent = total.clamp(-room.most, room.most).to(values.dtype)
        else:
            sent = total.to(values.dtype)
        rest = total.sub_(sent)
        return sent, rest if peak(rest) else None

    def settle(self, slice_: Slice, lost: Sequence[Block]) -> None:
        """Keep what lost blocks of one payload carried for the next encoding.

        Raises:
            ProtocolError: They are no blocks of one payload of this slice.
            NotFinite: They hold NaN or Inf, or the sum of what was lost overflows; nothing is kept of them.
        """
        if not self.feedback or not lost:
            return
        carried = self.codec.decode_blocks(slice_, lost)
        self.room(slice_).check(slice_, peak(carried))
        held = self._returned.get(slice_.index)
        kept = carried.to(_kept_in(carried.dtype))
        total, largest = summed((kept,) if held is None else (held, kept))
        _check_finite(slice_, largest)
        self._returned[slice_.index] = total

    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        return self.codec.decode(slice_, payload)

    def accepts(self, slice_: Slice, size: int) -> bool:
        return self.codec.accepts(slice_, size)

    def room(self, slice_: Slice) -> Room:
        return self.codec.room(slice_)

    def cut(self, slice_: Slice, payload: torch.Tensor, most_bytes: int) -> list[Block]:
        return self.codec.cut(slice_, payload, most_bytes)

    def decode_blocks(self, slice_: Slice, blocks: Sequence[Block]) -> torch.Tensor:
        return self.codec.decode_blocks(slice_, blocks)

    def cost_bytes(self, slice_: Slice) -> int:
        adding = 3 * slice_.size_bytes if slice_.index in self._returned else 0
        return adding + self.codec.cost_bytes(slice_)

    def held(self, slice_: Slice) -> torch.Tensor | None:
        return self._returned.get(slice_.index)

    def state(self, slice_: Slice) -> dict[str, torch.Tensor]:
        state = dict(self.codec.state(slice_))
        if slice_.index in self._returned:
            state[RETURNED] = self._returned[slice_.index]
        return state

    def restore(self, slice_: Slice, state: Mapping[str, torch.Tensor]) -> None:
        self._returned.pop(slice_.index, None)
        if RETURNED in state:
            self._returned[slice_.index] = state[RETURNED].clone()
        self.codec.restore(slice_, {name: held for name, held in state.items() if name != RETURNED})


def for_lossy_channel(codec: Codec) -> Codec:
    """A codec for a channel that loses blocks: nothing that is lost there is lost for good.

    Returns:
        The codec itself if it takes back what is lost (`settle`); otherwise `Returning`. Where that holds for the large
        part of a `BySize` alone, its tiny part is wrapped: slices of tiny tensors travel whole (`goes_whole`), but
        their sender may be too late for a round.
    """
    if isinstance(codec, BySize) and _settles(codec.large):
        return codec if _settles(codec.tiny) else _with_tiny_returning(codec)
    return Returning(codec) if isinstance(codec, BySize) or not _settles(codec) else codec


def takes_back(codec: Codec, slice_: Slice) -> bool:
    """Whether what is lost of a slice goes with a later encoding."""
    return _settles(codec.of(slice_) if isinstance(codec, BySize) else codec)


def goes_whole(codec: Codec, slice_: Slice) -> bool:
    """Whether a slice's payload must not be cut: it is of tiny tensors, for which the codec does not lose anything."""
    return isinstance(codec, BySize) and isinstance(codec.of(slice_), Returning)


def _with_tiny_returning(codec: BySize) -> BySize:
    return BySize(codec.large, Returning(codec.tiny), codec.size_lower_bound)


def _settles(codec: Codec) -> bool:
    return codec.feedback and type(codec).settle is not Codec.settle


def _kept_in(dtype: torch.dtype) -> torch.dtype:
    return working(dtype) if dtype.is_floating_point else dtype


def _check_finite(slice_: Slice, largest: float) -> None:
    if not math.isfinite(largest):
        room_of(slice_).check(slice_, largest)
