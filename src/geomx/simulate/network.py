"""The simulated network: how its links behave, and what stands on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Network:
    """How the links behave. Shares are per message; `rate_mbps` 0: no limit; `cut`: nothing leaves."""

    rate_mbps: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # share of messages that are held up, so that later ones overtake them
    cut: bool = False


@dataclass(slots=True)
class SimulatedLink:
    """One direction between two nodes: what waits to be sent, most urgent first."""

    network: Network
    queue: list[tuple[int, int, list[Any]]] = field(default_factory=list)
    busy: bool = False
    last_delivery: float = 0.0
    silent_until: float = 0.0
    sent_bytes: int = 0


@dataclass(slots=True)
class SimulatedConnection:
    """Both ends' view of one connection: (node, its connection number)."""

    ends: dict[str, tuple[str, int]]  # node -> (other node, the other's number)
    alive: bool = True
