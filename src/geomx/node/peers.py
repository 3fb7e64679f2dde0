"""Who stands at the ends of an edge, and what the two must agree on before they talk."""

from __future__ import annotations

from dataclasses import dataclass, field

from geomx.errors import Fenced, GeomxError, NodeLost, Refused, RunFailed
from geomx.protocol.messages import Difference, Failure, Refuse, Value
from geomx.protocol.session import Session

FIRST_REDIAL_S, LAST_REDIAL_S = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a node is, and which run it belongs to. `manifest`: what all nodes of a run must agree on."""

    name: str
    run: str
    incarnation: int = 1
    manifest: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a node's waits, in seconds; see `[limits]` in the run's description."""

    start_s: float = 300.0
    stall_s: float = 30.0
    stop_s: float = 10.0


@dataclass(slots=True)
class Peer:
    """The other end of one edge."""

    name: str
    session: Session
    dialled: bool  # whether we dial it
    redial_s: float = FIRST_REDIAL_S
    joined: bool = False


def as_failure(me: str, error: GeomxError) -> Failure:
    """What the others are told: the node that failed first, and why."""
    if isinstance(error, RunFailed):
        return Failure(error.node, error.error, error.reason)
    if isinstance(error, NodeLost):
        return Failure(error.node, "NodeLost", error.reason)
    return Failure(me, type(error).__name__, str(error))


def compare(theirs: dict[str, Value], ours: dict[str, Value]) -> tuple[Difference, ...]:
    """The fields in which two manifests differ."""
    absent = "(absent)"
    return tuple(
        Difference(key, str(theirs.get(key, absent)), str(ours.get(key, absent)))
        for key in sorted(theirs.keys() | ours.keys())
        if theirs.get(key, absent) != ours.get(key, absent)
    )


def refused(me: str, by: str, refusal: Refuse) -> GeomxError:
    """The error of a node that was not let in."""
    listed = "".join(f"\n  - {d.field}: {me} has {d.yours}, {by} has {d.ours}" for d in refusal.differences)
    kind = Fenced if refusal.code == "fenced" else Refused
    return kind(f"{by} refused {me}: {refusal.reason}{listed}")
