"""A member's part in an overlay: it adds what others send through it to its own, and passes on what comes down.

Its own contribution to a slice waits for those of the table's senders. Then all are decoded and added, in the order of
their lowest origins, and encoded anew. Updates go on as they came, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
import torch

from geomx.codecs.contract import Codec, Room
from geomx.codecs.rows import no_rows
from geomx.errors import Disagreement, ProtocolError
from geomx.layout import Layout, Slice
from geomx.node.contract import Measured
from geomx.node.overlay.meter import Meter
from geomx.node.overlay.part import Part, part_of
from geomx.node.peers.base import BaseNode
from geomx.node.peers.peer import Peer
from geomx.node.slices.finite import Sum
from geomx.node.slices.payloads import check_size, check_weight, has_values
from geomx.node.slices.priority import priority_of
from geomx.node.slices.update_stream import codec_for, decoded
from geomx.rounds.round import Round
from geomx.tree import EVERYONE, Tree
from geomx.wire.messages import NOTHING, Push, Update
from geomx.wire.overlay_messages import Apart, Linked, Strayed, Table, Unanswered, Void
from geomx.wire.roster_messages import Message

MOST_TURNS_OPEN = 4  # of a slice: who sends may have its answer sooner than this member
LINK_S = 10.0  # for so long a member tries to reach whom it needs for a table
TELL_EVERY_S = 1.0  # what it has measured

Make = Callable[[Room], "torch.Tensor | None"]


def is_routed(slice_: Slice, message: Push | Update) -> bool:
    """Whether a table says how this travels: steps that all take, and what answers them."""
    return message.kind == "gradient" and message.cohort == EVERYONE and slice_.role == "weight"


class RelayUplink(Protocol):
    """The way up of the node that it belongs to; see `geomx.node.uplink`."""

    parents: tuple[str, ...]

    @property
    def layout(self) -> Layout | None: ...
    def encode(self, push: Push, make: Make, cost_bytes: int) -> None: ...
    def push_raw(self, push: Push, payload: Any) -> None: ...
    def waits(self) -> dict[int, tuple[Push, Any]]: ...
    def tell_holder(self, index: int, message: Message) -> None: ...
    def on_message(self, peer: Peer, message: Message, payload: Any) -> None: ...
    def check_payload(self, peer: Peer, message: Message) -> None: ...


@dataclass(slots=True)
class _Own:
    """What this member contributes itself to a slice in a turn.

    `since`: when it was there. `kept`: what its codec had held back before the sum was encoded.
    """

    push: Push
    make: Make
    cost_bytes: int
    since: float
    kept: dict[str, torch.Tensor] = field(default_factory=dict)


class Relay:
    """See the module's text. `up`: what pushes are encoded with."""

    def __init__(self, node: BaseNode, uplink: RelayUplink, tree: Tree, up: Codec) -> None:
        self._node, self._uplink, self._up = node, uplink, up
        self._order = {name: place for place, name in enumerate(tree.workers)}
        tier = tree.children(tree.parent(node.name))
        self._member_of = {worker: member for member in tier for worker in tree.leaves(member)}
        self._meter = Meter()
        self._told_at = 0.0
        self._roster = 0  # the newest
        self._dialled_at: dict[str, float] = {}
        self._round_trips_s: dict[str, float] = {}
        self._begin()

    def _begin(self) -> None:
        self._tables: dict[int, Part] = {}
        self._void = 0
        self._newest = 0
        self._is_linked = True
        self._by: dict[int, int] = {}  # by slice: the table of its next contribution
        self._answered: dict[int, int] = {}  # by slice: the last turn whose answer has come
        self._waiting: dict[tuple[int, int], _Own] = {}  # by slice and turn
        self._come: dict[tuple[int, int], dict[str, tuple[Push, Any]]] = {}  # likewise, by sender
        self._sent: dict[int, _Own] = {}  # by slice: what was added to others', and is not answered
        self._routed: set[int] = set()  # slices of which what is not answered has gone to another member

    def needs(self, _: Peer) -> bool:
        """Nobody: what goes through another member can go to its holder."""
        return False

    # -- up -----------------------------------------------------------------------------------------------------

    def table_of(self, push: Push) -> int:
        """The table by which a contribution travels; 0: it goes to its holder."""
        number = self._by.get(push.slice, 0)
        if number <= self._void or not is_routed(self._slice(push.slice), push):
            return 0
        part = self._tables.get(number)
        return number if part is not None and part.place(push.slice) is not None else 0

    def add(self, push: Push, make: Make, cost_bytes: int) -> bool:
        """Take this member's own contribution; False: nobody sends through it, and it goes by itself."""
        number = self.table_of(push)
        place = self._tables[number].place(push.slice) if number else None
        if place is None or not place.senders:
            return False
        key = push.slice, push.turn
        self._waiting[key] = _Own(
            msgspec.structs.replace(push, table=number), make, cost_bytes, self._node.now
        )
        self._close_if_complete(key)
        return True

    def target(self, push: Push) -> str:
        """To whom it goes on its way; "": to its holder."""
        number = self.table_of(push)
        place = self._tables[number].place(push.slice) if number else None
        parent = "" if place is None else place.parent
        (self._routed.add if parent else self._routed.discard)(push.slice)
        return parent

    def _on_push(self, child: str, push: Push, payload: Any) -> None:
        part = self._tables.get(push.table)
        place = None if part is None else part.place(push.slice)
        if place is None:  # it is over, and what is not answered goes to its holder
            return
        members = {self._member_of.get(origin, "") for origin in push.origins}
        if not members or not members <= place.senders.get(child, frozenset()):
            who = ", ".join(push.origins) or "nobody"
            raise ProtocolError(f"a contribution of {who} to slice {push.slice} was sent to be added")
        check_weight(push)
        if push.table <= self._void or push.turn <= self._answered.get(push.slice, -1):
            return
        key = push.slice, push.turn
        if key not in self._come and sum(index == push.slice for index, _ in self._come) >= MOST_TURNS_OPEN:
            raise ProtocolError(f"contributions to slice {push.slice} in too many turns at once")
        self._come.setdefault(key, {})[child] = push, payload
        self._close_if_complete(key)

    def _close_if_complete(self, key: tuple[int, int]) -> None:
        own, come = self._waiting.get(key), self._come.get(key, {})
        place = None if own is None else self._tables[own.push.table].place(own.push.slice)
        if own is None or place is None or not come.keys() >= set(place.senders):
            return
        del self._waiting[key]
        self._come.pop(key, None)
        slice_, layout = self._slice(own.push.slice), self._uplink.layout
        assert layout is not None  # contributions come behind the model
        round_ = Round(own.push.turn, EVERYONE, own.push.kind, self._node.now)
        codec = codec_for(slice_, own.push.kind, self._up)
        given: list[tuple[Push, Callable[[], torch.Tensor]]] = [
            (own.push, partial(_values_of, own.make, codec.room(slice_), slice_)),
            *(
                (push, partial(decoded, codec, slice_, push.origins, payload))
                for push, payload in come.values()
            ),
        ]
        for push, decode in given:
            if push.operation != own.push.operation and NOTHING not in (push.operation, own.push.operation):
                raise Disagreement(
                    f"{', '.join(own.push.origins)} called {own.push.operation} where {', '.join(push.origins)} called "
                    f"{push.operation} (turn {push.turn}): every worker must make the same calls in the same order"
                )
            place_in_order = min(map(self._order.__getitem__, push.origins))
            round_.take(push, decode if has_values(push, slice_) else None, place_in_order, {})
        added = [decode for _, decode in round_.in_order() if decode is not None]
        total = Sum(self._node.name, layout, slice_, round_, added)
        self._sent[slice_.index] = own

        def make(room: Room) -> torch.Tensor | None:
            own.kept = {name: plane.clone() for name, plane in self._up.state(slice_).items()}
            return total.of(room)

        label = f"slice {slice_.index}, {own.push.kind} {own.push.turn}: {', '.join(come)}"
        self._node.note("span", track="adds for", label=label, start=own.since, stop=self._node.now)
        merged = msgspec.structs.replace(round_.merged(), table=own.push.table)
        self._uplink.encode(merged, make, own.cost_bytes + 3 * len(added) * slice_.size_bytes)

    # -- down ---------------------------------------------------------------------------------------------------

    def passes(self, update: Update, payload: Any) -> bool:
        """An update has come: pass it on. Returns whether it is news."""
        slice_ = self._slice(update.slice)
        if update.cohort == EVERYONE and update.kind != "gradient":
            self._by[update.slice] = 0
        if not is_routed(slice_, update):
            return True
        if update.turn <= self._answered.get(update.slice, -1):
            return False
        self._answered[update.slice], self._by[update.slice] = update.turn, update.table
        own = self._sent.get(update.slice)
        if own is not None and own.push.turn <= update.turn:
            del self._sent[update.slice]
        for key in [
            key for key in (*self._waiting, *self._come) if key[0] == update.slice and key[1] <= update.turn
        ]:
            self._waiting.pop(key, None)
            self._come.pop(key, None)
        self._routed.discard(update.slice)
        part = self._tables.get(update.table)
        place = None if part is None else part.place(update.slice)
        for name in () if place is None else place.receivers:
            if (receiver := self._node.peer(name)) is not None:
                self._node.send(receiver, update, payload, priority_of(slice_))
        self._tell_rates()
        return True

    # -- tables -------------------------------------------------------------------------------------------------

    def told(self, message: Table | Void | Apart) -> None:
        """Word from the first holder. Raises `ProtocolError` for a table that is none."""
        if isinstance(message, Table):
            self._take(message)
        elif isinstance(message, Void):
            self._void_up_to(message.number)
        else:
            self._send_apart(message)

    def changed(self, roster: int) -> None:
        """Others take part than before, by the roster of this number: all tables so far are void."""
        if roster > self._roster:
            self._roster = roster
            self._void_up_to(self._newest)

    def begin_anew(self) -> None:
        """Those above know nothing of this member: what waits goes to them by itself."""
        waiting = list(self._waiting.values())
        self._begin()
        for own in waiting:
            self._uplink.encode(msgspec.structs.replace(own.push, table=0), own.make, own.cost_bytes)

    def _take(self, table: Table) -> None:
        if table.number <= max(self._void, self._newest):
            return
        used = set(self._by.values())
        newest = max(used, default=0)
        self._tables = {
            number: part for number, part in self._tables.items() if number in used or number > newest
        }
        self._tables[table.number] = part = part_of(table, self._node.name)
        self._newest, self._is_linked = table.number, False
        for name in sorted(part.peers):
            if name not in self._node.beside:
                raise ProtocolError(f"a table has {self._node.name} send to {name}, which is not beside it")
            if self._node.beside.may_dial(name) and self._node.peer(name) is None:
                self._dialled_at[name] = self._node.now
                self._node.beside.meet(name)
        self._node.after(LINK_S, "overlay", partial(self._give_up, table.number))
        self._look_linked()

    def opened(self, peer: Peer, first: bool) -> None:
        """Another member is connected. `first`: and knows nothing of what was sent to it before."""
        since = self._dialled_at.pop(peer.name, None)
        if since is not None:  # the connection, the challenge, and the answer to Hello
            self._round_trips_s[peer.name] = (self._node.now - since) / 3
        if first:
            self._stray(peer.name)
        self._look_linked()

    def lost(self, peer: Peer) -> None:
        """Another member cannot be reached any more."""
        self._stray(peer.name)

    def _stray(self, name: str) -> None:
        """What has been sent to it, or was to come from it, may be lost."""
        used = {number for number in self._by.values() if number > self._void}
        if any(name in self._tables[number].peers for number in used & self._tables.keys()):
            self._tell(Strayed(self._newest, name))

    def _away(self) -> list[str]:
        part = self._tables.get(self._newest)
        if part is None:
            return []
        peers = ((name, self._node.peer(name)) for name in sorted(part.peers))
        return [name for name, peer in peers if peer is None or not peer.session.is_open]

    def _look_linked(self) -> None:
        if not self._is_linked and not self._away():
            self._is_linked = True
            self._tell(Linked(self._newest, dict(self._round_trips_s)))

    def _give_up(self, number: int) -> None:
        if number == self._newest and not self._is_linked:
            self._is_linked = True
            for name in self._away():
                peer = self._node.peer(name)
                if peer is not None:
                    self._node.beside.part(peer, "not reached")
                self._tell(Strayed(number, name))

    def _void_up_to(self, number: int) -> None:
        if number <= self._void:
            return
        self._void = number
        self._newest = max(self._newest, number)
        self._is_linked = True
        self._come = {
            key: come
            for key, come in self._come.items()
            if any(push.table > number for push, _ in come.values())
        }
        for key, own in list(self._waiting.items()):
            if own.push.table <= number:
                del self._waiting[key]
                self._uplink.encode(msgspec.structs.replace(own.push, table=0), own.make, own.cost_bytes)
        for holder in self._uplink.parents[1:]:
            self._tell(Void(number), holder)
        for index, (push, payload) in self._uplink.waits().items():
            if index in self._routed:
                self._uplink.push_raw(push, payload)
            elif is_routed(self._slice(index), push):
                self._uplink.tell_holder(index, Unanswered(index, push.turn))
        self._routed.clear()

    def _send_apart(self, apart: Apart) -> None:
        sent, own = self._uplink.waits().get(apart.slice), self._sent.pop(apart.slice, None)
        if sent is None or sent[0].turn != apart.turn:
            return
        self._by[apart.slice] = 0
        if own is None or own.push.turn != apart.turn:
            self._uplink.push_raw(*sent)
            return
        slice_ = self._slice(apart.slice)

        def make(room: Room) -> torch.Tensor | None:
            self._up.restore(slice_, own.kept)
            return own.make(room)

        self._uplink.encode(msgspec.structs.replace(own.push, table=0), make, own.cost_bytes)

    # -- others of the tier -------------------------------------------------------------------------------------

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """Another member has sent something."""
        if isinstance(message, Push):
            self._on_push(peer.name, message, payload)
        elif isinstance(message, Update):
            self._on_update(peer, message, payload)
        else:
            raise ProtocolError(f"{type(message).__name__} was sent to a node beside it")

    def _on_update(self, peer: Peer, update: Update, payload: Any) -> None:
        part = self._tables.get(update.table)
        place = None if part is None else part.place(update.slice)
        if place is not None and place.giver != peer.name:
            raise ProtocolError(f"an update of slice {update.slice} came by a way that it does not take")
        if place is not None:
            self._uplink.on_message(peer, update, payload)

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Whether another member may send a payload of that size."""
        if isinstance(message, Push):
            slice_ = self._slice(message.slice)
            if not is_routed(slice_, message) or message.drains:
                raise ProtocolError(f"a contribution of kind {message.kind} was sent to a node beside it")
            check_size(message, slice_, codec_for(slice_, message.kind, self._up))
        else:
            self._uplink.check_payload(peer, message)

    @property
    def quiet(self) -> bool:
        """Whether all that was sent to other members has come."""
        peers = (self._node.peer(name) for part in self._tables.values() for name in part.peers)
        return not any(peer and peer.session.is_open and peer.session.unacknowledged for peer in peers)

    def measured(self, measured: Measured) -> None:
        """What has left for others of late."""
        self._meter.take_in(measured)

    def _tell_rates(self) -> None:
        if self._node.now - self._told_at >= TELL_EVERY_S:
            self._told_at = self._node.now
            if (rates := self._meter.take()) is not None:
                self._tell(rates)

    def _tell(self, message: Message, holder: str = "") -> None:
        if (peer := self._node.peer(holder or self._uplink.parents[0])) is not None:
            self._node.send(peer, message)

    def _slice(self, index: int) -> Slice:
        layout = self._uplink.layout
        if layout is None or not 0 <= index < len(layout.slices):
            raise ProtocolError(f"slice {index} is not in the layout")
        return layout.slices[index]


def _values_of(make: Make, room: Room, slice_: Slice) -> torch.Tensor:
    values = make(room)
    if values is not None:
        return values
    return no_rows(slice_) if slice_.row else torch.zeros(slice_.elements, dtype=getattr(torch, slice_.dtype))
