"""Whether anything still happens, or a run stands still for good.

Who is silent is lost after `timeout_s`. But nodes that beat and never go on are not silent: where a message was lost
for good, everybody would wait for ever. So each node says in its heartbeats for how long it has been *still*: it has
received nothing, nothing that it has sent is under way, none of its jobs runs, and where it is a worker, the training
loop waits in a call of geomx. A shard below which all are still knows for certain that nobody will speak again; a
worker that is in the script's own code, however long, is never still.

Upwards a node says the least of its own stillness, its children's and its other parents'; downwards its own alone. So
what it says does not come back to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from geomx.node.peers.peer import Peer


class Stillness:
    """Of one node. Times are the `now` of its events, in seconds."""

    def __init__(self) -> None:
        self._moved_at = 0.0
        self.jobs = 0  # that run

    def moved(self, now: float) -> None:
        """Something has happened here."""
        self._moved_at = now

    def own_s(self, peers: Iterable[Peer], now: float) -> float:
        """For how long this node has been still towards these peers; 0: it is not."""
        if self.jobs or not all(map(_is_level, peers)):
            return 0.0
        return now - self._moved_at


def least_s(own_s: float, peers: Iterable[Peer]) -> float:
    """For how long a node and these peers have been still."""
    return min([own_s, *(peer.still_s for peer in peers)])


def _is_level(peer: Peer) -> bool:
    """Whether each end of an open session has all that the other has sent."""
    session = peer.session
    return session.is_open and not session.unacknowledged and peer.sent == session.received
