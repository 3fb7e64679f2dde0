"""The inner node of the tree: gathers contributions from below, and answers them.

One class for every tier. What becomes of a closed round is the business of its *sink*: an `Aggregator` adds the
contributions and pushes the sum to the parents, a `Root` applies it. A local server is a server with an aggregator, a
shard of the global server is one with a root; the server itself does not know which it is.

How a contribution travels: `Push` from a child -> `Gathering.add` (once for each origin) -> the policy says close or
wait -> the sink's jobs -> `answer`, an `Update` to every child.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import torch

from geomx.errors import ProtocolError, Refused, Unsupported
from geomx.layout import Layout, Slice
from geomx.node.contract import Began, Write
from geomx.node.edges import ChildEdges
from geomx.node.peers.awaited import Awaited
from geomx.node.peers.base import BaseNode
from geomx.node.peers.handshake import compare
from geomx.node.peers.peer import Handler, Identity, Limits, Peer
from geomx.node.round_sink import RoundSink
from geomx.node.same_data import SameDataWatch
from geomx.node.slices.blocks import Receipts, flows_to, receipted
from geomx.node.slices.join_state import CANNOT_REJOIN, JoinState, check_reached
from geomx.node.slices.payloads import check_size, pack_turns, unpack_layout
from geomx.node.slices.update_stream import UpdateEncoder, codec_for, decoded, sets_weights
from geomx.node.uplink import priority_of
from geomx.rounds.gathering import Gathering
from geomx.rounds.membership import Members
from geomx.rounds.round import Round
from geomx.rounds.step_control import StepControl
from geomx.rounds.turn_log import TurnLog, check_stillness
from geomx.sync.contract import GradientStep, Policy, StepController
from geomx.tree import EVERYONE, Tree
from geomx.wire.flow.outbox import FlowTerms
from geomx.wire.messages import (
    Advice,
    Allowance,
    Attach,
    Attached,
    Calling,
    Fetch,
    Hyper,
    Leave,
    Message,
    Push,
    Reached,
    Refuse,
    Sampled,
    Stepped,
    Update,
    Value,
    payload_size,
)
from geomx.wire.session import Patience

LAYOUT_LIMIT_BYTES = 16 << 20  # takes a second to read


class Server(BaseNode):
    """See the module's text. `make_sink(server)` gives it its aggregator or root; `others`: shards that dial us.

    `step_controller`: the policy again, where this is the first shard and the policy sets the workers' pace.
    `same_data`: of the first shard alone.
    """

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        tree: Tree,
        edges: ChildEdges,
        policy: Policy,
        make_sink: Callable[[Server], RoundSink],
        dials: dict[str, Patience] | None = None,
        others: dict[str, Patience] | None = None,
        step_controller: StepController | None = None,
        same_data: SameDataWatch | None = None,
        flows: Mapping[str, FlowTerms] | None = None,
    ) -> None:
        expects = dict.fromkeys(edges.children, edges.patience) | (others or {})
        flows = {**(flows or {}), **flows_to(edges.children, edges.classes)}
        super().__init__(identity, limits, dials or {}, expects, flows)
        self._edges = edges
        self._policy = policy
        self._step_control = StepControl(step_controller, self.tell)
        self._same_data = same_data
        self.members = Members(tree, identity.name)
        self._gathering = Gathering(policy, self.members, self._closed, self._wake)
        self.sink = make_sink(self)
        self._receipts = Receipts(edges.classes is not None and edges.classes.loses)
        self._has_workers = all(leaves == (name,) for name, leaves in edges.children.items())
        self._layout: Layout | None = None
        self._settings: dict[str, Value] = {}
        self._mine: frozenset[int] = frozenset()  # the slices that are gathered here
        self._trained = 0  # how many slices take part in a step
        self._turns = TurnLog(limits.stall_s, limits.turn_s and limits.turn_s + edges.later_s, self.note)
        self._children_of: dict[str, tuple[str, ...]] = {}  # by cohort: which children it lies below
        self._last_call = -1  # of the whole run, of which those above have been told
        self._is_attached = False
        self._to_welcome: list[Peer] = []
        self._join_state = JoinState()
        self._welcomed: set[str] = set()  # children that have the model
        self._all_left_at = 0.0
        self._keeps = edges.patience.rejoin_s > 0.0 and policy.plans is GradientStep
        self._awaited = Awaited(self.limits.stall_s, self.note)

    # -- the sink's view ----------------------------------------------------------------------------------------

    def answer(self, update: Update, payload: Any, staleness: int = 0) -> None:
        """Send a slice's update to the children of its cohort. `staleness`: of what it answers, for the record."""
        slice_ = self._slice(update.slice)
        if payload is not None:
            update = msgspec.structs.replace(update, size=payload.nbytes)
            if self._has_workers and self._serves_weights and self._goes_on_from(slice_, update):
                held = self._edges.down.held(slice_, update.cohort, payload)
                if self._keeps and update.kind == "gradient":
                    self._join_state.keep(update, self._trained)
                self._join_state.hold(slice_.index, update.cohort, held)
        is_first = self._join_state.answered(update)
        if slice_.role == "weight" and update.kind == "gradient":
            self._join_state.stepped(update)
        priority, receipts = priority_of(slice_), self._receipts.answered(update)
        for name in self._children(update.cohort):
            child, leaves = self.peer(name), self._edges.children[name]
            if child is not None and name in self._welcomed and not self.members.has_left(leaves):
                self.send(child, receipted(update, receipts, name), payload, priority)
        self._turns.answered(slice_.role, update, staleness, self._trained, self._now)
        self._step_control.closed(update, self._now)
        if is_first and self._join_state.slices == len(self._mine):
            self.emit(Began())
        self._gathering.answered(slice_, update.cohort, update.turn, self._now)

    def tell(self, message: Allowance | Advice) -> None:
        """Send a worker word from the first shard."""
        for name, leaves in self._edges.children.items():
            child = self.peer(name)
            if message.worker in leaves and child is not None and not self.members.has_left(leaves):
                self.send(child, message)

    def decoders(self, slice_: Slice, round_: Round) -> list[Callable[[], torch.Tensor]]:
        """The round's contributions in the order of adding, each to be decoded within a job."""
        codec = codec_for(slice_, round_.kind, self._edges.up)
        given = [(push, payload) for push, payload in round_.in_order() if payload is not None]
        return [partial(decoded, codec, slice_, push.origins, payload) for push, payload in given]

    @property
    def down(self) -> UpdateEncoder:
        """What updates of this server's children are packed by."""
        return self._edges.down

    # -- messages ---------------------------------------------------------------------------------------------

    def handler_of(self, peer: Peer) -> Handler:
        return self if peer.name in self._edges.children else self.sink.above

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """A child has sent something."""
        leaves = self._edges.children[peer.name]
        if isinstance(message, Push):
            self._on_push(peer.name, leaves, message, payload)
        elif isinstance(message, Hyper):
            self.sink.above.hyper(message.digest, message.values)
        elif isinstance(message, Attach):
            self._on_attach(peer, message, payload)
        elif isinstance(message, Reached):
            self._on_reached(leaves, message)
        elif isinstance(message, Stepped | Sampled):
            self._on_told(leaves, message)
        elif isinstance(message, Calling):
            self._gathering.at_barrier(set(leaves), message.turn, self._now)
        elif isinstance(message, Fetch):
            self._slice(message.slice)
            self.sink.fetch(message, lambda state, data: self.send(peer, state, data))
        elif isinstance(message, Leave):
            self._on_leave(peer, leaves, message)
        else:
            raise ProtocolError(f"{type(message).__name__} was sent up to {self.name}")

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Whether a child may send a payload of that size."""
        if isinstance(message, Push):
            slice_ = self._slice(message.slice)
            check_size(message, slice_, codec_for(slice_, message.kind, self._edges.up))
            self._receipts.check(message, slice_)
        elif payload_size(message) and not isinstance(message, Attach):
            raise ProtocolError(f"{type(message).__name__} announces a payload")
        elif payload_size(message) > LAYOUT_LIMIT_BYTES:
            raise ProtocolError(
                f"a layout of {payload_size(message)} bytes is announced; at most {LAYOUT_LIMIT_BYTES} are read"
            )

    def _on_attach(self, peer: Peer, message: Attach, payload: Any) -> None:
        if self._layout is None:
            self._adopt(message, payload)
        assert self._layout is not None
        ours = {"model.fingerprint": self._layout.fingerprint, **self._settings}
        differences = compare({"model.fingerprint": message.fingerprint, **message.settings}, ours)
        if differences:
            text = f"{peer.name} has another model or optimizer than the others"
            self.emit(Write(peer.session.conn, 0, Refuse("manifest", text, differences)))
            listed = "; ".join(f"{d.field}: {d.yours}, others {d.ours}" for d in differences)
            raise Refused(f"{text}: {listed}")
        if self._is_attached:
            self._welcome_member(peer)
        elif peer not in self._to_welcome:
            self._to_welcome.append(peer)

    def _adopt(self, message: Attach, payload: Any) -> None:
        """The first model that comes is the run's."""
        layout = unpack_layout(payload, message.fingerprint)
        self._layout, self._settings = layout, message.settings
        mine = self.sink.holds(layout)
        self._mine = frozenset(slice_.index for slice_ in mine)
        self._trained = sum(slice_.role in ("weight", "ledger") for slice_ in mine)
        self._gathering.begin(mine)
        self._edges.down.begin(aggregates=not self._serves_weights)
        self.sink.attach(layout, message.settings)

    def attached(self) -> None:
        """Everybody above has taken the model: those below may begin."""
        self._is_attached = True
        waiting, self._to_welcome = self._to_welcome, []
        for peer in waiting:
            self._welcome_member(peer)

    def on_open(self, peer: Peer, first: bool) -> None:
        if first:  # and has to attach before it can be answered
            self._welcomed.discard(peer.name)
        self._awaited.back(peer)

    def _welcome_member(self, peer: Peer) -> None:
        """Tell a child where the run stands, and give it the current values if it has begun."""
        self._welcomed.add(peer.name)
        if not self._join_state.slices:
            self.send(peer, Attached())
            return
        assert self._layout is not None
        if not self._serves_weights:
            raise Unsupported(f"{peer.name} {CANNOT_REJOIN}")
        own = self.members.tree.cohort(self._edges.children[peer.name][0], self._policy.sync_group)
        reached = self._join_state.reached_by(peer.name)
        ended = self._join_state.ended(lambda name: self._is_within(peer, name))
        counts = self._gathering.turns(lambda name: self._is_within(peer, name))
        turns = {name: (count, *self._join_state.step(name)) for name, count in counts.items()}
        slices = self._layout.slices
        body = pack_turns(
            [self._gathering.closed(slice_.index, name) for slice_ in slices for name in (own, EVERYONE)]
        )
        self.send(peer, Attached(turns, reached, ended, body.numel()), body)
        for update, values in self._join_state.updates(own, lambda name: self._is_within(peer, name)):
            self.send(peer, update, values, priority_of(self._slice(update.slice)))

    @property
    def _serves_weights(self) -> bool:
        """Whether the weights are on the servers, and not on the workers alone."""
        return self._settings.get("optimizer") != "workers"

    def _goes_on_from(self, slice_: Slice, update: Update) -> bool:
        return slice_.role != "weight" or sets_weights(update.kind, update.cohort)

    def _is_within(self, peer: Peer, cohort: str) -> bool:
        """Whether all of a child's workers belong to a cohort."""
        return self.members.of(cohort).issuperset(self._edges.children[peer.name])

    def _on_push(self, child: str, leaves: tuple[str, ...], push: Push, payload: Any) -> None:
        if not push.origins or not push.origins.keys() <= set(leaves):
            raise ProtocolError(
                f"a push for {', '.join(push.origins) or 'nobody'}; its members: {', '.join(leaves)}"
            )
        if not 0.0 <= push.weight < math.inf:
            raise ProtocolError(f"a push for slice {push.slice} weighs {push.weight}")
        slice_ = self._slice(push.slice)
        self._gathering.check(push)
        if push.turn <= self._gathering.closed(slice_.index, push.cohort):
            return
        self._turns.opened(push, leaves[0], self._now)
        self._step_control.contributed(push, self._now)
        self._receipts.counted(child, push, payload)
        self._gathering.add(slice_, push, payload, self._now)

    def _wake(self, key: str, at: float, then: Callable[[float], None]) -> None:
        self.after(at - self._now, key, lambda: then(self._now))

    def _closed(self, slice_: Slice, round_: Round) -> None:
        self._join_state.closed(round_)
        if round_.cohort == EVERYONE and self._policy.sync_group != "run" and round_.turn > self._last_call:
            self._last_call = round_.turn
            self.sink.above.at_barrier(Calling(round_.turn))
        self.sink.closed(slice_, round_)

    def _on_reached(self, leaves: tuple[str, ...], message: Reached) -> None:
        if (message.worker,) != leaves or not self.members.of(message.cohort).issuperset(leaves):
            raise ProtocolError(
                f"{', '.join(leaves)} told how far {message.worker} is in the cohort {message.cohort!r}"
            )
        check_reached(message)
        self._join_state.reached(message)

    def _on_told(self, leaves: tuple[str, ...], message: Stepped | Sampled) -> None:
        """A worker tells the first shard something."""
        if message.worker not in leaves:
            raise ProtocolError(f"{type(message).__name__} of {message.worker}; members: {', '.join(leaves)}")
        if isinstance(message, Sampled) and self._same_data is not None:
            if text := self._same_data.sampled(message):
                self._advise(text)
        elif isinstance(message, Sampled) or not self._step_control.stepped(message, self._now):
            self.sink.above.for_first_shard(message)

    def _advise(self, text: str) -> None:
        """Tell everybody: this server's log, and a worker of each party."""
        self.note("advice", "warning", text=text)
        for leaves in self._edges.children.values():
            self.tell(Advice(leaves[0], text))

    def _children(self, cohort: str) -> tuple[str, ...]:
        """The children below which a cohort's members are."""
        if cohort not in self._children_of:
            members = self.members.of(cohort)
            self._children_of[cohort] = tuple(
                name for name, leaves in self._edges.children.items() if not members.isdisjoint(leaves)
            )
        return self._children_of[cohort]

    # -- the end ------------------------------------------------------------------------------------------------

    def _on_leave(self, peer: Peer, leaves: tuple[str, ...], message: Leave) -> None:
        if not set(message.origins) <= set(leaves):
            raise ProtocolError(f"{peer.name} takes leave for {', '.join(message.origins)}")
        self.members.leave(message.origins, message.turns)
        turn = max(message.turns.values(), default=-1)
        self.note("left", "info", peer=", ".join(message.origins), turn=turn)
        self.sink.above.leave(message.turns, message.origins)
        self._step_control.left(message.origins)
        self.acknowledge(peer)
        self._gathering.left(self._now)
        self._end_if_done()

    def _end_if_done(self) -> None:
        """End once every member has left, everybody below has gone, and those above know."""
        if not self.members.all_left or self.stopped:
            return
        self._all_left_at = self._all_left_at or self._now
        edges = filter(None, map(self.peer, (*self._edges.children, *self._dials)))
        if not any(map(self._awaits, edges)):
            self.stop(in_order=self.sink.above.quiet)

    def _awaits(self, peer: Peer) -> bool:
        """Whether the end waits for a peer: to know, to hang up, or to come back for its leave's acknowledgement."""
        if peer.dialled and self.sink.above.quiet:
            return False
        if peer.session.is_open:
            return self._now - self._all_left_at <= self.limits.stop_s
        return not (peer.has_gone or peer.session.is_lost(self._now))

    def may_go(self, peer: Peer) -> bool:
        if (leaves := self._edges.children.get(peer.name)) is not None:
            return self.members.has_left(leaves)
        return self.members.all_left and (self.sink.above.quiet or not peer.dialled)

    def may_return(self, peer: Peer) -> bool:
        """A local server that was restarted has lost what its workers have told it."""
        return peer.name not in self._welcomed or self._edges.children.get(peer.name) == (peer.name,)

    def on_away(self, peer: Peer) -> None:
        self._end_if_done()

    on_acknowledged = on_away

    # -- waiting --------------------------------------------------------------------------------------------------

    def on_lost(self, peer: Peer) -> None:
        """A worker may be started again."""
        if not (self._has_workers and self._serves_weights) or not self._awaited.lost(peer, self._now):
            super().on_lost(peer)

    def waits_for(self) -> list[str]:
        return super().waits_for() + [name for name in self._expects if not self._has_joined(name)]

    def on_tick(self) -> None:
        """Notice who waits for each other, and for whom we wait: it is told, and has a bound."""
        self._gathering.check_calls()
        self._awaited.look(self.peer, self._now)
        waiting = self._turns.tick(self._now, self._gathering.missing, self.whereabouts)
        if self.sink.is_top and not self.members.all_left:
            check_stillness(self.still_s(), self.limits.stall_s, waiting)
        self._end_if_done()

    def _slice(self, index: int) -> Slice:
        if self._layout is None or index not in self._mine:
            raise ProtocolError(f"slice {index} is not held by {self.name}")
        return self._layout.slices[index]
