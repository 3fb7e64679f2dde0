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
from geomx.wire.messages import UNREAD, Push
from geomx.wire.presence import is_absent

MOST_WAITING = 4096  # of a slice: whoever has left and comes again in another process may leave once more

Giver = tuple[str, int]  # a child, and its incarnation
Handed = tuple[int, Push, Any]  # as in `Round.handed_over`


class HandedOver:
    """Of one server. `places`: how many there are in the order of adding."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: dict[int, dict[Giver, Handed]] = {}  # by slice

    def take(self, giver: Giver, place: int, slice_: Slice, push: Push, payload: Any) -> Handed:
        """A child gives up what it has of a slice, which waits from now on.

        Raises `ProtocolError` for what nobody gives up, or not twice.
        """
        waiting = self._waiting.setdefault(slice_.index, {})
        is_of_a_turn = push.step >= 0 or push.hyper or push.together or push.reading != UNREAD
        is_empty = is_absent(push.present, len(slice_.parts))
        fits = push.kind == "gradient" and slice_.role == "weight" and not (is_of_a_turn or is_empty)
        if not fits or giver in waiting or len(waiting) >= MOST_WAITING:
            raise ProtocolError(
                f"{giver[0]} hands over a {push.kind} of slice {slice_.index}, which cannot be"
            )
        handed = waiting[giver] = self._places + place, push, payload
        return handed

    @property
    def waiting(self) -> list[tuple[Giver, Handed]]:
        """All that waits, by whom."""
        return [each for waiting in self._waiting.values() for each in waiting.items()]

    def put_back(self, giver: Giver, handed: Handed) -> None:
        """This waited before."""
        self._waiting.setdefault(handed[1].slice, {})[giver] = handed

    def joined(self, index: int) -> None:
        """What waited of a slice is in a round."""
        self._waiting.pop(index, None)

    def join(self, slice_: Slice, round_: Round) -> None:
        """A round of the slice closes: what waits for one counts in it."""
        if round_.kind == "gradient" and round_.weight:
            round_.handed_over = list(self._waiting.pop(slice_.index, {}).values())

    def pop(self, index: int) -> list[tuple[Push, Any]]:
        """What waits of a slice, in the order of adding: it does so no more."""
        waiting = self._waiting.pop(index, {}).values()
        return [(push, payload) for _, push, payload in sorted(waiting, key=lambda each: each[0])]
