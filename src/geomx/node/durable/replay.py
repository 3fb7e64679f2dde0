"""A shard that is started in the place of another decides again what stands in its log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from geomx.layout import Slice
from geomx.node.durable.cut import CutHost, put_back
from geomx.node.durable.records import (
    ClosedRound,
    CutState,
    HandedIn,
    Promised,
    Record,
    Served,
    read,
    round_of,
)
from geomx.node.round_sink import RoundSink
from geomx.rounds.gathering import Gathering
from geomx.rounds.round import Round
from geomx.rounds.step_control import StepControl
from geomx.rounds.turn_log import TurnLog
from geomx.tree import EVERYONE
from geomx.wire.messages import Attach, Leave
from geomx.wire.request_messages import Request


class Replayed(CutHost, Protocol):
    """The server that is started."""

    sink: RoundSink

    def closed(self, slice_: Slice, round_: Round) -> None: ...


class Replay:
    """Of one server. `has_calls`: whether turns of the whole run are calls between the steps of cohorts."""

    def __init__(
        self,
        server: Replayed,
        gathering: Gathering,
        turns: TurnLog,
        step_control: StepControl,
        has_calls: bool,
    ) -> None:
        self._server, self._gathering, self._turns = server, gathering, turns
        self._step_control, self._has_calls = step_control, has_calls

    def all(self, records: Iterable[tuple[bytes, Any]]) -> None:
        """What stands in the log, from its beginning."""
        with self._server.journal.replaying():
            for header, payload in records:
                self._one(read(header), payload)
        self._server.attendance.begins_again()

    def _one(self, record: Record, payload: Any) -> None:
        server = self._server
        if isinstance(record, Promised):
            slice_, round_ = server.slice_of(record.round.slice), round_of(record.round, payload)
            self._gathering.promised(slice_, round_)
            server.journal.promised(slice_.index, round_)
        elif isinstance(record, HandedIn):
            of = record.contribution
            server.handed_over.put_back(record.giver, (of.place, of.push, payload))
        elif isinstance(record, ClosedRound):
            slice_, round_ = server.slice_of(record.slice), round_of(record, payload)
            kept = self._gathering.turns.close(record.slice, record.cohort, record.turn)
            if record.contributions is None and kept is not None:
                round_ = kept
            if record.cohort == EVERYONE and self._has_calls:
                self._gathering.at_barrier(round_.origins.keys(), record.turn, server.now)
            for _, push, _ in round_.contributions:
                self._turns.opened(push, next(iter(push.origins)), server.now)
            server.closed(slice_, round_)
        elif isinstance(record, Attach):
            server.reception.take_model(record, payload)
        elif isinstance(record, Leave):
            server.members.leave(record.origins, record.turns)
            self._step_control.left(record.origins)
            server.sink.above.others_take_part()
            if record.early:
                server.attendance.depart(dict.fromkeys(record.origins, record.turns))
        elif isinstance(record, Request | Served):
            self._asked(record, payload)
        elif isinstance(record, CutState):
            assert server.sink.state is not None  # others keep no log
            put_back(server, server.sink.state, self._gathering, record, payload)
        else:
            server.sink.replay(record)

    def _asked(self, record: Request | Served, payload: Any) -> None:
        assert self._server.sink.state is not None  # others keep no log
        asked = self._server.sink.state.above.asked
        if isinstance(record, Served):
            asked.put_back(record, payload)
        else:
            asked.again(record, payload if record.size else None)
