"""How fast bytes leave for each peer, while there are some to be sent, and the most that passes in all."""

from __future__ import annotations

from geomx.node.contract import MEASURED_EVERY_S, Measured
from geomx.wire.overlay_messages import Rates

LEAST_BYTES, LEAST_S = 64 << 10, 0.02  # less tells nothing: the kernel takes it at once
ENOUGH_BYTES = 4 << 20  # in however short a time


class Meter:
    """Of one node, by peer."""

    def __init__(self) -> None:
        self._bytes: dict[str, float] = {}
        self._busy_s: dict[str, float] = {}
        self._leaving = self._entering = 0

    def take_in(self, measured: Measured) -> None:
        """What the driver has seen of late."""
        self._leaving = max(self._leaving, measured.leaving)
        self._entering = max(self._entering, measured.entering)
        for peer, (size_bytes, busy_s) in measured.sent.items():
            self._bytes[peer] = self._bytes.get(peer, 0.0) + size_bytes
            self._busy_s[peer] = self._busy_s.get(peer, 0.0) + busy_s

    def take(self) -> Rates | None:
        """What there is to be told since the last time."""
        found = {
            peer: size / max(self._busy_s[peer], LEAST_S / 20)
            for peer, size in self._bytes.items()
            if size >= ENOUGH_BYTES or (size >= LEAST_BYTES and self._busy_s[peer] >= LEAST_S)
        }
        for peer in found:
            del self._bytes[peer], self._busy_s[peer]
        if not found and not self._entering:
            return None
        rates = Rates(found, self._leaving / MEASURED_EVERY_S, self._entering / MEASURED_EVERY_S)
        self._leaving = self._entering = 0
        return rates
