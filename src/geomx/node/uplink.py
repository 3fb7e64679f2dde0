"""The upward edges of a node: one parent, or the shards of the global server.

Workers and local servers push the same way, so they share this: each slice goes to the shard that holds it, each
set of hyper-parameters goes up once, and answers come back to the `UplinkOwner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec
import torch

from geomx.channels.contract import BlockClasses
from geomx.codecs.contract import Block, Codec, Room, room_of
from geomx.codecs.measure import largest
from geomx.errors import ProtocolError
from geomx.layout import Layout, Slice
from geomx.node.contract import FirstStep
from geomx.node.overlay.relay import Relay
from geomx.node.peers.base import BaseNode, Blocked
from geomx.node.peers.peer import Peer
from geomx.node.requests import LARGEST_BYTES, Asking
from geomx.node.same_data import check_sampled
from geomx.node.slices.blocks import BlockSender, Encoded
from geomx.node.slices.devices import Queued, beside, on_host
from geomx.node.slices.finite import annotated, skipped, tried, when, without
from geomx.node.slices.first_weights import FirstWeights
from geomx.node.slices.join_state import check_reached
from geomx.node.slices.joined import Joined
from geomx.node.slices.missed import Held, Missed, added, with_held
from geomx.node.slices.models import WORKERS
from geomx.node.slices.payloads import TURN_BYTES, pack_layout, unpack_turns
from geomx.node.slices.priority import REQUESTS, priority_of
from geomx.node.slices.slice_jobs import SliceJobs
from geomx.node.slices.slice_state import Planes, under, within
from geomx.node.slices.update_stream import EXACT, UpdateDecoder, codec_for
from geomx.tree import EVERYONE, Tree
from geomx.wire import presence
from geomx.wire.messages import (
    Advice,
    Allowance,
    Attach,
    Attached,
    Calling,
    Fetch,
    Hyper,
    Hyperparameters,
    Leave,
    Of,
    Push,
    Reached,
    Sampled,
    State,
    Stepped,
    Update,
    Value,
    payload_size,
)
from geomx.wire.overlay_messages import Apart, Table, Void
from geomx.wire.request_messages import Request, Response
from geomx.wire.roster_messages import Asks, Departed, Lost, Message, Over, Retire, Roster, Turns

HYPERS_KEPT = 1024


class UplinkOwner(Protocol):
    """What an uplink tells the node that it belongs to."""

    def attached(self, told: Joined) -> None:
        """Every parent has taken the model, and told where the run stands."""

    def answered(self, update: Update, payload: Any) -> None:
        """A slice's round has closed at the root."""

    def told(self, message: Allowance | Advice) -> None:
        """Word for a worker from the first shard."""

    def roster(self, roster: Roster) -> None:
        """Who takes part from now on."""

    def over(self, has_left: bool) -> None:
        """The run has ended without this node, or goes on, and it `has_left` before."""

    def retire(self) -> None:
        """The server above is to leave, and this node with it."""

    def departed(self, left: tuple[Turns, ...]) -> None:
        """These have left early."""

    def fetched(self, state: State, payload: Any) -> None:
        """An answer to `fetch`."""

    def responded(self, response: Response, payload: Any) -> None:
        """A shard has answered a worker here, or below."""


class Uplink:
    """See the module's text. `tree`: of the run. `up`: what pushes are encoded with; `down`: what
    updates are decoded by.

    `skips`: see `geomx.node.slices.finite`. `classes`: of blocks, where the channel to the parents may lose some.
    `has_quorum`: whether turns may close without this node's contribution.
    """

    def __init__(
        self,
        node: BaseNode,
        owner: UplinkOwner,
        tree: Tree,
        up: Codec,
        down: UpdateDecoder,
        skips: bool = False,
        classes: BlockClasses | None = None,
        has_quorum: bool = False,
    ) -> None:
        self._missed = Missed() if has_quorum else None
        self.relay = Relay(node, self, tree, up) if node.has_overlay else None
        self._node = node
        self._owner = owner
        self._tree = tree
        self.parents = tree.parents(node.name)
        self._up, self.down = up, down
        self._skips = skips
        self._blocks = BlockSender(up, classes, node.blocks)
        self.layout: Layout | None = None
        self._shard_of: tuple[int, ...] = ()
        self._first_weights: FirstWeights | None = None
        self._asking = Asking(self._send_request)
        self._has_stepped = False
        self._faults = 0  # contributions that were skipped
        self._settings: dict[str, Value] = {}
        self._attached: dict[str, list[int]] = {}  # each parent's last closed turn of every slice
        self._told: list[Attached] = []  # by those parents
        self._uncommitted: dict[
            tuple[int, str], tuple[Push, Any]
        ] = {}  # by slice and cohort: what is not answered
        self._pushed: dict[
            tuple[int, str], tuple[int, float]
        ] = {}  # slice, cohort -> last push: turn and time
        self._handing = 0  # slices that are to be handed over
        self._hypers: dict[bytes, Hyperparameters] = {}  # that those above have, oldest first
        self.slice_jobs = SliceJobs(node)  # residuals belong to a slice, whoever's the contribution is

    # -- up -------------------------------------------------------------------------------------------------

    def attach(self, layout: Layout, settings: dict[str, Value]) -> None:
        """Tell every parent the model; answered by `UplinkOwner.attached`."""
        self.layout, self._settings = layout, settings
        self._shard_of = layout.shards(len(self.parents))
        self._first_weights = FirstWeights(layout, self._node.note, self._node.now)
        self.down.begin(aggregates=settings.get("optimizer") == WORKERS)
        self._tell_model(layout)

    def attach_anew(self) -> None:
        """Those above know nothing of this node: tell them all that it has told before."""
        self._attached, self._told = {}, []
        self._asking.hold()
        if self.relay is not None:
            self.relay.begin_anew()
        self._blocks.begin_anew()
        self.down.begin_anew()
        if self.layout is not None:
            self._tell_model(self.layout)
            for digest, values in self._hypers.items():
                self._tell_all(Hyper(digest, values))

    def _tell_model(self, layout: Layout) -> None:
        body, step = pack_layout(layout), self._node.pace()
        for name in self.parents:
            attach = Attach(layout.fingerprint, self._settings, body.numel(), step)
            self._node.send(self._parent(name), attach, body)

    def push_again(
        self, out: Iterable[str], begins: Mapping[str, Mapping[str, int]], is_back: bool = False
    ) -> list[Push]:
        """What those above may not have, of workers that take part in its turn; gives the rest, which is forgotten.

        Whoever begins with a later turn has not contributed to it. `is_back`: a worker has just come back, and gives up
        the local steps that it was in.
        """
        turns, gone, forgotten = self._turns(), set(out), list[Push]()
        waiting, self._uncommitted = self._uncommitted, {}
        if self._missed is not None:
            self._missed.begin(begins)

        def counts(push: Push, name: str) -> bool:
            has_begun = begins.get(name, {}).get(push.cohort, 0) <= push.turn
            return name not in gone and has_begun and not (is_back and push.together)

        for (index, cohort), (push, payload) in waiting.items():
            _, everyones = turns.get(index, (-1, -1))
            is_open = cohort != EVERYONE or push.turn > everyones
            if not is_open:  # it is there; but whoever has it may be lost before all above have it
                self._uncommitted[index, cohort] = push, payload
            elif any(counts(push, name) for name in push.origins):
                self.push_raw(push, payload)
            else:
                forgotten.append(push)
        return forgotten

    def hyper(self, digest: bytes, values: Hyperparameters) -> None:
        """Hyper-parameters go up before the first push that names them."""
        if digest in self._hypers:
            return
        self._hypers[digest] = values
        if len(self._hypers) > HYPERS_KEPT:
            del self._hypers[next(iter(self._hypers))]
        self._tell_all(Hyper(digest, values))

    def push_queued(self, push: Push, queued: Queued) -> None:
        """Push what a device is still to compute; it is encoded there, unless something is added to it before."""
        if self.relay is None and self._missed is None:
            self.encode(push, lambda _: queued.taken(), 0, waits=True)
            return

        def there(made: tuple[torch.Tensor | None, str]) -> None:
            values, fault = made
            self.push(self._skipped(push, fault) if fault else push, lambda _: values, 0)

        taken = partial(tried, lambda: on_host(queued.taken()), self._skips)
        self.slice_jobs.run(push.slice, taken, there, 0, waits=True)

    def _skipped(self, push: Push, fault: str) -> Push:
        """What is left of a contribution that may not leave. The log has the first, the second, the fourth, ..."""
        self._faults += 1
        level = "warning" if self._faults & (self._faults - 1) == 0 else "debug"
        self._node.note("skipped", level, **skipped(push.step, push.turn, "1 slice", fault))
        return without(push, self._slice(push.slice))

    def push(self, push: Push, make: Callable[[Room], torch.Tensor | None], cost_bytes: int) -> None:
        """Push what `make` returns (flat, the slice's dtype); it runs in a job, and so does encoding.

        `make` is told which numbers the codec has room for, and raises NotFinite for others.
        """
        if self._missed is not None and push.together:
            sent, _ = self._uncommitted.get((push.slice, push.cohort), (None, None))
            turn = self._missed.place(push, None if sent is None else sent.turn)
            if turn is None:
                self._hold_back(push, make, cost_bytes)
                return
            held = self._missed.pop(push.slice, push.cohort)
            push = with_held(msgspec.structs.replace(push, turn=turn), held)
            make = _with(make, held)
        if self.relay is None or not self.relay.add(push, make, cost_bytes):
            self.encode(push, make, cost_bytes)

    def encode(
        self, push: Push, make: Callable[[Room], torch.Tensor | None], cost_bytes: int, waits: bool = False
    ) -> None:
        """Encode what `make` returns, and send it on its way. `waits`: see `Job`."""
        slice_ = self._slice(push.slice)
        codec = codec_for(slice_, push.kind, self._up)

        def work() -> Encoded | str:
            values, fault = tried(lambda: make(codec.room(slice_)), self._skips)
            if values is None:
                return fault
            whose, at = f"{self._node.name} cannot push", when(push.step, push.turn)
            with beside(values.device), annotated(self.layout, slice_, values, whose, at):
                payload = on_host(codec.encode(slice_, push.turn, values, push.weight))
            return self._blocks.cut(slice_, push, codec, payload)

        def done(result: Encoded | str) -> None:
            if isinstance(result, Encoded):
                late = self._blocks.late(push, result)
                if late is None:
                    self._blocks.sent(push, result)
                    self.push_raw(push, result.payload, result.levelled)
                else:
                    self._take_back(slice_, late)
                return
            self.push_raw(self._skipped(push, result) if result else push, None)

        self.slice_jobs.run(slice_.index, work, done, cost_bytes + codec.cost_bytes(slice_), waits)

    def _hold_back(self, push: Push, make: Callable[[Room], torch.Tensor | None], cost_bytes: int) -> None:
        """What goes with the next contribution to the slice."""
        assert self._missed is not None
        missed, slice_ = self._missed, self._slice(push.slice)
        room = codec_for(slice_, push.kind, self._up).room(slice_)

        def done(made: tuple[torch.Tensor | None, str]) -> None:
            values, fault = made
            kept = without(push, slice_) if fault else push
            held = Held(kept.weight, kept.present, None if values is None else lambda: values)
            missed.hold(push.slice, push.cohort, held)

        self.slice_jobs.run(slice_.index, lambda: tried(lambda: make(room), self._skips), done, cost_bytes)

    def push_raw(self, push: Push, payload: Any, blocks: Blocked = ()) -> None:
        """Push bytes that are encoded already. `blocks`: see `Write`."""
        if push.step >= 0 and not self._has_stepped:
            self._has_stepped = True
            self._node.emit(FirstStep())
        size = 0 if payload is None else payload.nbytes
        table = 0 if self.relay is None else self.relay.table_of(push) or push.table  # by which it was added
        sized = msgspec.structs.replace(push, size=size, table=table)
        self._pushed[push.slice, push.cohort] = push.turn, self._node.now
        self._uncommitted[push.slice, push.cohort] = sized, payload
        target = "" if self.relay is None else self.relay.target(push)
        peer = self._node.peer(target) if target else self._parent(self.parents[self._shard_of[push.slice]])
        if peer is not None:  # else the first holder hears that it was lost, and then it goes to its own
            self._node.send(peer, sized, payload, priority_of(self._slice(push.slice)), blocks)

    def waits(self) -> dict[int, tuple[Push, Any]]:
        """What has been pushed as everybody's and is not answered, by slice."""
        return {index: sent for (index, cohort), sent in self._uncommitted.items() if cohort == EVERYONE}

    def tell_holder(self, index: int, message: Message) -> None:
        """Word for whoever holds a slice."""
        self._node.send(self._parent(self.parents[self._shard_of[index]]), message)

    def reached(self, message: Reached) -> None:
        self._tell_all(message)

    def for_first_shard(self, message: Stepped | Sampled | Lost | Asks) -> None:
        if isinstance(message, Sampled):
            check_sampled(message)
        self._node.send(self._parent(self.parents[0]), message)

    def ask(self, request: Request, payload: Any) -> None:
        self._asking.ask(request, payload)

    def _send_request(self, request: Request, payload: Any) -> None:
        if not 0 <= request.shard < len(self._tree.holders):
            raise ProtocolError(
                f"{request.worker} asks for place {request.shard} of {len(self._tree.holders)}"
            )
        above = self._tree.leads_to(request.shard)
        above = above if above in self.parents else self.parents[0]  # which leads to all of them
        self._node.send(self._parent(above), request, payload, REQUESTS)

    def others_take_part(self) -> None:
        """Shards hear of it by themselves."""

    def held_up(self) -> list[str]:
        """The shards know."""
        return []

    def fetch(self, token: int, index: int, of: Of, server: str) -> None:
        parent = self._parent(self.parents[self._shard_of[index]])
        self._node.send(parent, Fetch(token, index, of, server))

    def kept(self, slice_: Slice) -> Planes:
        """What a checkpoint keeps of the edges' lower ends, by name."""
        return {**under("up.", self._up.state(slice_)), **self.down.kept(slice_)}

    def restore(self, slice_: Slice, kept: Planes) -> None:
        """Behind an `assign`: what was held back of other weights is gone, and the inverse of `kept`."""
        self._up.restore(slice_, within("up.", kept))
        self.down.restore(slice_, kept)

    def at_barrier(self, message: Calling) -> None:
        self._tell_all(message)

    def leave(
        self, turns: dict[str, int], origins: tuple[str, ...], early: bool = False, priority: int = 0
    ) -> None:
        self._tell_all(Leave(turns, origins, early), priority)

    def hand_over(self, push: Push, make: Callable[[], torch.Tensor | None], waits: bool = False) -> None:
        """As this node leaves: give up what `make` returns of a slice, and what the codec holds back of it.

        It goes up once: where those above are lost before they have used it, it is lost with them.
        """
        slice_ = self._slice(push.slice)

        def work() -> tuple[torch.Tensor, bytes | None] | None:
            values, held = make(), self._up.held(slice_)
            if held is not None:
                held = on_host(held).to(getattr(torch, slice_.dtype), copy=True)
                values = held if values is None else held.add_(values)
            if values is None or not 0.0 < largest(values) <= room_of(slice_).most:
                return None
            some = [bool(values[part.offset : part.offset + part.elements].any()) for part in slice_.parts]
            return EXACT.encode(slice_, push.turn, values), presence.pack(some)

        def done(made: tuple[torch.Tensor, bytes | None] | None) -> None:
            self._handing -= 1
            if made is not None:
                payload, present = made
                drains = msgspec.structs.replace(push, drains=True, present=present, size=payload.nbytes)
                shard = self._parent(self.parents[self._shard_of[push.slice]])
                self._node.send(shard, drains, payload, priority_of(slice_))

        self._handing += 1
        self.slice_jobs.run(slice_.index, work, done, 3 * slice_.size_bytes, waits)

    @property
    def quiet(self) -> bool:
        """Whether nothing is to be sent any more, and every parent has acknowledged everything."""
        unheard = any(self._parent(name).session.unacknowledged for name in self.parents)
        return not (self._handing or unheard) and (self.relay is None or self.relay.quiet)

    # -- down -----------------------------------------------------------------------------------------------

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """A parent has sent something."""
        if isinstance(message, Update):
            if self.relay is None or self.relay.passes(message, payload):
                self._answered(message, payload)
        elif isinstance(message, Attached):
            if self.layout is None:
                raise ProtocolError("Attached came before there was a model")
            for told in message.reached:
                check_reached(told)
            self._attached[peer.name] = unpack_turns(payload)
            self._told.append(message)
            if len(self._attached) == len(self.parents):
                self._owner.attached(Joined.of(self._told, self._turns(), self._tree))
                self._asking.again()
        elif isinstance(message, Allowance | Advice):
            self._owner.told(message)
        elif isinstance(message, Roster | Over | Retire | Departed):
            self._on_members(message)
        elif isinstance(message, Table | Void | Apart) and self.relay is not None:
            self.relay.told(message)
        elif isinstance(message, State | Response):
            self._on_answer(message, payload)
        else:
            raise ProtocolError(f"{type(message).__name__} was sent down to {self._node.name}")

    def _on_answer(self, message: State | Response, payload: Any) -> None:
        """What somebody here, or below, has asked for."""
        if isinstance(message, State):
            self._slice(message.slice)
            self._owner.fetched(message, payload)
        elif self._asking.answered(message):
            self._owner.responded(message, payload)

    def _on_members(self, message: Roster | Over | Retire | Departed) -> None:
        """Others take part, or this node does not any more."""
        if isinstance(message, Roster):
            self._roster(message)
        elif isinstance(message, Over):
            self._owner.over(message.has_left)
        elif isinstance(message, Retire):
            self._owner.retire()
        else:
            self._owner.departed(message.left)

    def _roster(self, roster: Roster) -> None:
        if self._missed is not None:
            self._missed.begin(dict.fromkeys(self._tree.workers_in(roster.joined), roster.from_turns))
        self._owner.roster(roster)
        if self.relay is not None:
            self.relay.changed(roster.number)

    def _answered(self, update: Update, payload: Any) -> None:
        for following in self.down.in_order(self._slice(update.slice), update, payload):
            self._take(*following)

    def _take(self, update: Update, payload: Any) -> None:
        slice_ = self._slice(update.slice)
        pushed, sent = self._uncommitted.get((update.slice, update.cohort), (None, None))
        if self._missed is not None:
            self._missed.answered(update)
        if pushed is not None and pushed.turn <= update.turn:
            del self._uncommitted[update.slice, update.cohort]
            if self._missed is not None and pushed.turn == update.turn:
                self._check_missed(slice_, pushed, sent, update)
        blocks, lost = self._blocks.answered(update)
        self._trace(update, {"blocks": blocks, "lost": len(lost)} if blocks else {})
        if self._first_weights is not None:
            self._first_weights.arrived(update.slice, self._node.now)
        self._take_back(slice_, lost)
        self._owner.answered(msgspec.structs.replace(update, receipt=None), payload)

    def _check_missed(self, slice_: Slice, pushed: Push, payload: Any, update: Update) -> None:
        """What was answered; where it was not in it, it goes with the next."""
        assert self._missed is not None
        if update.missed and not pushed.origins.keys().isdisjoint(self._tree.workers_in(update.missed)):
            codec = codec_for(slice_, pushed.kind, self._up)
            values = None if payload is None else partial(codec.decode, slice_, payload)
            self._missed.hold(update.slice, update.cohort, Held(pushed.weight, pushed.present, values))

    def _take_back(self, slice_: Slice, lost: list[Block]) -> None:
        """What these blocks carry goes with an encoding that has not begun yet."""
        if lost:
            cost_bytes = self._up.cost_bytes(slice_)
            self.slice_jobs.run(
                slice_.index, lambda: self._up.settle(slice_, lost), lambda _: None, cost_bytes
            )

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Whether a payload of that size is possible; see `Node.admit`."""
        if isinstance(message, Update) and message.size:
            possible = self.down.accepts(self._slice(message.slice), message.kind, message.size)
        elif isinstance(message, Response):
            possible = message.size <= LARGEST_BYTES
        elif isinstance(message, State):
            possible = message.size == self._slice(message.slice).size_bytes * len(message.planes)
        elif isinstance(message, Attached) and message.size:
            possible = self.layout is not None and message.size == TURN_BYTES * len(self.layout.slices)
        else:
            possible = not payload_size(message)
        if not possible:
            raise ProtocolError(
                f"{type(message).__name__} announces {payload_size(message)} bytes, which cannot be"
            )

    def _trace(self, update: Update, details: dict[str, Any]) -> None:
        """A row of the trace for each slice: from its push to its update."""
        turn, since = self._pushed.get((update.slice, update.cohort), (-1, 0.0))
        if turn == update.turn:
            track, label = f"slice {update.slice}", f"{update.kind} {turn}"
            self._node.note("span", track=track, label=label, start=since, stop=self._node.now, **details)

    def _turns(self) -> dict[int, tuple[int, int]]:
        """Each parent answers for the slices that it holds."""
        assert self.layout is not None
        holders = [self._attached[self.parents[shard]] for shard in self._shard_of]
        return {
            index: (turns[2 * index], turns[2 * index + 1]) for index, turns in enumerate(holders) if turns
        }

    def _tell_all(self, message: Message, priority: int = 0) -> None:
        for name in self.parents:
            self._node.send(self._parent(name), message, priority=priority)

    def _parent(self, name: str) -> Peer:
        peer = self._node.peer(name)
        assert peer is not None  # every parent is dialled at the start
        return peer

    def _slice(self, index: int) -> Slice:
        if self.layout is None or not 0 <= index < len(self.layout.slices):
            raise ProtocolError(f"slice {index} is not in the layout")
        return self.layout.slices[index]


def _with(
    make: Callable[[Room], torch.Tensor | None], held: list[Held]
) -> Callable[[Room], torch.Tensor | None]:
    """What `make` gives, and what goes with it."""
    return (lambda room: added(make(room), held)) if held else make
