"""The messages about a shard's log in another shard's memory; see `geomx.node.durable.replicas`."""

from __future__ import annotations

from typing import Literal

from geomx.wire.roster_messages import Message


class Keep(Message, frozen=True, array_like=True, tag=True):
    """A piece of a record: the record's header is the first, and its payload the others. Answered by `Kept`.

    `of`: "log", of record `number`; "cut", of one that stands, with others, for all records up to `number`, of which
    "whole" is the last; "recalled", of one that is given back. `more`: further pieces of this record follow.
    """

    number: int
    of: Literal["log", "cut", "whole", "recalled"]
    more: bool
    size: int


class Kept(Message, frozen=True, array_like=True, tag=True):
    """All records up to `number` are in memory. `cut`: as what stands for them."""

    number: int
    cut: bool = False


class Recall(Message, frozen=True, array_like=True, tag=True):
    """From a shard that has started: what was kept of it? Answered by `Keep`, and a `Recalled` behind them."""


class Recalled(Message, frozen=True, array_like=True, tag=True):
    """That was all. `number`: of the last record. `is_lost`: there was more, and it died with its keeper."""

    number: int
    is_lost: bool
