"""The inner node of the tree: gathers contributions from below, and answers them.

One class for every tier. What becomes of a closed round is the business of its *sink*: an `Aggregator` adds the
contributions and pushes the sum to the parents, a `Root` applies it. A local server is a server with an aggregator, a
shard of the global server is one with a root; the server itself does not know which it is.

How a contribution travels: `Push` from a child -> `Gathering.add` (once for each origin) -> the policy says close or
wait -> the sink's jobs -> `answer`, an `Update` to every child.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import torch

from geomx.errors import GeomxError, NodeLost, ProtocolError, Unsupported
from geomx.layout import Layout, Slice
from geomx.node.contract import Began, Effect, Measured
from geomx.node.durable.cut import CutTimes
from geomx.node.durable.journal import Journal
from geomx.node.durable.replay import Replay
from geomx.node.durable.shard_log import ShardLog
from geomx.node.edges import ChildEdges
from geomx.node.members.attendance import Attendance
from geomx.node.members.ending import Ending
from geomx.node.members.reception import Reception
from geomx.node.overlay.conductor import Conductor
from geomx.node.peers.awaited import Awaited
from geomx.node.peers.base import BaseNode
from geomx.node.peers.beside import Companion, Siblings
from geomx.node.peers.handshake import shown
from geomx.node.peers.peer import Handler, Identity, Limits, Peer
from geomx.node.requests import LARGEST_BYTES
from geomx.node.round_sink import RoundSink
from geomx.node.same_data import SameDataWatch
from geomx.node.slices.blocks import Receipts, flows_to, receipted
from geomx.node.slices.handed_over import HandedOver
from geomx.node.slices.join_state import check_reached
from geomx.node.slices.joined import Joined
from geomx.node.slices.models import models_of
from geomx.node.slices.payloads import check_size, check_weight
from geomx.node.slices.priority import REQUESTS, priority_of
from geomx.node.slices.update_stream import UpdateEncoder, codec_of, decoded
from geomx.rounds.gathering import Gathering
from geomx.rounds.losses import EVERYBODY, Losses
from geomx.rounds.membership import Members
from geomx.rounds.round import Round
from geomx.rounds.step_control import StepControl
from geomx.rounds.turn_log import TurnLog, check_stillness
from geomx.sync.contract import Policy, StepController
from geomx.tree import EVERYONE, Tree
from geomx.wire.flow.outbox import FlowTerms
from geomx.wire.messages import (
    Advice,
    Allowance,
    Attach,
    Calling,
    Fetch,
    Hyper,
    Leave,
    Push,
    Reached,
    Sampled,
    Stepped,
    Update,
    Value,
    payload_size,
)
from geomx.wire.request_messages import Request, Response
from geomx.wire.roster_messages import MOST_TURNS, Asks, Lost, Message
from geomx.wire.session import Patience, Session

NOT_DURABLE = (
    "has a store, and only the workers have the weights, since the optimizer runs there (clip_norm moves it there); "
    'set optimizer.place = "server", or no store.url'
)
LAYOUT_LIMIT_BYTES = 16 << 20  # takes a second to read


class Server(BaseNode):
    """See the module's text. `make_sink(server)` gives it its aggregator or root; `others`: shards that dial us.

    `step_controller`: the policy again, where this is the first shard and the policy sets the workers' pace.
    `same_data`: of the first shard alone. `cuts`: of a shard that keeps a log, when it writes its state.
    `beside`: where the next shard keeps that log, its name, and that of whose log is kept here. `conducts(server)`:
    gives it what says by which ways its children's contributions travel. `siblings`: see `BaseNode`.
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
        losses: Losses | None = None,
        returning: frozenset[str] | None = None,
        cuts: CutTimes | None = None,
        beside: tuple[str, str] | None = None,
        conducts: Callable[[Server], Conductor] | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        expects = dict.fromkeys(edges.children, edges.patience) | (others or {})
        flows = {**(flows or {}), **flows_to(edges.children, edges.classes)}
        self.losses = losses or Losses()
        returning = returning if self.losses.may_return else None
        super().__init__(identity, limits, dials or {}, expects, flows, returning, siblings)
        self._edges = edges
        self._policy = policy
        is_durable = cuts is not None
        self.journal = Journal(self.emit if is_durable else None)
        self._step_control = StepControl(step_controller, self.tell)
        self._same_data = same_data
        self.members = Members(tree, identity.name)
        quorum = self.losses.quorum if self.members.tree.is_shard(identity.name) else EVERYBODY
        self._gathering = Gathering(
            policy,
            self.members,
            self.closed,
            self._wake,
            self._agrees,
            quorum,
            None if conducts is None else self._owed,
        )
        self.attendance = Attendance(self, edges, self._gathering, self.losses)
        self.reception = Reception(self, edges, self._gathering, policy, self.losses.may_return)
        self.handed_over = HandedOver(len(self.members.order))
        self.sink = make_sink(self)
        self.conductor = conducts(self) if conducts is not None else None
        self.measures = self.conductor is not None or self.has_overlay
        self._receipts = Receipts(edges.classes is not None and edges.classes.loses)
        self._mine: frozenset[int] = frozenset()  # the slices that are gathered here
        self._trained: dict[int, int] = {}  # by slice: how many here take part in a step with it
        turn_s = limits.turn_s and limits.turn_s + edges.later_s
        self._turns = TurnLog(self._gathering.turns, limits.stall_s, turn_s, self.note, self.members.order)
        has_calls = policy.sync_group != "run"
        replay = Replay(self, self._gathering, self._turns, self._step_control, has_calls)
        self.log = ShardLog(self, self._gathering, replay, cuts, beside)
        self._children_of: dict[str, tuple[str, ...]] = {}  # by cohort: which children it lies below
        self._last_call = -1  # of the whole run, of which those above have been told
        self._is_begun = False
        shards = (*(others or ()), *self._dials) if is_durable else ()
        self._ending = Ending(self, edges.children, self._dials, self.losses, shards)
        self._awaited = Awaited(self.losses.awaited_s, self.limits.stall_s, self.note)

    # -- the sink's view ----------------------------------------------------------------------------------------

    def answer(self, update: Update, payload: Any, staleness: int = 0) -> None:
        """Send a slice's update to the children of its cohort. `staleness`: of what it answers, for the record."""
        self.journal.behind(partial(self._answer, update, payload, staleness))

    def _answer(self, update: Update, payload: Any, staleness: int) -> None:
        slice_ = self.slice_of(update.slice)
        if payload is not None:
            update = msgspec.structs.replace(update, size=payload.nbytes)
            update = self._edges.down.versions.stamped(slice_, update, payload)
        trained = self._trained.get(slice_.index, 0)
        is_first = self.reception.answered(slice_, update, payload, trained)
        priority, receipts = priority_of(slice_), self._receipts.answered(update)
        children: tuple[str, ...] | None = None
        if self.conductor is not None:
            update, children = self.conductor.answers(slice_, update)
        for name in self._children(update.cohort) if children is None else children:
            child, leaves = self.peer(name), self._edges.children[name]
            if child is not None and self.reception.is_welcomed(name) and not self.members.has_left(leaves):
                self.send(child, receipted(update, receipts, name), payload, priority)
        self._turns.answered(slice_.role, update, staleness, trained, self._now)
        self._step_control.closed(update, self._now)
        if self.conductor is not None and not self.journal.is_replaying:
            self.conductor.answered(slice_, update, payload)
        if is_first:
            self.begins()
        self._gathering.answered(slice_, update.cohort, update.turn, self._now, bool(update.missed))

    def run_job(
        self, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int, waits: bool = False
    ) -> None:
        """See `BaseNode.run_job`; what is replayed is done at once."""
        if self.journal.is_replaying:
            then(function())
        else:
            super().run_job(function, then, cost_bytes, waits)

    def has_begun(self) -> bool:
        """Whether all slices here have had their first values."""
        return self.reception.layout is not None and self.reception.state.slices == len(self._mine)

    def begins(self) -> None:
        """If so, it is told once."""
        if self.has_begun() and not self._is_begun:
            self._is_begun = True
            self.emit(Began())

    def tell(self, message: Allowance | Advice | Response, payload: Any = None) -> None:
        """Send a worker, or a row server, word from a shard."""
        lane = REQUESTS if isinstance(message, Response) else 0
        beside = self.peer(message.worker)
        if beside is not None and beside.is_beside:
            self.send(beside, message, payload, lane)
            return
        for name, leaves in self._edges.children.items():
            child = self.peer(name)
            if message.worker in leaves and child is not None and not self.members.has_left(leaves):
                self.send(child, message, payload, lane)

    def decoders(self, slice_: Slice, round_: Round) -> list[Callable[[], torch.Tensor]]:
        """The round's contributions in the order of adding, each to be decoded within a job."""
        up = self._edges.up
        given = [(push, payload) for push, payload in round_.in_order() if payload is not None]
        return [partial(decoded, codec_of(slice_, p, up), slice_, p.origins, payload) for p, payload in given]

    @property
    def down(self) -> UpdateEncoder:
        """What updates of this server's children are packed by."""
        return self._edges.down

    # -- messages ---------------------------------------------------------------------------------------------

    def _handler_of(self, peer: Peer) -> Handler:
        return self if peer.name in self._edges.children else self.log.handler

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """A child has sent something."""
        leaves = self._edges.children[peer.name]
        if isinstance(message, Push):
            self._on_push(peer.name, leaves, message, payload)
        elif isinstance(message, Hyper):
            self.journal.hyper(message)
            self.sink.above.hyper(message.digest, message.values)
        elif isinstance(message, Attach):
            self.reception.attach(peer, message, payload)
        elif isinstance(message, Reached):
            self._on_reached(leaves, message)
        elif isinstance(message, Stepped | Sampled):
            self._on_told(leaves, message)
        elif isinstance(message, Calling):
            self._gathering.at_barrier(set(leaves), message.turn, self._now)
        elif isinstance(message, Fetch):
            self.slice_of(message.slice)
            self.sink.fetch(message, lambda state, data: self.send(peer, state, data))
        elif isinstance(message, Leave):
            self._on_leave(peer, leaves, message)
        elif isinstance(message, Request):
            self._on_request(leaves, message, payload)
        elif isinstance(message, Lost | Asks):
            self.attendance.passes_on(peer, message)
        elif self.conductor is not None:
            self.conductor.on_message(peer.name, message)
        else:
            raise ProtocolError(f"{type(message).__name__} was sent up to {self.name}")

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Whether a child may send a payload of that size."""
        if isinstance(message, Push):
            slice_ = self.slice_of(message.slice)
            check_size(message, slice_, codec_of(slice_, message, self._edges.up))
            self._receipts.check(message, slice_)
        elif isinstance(message, Request) and message.size <= LARGEST_BYTES:
            pass
        elif payload_size(message) and not isinstance(message, Attach):
            raise ProtocolError(f"{type(message).__name__} announces a payload")
        elif payload_size(message) > LAYOUT_LIMIT_BYTES:
            raise ProtocolError(
                f"a layout of {payload_size(message)} bytes is announced; at most {LAYOUT_LIMIT_BYTES} are read"
            )

    def adopt(self, layout: Layout, settings: dict[str, Value]) -> None:
        """The model is known."""
        if self.journal.is_kept:
            if not self.reception.serves_weights:
                raise Unsupported(f"{self.name} {NOT_DURABLE}")
            self.journal.write(*self.reception.model())
        mine = self.sink.holds(layout)
        self._mine = frozenset(slice_.index for slice_ in mine)
        counted = self._mine.intersection(slice_.index for slice_ in layout.slices if slice_.role == "ledger")
        for model in models_of(layout, settings):
            stepped = (self._mine & model.trained) | counted
            self._trained |= dict.fromkeys(stepped, len(stepped))
        self._gathering.begin(mine)
        self.sink.attach(layout, settings)
        if self.conductor is not None:
            self.conductor.begin(layout)

    def is_ready_for(self, name: str) -> bool:
        """Nobody below is let in before it is known what was decided."""
        return not self.log.is_awaited or name not in self._edges.children

    @property
    def companion(self) -> Companion | None:
        return self.sink.companion

    def on_measured(self, measured: Measured) -> None:
        super().on_measured(measured)
        if self.conductor is not None:
            self.conductor.measured(measured)

    def on_open(self, peer: Peer, first: bool) -> None:
        if peer.name not in self._edges.children:
            self.log.opened(peer, first)
        elif first and self.conductor is not None:
            self.conductor.void(f"{peer.name} begins anew")
        if not self.log.is_awaited:
            self._opened(peer, first)

    def meets(self) -> None:
        """Peers whose sessions are open, and that were not met."""
        for peer in list(self._peers.values()):
            if peer.joined:
                self._opened(peer, True)

    def _opened(self, peer: Peer, first: bool) -> None:
        if first:
            self.reception.leaves(peer)
            self._gathering.sent_by_former(set(self._edges.children.get(peer.name, ())))
            if peer.name not in self._edges.children:
                self.sink.renewed(peer.name)
                self.log.met(peer)
        self._awaited.back(peer)
        self.attendance.back(peer)
        self._ending.opened(peer, first)

    def _on_push(self, child: str, leaves: tuple[str, ...], push: Push, payload: Any) -> None:
        slice_ = self.slice_of(push.slice)
        mine = self.conductor.origins_of(child, push) if self.conductor is not None else set(leaves)
        if not push.origins or not push.origins.keys() <= mine:
            raise ProtocolError(
                f"a push for {', '.join(push.origins) or 'nobody'}; its members: {', '.join(leaves)}"
            )
        check_weight(push)
        if push.turn > 0:
            self.log.check()
        if push.drains:
            peer = self.peer(child)
            if peer is not None and self.reception.is_welcomed(child):
                giver = child, peer.session.incarnation
                handed = self.handed_over.take(giver, self.members.first(push.origins), slice_, push, payload)
                self.journal.handed_in(giver, handed)
            return
        self._gathering.check(push)
        if self.conductor is not None:
            self.conductor.came(push, payload)
        is_late = push.turn <= self._gathering.closed(slice_.index, push.cohort)
        is_late = is_late or (bool(push.together) and self.reception.is_behind(child, push.step))
        if is_late or not self.reception.is_welcomed(child):  # what is due of whoever begins anew comes again
            if is_late and self.conductor is not None and self.reception.is_welcomed(child):
                self.conductor.misses(child, push.slice, push.turn)
            return
        out = push.origins.keys() - self.members.expected(push.turn, push.cohort)
        if (
            self.conductor is not None
            and out != push.origins.keys()
            and self.attendance.is_spoiled(out, push)
        ):
            self.conductor.apart(push.slice, push.turn, push.origins.keys() - out)
            return
        everyones = self._gathering.closed(slice_.index, EVERYONE)
        step = self.reception.possible(push.step, push.cohort, push.turn, everyones)
        if step < push.step:
            push = msgspec.structs.replace(push, step=step)
        self._turns.opened(push, leaves[0], self._now)
        self._step_control.contributed(push, self._now)
        self._receipts.counted(child, push, payload)
        if push.together and (peer := self.peer(child)) is not None:
            peer.step = max(peer.step, push.step)
        self._gathering.add(slice_, push, payload, self._now)

    def _owed(self, index: int, round_: Round) -> None:
        if self.conductor is not None:
            self.conductor.apart(index, round_.turn, round_.owing)

    def welcomed(self) -> list[str]:
        """The children that take part, by name."""
        there = (
            (name, leaves)
            for name, leaves in self._edges.children.items()
            if self.reception.is_welcomed(name)
        )
        return [name for name, leaves in there if self.members.present(leaves)]

    def _agrees(self, cohort: str, turn: int, together: bytes) -> bool:
        return self.attendance.agrees(cohort, turn, together)

    def _wake(self, key: str, at: float, then: Callable[[float], None]) -> None:
        self.after(at - self._now, key, lambda: then(self._now))

    def closed(self, slice_: Slice, round_: Round) -> None:
        """A round has all its contributions."""
        if not self.journal.is_replaying:
            self.handed_over.join(slice_, round_)
        elif round_.handed_over:
            self.handed_over.joined(slice_.index)
        self.journal.closed(slice_.index, round_)
        self.reception.state.closed(round_)
        self.attendance.closed(round_)
        self._turns.closed(round_)
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
        self.reception.state.reached(message)

    def renews(self, peer: Peer) -> bool:
        """Shards that keep logs."""
        return self.journal.is_kept and self.sink.is_top and peer.name not in self._edges.children

    def readmits(self, peer: Peer) -> bool:
        """Where another shard may have been started again, so that all below begin anew."""
        return self.journal.is_kept

    def may_close(self) -> bool:
        """Whether rounds close now."""
        return not self._gathering.is_held

    def has_closed(self, slice_: Slice, cohort: str, turn: int) -> bool:
        """Whether a slice of a turn has closed here."""
        return self._gathering.closed(slice_.index, cohort) >= turn

    def last_closed(self, cohort: str) -> int:
        """The last turn of a cohort of which a slice has closed, or -1."""
        return self._gathering.all_closed().get(cohort, -1)

    def promise(self, cohort: str, turn: int) -> None:
        """See `ShardLog`."""
        self.log.promise(cohort, turn)

    def look(self) -> None:
        """Close what is due."""
        self._gathering.look(self._now)

    # -- the log ------------------------------------------------------------------------------------------------

    @property
    def mine(self) -> list[Slice]:
        """The slices that are gathered here."""
        return [self.slice_of(index) for index in sorted(self._mine)]

    def emit(self, effect: Effect) -> None:
        if not self.log.keeps(effect):
            super().emit(effect)

    @contextmanager
    def muted(self, told: Callable[[Effect], bool]) -> Iterator[None]:
        """Of the effects that come within, only some are told."""
        before, self._effects = self._effects, []
        yield
        self._effects = before + [effect for effect in self._effects if told(effect)]

    def on_handled(self) -> None:
        self.log.handled()

    def on_persisted(self, number: int) -> None:
        self.log.persisted(number)

    def on_job_done(self) -> None:
        self.log.looks()

    def on_cut_stored(self, error: GeomxError | None) -> None:
        self.log.cut_stored(error)

    def on_restored(self, records: Iterable[tuple[bytes, Any]]) -> None:
        self.log.restored(records)

    # -- who takes part -----------------------------------------------------------------------------------------

    def report(self, message: Lost | Asks) -> None:
        """Tell the first shard."""
        self.sink.above.for_first_shard(message)

    def stands(self, told: Joined) -> None:
        """Those above have told where the run stands that this server joins."""
        order = set(self.members.order)
        out = order.intersection(told.out)
        if out and order <= out | self.members.left(order).keys() | told.left.keys():
            self._gathering.forget()
            self.reception.state.forget()
            self.sink.forget()
        self.reception.state.learn(told.standings)
        self.attendance.stands(told)

    def reopen(self, push: Push) -> None:
        """This was gathered here, and will never be answered: nobody is told that its turn has closed."""
        self._gathering.turns.reopen(push.slice, push.cohort, push.turn)

    def enrolled(self, number: int) -> None:
        """Others take part than before, by the roster of this number."""
        self.sink.above.others_take_part()
        if self.conductor is not None:
            self.conductor.void(f"others take part: roster {number}")

    def took_leave(self, names: frozenset[str]) -> None:
        """These take no part any more."""
        self.sink.above.others_take_part()
        self._step_control.left(names)
        self._ending.look()

    def pace(self) -> int:
        return self.attendance.pace()

    def on_anew(self) -> None:
        """Those above know nothing of this server; so those below have to begin anew as well."""
        self.reception.close()
        self.sink.begin_anew()  # it says how far those below are, which they have told
        self.attendance.let_all_go()

    def over(self) -> None:
        """The run has ended without anybody of this server's."""
        self._ending.over()

    def _on_request(self, leaves: tuple[str, ...], request: Request, payload: Any) -> None:
        if request.worker not in leaves:
            raise ProtocolError(f"a request of {request.worker}; members: {', '.join(leaves)}")
        self.sink.above.ask(request, payload)

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

    def _acknowledge(self, peer: Peer, session: Session) -> None:
        session.release()
        if peer.session is session:
            self.acknowledge(peer)

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
        for cohort, turn in message.turns.items():
            if not (-1 <= turn < MOST_TURNS and self.members.of(cohort).issuperset(message.origins)):
                raise ProtocolError(f"{peer.name} takes leave behind turn {turn} of {shown(cohort)!r}")
        if self.members.has_left(message.origins):
            self.acknowledge(peer)
            return
        self.journal.write(message)
        peer.session.hold()
        self.members.leave(message.origins, message.turns)
        turn = max(message.turns.values(), default=-1)
        early = {"early": True} if message.early else {}
        self.note("left", "info", peer=", ".join(message.origins), turn=turn, **early)
        self._ending.left(message.early)
        self.sink.above.leave(message.turns, message.origins, message.early)
        if message.early:
            self.attendance.depart(dict.fromkeys(message.origins, message.turns))
        self._step_control.left(message.origins)
        self.sink.above.others_take_part()
        if self.conductor is not None and message.early and self.members.has_left(leaves):
            self.conductor.void(f"{peer.name} has left")
        self.journal.behind(partial(self._acknowledge, peer, peer.session))
        self._gathering.look(self._now)
        self._ending.look()

    def retire(self) -> None:
        """Leave in order: all below first."""
        self._ending.retire()

    def step_down(self, why: str) -> None:
        """End this process of a shard that keeps a log: another will be started, and nobody else ends."""
        self.stop(NodeLost(self.name, f"{why}; started again, it goes on from its log", may_return=True))

    def may_go(self, peer: Peer) -> bool:
        return self._ending.may_go(peer)

    def may_return(self, peer: Peer) -> bool:
        """A server that was restarted has lost what its workers have told it: they tell it again, where they may."""
        is_worker = self._edges.children.get(peer.name) == (peer.name,)
        return not self.reception.is_welcomed(peer.name) or is_worker or self.losses.may_return

    def on_away(self, peer: Peer) -> None:
        self.log.away()
        self._ending.look()

    on_acknowledged = on_away

    # -- waiting --------------------------------------------------------------------------------------------------

    def is_gone(self, peer: Peer) -> bool:
        away = peer.name in self._edges.children and not peer.session.is_open
        grace_s = peer.session.patience.heartbeat_s
        return self.losses.on_loss == "continue" and away and self._now - peer.away_at > grace_s

    def on_lost(self, peer: Peer) -> None:
        is_child = peer.name in self._edges.children
        if is_child and self.losses.on_loss == "continue" and self.attendance.lost(peer):
            return
        may_return = self.reception.serves_weights and (
            is_child or self.renews(peer) or (peer.dialled and self._returning is not None)
        )
        if not may_return or not self._awaited.lost(peer, self._now):
            super().on_lost(peer)

    def waits_for(self) -> list[str]:
        leaves = self._edges.children
        late = [name for name in self._expects if not self._has_joined(name)]
        return super().waits_for() + [
            name for name in late if self.members.present(leaves.get(name, (name,)))
        ]

    def _is_away(self, name: str) -> bool:
        return super()._is_away(name) and not self.members.are_vacant(self._edges.children.get(name, (name,)))

    def ends_below(self, error: GeomxError) -> bool:
        """Who is cut off from the run, and has waited in vain, is not the others' end."""
        is_cut_off = isinstance(error, NodeLost) and error.node in (self.name, *self._dials)
        return self.losses.on_loss == "continue" and is_cut_off and bool(self._dials)

    def heeds(self, peer: Peer) -> bool:
        if peer.is_beside:
            return super().heeds(peer)
        leaves = self._edges.children.get(peer.name)
        return leaves is None or self.losses.on_loss != "continue" or bool(self.members.present(leaves))

    def on_tick(self) -> None:
        """Notice who waits for each other, and for whom we wait: it is told, and has a bound."""
        self._gathering.check_calls()
        self.log.tick()
        self._awaited.look(self.peer, self._now)
        self.attendance.tick()
        waiting = self._turns.tick(self._now, self._gathering.missing, self.whereabouts)
        if self.sink.is_top and not self._ending.is_due:
            check_stillness(self.still_s(), self.limits.stall_s, [*waiting, *self.sink.above.held_up()])
        self._ending.look()

    def slice_of(self, index: int) -> Slice:
        """A slice that is gathered here, by its number. Raises `ProtocolError` for others."""
        if self.reception.layout is None or index not in self._mine:
            raise ProtocolError(f"slice {index} is not held by {self.name}")
        return self.reception.layout.slices[index]
