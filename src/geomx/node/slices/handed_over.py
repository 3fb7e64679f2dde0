"""What nodes below a server that have left early had not shared: local steps, and what their codecs held back.

It is of no turn. A turn of its own would be one more call, and nobody who is asked to leave knows which call comes
next: the others' may be a checkpoint. So it lies here, and counts in the next round of its slice that has a weight,
whichever that is, and in the order of adding behind those who take part. A server that leaves itself hands it on.
"""

from __future__ import annotations

from typing import Any

from geomx.errors import ProtocolError
from geomx.layout import Slice
from geomx.rounds.round import Round
from geomx.wire.messages import Push
from geomx.wire.presence import is_absent

Handed = tuple[int, Push, Any]  # its place in the order of adding, as in `Round.contributions`


class HandedOver:
    """Of one server. `places`: how many there are in the order of adding."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: dict[int, dict[str, Handed]] = {}  # by slice and child

    def take(self, child: str, place: int, slice_: Slice, push: Push, payload: Any) -> None:
        """A child gives up what it has of a slice. Raises `ProtocolError` for what nobody gives up, or not twice."""
        waiting = self._waiting.setdefault(slice_.index, {})
        is_empty = is_absent(push.present, len(slice_.parts))
        if push.kind != "gradient" or slice_.role != "weight" or is_empty or child in waiting:
            raise ProtocolError(f"{child} hands over a {push.kind} of slice {slice_.index}, which cannot be")
        waiting[child] = self._places + place, push, payload

    def join(self, slice_: Slice, round_: Round) -> None:
        """A round of the slice closes: what waits for one counts in it."""
        if round_.kind == "gradient" and round_.weight:
            round_.contributions += self._waiting.pop(slice_.index, {}).values()

    def pop(self, index: int) -> list[tuple[Push, Any]]:
        """What waits of a slice, in the order of adding: it does so no more."""
        waiting = self._waiting.pop(index, {}).values()
        return [(push, payload) for _, push, payload in sorted(waiting, key=lambda each: each[0])]
