"""The sink of a local server: adds what its members contributed, pushes the sum, and passes the answer down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch

from geomx.channels.contract import BlockClasses
from geomx.codecs.contract import Codec
from geomx.errors import ProtocolError
from geomx.layout import Layout, Slice
from geomx.node.durable.records import Record
from geomx.node.server import Server
from geomx.node.slices.accumulate import accumulator
from geomx.node.slices.finite import Sum, annotated, skipped, tried, when
from geomx.node.slices.joined import Joined, ungrouped
from geomx.node.slices.payloads import has_values
from geomx.node.slices.slice_state import (
    Planes,
    answer_state,
    copied,
    pack_state,
    planes_of,
    under,
    unpack_state,
    unpack_weights,
    within,
    without,
)
from geomx.node.slices.update_stream import EXACT, UpdateDecoder, decoded
from geomx.node.uplink import Uplink
from geomx.optim.contract import SliceState
from geomx.rounds.round import Round
from geomx.wire.messages import UNREAD, Advice, Allowance, Fetch, Push, State, Update, Value
from geomx.wire.request_messages import Response
from geomx.wire.roster_messages import Complete, Roster, Turns


class Aggregator:
    """See the module's text. `above`: the way to the parents.

    `skips`: see `geomx.node.slices.finite`. `classes`: see `Uplink`.
    """

    is_top = False
    state = None

    def __init__(
        self,
        server: Server,
        up: Codec,
        down: UpdateDecoder,
        skips: bool = False,
        classes: BlockClasses | None = None,
    ) -> None:
        self._server = server
        self._skips = skips
        self.above = Uplink(
            server,
            self,
            server.members.tree,
            up,
            down,
            skips,
            classes,
            server.losses.quorum.share < 1.0,
        )
        self.companion = self.above.relay
        self._layout: Layout | None = None
        self._replies: dict[int, Callable[[State, Any], None]] = {}
        self._tokens: dict[int, int] = {}
        self._token = 0
        self._awaited: set[int] | None = None  # slices of a run that this server joins
        # Answers that came before all parents have said where the run stands; None behind that. They wait, since a
        # server that was cut off forgets at that moment what it knew.
        self._early: list[tuple[Update, Any]] | None = []
        self._restoring: dict[
            int, Planes
        ] = {}  # by slice: what the `assign` under way brings for this server

    # -- up -------------------------------------------------------------------------------------------------

    def holds(self, layout: Layout) -> list[Slice]:
        return list(layout.slices)

    def attach(self, layout: Layout, settings: dict[str, Value]) -> None:
        self._layout = layout
        self.above.attach(layout, settings)

    def closed(self, slice_: Slice, round_: Round) -> None:
        push = round_.merged()
        if round_.kind == "assign":
            self._assign(slice_, round_, push)
            return
        assert self._layout is not None  # rounds come behind the model
        decoders = self._server.decoders(slice_, round_)
        total = Sum(self._server.name, self._layout, slice_, round_, decoders)
        if round_.kind == "mean" and round_.cohort and self._server.members.has_all_of(round_.cohort):
            self._average(total)
            return
        self.above.push(push, total.of, 3 * (len(decoders) * slice_.size_bytes + round_.call_bytes))

    def _average(self, total: Sum) -> None:
        """The mean of a cohort that lies wholly below this server: nobody above needs to know."""
        slice_, round_ = total.slice_, total.round_
        update = Update(
            round_.turn, slice_.index, "mean", round_.weight, round_.present, round_.reading, round_.cohort,
            step=round_.step,
        )  # fmt: skip
        if not round_.weight or not total.decoders:
            self.above.slice_jobs.after(slice_.index, lambda: self._server.answer(update, None))
            return
        if not slice_.dtype.startswith("float"):
            raise ProtocolError(f"slice {slice_.index} is {slice_.dtype}: it has no mean")

        def work() -> tuple[torch.Tensor | None, str]:
            values, fault = tried(total.of, self._skips)
            if values is None:
                return None, fault
            mean = values.div_(round_.weight)
            return self._server.down.pack(slice_, "mean", round_.turn, mean, round_.cohort), ""

        def done(result: tuple[torch.Tensor | None, str]) -> None:
            data, fault = result
            if fault:
                self._server.note("skipped", "warning", **skipped(round_.step, round_.turn, "1 slice", fault))
            self._server.answer(update, data)

        cost_bytes = (3 * len(total.decoders) + 2) * slice_.size_bytes
        self.above.slice_jobs.run(slice_.index, work, done, cost_bytes)

    def _assign(self, slice_: Slice, round_: Round, push: Push) -> None:
        """Take what is this server's out of what the workers brought; the first that has more goes on."""

        def work() -> tuple[Push, Any]:
            mine: Planes = {}
            chosen: tuple[Push, Any] = push, None
            for each, payload in round_.in_order():
                if payload is None:
                    continue
                state = unpack_state(slice_, each, payload)
                mine |= within(planes_of(self._server.name), state.planes)
                state.planes = without(planes_of(self._server.name), state.planes)
                weights = unpack_weights(slice_, payload) if has_values(each, slice_) else None
                if chosen[1] is None and (state.planes or weights is not None):
                    data, planes, scalars = pack_state(weights, state)
                    header = msgspec.structs.replace(
                        push, present=each.present, planes=planes, scalars=scalars
                    )
                    chosen = header, data
            self._restoring[slice_.index] = mine
            return chosen

        self.above.slice_jobs.run(slice_.index, work, lambda chosen: self.above.push_raw(*chosen), 0)

    def hand_over(self) -> None:
        for slice_ in self._layout.slices if self._layout is not None else ():
            if slice_.role == "weight":
                self._hand_over(slice_)

    def _hand_over(self, slice_: Slice) -> None:
        waiting = self._server.handed_over.pop(slice_.index)
        weight = sum(push.weight for push, _ in waiting)
        origins = dict.fromkeys(self._server.members.order, 0)
        push = Push(0, slice_.index, "gradient", "", weight, origins, None, b"", UNREAD)
        add = accumulator(getattr(torch, slice_.dtype)).add

        def values() -> torch.Tensor | None:
            return add([decoded(EXACT, slice_, push.origins, payload) for push, payload in waiting])

        self.above.hand_over(push, values)

    def fetch(self, fetch: Fetch, reply: Callable[[State, Any], None]) -> None:
        if fetch.of == "server" and fetch.server == self._server.name:
            assert self._layout is not None
            slice_ = self._layout.slices[fetch.slice]

            def found() -> SliceState:
                kept = self.above.kept(slice_) | under("down.", self._server.down.kept(slice_))
                return SliceState(copied(under(planes_of(self._server.name), kept)))

            answer_state(self.above.slice_jobs, slice_, fetch.token, found, reply)
            return
        self._token += 1
        self._replies[self._token] = reply
        self._tokens[self._token] = fetch.token
        self.above.fetch(self._token, fetch.slice, fetch.of, fetch.server)

    # -- down -----------------------------------------------------------------------------------------------

    def attached(self, told: Joined) -> None:
        self._awaited = {index for index, turns in told.closed.items() if max(turns) >= 0}
        self._server.stands(told)
        early, self._early = self._early or [], None
        for update, payload in early:
            self.answered(update, payload)
        for push in self.above.push_again(self._server.members.out, told.begins):
            self._server.reopen(push)
        for name, turns_left in self._server.members.left(self._server.members.order).items():
            self.above.leave(turns_left, (name,), name in self._server.attendance.departed)
        self._open_if_current()

    def agrees(self, turn: Complete) -> bool:
        return True

    def forget(self) -> None:
        self.above.down.forget()

    def renewed(self, name: str) -> None:
        """Its parents; see `begin_anew`."""

    def replay(self, record: Record) -> None:
        """A local server keeps no log: what it knows, those above and below know too."""

    def begin_anew(self) -> None:
        self._awaited, self._early = None, []
        self.above.attach_anew()

    def _open_if_current(self) -> None:
        """Those below may begin as soon as this server has of every slice what those above have."""
        if self._awaited is not None and not self._awaited:
            self._awaited = None
            self._server.reception.open()

    def roster(self, roster: Roster) -> None:
        self._server.attendance.told(roster)

    def over(self, has_left: bool) -> None:
        self._server.over()

    def retire(self) -> None:
        self._server.retire()

    def departed(self, left: tuple[Turns, ...]) -> None:
        self._server.attendance.depart(ungrouped(left, self._server.members.tree))

    def answered(self, update: Update, payload: Any) -> None:
        if self._early is not None:
            self._early.append((update, payload))
            return
        assert self._layout is not None
        slice_ = self._layout.slices[update.slice]
        decoder, encoder = self.above.down, self._server.down
        payload = decoder.news(slice_, update, payload)
        is_of_all = bool(slice_.row) or update.kind == "call"  # through any codec
        alike = is_of_all or (decoder.codec.lossless and type(decoder.codec) is type(encoder.codec))
        if payload is None or alike or (encoder.passes and not decoder.deltas):  # the same bytes serve below
            self.above.slice_jobs.after(slice_.index, lambda: self._down(slice_, update, payload))
            return

        def work() -> Any:
            values = decoder.unpack(slice_, update.kind, payload, update.cohort)
            if not encoder.passes:
                whose = f"{self._server.name} cannot pass on"
                with annotated(self._layout, slice_, values, whose, when(-1, update.turn)):
                    return encoder.pack(slice_, update.kind, update.turn, values, update.cohort)
            encoder.sent(slice_, update.kind, values, update.cohort)
            return payload

        self.above.slice_jobs.run(
            slice_.index,
            work,
            lambda data: self._down(slice_, update, data),
            decoder.codec.cost_bytes(slice_) + (0 if encoder.passes else encoder.codec.cost_bytes(slice_)),
        )

    def _down(self, slice_: Slice, update: Update, payload: Any) -> None:
        if update.kind == "assign" and payload is not None and slice_.index in self._restoring:
            kept = self._restoring.pop(slice_.index)
            self.above.restore(slice_, kept)
            self._server.down.restore(slice_, within("down.", kept))
        if update.missed and self._server.has_closed(slice_, update.cohort, update.turn):
            update = msgspec.structs.replace(update, missed=b"")  # what they have given goes on from here
        self._server.answer(update, payload)
        if self._awaited is not None:
            self._awaited.discard(slice_.index)
            self._open_if_current()

    def told(self, message: Allowance | Advice) -> None:
        self._server.tell(message)

    def responded(self, response: Response, payload: Any) -> None:
        self._server.tell(response, payload)

    def fetched(self, state: State, payload: Any) -> None:
        reply = self._replies.pop(state.token, None)
        if reply is None:
            raise ProtocolError(f"State came for a Fetch {state.token} that nobody made")
        reply(msgspec.structs.replace(state, token=self._tokens.pop(state.token)), payload)
