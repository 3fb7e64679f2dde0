"""The messages about who takes part in a run; see `geomx.node.members`.

Workers are counted, and known by name; a server is known by those below it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MOST_TURNS = 1 << 62


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The root of all messages."""


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """Where a cohort stands, as far as its teller knows; -1 where there is nothing.

    `turn`: the last of which a slice has closed. `step`, `step_turn`: the policy's last step of which a round has
    closed, and that round's turn. `passes`, `batches`, `taken`: how far all its workers' scripts are (see `Reading`)
    behind the step `read_at`, in the turn `read_turn`. `absent`: the workers among whom the running pass is not shared,
    since they took no part when it began: a bitmap as in `Roster`.
    """

    turn: int = -1
    step: int = -1
    step_turn: int = -1
    read_at: int = -1
    read_turn: int = -1
    passes: int = 0
    batches: int = 0
    absent: bytes = b""
    taken: int = 0

    def is_sound(self, workers: int) -> bool:
        """Whether a cohort can stand there, in a run of so many workers."""
        steps = -1 <= min(self.step, self.read_at) <= max(self.step, self.read_at) <= MOST_TURNS
        turns = min(self.step_turn, self.read_turn) >= -1
        turns = turns and max(self.step_turn, self.read_turn) <= self.turn < MOST_TURNS
        counts = self.passes, self.batches, self.taken
        read = 0 <= min(counts) <= max(counts) < MOST_TURNS
        bits = int.from_bytes(self.absent, "little").bit_length()
        return steps and turns and read and bits <= workers and len(self.absent) <= workers // 8 + 1

    def with_steps_of(self, other: Standing) -> Standing:
        """At this one's turn, with what two tellers know of steps.

        Workers may take as many steps to a turn as they like: the later turn says which is the last.
        """
        step_turn, step = max((self.step_turn, self.step), (other.step_turn, other.step))
        read_turn, read_at, passes, batches, taken, absent = max(self._read, other._read)
        return Standing(self.turn, step, step_turn, read_at, read_turn, passes, batches, absent, taken)

    @property
    def _read(self) -> tuple[int, int, int, int, int, bytes]:
        return self.read_turn, self.read_at, self.passes, self.batches, self.taken, self.absent

    def behind(self, turn: int) -> Standing:
        """The same at another turn."""
        return msgspec.structs.replace(self, turn=turn)

    def latest(self, other: Standing) -> Standing:
        """What two tellers know."""
        return self.with_steps_of(other).behind(max(self.turn, other.turn))


Standings = Mapping[str, Standing]  # by cohort


def latest(*said: Standings) -> dict[str, Standing]:
    """What several tellers know together."""
    found: dict[str, Standing] = {}
    for standings in said:
        for cohort, standing in standings.items():
            found[cohort] = standing.latest(found.get(cohort, standing))
    return found


class Why(msgspec.Struct, frozen=True, array_like=True):
    """By node of which something was told: why it is lost, or awaited, since too few would be left without it.

    `more`: of so many others the same was told.
    """

    lost: dict[str, str] = {}
    awaited: dict[str, str] = {}
    more: int = 0


class Roster(Message, frozen=True, array_like=True, tag=True):
    """From the first shard to all: who takes part, from which turn on, and why.

    Rosters are numbered without gaps; 0 is everybody whom the run's description names. `out`: who takes no part.
    `joined`: those of the others that were out before. Both are bitmaps over the workers in the description's order,
    see `Tree.bitmap_of`. `standings`: by cohort that this concerns; it holds from the turn behind the one that closed
    last. Of turns before, what whoever is out has contributed counts where it came. `settles`: what it answers, see
    `Lost` and `Asks`: name and incarnation. `pace`: how many steps the slowest has taken, see `Beat`: whoever has
    joined has as many left in the running turn.
    """

    number: int
    out: bytes = b""
    joined: bytes = b""
    standings: dict[str, Standing] = {}
    settles: tuple[tuple[str, int], ...] = ()
    why: Why = Why()
    pace: int = -1

    @property
    def from_turns(self) -> dict[str, int]:
        """By cohort, the first turn of which this holds."""
        return {cohort: standing.turn + 1 for cohort, standing in self.standings.items()}


AT_FIRST = Roster(0)


class Turns(msgspec.Struct, frozen=True, array_like=True):
    """Some workers, and a turn of each cohort to which they belong. `workers`: a bitmap, see `Roster`."""

    workers: bytes
    turns: dict[str, int]


class Lost(Message, frozen=True, array_like=True, tag=True):
    """To the first shard, from whom a node hangs on: it is lost, with all below it.

    `standings`: of the cohorts of its workers; the sender closes no other turn of them before a roster settles this.
    """

    node: str
    incarnation: int
    standings: dict[str, Standing]
    reason: str


class Asks(Message, frozen=True, array_like=True, tag=True):
    """To the first shard, from the server on which it hangs: a worker that is out asks to take part again.

    `standings`: as in `Lost`. Servers on the way add what they know.
    """

    worker: str
    incarnation: int
    standings: dict[str, Standing]


class Hold(Message, frozen=True, array_like=True, tag=True):
    """From the first shard to the others: close no turn before the roster of this number. Answered by `Held`.

    `nodes`: whom it is about.
    """

    number: int
    nodes: tuple[str, ...]


class Held(Message, frozen=True, array_like=True, tag=True):
    """The answer to `Hold`. `standings`: as in `Lost`."""

    number: int
    standings: dict[str, Standing]


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
    """To whoever takes no part: the run has ended without it, or goes on, and it `has_left` before."""

    has_left: bool = False


class Retire(Message, frozen=True, array_like=True, tag=True):
    """From a server that is to leave, to all below it: leave."""


class Departed(Message, frozen=True, array_like=True, tag=True):
    """From the shards to all: these workers were asked to leave, and have left behind their last turns."""

    left: tuple[Turns, ...]
