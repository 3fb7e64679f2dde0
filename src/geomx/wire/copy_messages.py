"""The messages about a shard's log in another shard's memory; see `geomx.node.durable.replicas`."""

from __future__ import annotations

from typing import Literal

from geomx.wire.roster_messages import Message


class Keep(Message, frozen=True, array_like=True, tag=True):
    """A piece of a record: the record's header is the first, and its payload the others.

    Records of a batch are kept together or not at all, and answered by `Kept`. `of`: "log", a batch up to record
    `number`; "cut", one that stands for all records up to that; "recalled", all that was kept, given back.
    `more_pieces`: of this record follow. `more_records`: of this batch.
    """

    number: int
    of: Literal["log", "cut", "recalled"]
    more_pieces: bool
    more_records: bool
    size: int


class Kept(Message, frozen=True, array_like=True, tag=True):
    """All records up to `number` are in memory. `cut`: as what stands for them."""

    number: int
    cut: bool = False


class Recall(Message, frozen=True, array_like=True, tag=True):
    """From a shard that has started: what was kept of it? Answered by `Keep`, and a `Recalled` behind them."""


class Begun(Message, frozen=True, array_like=True, tag=True):
    """From one shard to another that it has not met: the workers have taken a step, so both must have a log."""


class Recalled(Message, frozen=True, array_like=True, tag=True):
    """That was all. `number`: of the last record. `is_lost`: there was more, and it died with who kept it."""

    number: int
    is_lost: bool
