"""How far one node is, in a line now and then: for nodes that were started by hand, which no live view shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from geomx.observe.datagrams import LostShares
from geomx.observe.progress import bytes_above, few
from geomx.observe.rates import Rate
from geomx.observe.records import Record, number
from geomx.observe.sentences import counted

EVERY_S = 20.0


class NodeProgress:
    """Takes the records of one node.

    `ends`: of a server, see `ends_above`. `every_s`: seconds from one line to the next, at least.
    """

    def __init__(self, ends: Sequence[str] = (), every_s: float = EVERY_S) -> None:
        self._ends = ends
        self._every_s = every_s
        self._told_s: float | None = None
        self._rounds: Counter[str] = Counter()  # by cohort
        self._steps, self._samples = 0, 0.0
        self._loss: float | None = None
        self._out = ""  # who takes no part
        self._pace, self._up, self._down = Rate(), Rate(), Rate()  # rounds or samples; bytes over the WAN
        self._shares = LostShares()  # of datagrams, up

    def take(self, record: Record) -> str | None:
        """Learn from a record; gives a line where it is time for one."""
        if not self._learn(record):
            return None
        if self._told_s is None:
            self._told_s = record.t
        if record.t - self._told_s < self._every_s:
            return None
        self._told_s = record.t
        return self._line(record.t)

    def _learn(self, record: Record) -> bool:
        """Whether the node has got on."""
        fields = record.fields
        if record.name == "usage":
            up, down = bytes_above(fields, self._ends)
            self._up.reach(record.t, up)
            self._down.reach(record.t, down)
            self._shares.take(record)
        elif record.name == "roster":
            self._out = _out_of(fields["out"])
        elif record.name == "log":
            loss = number(fields.get("loss"))
            self._loss = self._loss if loss is None else loss
        elif record.name == "step":
            self._steps += 1
            self._samples += fields["samples"]
            self._pace.reach(record.t, self._samples)
            return True
        elif record.name == "round" and fields["kind"] == "gradient":
            self._rounds[fields["cohort"]] += 1
            self._pace.reach(record.t, max(self._rounds.values()))
            return True
        return False

    def _line(self, now: float) -> str:
        shares = self._shares.words(now)
        if self._steps:
            loss = "" if self._loss is None else f", loss {self._loss:.4f}"
            samples = f", {self._pace.at(now):,.0f} samples/s" if self._samples else ""  # none is counted
            return f"step {self._steps:,}{loss}{samples}{shares}{self._out}"
        up, down = 8e-6 * self._up.at(now), 8e-6 * self._down.at(now)
        wan = f", WAN up {up:.1f} down {down:.1f} Mbit/s" if up or down else ""
        return (
            f"round {max(self._rounds.values()):,}, {self._pace.at(now):.3g} rounds/s{wan}{shares}{self._out}"
        )


def _out_of(told: str | int) -> str:
    """Who takes no part by a roster: a server's names them, a worker's says how many they are."""
    if isinstance(told, int):
        return f", {counted(told, 'worker')} out" if told else ""
    return f", {few(told.split(', '))} out" if told else ""
