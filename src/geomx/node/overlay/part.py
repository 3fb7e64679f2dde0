"""A member's part in a table: to whom it sends each slice, who sends through it, and to whom it passes updates on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geomx.errors import ProtocolError
from geomx.wire.overlay_messages import Table


@dataclass(frozen=True, slots=True)
class Place:
    """This member's in one way of a table. `senders`: with the members whose contributions each may send."""

    parent: str  # "": the holder
    giver: str  # likewise: who sends it updates
    senders: dict[str, frozenset[str]]
    receivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """This member's in a table. `of`: the place for each slice; none: it goes to its holder."""

    places: tuple[Place, ...]
    of: tuple[int, ...]
    peers: frozenset[str]

    def place(self, index: int) -> Place | None:
        """Of a slice."""
        way = self.of[index] if index < len(self.of) else -1
        return self.places[way] if way >= 0 else None


def checked(table: Table) -> Table:
    """It, if it is one. Raises `ProtocolError`."""
    nodes = range(len(table.nodes))
    for way in table.ways:
        fits = len(way.up) == len(way.down) == len(table.ways[0].up)
        if not fits or not all(each in nodes for each in (*way.up, *way.down)):
            raise ProtocolError(f"a table came that does not fit its {len(nodes)} nodes")
    if any(not -1 <= way < len(table.ways) for way in table.of):
        raise ProtocolError("a table came whose slices take ways that it does not have")
    return table


def part_of(table: Table, name: str) -> Part:
    """A member's part. Raises `ProtocolError` where the table is none."""
    nodes, places = checked(table).nodes, list[Place]()
    if name not in nodes:
        return Part((), (), frozenset())
    me = nodes.index(name)
    if any(me >= len(way.up) for way in table.ways):
        raise ProtocolError(f"a table came in which {name} is no member")
    for way in table.ways:
        parent, giver = ("" if ends[me] >= len(ends) else nodes[ends[me]] for ends in (way.up, way.down))
        senders = {
            nodes[each]: frozenset(nodes[one] for one in below(way.up, each)) for each in children(way.up, me)
        }
        receivers = tuple(nodes[each] for each in children(way.down, me))
        places.append(Place(parent, giver, senders, receivers))
    peers = {
        each for place in places for each in (place.parent, place.giver, *place.senders, *place.receivers)
    }
    return Part(tuple(places), table.of, frozenset(peers - {""}))


def children(parents: Sequence[int], node: int) -> list[int]:
    """The members that send to a node."""
    return [member for member, parent in enumerate(parents) if parent == node]


def below(parents: Sequence[int], member: int) -> set[int]:
    """A member, and all that send through it."""
    found, left = {member}, [member]
    while left:
        new = set(children(parents, left.pop())) - found
        found |= new
        left += new
    return found
