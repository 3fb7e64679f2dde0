"""The messages about who takes part in a run; see `geomx.node.roster_keeper` and `geomx.node.attendance`.

Workers are counted, and known by name; a server is known by those below it.
"""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The root of all messages."""


class Roster(Message, frozen=True, array_like=True, tag=True):
    """From the first shard to all: who takes part, from which turn on, and why.

    Rosters are numbered without gaps; 0 is everybody whom the description names. `out`: the workers that take no part.
    `joined`: those of the others that were out before. `from_turns`: by cohort, the first turn of which this holds. Of
    turns before, what whoever is out has contributed counts where it came. `settles`: what it answers, see `Lost` and
    `Asks`: name and incarnation. `steps`: by cohort, the policy's last step that has closed, and its turn.
    `pace`: how many steps the slowest has taken, see `Beat`: whoever has joined has as many left in the running turn.
    """

    number: int
    out: tuple[str, ...]
    joined: tuple[str, ...] = ()
    from_turns: dict[str, int] = {}
    settles: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    steps: dict[str, tuple[int, int]] = {}
    pace: int = -1


class Lost(Message, frozen=True, array_like=True, tag=True):
    """To the first shard, from whom a node hangs on: it is lost, with all below it.

    `turns`: by cohort of its workers, the last turn of which a slice has closed at the sender, which closes no other
    before a roster settles this. `steps`: see `Roster`.
    """

    node: str
    incarnation: int
    turns: dict[str, int]
    steps: dict[str, tuple[int, int]]
    reason: str


class Asks(Message, frozen=True, array_like=True, tag=True):
    """To the first shard, from the server on which it hangs: a worker that is out asks to take part again.

    `turns`: as in `Lost`; `steps`: see `Roster`. Servers on the way add theirs.
    """

    worker: str
    incarnation: int
    turns: dict[str, int]
    steps: dict[str, tuple[int, int]]


class Hold(Message, frozen=True, array_like=True, tag=True):
    """From the first shard to the others: close no turn before the roster of this number. Answered by `Held`.

    `workers`: those whom it is about.
    """

    number: int
    workers: tuple[str, ...]


class Held(Message, frozen=True, array_like=True, tag=True):
    """The answer to `Hold`. `turns`: as in `Lost`; `steps`: see `Roster`."""

    number: int
    turns: dict[str, int]
    steps: dict[str, tuple[int, int]]


class Complete(Message, frozen=True, array_like=True, tag=True):
    """To the first shard, from another: it has what all contribute to a turn that counts as a whole.

    `number`: of the roster by which it is complete. `together`: which slices take part, as in `Push`.
    """

    cohort: str
    turn: int
    number: int
    together: bytes


class Close(Message, frozen=True, array_like=True, tag=True):
    """From the first shard to the others: such a turn is complete on all shards that have slices of it."""

    cohort: str
    turn: int


class Over(Message, frozen=True, array_like=True, tag=True):
    """To whoever takes no part: the run has ended without it."""
