"""When a node answers: the contract of a sync policy.

Policies decide, they do not compute: each method returns a plan, and the node carries it out. One object serves
one node, so a policy may keep state. It sees no tensor, no socket and no clock but the `now` it is given.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol

from geomx.protocol.messages import Kind
from geomx.registry import Registry


@dataclass(frozen=True, slots=True)
class Contribute:
    """A worker's plan for one step: push these slices (None: all of them) as this kind."""

    kind: Kind
    slices: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Close the round with what is there."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Keep the round open, for these members."""

    whom: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """What a server's policy may look at when a contribution has come."""

    turn: int
    slice: int
    kind: Kind
    origins: Set[str]  # whose contributions are in
    members: Set[str]  # whose are expected in this turn


class Policy(Protocol):
    """A sync policy; see `fsa.py` for the simplest one.

    `in_step`: nobody contributes to a turn of a slice before it has that slice's update of the turn before. The root
    may then send its weights as they lie in memory, for they change only after everybody has them.
    """

    in_step: bool

    def step(self, turn: int) -> Contribute | None:
        """On a worker: what the step that is turn `turn` contributes; None: a local step."""

    def gathered(self, view: View, now: float) -> Apply | Wait:
        """On a server: a contribution has come. Close the slice's round, or wait for whom?"""


policies: Registry[type[Policy]] = Registry("sync policy", {"fsa": "geomx.sync.fsa:FSA"})
