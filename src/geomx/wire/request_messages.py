"""Requests of a worker to a shard, and what it answers; see `geomx.node.requests`."""

from __future__ import annotations

from geomx.wire.roster_messages import Message


class Request(Message, frozen=True, array_like=True, tag=True):
    """From a worker to the shard of this place. `what`, and the payload: the business of those two.

    `number`: from 1, rising, of those of this worker to this shard; `incarnation`: of its script.
    """

    worker: str
    incarnation: int
    number: int
    shard: int
    what: bytes
    size: int = 0


class Response(Message, frozen=True, array_like=True, tag=True):
    """What a shard answers."""

    worker: str
    number: int
    shard: int
    what: bytes
    size: int = 0
