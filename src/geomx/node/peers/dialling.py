"""Reaching the peers above: when they are dialled again, and when it is said why that does not work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from geomx.node.contract import Dial, Effect
from geomx.node.peers.peer import LAST_REDIAL_S, LATE_S, Peer


class DiallingHost(Protocol):
    """The node around it."""

    @property
    def now(self) -> float: ...
    def emit(self, effect: Effect) -> None: ...
    def after(self, delay_s: float, key: str, then: Callable[[], None]) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: Any) -> None: ...


class Dialling:
    """Of one node, which begins now."""

    def __init__(self, host: DiallingHost) -> None:
        self._host = host
        self._since = host.now

    def dial(self, peer: Peer) -> None:
        """Dial a peer, unless it is connected."""
        if not peer.session.conn:
            self._host.emit(Dial(peer.name))

    def again(self, peer: Peer) -> None:
        """Dial a peer after a pause that grows."""
        self._host.after(peer.redial_s, f"dial {peer.name}", lambda: self.dial(peer))
        peer.redial_s = min(2 * peer.redial_s, LAST_REDIAL_S)

    def trouble(self, peer: Peer, reason: str) -> None:
        """Say once why a peer cannot be reached; but that it is a moment late to start says nothing."""
        peer.trouble = reason
        if peer.is_beside:  # without it there is another way
            return
        if self._host.now - self._since >= LATE_S and peer.trouble_told != reason:
            peer.trouble_told = reason
            self._host.note("unreachable", "warning", peer=peer.name, reason=reason)
