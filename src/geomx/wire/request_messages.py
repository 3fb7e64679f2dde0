"""Requests of a worker to whoever answers them, and what that says; see `geomx.node.requests`."""

from __future__ import annotations

from geomx.wire.roster_messages import Message


class Request(Message, frozen=True, array_like=True, tag=True):
    """From a worker, or a row server, to the holder of this place. `what`, and the payload: the business of those two.

    `number`: from 1, rising, of those of this worker to this place; `incarnation`: of its script.
    `shard`: the place, see `Tree.holders`.
    """

    worker: str
    incarnation: int
    number: int
    shard: int
    what: bytes
    size: int = 0


class Response(Message, frozen=True, array_like=True, tag=True):
    """What a shard or a row server answers to a request of this worker, incarnation and number."""

    worker: str
    incarnation: int
    number: int
    shard: int
    what: bytes
    size: int = 0


class Told(Message, frozen=True, array_like=True, tag=True):
    """From the first shard to all others, and to row servers: what their services have to know."""

    what: bytes


class Present(Message, frozen=True, array_like=True, tag=True):
    """From the first shard to a row server: the workers that take part, as a bitmap by their places."""

    workers: bytes
