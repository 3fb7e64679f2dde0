"""The leaf of the tree: takes contributions from a training loop, and hands it what comes back.

See `geomx.node.port` for what the loop says and hears. The worker decides nothing and computes nothing itself: when
to push is the training loop's business, and arithmetic runs in jobs.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any, Literal

import msgspec
import torch

from geomx.channels.contract import BlockClasses
from geomx.codecs.contract import Codec
from geomx.errors import NodeLost, Refused, RunFailed
from geomx.layout import Layout, Slice
from geomx.node.contract import Notify
from geomx.node.peers.awaited import Awaited
from geomx.node.peers.base import BaseNode
from geomx.node.peers.beside import Companion, Siblings
from geomx.node.peers.peer import Handler, Identity, Limits, Peer, printable
from geomx.node.port import Allowed, Arrived, Asked, Away, Contribution, Departs, Fetched, Left, Ready
from geomx.node.requests import Responded
from geomx.node.same_data import keyed
from geomx.node.slices.blocks import flows_to
from geomx.node.slices.devices import HOST, Queued, on_host, placed
from geomx.node.slices.finite import tried
from geomx.node.slices.joined import Joined
from geomx.node.slices.priority import LAST
from geomx.node.slices.slice_state import Planes, copied, pack_state, under, unpack_state, within, without
from geomx.node.slices.update_stream import UpdateDecoder
from geomx.node.uplink import Uplink
from geomx.optim.contract import SliceState
from geomx.rounds.losses import Losses
from geomx.rounds.roster import reason
from geomx.tree import EVERYONE, Tree
from geomx.wire.messages import (
    Advice,
    Allowance,
    Hyperparameters,
    Of,
    Push,
    Reached,
    Sampled,
    State,
    Stepped,
    Update,
    Value,
)
from geomx.wire.request_messages import Request, Response
from geomx.wire.roster_messages import Roster, Turns
from geomx.wire.session import Patience


class Worker(BaseNode):
    """See the module's text. `parents`: its local server, or in a run of one the root. `classes`, `tree`: see `Uplink`.

    `job`: the others of its party, where they reduce among themselves: without any of them it can do nothing.
    `siblings`: see `BaseNode`. `skips`: see `geomx.node.slices.finite`.
    """

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        tree: Tree,
        parents: dict[str, Patience],
        up: Codec,
        down: UpdateDecoder,
        classes: BlockClasses | None = None,
        losses: Losses | None = None,
        returning: frozenset[str] = frozenset(),
        job: frozenset[str] = frozenset(),
        siblings: Siblings | None = None,
        skips: bool = False,
    ) -> None:
        losses = losses or Losses()
        super().__init__(
            identity,
            limits,
            parents,
            {},
            flows_to(parents, classes),
            returning if losses.may_return else None,
            siblings,
        )
        self._awaited = Awaited(losses.awaited_s, limits.stall_s, self.note)
        self._tree = tree
        self._uplink = Uplink(
            self,
            self,
            tree,
            up,
            down,
            skips,
            classes=classes,
            has_quorum=losses.quorum.share < 1.0,
        )
        self.measures = self.has_overlay
        self._life = identity.incarnation  # of the script, which stays where this node begins anew
        self._job = job
        self._out = frozenset[str]()  # who takes no part, as far as is known
        self._ready = False
        self._is_known = True  # to those above: what it says now they take for a member's
        self._leaving: tuple[dict[str, int], bool] | None = None  # its last turns, and whether it is early
        self._steps = -1  # that the loop has taken by itself
        self._loop_waits = False  # the training loop waits in a call of geomx
        self._devices: dict[int, torch.device] = {}  # by slice: where what it contributes is computed
        self._restoring: dict[int, Planes] = {}  # by slice: what its next `assign` brings with it

    # -- calls of the training loop ------------------------------------------------------------------------

    def attach(self, layout: Layout, settings: dict[str, Value]) -> None:
        self._uplink.attach(layout, settings)

    def contribute(self, contribution: Contribution) -> None:
        """Push one slice. `contribution.values` belongs to this node from now on."""
        origins = {self.name: self.identity.incarnation}
        digest = b"" if contribution.hyper is None else self._digest(contribution.hyper)
        push = msgspec.structs.replace(contribution.push, origins=origins, hyper=digest)
        values = contribution.values
        if isinstance(values, Queued):
            self._devices[push.slice] = values.values.device
            if push.drains:
                self._uplink.hand_over(push, partial(_handed_over, values), waits=True)
            else:
                self._uplink.push_queued(push, values)
        elif push.kind == "assign":
            self._assign(push, contribution, values)
        elif push.drains:
            self._uplink.hand_over(push, lambda: values)
        else:
            self._uplink.push(push, lambda _: values, 0)

    def _assign(self, push: Push, contribution: Contribution, weights: torch.Tensor | None) -> None:
        state = contribution.state or SliceState()
        self._restoring[push.slice] = within("worker/", state.planes)
        others = SliceState(without("worker/", state.planes), state.scalars)
        values, planes, scalars = pack_state(weights, others)
        self._uplink.push_raw(msgspec.structs.replace(push, planes=planes, scalars=scalars), values)

    def fetch(self, index: int, of: Of | Literal["worker"], server: str = "") -> None:
        if of != "worker":
            below = of == "root" and self._uplink.down.deltas
            self._uplink.fetch(index, index, "exact" if below else of, server)
            return
        slice_ = self._slice(index)

        def found() -> SliceState:
            kept = self._uplink.kept(slice_)
            if not slice_.stored:  # its anchor is the live weights
                kept.pop("anchor", None)
            return SliceState(copied(under("worker/", kept)))

        self._uplink.slice_jobs.run(index, found, lambda state: self.emit(Notify(Fetched(index, state))), 0)

    def ask(self, shard: int, number: int, what: bytes, payload: Any) -> None:
        size = 0 if payload is None else payload.nbytes
        request = Request(self.name, self._life, number, shard, what, size)
        self._uplink.ask(request, payload)

    def reached(self, message: Reached) -> None:
        self._uplink.reached(message)

    def stepped(self, turn: int, steps: int, seconds: float) -> None:
        self._uplink.for_first_shard(Stepped(self.name, turn, steps, seconds))

    def sampled(self, digests: dict[int, bytes]) -> None:
        self._uplink.for_first_shard(Sampled(self.name, keyed(digests, self.identity)))

    def paced(self, steps: int) -> None:
        self._steps = steps

    def pace(self) -> int:
        return self._steps

    def waits(self, does: bool) -> None:
        self._loop_waits = does

    def is_idle(self) -> bool:
        return self._loop_waits

    def give_up(self, reason: str) -> None:
        """The script cannot go on, but others can: the run is not told, and loses this worker."""
        self.stop(RunFailed(self.name, reason))

    def leave(self, turns: dict[str, int], early: bool = False) -> None:
        def take_leave(priority: int = 0) -> None:
            self._leaving = turns, early
            self._uplink.leave(turns, (self.name,), early, priority)

        def end() -> None:
            take_leave()
            self._end()

        # Behind what it hands over, so that a turn which waits for this worker has that.
        self._uplink.slice_jobs.behind_all(lambda: take_leave(LAST if early else 0))
        if early:  # whether those above have all of it, or not
            self.after(self.limits.stop_s, "leave", end)

    def _take_leave_again(self) -> None:
        if self._leaving is not None:
            turns, early = self._leaving
            self._uplink.leave(turns, (self.name,), early)

    def _digest(self, hyper: Hyperparameters) -> bytes:
        digest = hashlib.blake2b(msgspec.msgpack.encode(sorted(hyper.items())), digest_size=8).digest()
        self._uplink.hyper(digest, hyper)
        return digest

    # -- what comes down --------------------------------------------------------------------------------------

    def _handler_of(self, peer: Peer) -> Handler:
        return self._uplink

    @property
    def companion(self) -> Companion | None:
        return self._uplink.relay

    def attached(self, told: Joined) -> None:
        self._ready = self._is_known = True
        begins = told.begins.get(self.name, {})
        if begins:
            self._uplink.down.forget()
        self._uplink.push_again((), {self.name: begins}, is_back=bool(begins))
        self._take_leave_again()
        self._out = frozenset(told.out)
        self.emit(Notify(Ready(told.closed, told.standings, told.reached, begins, told.roster)))

    def roster(self, roster: Roster) -> None:
        before, self._out = self._out, frozenset(self._tree.workers_in(roster.out))
        self.emit(Notify(Away(roster)))
        why = reason(self._tree.workers_in(roster.joined), roster.why)
        self.note("roster", number=roster.number, out=len(self._out - self._tree.guests), reason=why)
        if gone := sorted(self._job & self._out - before):
            self.stop(
                NodeLost(gone[0], f"{self.name} is of one job with it, which ends with any of its workers")
            )

    def over(self, has_left: bool) -> None:
        if self._leaving is not None:
            self._end()
        elif has_left:
            self.stop(Refused(f"{self.name} has left this run, which continues without it"))
        else:
            why = "the run has ended, and this worker took no part in its end"
            self.stop(NodeLost(self._uplink.parents[0], why))

    def retire(self) -> None:
        self.after(self.limits.stop_s, "retire", self._retire_late)
        self.emit(Notify(Asked()))

    def _retire_late(self) -> None:
        """Its server ends now; to wait for another one would be in vain."""
        if self._leaving is None:
            why = f"it was to leave with its server, and has not within {self.limits.stop_s:g} s (limits.stop_s)"
            self.stop(NodeLost(self.name, why))

    def departed(self, left: tuple[Turns, ...]) -> None:
        for group in left:
            self.emit(Notify(Departs(group.workers, group.turns.get(EVERYONE, -1))))

    # -- those above -------------------------------------------------------------------------------------------

    def on_anew(self) -> None:
        self._is_known = self._uplink.layout is None
        self._uplink.attach_anew()
        if self._is_known:
            self._take_leave_again()

    def on_open(self, peer: Peer, first: bool) -> None:
        self._awaited.back(peer)

    def on_lost(self, peer: Peer) -> None:
        if not self._awaited.lost(peer, self._now):
            super().on_lost(peer)

    def on_tick(self) -> None:
        self._awaited.look(self.peer, self._now)
        self._end_if_quiet()  # those beside it may have acknowledged what they were sent last

    def answered(self, update: Update, payload: Any) -> None:
        slice_ = self._slice(update.slice)
        down = self._uplink.down
        payload = down.news(slice_, update, payload)
        device = self._devices.get(slice_.index, HOST)

        def work() -> torch.Tensor | None:
            if payload is None:
                return None
            values = down.unpack(slice_, update.kind, payload, update.cohort)
            return values if device == HOST else placed(values, device)

        def done(values: torch.Tensor | None) -> None:
            if update.kind == "assign" and values is not None and slice_.index in self._restoring:
                self._uplink.restore(slice_, self._restoring.pop(slice_.index))
            self.emit(Notify(Arrived(update, values)))

        cost_bytes = down.codec.cost_bytes(slice_)
        self._uplink.slice_jobs.run(slice_.index, work, done, cost_bytes, waits=device != HOST)

    def told(self, message: Allowance | Advice) -> None:
        if isinstance(message, Advice):
            self.note("advised", "warning", text=printable(message.text))
        else:
            self.emit(Notify(Allowed(message.turn, message.steps)))

    def responded(self, response: Response, payload: Any) -> None:
        self.emit(Notify(Responded(response.number, response.shard, response.what, payload)))

    def fetched(self, state: State, payload: Any) -> None:
        self.emit(Notify(Fetched(state.slice, unpack_state(self._slice(state.slice), state, payload))))

    def _slice(self, index: int) -> Slice:
        assert self._uplink.layout is not None  # a training loop attaches first
        return self._uplink.layout.slices[index]

    # -- the end ----------------------------------------------------------------------------------------------

    def on_acknowledged(self, peer: Peer) -> None:
        self._end_if_quiet()

    def _end_if_quiet(self) -> None:
        if self._leaving is not None and self._is_known and self._uplink.quiet:
            self._end()

    def _end(self) -> None:
        self.emit(Notify(Left()))
        self.stop()

    def waits_for(self) -> list[str]:
        return [] if self._ready else super().waits_for()


def _handed_over(queued: Queued) -> torch.Tensor | None:
    values, _ = tried(lambda: on_host(queued.taken()), skips=True)
    return values
