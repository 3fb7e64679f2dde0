"""How a server lets in those below it: all have one model, and whoever joins a run that has begun hears where it is.

Whoever has said `Attach` is welcomed: at once, or once those above have taken the model, or, a worker that is out, once
a roster has let it in. A server whose own values are still to come welcomes nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Protocol

import msgspec
import torch

from geomx.errors import Refused, Unsupported
from geomx.layout import Layout, Slice
from geomx.node.contract import Effect, Write
from geomx.node.edges import ChildEdges
from geomx.node.members.attendance import Attendance
from geomx.node.peers.handshake import compare
from geomx.node.peers.peer import Peer
from geomx.node.slices.join_state import CANNOT_REJOIN, JoinState
from geomx.node.slices.joined import grouped
from geomx.node.slices.models import WORKERS
from geomx.node.slices.payloads import pack_layout, pack_turns, unpack_layout
from geomx.node.slices.priority import priority_of
from geomx.node.slices.update_stream import sets_weights
from geomx.rounds.gathering import Gathering
from geomx.rounds.membership import Members
from geomx.sync.contract import GradientStep, Policy, furthest_step, has_own_means, last_own_mean
from geomx.tree import EVERYONE
from geomx.wire.messages import Attach, Attached, Refuse, Update, Value
from geomx.wire.roster_messages import Message, Over, Standing, latest


class ReceptionHost(Protocol):
    """The server around it."""

    name: str
    members: Members
    attendance: Attendance

    def adopt(self, layout: Layout, settings: dict[str, Value]) -> None: ...
    def peer(self, name: str) -> Peer | None: ...
    def readmits(self, peer: Peer) -> bool: ...
    def send(self, peer: Peer, message: Message, payload: Any = None, priority: int = 0) -> None: ...
    def emit(self, effect: Effect) -> None: ...


class Reception:
    """See the module's text. `may_return`: whether servers below may be started again."""

    def __init__(
        self, host: ReceptionHost, edges: ChildEdges, gathering: Gathering, policy: Policy, may_return: bool
    ) -> None:
        self._host, self._edges, self._gathering = host, edges, gathering
        self._members = host.members
        self._sync_group = policy.sync_group
        self._has_own_means = has_own_means(policy)
        self._last_own_mean = partial(last_own_mean, policy)
        self._furthest = lru_cache(64)(partial(furthest_step, policy))
        self.layout: Layout | None = None
        self._settings: dict[str, Value] = {}
        self.state = JoinState(host.attendance.roster.out)
        self._has_workers = all(leaves == (name,) for name, leaves in edges.children.items())
        self._holds = self._has_workers or may_return  # what joiners go on from
        self._keeps = self._has_workers and may_return and policy.plans is GradientStep
        self._is_open = False  # those above have taken the model
        self._waiting: list[Peer] = []
        self._attached: dict[str, Peer] = {}  # who has said its model
        self._welcomed: set[str] = set()
        self._first_steps: dict[str, int] = {}  # of workers that have come back

    def attach(self, peer: Peer, message: Attach, payload: Any) -> None:
        """A child says its model and optimizer. Raises `Refused` where others have another."""
        if self.layout is None:  # the first that comes is the run's
            self.take_model(message, payload)
        assert self.layout is not None
        ours = {"model.fingerprint": self.layout.fingerprint, **self._settings}
        differences = compare({"model.fingerprint": message.fingerprint, **message.settings}, ours)
        if differences:
            text = f"{peer.name} has another model or optimizer than the others"
            self._host.emit(Write(peer.session.conn, 0, Refuse("manifest", text, differences)))
            listed = "; ".join(f"{d.field}: {d.yours}, others {d.ours}" for d in differences)
            raise Refused(f"{text}: {listed}")
        self._attached[peer.name] = peer
        peer.step = max(peer.step, message.step)
        if self._is_open:
            self._passed(peer)
            self._let_in(peer)
        elif peer not in self._waiting:
            self._waiting.append(peer)

    def take_model(self, message: Attach, payload: Any) -> None:
        """This is the run's model."""
        self.layout = unpack_layout(payload, message.fingerprint)
        self._settings = message.settings
        self._edges.down.begin(aggregates=not self.serves_weights)
        self._host.adopt(self.layout, message.settings)

    def model(self) -> tuple[Attach, list[torch.Tensor]]:
        """What `take_model` was told."""
        assert self.layout is not None
        body = pack_layout(self.layout)
        return Attach(self.layout.fingerprint, self._settings, body.numel()), [body]

    def _passed(self, peer: Peer) -> None:
        """Of a child that has told how many steps those below have taken: means before these are over.

        Nobody else can tell that of its own means to a server that was started again.
        """
        own, leaves, step = self._host.name, self._edges.children[peer.name], peer.step
        has_means = self._has_own_means and own in self._members.tree.servers
        if has_means and step > 0 and self._members.present(leaves):
            everyones = self._gathering.all_closed().get(EVERYONE, -1)
            last = self._last_own_mean(self._tiers(own), self.possible(step - 1, own, step - 1, everyones))
            self._gathering.passed(own, last)
            # Nobody is to take that step once more: its mean is not known here, and so is not answered again.
            self.state.learn({own: Standing(step=last, step_turn=last - 1)})

    def _tiers(self, cohort: str) -> list[int]:
        """The tiers of which a mean is this cohort's."""
        tree = self._members.tree
        worker = tree.leaves(cohort)[0]
        return [tier for tier in range(1, tree.tiers + 1) if tree.cohort_at(worker, tier) == cohort]

    def open(self) -> None:
        """Everybody above has taken the model, and this server has all that they have."""
        self._is_open = True
        waiting, self._waiting = self._waiting, []
        there = [peer for peer in waiting if self._host.peer(peer.name) is peer]
        for peer in there:
            self._passed(peer)
        for peer in there:
            self._let_in(peer)

    def close(self) -> None:
        """Those above know nothing of this server any more: nobody is let in before it is known again."""
        self._is_open = False

    def leaves(self, peer: Peer) -> None:
        """A child has gone, or begins anew: it has to attach before it can be answered."""
        self._welcomed.discard(peer.name)
        self._first_steps.pop(peer.name, None)
        self._waiting = [other for other in self._waiting if other is not peer]

    def has_attached(self, peer: Peer) -> bool:
        """Whether a child has said its model, in the session that it has now."""
        return self._attached.get(peer.name) is peer

    def is_behind(self, name: str, step: int) -> bool:
        """Whether a worker that has come back took a step of its own before it heard where it goes on."""
        return 0 <= step < self._first_steps.get(name, 0)

    def is_welcomed(self, name: str) -> bool:
        """Whether a child has the model, and is answered."""
        return name in self._welcomed

    def answered(self, slice_: Slice, update: Update, payload: Any, trained: int) -> bool:
        """A slice's update goes down: whether it is the slice's first. `trained`: how many take part in a step."""
        if payload is not None and self._holds and self.serves_weights and _goes_on_from(slice_, update):
            before = self.state.held(slice_.index, update.cohort)
            held = self._edges.down.held(slice_, update.kind, update.cohort, payload, before)
            if self._keeps and update.kind == "gradient":
                self.state.keep(update, trained)
            self.state.hold(
                slice_.index, update.cohort, held, self._edges.down.versions.of(slice_, update.cohort)
            )
        is_first = self.state.answered(update)
        if slice_.role == "weight" and update.kind == "gradient":
            self.state.stepped(update, self._host.attendance.out_at(update.cohort, update.turn))
        return is_first

    def welcome(self, peer: Peer) -> None:
        """Tell a child where the run stands, and give it the current values if it has begun. Raises `Unsupported`."""
        self._welcomed.add(peer.name)
        self._host.attendance.tell_departed(peer)  # a server tells with its first word who has left early
        leaves, roster = self._edges.children[peer.name], self._host.attendance.roster
        begins, tree = self._members.begins(leaves), self._members.tree
        standings = self._standings_for(leaves, begins.get(peer.name, {}))
        begins = self._to_come(begins, standings)
        told = Attached(
            roster=roster, begins=grouped(begins, tree), left=grouped(self._members.left(leaves), tree)
        )
        if not self.state.slices:
            self._host.send(peer, told)
            return
        assert self.layout is not None
        if not self.serves_weights:
            raise Unsupported(f"{peer.name} {CANNOT_REJOIN}")
        if peer.name in begins:
            last = max((known.step for known in standings.values()), default=-1)
            self._first_steps[peer.name] = max(last + 1, roster.pace)
        slices = self.layout.slices
        cohorts = tuple(dict.fromkeys(tree.cohort(leaf, self._sync_group) for leaf in leaves))
        body = pack_turns(
            [
                self._gathering.closed(slice_.index, name)
                for slice_ in slices
                for name in (cohorts[0], EVERYONE)
            ]
        )
        reached = self.state.reached_by(peer.name)
        told = msgspec.structs.replace(told, standings=standings, reached=reached, size=body.numel())
        self._host.send(peer, told, body)
        for update, values in self.state.updates(cohorts, partial(self._belong, leaves), self._has_workers):
            slice_, is_answer = slices[update.slice], values is not None
            is_answer = is_answer and slice_.role == "call"  # for whoever has not got it
            message = msgspec.structs.replace(update, kind="call") if is_answer else update
            self._host.send(peer, message, values, priority_of(slice_))

    def standings(self, turns: Mapping[str, int]) -> dict[str, Standing]:
        """Where cohorts stand, of which these turns have closed last."""
        return {cohort: self.state.standing(cohort, turn) for cohort, turn in turns.items()}

    def possible(self, step: int, cohort: str, turn: int, everyones: int) -> int:
        """A step of the policy as somebody has told it of a turn; where that is too far, the last that it can be.

        Else one could send joiners where nobody is. `everyones`: the last turn of everybody that has closed, behind
        which means of parties and regions are, before the run's next.
        """
        is_common = self._gathering.is_common(cohort)
        known = self.state.standing(cohort if is_common else EVERYONE)
        turn = turn if is_common else max(everyones, known.step_turn) + 1
        furthest = self._furthest(known.step, max(0, turn - known.step_turn))
        return step if furthest is None else min(step, furthest)

    @property
    def serves_weights(self) -> bool:
        """Whether the weights are on the servers, and not on the workers alone."""
        return self._settings.get("optimizer") != WORKERS

    def _belong(self, leaves: tuple[str, ...], cohort: str) -> bool:
        return self._members.of(cohort).issuperset(leaves)

    def _standings_for(self, leaves: tuple[str, ...], first: Mapping[str, int]) -> dict[str, Standing]:
        """Where the cohorts stand to which all of these belong. `first`: the first turns of whoever has come back."""
        closed = self._gathering.all_closed().items()
        here = self.standings({name: turn for name, turn in closed if self._belong(leaves, name)})
        behind = {  # what others have closed since is not over for it
            name: known.behind(known.step_turn)
            for name, known in self._host.attendance.roster.standings.items()
            if name in first and known.step_turn < first[name]
        }
        return latest(here, behind)

    def _to_come(
        self, begins: Mapping[str, dict[str, int]], standings: Mapping[str, Standing]
    ) -> dict[str, dict[str, int]]:
        """Of those who begin with some turns: who has not begun yet."""
        closed = self._gathering.all_closed() | {name: known.turn for name, known in standings.items()}
        return {
            name: turns
            for name, turns in begins.items()
            if all(
                turns.get(cohort, 0) > turn
                for cohort, turn in closed.items()
                if name in self._members.of(cohort)
            )
        }

    def _let_in(self, peer: Peer) -> None:
        if self._members.has_left(self._edges.children[peer.name]) and not self._host.readmits(peer):
            self._host.send(peer, Over(has_left=True))
        elif peer.name in self._members.out:
            self._host.attendance.asks(peer.name, peer.session.incarnation)
        else:
            self.welcome(peer)


def _goes_on_from(slice_: Slice, update: Update) -> bool:
    return slice_.role != "weight" or sets_weights(update.kind, update.cohort)
