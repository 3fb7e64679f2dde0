"""What goes down an edge, slice by slice: the two ends of a stream of updates.

Three cases, and both ends know which it is:

    plain       the edge's codec loses nothing: an update is the new values themselves
    deltas      it is lossy, and updates are weights: an update is what the weights have moved by since the *anchor*,
                which is what every receiver holds. What a delta did not carry is the difference between weights and
                anchor, and goes with the next: that is this direction's error feedback
    aggregates  it is lossy, and the workers own the optimizer: an update is the mean, and the codec keeps a residual

Of a slice whose gradients are rows, an update is the rows that have changed, as they are now, or their mean; it adds to
the version before as a delta does, and nobody keeps an anchor.

A local server may pass on what came over the WAN, byte for byte: its workers are then receivers of the same stream.

Both ends keep the anchor and its version, the sender one for all receivers of a stream: they apply identical bytes to
identical anchors, so replicas stay bit-identical. A delta names the version to which it adds, and is taken in behind
the one that makes it. There is one stream for each cohort. Anchors begin with the weights that
`assign` gives to all, and are never changed in place: whoever joins is sent the anchor as it lies in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import torch

from geomx.codecs.bundle import Bundles
from geomx.codecs.contract import Codec
from geomx.codecs.dense import Exact
from geomx.errors import ProtocolError
from geomx.layout import Slice
from geomx.node.slices.blocks import decode_payload
from geomx.node.slices.patched import ROWS, patched
from geomx.rounds.turn import OPEN_ROUNDS
from geomx.tree import EVERYONE
from geomx.wire.messages import Kind, Push, Update

EXACT, BUNDLES = Exact(), Bundles()


def codec_for(slice_: Slice, kind: Kind, codec: Codec) -> Codec:
    """Gradients, and what answers them, go through the edge's codec; rows, and what must arrive exactly, do not."""
    if kind == "call":
        return BUNDLES
    if kind != "gradient" or slice_.role != "weight":
        return EXACT
    return ROWS if slice_.row else codec


def codec_of(slice_: Slice, push: Push, codec: Codec) -> Codec:
    """What a contribution goes through, likewise: what a node that leaves hands over goes as it is."""
    return EXACT if push.drains else codec_for(slice_, push.kind, codec)


def decoded(codec: Codec, slice_: Slice, origins: Iterable[str], payload: Any) -> torch.Tensor:
    """The values of a contribution, whole or in blocks. Raises `ProtocolError` that names whose it is."""
    try:
        return decode_payload(codec, slice_, payload)
    except ProtocolError as error:
        raise ProtocolError(f"what {', '.join(origins)} sent for slice {slice_.index}: {error}") from error


def sets_weights(kind: Kind, cohort: str) -> bool:
    """Whether receivers go on from an update. A mean over everybody is for a checkpoint, and changes nothing."""
    return kind != "mean" or cohort != EVERYONE


def _is_rounded(slice_: Slice, codec: Codec) -> bool:
    """Whether a dense payload has another dtype than the slice."""
    return bool(slice_.stored) and codec is not EXACT and codec.lossless


Kept = TypeVar("Kept")


class _ByCohort(Generic[Kept]):
    """What is kept of slices, each with one for everyone until a cohort has its own."""

    def __init__(self) -> None:
        self._of: dict[int, dict[str, Kept]] = {}

    def get(self, slice_: Slice, cohort: str) -> Kept | None:
        of = self._of.get(slice_.index, {})
        return of.get(cohort, of.get(EVERYONE))

    def put(self, slice_: Slice, cohort: str, values: Kept) -> None:
        if cohort == EVERYONE:
            self._of[slice_.index] = {}  # what is everyone's replaces what cohorts had
        self._of.setdefault(slice_.index, {})[cohort] = values

    def all(self, slice_: Slice) -> dict[str, Kept]:
        """By cohort."""
        return dict(self._of.get(slice_.index, {}))

    def put_back(self, slice_: Slice, of: Mapping[str, Kept]) -> None:
        """The inverse of `all`."""
        self._of[slice_.index] = dict(of)

    def of_all(self, slice_: Slice) -> Kept | None:
        """What all have; None where cohorts differ."""
        of = self._of.get(slice_.index, {})
        return of.get(EVERYONE) if len(of) == 1 else None


class Versions:
    """Which version of each slice's weights is at an end of a stream. `is_delta(slice, kind, cohort)`: see below."""

    def __init__(self) -> None:
        self._of = _ByCohort[int]()

    def stamped(self, slice_: Slice, update: Update, payload: Any) -> Update:
        """An update as it goes down: with the version that its receivers have now."""
        if payload is None or not _goes_on(slice_, update):
            return update
        if update.kind != "assign":  # the values that a joiner is sent keep theirs
            update = msgspec.structs.replace(update, base=self.of(slice_, update.cohort))
        self.advance(slice_, update)
        return update

    def of(self, slice_: Slice, cohort: str) -> int:
        """-1: none."""
        found = self._of.get(slice_, cohort)
        return -1 if found is None else found

    def all(self, slice_: Slice) -> dict[str, int]:
        """By cohort."""
        return self._of.all(slice_)

    def put_back(self, slice_: Slice, of: Mapping[str, int]) -> None:
        """The inverse of `all`."""
        self._of.put_back(slice_, of)

    def advance(self, slice_: Slice, update: Update) -> None:
        """An update with values has been sent, or taken in."""
        if _goes_on(slice_, update):
            is_record = update.kind == "assign" and update.base >= 0
            self._of.put(slice_, update.cohort, update.base if is_record else update.turn)


def _goes_on(slice_: Slice, update: Update) -> bool:
    return slice_.role == "weight" and sets_weights(update.kind, update.cohort)


class UpdateEncoder:
    """The upper end, of one stream to the children of each cohort. `passes`: it sends on what comes from above."""

    def __init__(self, codec: Codec, passes: bool = False) -> None:
        self.codec = codec
        self.passes = passes
        self.deltas = False  # whether receivers hold something else than the exact weights
        self.remembers = False  # whether what receivers hold is kept even if it is exact
        self._anchors = _ByCohort[torch.Tensor]()
        self.versions = Versions()

    def begin(self, aggregates: bool) -> None:
        """Before the first update. `aggregates`: the workers own the optimizer."""
        self.deltas = not (self.codec.lossless or aggregates)
        if self.deltas:
            self.codec.feedback = False  # weights minus anchor is the residual

    def pack(
        self, slice_: Slice, kind: Kind, turn: int, values: torch.Tensor, cohort: str = EVERYONE
    ) -> torch.Tensor:
        """The payload of an update."""
        codec = codec_for(slice_, kind, self.codec)
        if slice_.row or codec is BUNDLES:
            return codec.encode(slice_, turn, values)
        if codec is EXACT or not self.deltas:
            payload = codec.encode(slice_, turn, values)
            if self.deltas or self.remembers:
                has = codec.decode(slice_, payload) if _is_rounded(slice_, codec) else values.clone()
                self.sent(slice_, kind, has, cohort)
            return payload
        anchor = self._anchors.get(slice_, cohort)
        assert anchor is not None  # weights come before gradients
        payload = codec.encode(slice_, turn, values - anchor)
        self._anchors.put(slice_, cohort, anchor + codec.decode(slice_, payload))
        return payload

    def sent(self, slice_: Slice, kind: Kind, values: torch.Tensor, cohort: str) -> None:
        """An update gives the receivers these values, which are never changed in place."""
        if slice_.role == "weight" and not slice_.row and sets_weights(kind, cohort):
            self._anchors.put(slice_, cohort, values)

    def anchor(self, slice_: Slice, cohort: str) -> torch.Tensor | None:
        """What the receivers of a cohort hold, where that is kept. Not to be changed."""
        return self._anchors.get(slice_, cohort)

    def anchors(self, slice_: Slice) -> dict[str, torch.Tensor]:
        """By cohort what `anchor` gives, where it is kept."""
        return self._anchors.all(slice_)

    def put_back(
        self, slice_: Slice, anchors: Mapping[str, torch.Tensor], versions: Mapping[str, int]
    ) -> None:
        """The inverse of `anchors` and `versions.all`."""
        self._anchors.put_back(slice_, anchors)
        self.versions.put_back(slice_, versions)

    def held(self, slice_: Slice, kind: Kind, cohort: str, payload: torch.Tensor, before: Any) -> Any:
        """What a joiner is sent as an `assign` after such an update: the slice's values. `before`: it, until then."""
        if slice_.row and kind == "gradient":
            return patched(slice_, before, payload)
        values, codec = self._anchors.get(slice_, cohort), codec_for(slice_, kind, self.codec)
        if values is None and _is_rounded(slice_, codec):
            values = codec.decode(slice_, payload)
        return payload if values is None else values.view(torch.uint8)

    def kept(self, slice_: Slice) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps of this end, by name; the receivers keep the anchor."""
        return self.codec.state(slice_)

    def restore(self, slice_: Slice, kept: Mapping[str, torch.Tensor]) -> None:
        """Behind an `assign`: the inverse of `kept`, and the anchor where it was not what was assigned."""
        self.codec.restore(slice_, kept)
        if "anchor" in kept and self.deltas:
            self._anchors.put(slice_, EVERYONE, kept["anchor"].clone())


class UpdateDecoder:
    """The lower end. `keeps`: values that it has, and is sent again, change nothing."""

    def __init__(self, codec: Codec, keeps: bool = False) -> None:
        self._keeps = keeps
        self.codec = codec
        self.deltas = False
        self._anchors = _ByCohort[torch.Tensor]()
        self._versions = Versions()
        self._has: dict[int, dict[str, int]] = {}  # by slice and cohort: the version that was taken in
        self._early: dict[
            tuple[int, str], dict[int, tuple[Update, Any]]
        ] = {}  # by base: have overtaken others

    def begin(self, aggregates: bool) -> None:
        """Before the first update; see `UpdateEncoder.begin`."""
        self.deltas = not (self.codec.lossless or aggregates)

    def accepts(self, slice_: Slice, kind: Kind, size: int) -> bool:
        """Whether an update may have a payload of `size` bytes."""
        return codec_for(slice_, kind, self.codec).accepts(slice_, size)

    def in_order(self, slice_: Slice, update: Update, payload: Any) -> list[tuple[Update, Any]]:
        """The updates that can be taken in now that this one has come; each adds to, or replaces, what the last made.

        Raises `ProtocolError` where too many have come that add to weights which this end has not got.
        """
        if payload is None or not _goes_on(slice_, update):
            return [(update, payload)]
        key = slice_.index, update.cohort
        at = self._versions.of(slice_, update.cohort)
        codec = codec_for(slice_, update.kind, self.codec)
        is_delta = codec is ROWS or (self.deltas and codec is not EXACT)
        if is_delta and update.base != at:
            early = self._early.setdefault(key, {})
            early[update.base] = update, payload
            if len(early) > OPEN_ROUNDS:
                raise ProtocolError(
                    f"slice {slice_.index}: deltas came to versions {sorted(early)}, and this end has version {at}"
                )
            return []
        if not is_delta and update.kind == "gradient" and update.turn < at:
            return [(msgspec.structs.replace(update, size=0), None)]  # a later one has overtaken it
        self._versions.advance(slice_, update)
        found = [(update, payload)]
        following = self._early.get(key, {}).pop(self._versions.of(slice_, update.cohort), None)
        return found if following is None else found + self.in_order(slice_, *following)

    def news(self, slice_: Slice, update: Update, payload: Any) -> Any:
        """The payload of an update that is taken in now; None where it gives what this end has already."""
        if not self._keeps or payload is None or not _goes_on(slice_, update):
            return payload
        has = self._has.setdefault(slice_.index, {})
        is_record = update.kind == "assign" and update.base >= 0
        if (
            is_record and has.get(update.cohort) == update.base
        ):  # those above were started again, and it was not
            return None
        if update.cohort == EVERYONE:
            has.clear()
        has[update.cohort] = update.base if is_record else update.turn
        return payload

    def forget(self) -> None:
        """This end was cut off from the run: whatever comes is news."""
        self._has.clear()

    def begin_anew(self) -> None:
        """What has come early is nothing to wait for any more: all values come."""
        self._early.clear()

    def unpack(
        self, slice_: Slice, kind: Kind, payload: torch.Tensor, cohort: str = EVERYONE
    ) -> torch.Tensor:
        """The values that an update gives the slice (flat, its dtype)."""
        codec = codec_for(slice_, kind, self.codec)
        values = codec.decode(slice_, payload)
        if not self.deltas or slice_.role != "weight" or slice_.row or not sets_weights(kind, cohort):
            return values
        if codec is not EXACT:
            anchor = self._anchors.get(slice_, cohort)
            if anchor is None:
                raise ProtocolError(f"slice {slice_.index}: a delta came before there were weights")
            values = anchor + values
        self._anchors.put(slice_, cohort, values)
        return values

    def kept(self, slice_: Slice) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps of this end, by name."""
        anchor = self._anchors.of_all(slice_)
        return {} if anchor is None else {"anchor": anchor}

    def restore(self, slice_: Slice, kept: Mapping[str, torch.Tensor]) -> None:
        """Behind an `assign`: the inverse of `kept`, where the anchor was not what was assigned."""
        if "anchor" in kept and self.deltas:
            self._anchors.put(slice_, EVERYONE, kept["anchor"].clone())
