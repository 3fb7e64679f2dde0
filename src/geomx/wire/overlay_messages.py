"""The messages of an overlay; see `geomx.node.overlay`. Between the first holder of a tier and its members."""

from __future__ import annotations

import msgspec

from geomx.wire.roster_messages import Message


class Way(msgspec.Struct, frozen=True, array_like=True):
    """How some slices travel. `up`: to whom each member sends; `down`: from whom it gets the updates.

    By places in `Table.nodes`.
    """

    up: tuple[int, ...]
    down: tuple[int, ...]


class Table(Message, frozen=True, array_like=True, tag=True):
    """To all members and other holders: a table that may be used soon. Answered by `Linked`.

    `number`: greater than any before. `nodes`: the members in it, then the holders. `ways`, `of`: the way of each
    slice, -1 where it has none, and goes to its holder.
    """

    number: int
    nodes: tuple[str, ...]
    ways: tuple[Way, ...]
    of: tuple[int, ...]


class Linked(Message, frozen=True, array_like=True, tag=True):
    """A member reaches all whom it needs for a table. `round_trips_s`: to those that it dials."""

    number: int
    round_trips_s: dict[str, float] = msgspec.field(default_factory=dict)


class Apart(Message, frozen=True, array_like=True, tag=True):
    """To a member: a sum in which it was does not count; it is to send what it has contributed, alone."""

    slice: int
    turn: int


class Void(Message, frozen=True, array_like=True, tag=True):
    """To a member: tables up to this number are over. What is not answered goes to its holder.

    From a member to the other holders: they answer by none of these any more.
    """

    number: int


class Unanswered(Message, frozen=True, array_like=True, tag=True):
    """To a holder: what the sender has pushed of a slice is not answered, or the answer has not come."""

    slice: int
    turn: int


class Use(Message, frozen=True, array_like=True, tag=True):
    """From the first holder to the others: what is answered from now on goes by this table; 0: by none."""

    number: int


class Strayed(Message, frozen=True, array_like=True, tag=True):
    """From a member: it does not reach another that it needs for a table."""

    number: int
    peer: str


class Rates(Message, frozen=True, array_like=True, tag=True):
    """To the first holder: how fast bytes have left for others of late, in bytes a second.

    See `geomx.overlay.estimate`. `leaving`, `entering`: the most that has left the sender, and come, in a quarter of a
    second, in bytes a second.
    """

    by_peer: dict[str, float]
    leaving: float = 0.0
    entering: float = 0.0
