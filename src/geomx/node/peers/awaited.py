"""Peers that are lost and may come back: how long they are awaited, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Callable

from geomx.errors import NodeLost
from geomx.node.peers.peer import Peer


class Awaited:
    """`wait_s`: how long; 0: not at all. `stall_s`: how often it is told. `note(name, level, **fields)`: where."""

    def __init__(self, wait_s: float, stall_s: float, note: Callable[..., None]) -> None:
        self._wait_s = wait_s
        self._stall_s = stall_s
        self._note = note
        self._told: dict[str, float] = {}  # by name: when

    def lost(self, peer: Peer, now: float) -> bool:
        """A peer is lost: whether it is awaited at all. Raises `NodeLost` where that was in vain."""
        if not self._wait_s:
            return False
        timeout_s = peer.session.patience.timeout_s
        lost_s = max(0.0, peer.session.silent_s(now) - timeout_s)
        if lost_s > self._wait_s:
            why = f"silent for {timeout_s:g} s, and not back within {self._wait_s:g} s more"
            raise NodeLost(peer.name, f"{why} (run.wait_s)", may_return=True)
        if now - self._told.get(peer.name, -math.inf) >= self._stall_s:
            self._told[peer.name] = now
            self._note("awaited", "warning", peer=peer.name, seconds=self._wait_s - lost_s)
        return True

    def back(self, peer: Peer) -> None:
        """It has connected again."""
        self._told.pop(peer.name, None)

    def look(self, peer_of: Callable[[str], Peer | None], now: float) -> None:
        """Say of those that have never gone, but stood still, that they speak again."""
        for name in list(self._told):
            peer = peer_of(name)
            if peer is not None and peer.session.is_open and not peer.session.is_lost(now):
                del self._told[name]
                self._note("resumed", "info", peer=name)
