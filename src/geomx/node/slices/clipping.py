"""`clip_norm` over the slices of several shards: the first shard collects square sums, the others wait for the total.

What is clipped is the mean of a cohort in one turn. The formula is in `geomx.optim.clip`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from geomx.errors import ProtocolError
from geomx.optim.clip import scale_of, total
from geomx.rounds.round import Round
from geomx.wire.messages import Norms, Scale
from geomx.wire.roster_messages import Message

MOST_KNOWN = 256
NORMS_SENT = 4096  # at a time: more would not fit into a header


@dataclass(slots=True)
class _TurnNorm:
    squares: dict[int, float] = field(default_factory=dict)
    resume: list[Callable[[float], None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Bound:
    """Of one model: see `Clipping.start`."""

    clip_norm: float
    mine: frozenset[int]
    trained: frozenset[int]


class Clipping:
    """`send(peer, message)` reaches another shard; `followers` report to us, and we to `lead`, if there is one.

    `write`: puts the total of a turn into the log.
    """

    def __init__(
        self,
        send: Callable[[str, Message], None],
        followers: tuple[str, ...],
        lead: str,
        write: Callable[[Scale], None],
    ) -> None:
        self._write = write
        self._send = send
        self._followers = followers
        self._lead = lead
        self._bounds: list[_Bound] = []
        self._turns: dict[tuple[str, int, int], _TurnNorm] = {}  # by cohort, turn and place of the model
        self._known: dict[tuple[str, int], float] = {}  # totals, the newest

    def start(self, clip_norm: float, mine: frozenset[int], trained: frozenset[int]) -> None:
        """Clip a model to `clip_norm`. `mine`: its trained slices on this shard; `trained`: on all shards."""
        self._bounds.append(_Bound(clip_norm, mine, trained))

    def wants(self, index: int, round_: Round) -> bool:
        """Whether this slice's square counts."""
        return round_.kind == "gradient" and any(index in bound.mine for bound in self._bounds)

    def _place(self, index: int) -> int:
        """Of the model that trains a slice."""
        for place, bound in enumerate(self._bounds):
            if index in bound.trained:
                return place
        raise ProtocolError(f"the square sum of slice {index}, which is not clipped")

    def nothing(self, index: int, round_: Round) -> None:
        """Nobody has contributed to this slice."""
        if self.wants(index, round_):
            self.square(index, round_, 0.0, lambda _: None)

    def square(self, index: int, round_: Round, square: float, resume: Callable[[float], None]) -> None:
        """One slice's square sum is known; `resume(scale)` is called once all are."""
        cohort, turn = round_.cohort, round_.turn
        place = self._place(index)
        current = self._turns.setdefault((cohort, turn, place), _TurnNorm())
        current.squares[index] = square
        current.resume.append(resume)
        self._report(cohort, turn, place, current)
        self._total(cohort, turn, place, current)

    def _report(self, cohort: str, turn: int, place: int, current: _TurnNorm) -> None:
        if self._lead and self._bounds[place].mine <= current.squares.keys():
            squares = list(current.squares.items())
            for start in range(0, len(squares), NORMS_SENT):
                self._send(self._lead, Norms(cohort, turn, dict(squares[start : start + NORMS_SENT])))

    def known(self) -> list[Scale]:
        """The newest totals."""
        return [Scale(cohort, turn, square) for (cohort, turn), square in self._known.items()]

    def renewed(self) -> None:
        """Another shard was started again: tell the first once more what waits for its word."""
        for (cohort, turn, place), current in self._turns.items():
            self._report(cohort, turn, place, current)

    def message(self, message: Norms | Scale) -> None:
        """From another shard: its squares, or the total."""
        key = message.cohort, message.turn
        if isinstance(message, Scale):
            self._apply(message.cohort, message.turn, message.square)
            return
        places = {self._place(index) for index in message.squares}
        if key in self._known and not any((*key, place) in self._turns for place in places):
            for name in self._followers:  # of a shard that was started again
                self._send(name, Scale(*key, self._known[key]))
            return
        for place in sorted(places):
            current = self._turns.setdefault((*key, place), _TurnNorm())
            current.squares.update(message.squares)
            self._total(*key, place, current)

    def _total(self, cohort: str, turn: int, place: int, current: _TurnNorm) -> None:
        """On the first shard: once every square is known, add them in slice order."""
        if self._lead or not self._bounds[place].trained <= current.squares.keys():
            return
        square = total(current.squares)
        for name in self._followers:
            self._send(name, Scale(cohort, turn, square))
        self._apply(cohort, turn, square)

    def _apply(self, cohort: str, turn: int, square: float) -> None:
        self._write(Scale(cohort, turn, square))
        self._known[cohort, turn] = square
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        for place, bound in enumerate(self._bounds):  # a turn in which anybody has something is of one model
            scale = scale_of(bound.clip_norm, square)
            for resume in self._turns.pop((cohort, turn, place), _TurnNorm()).resume:
                resume(scale)
