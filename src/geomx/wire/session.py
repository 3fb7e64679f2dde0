"""One edge's conversation, which outlives its connections.

Rules
1. Messages are numbered 1, 2, 3, ... in each direction, in the order in which they were sent. Number 0 is
   for what belongs to one connection alone: Challenge, Hello, Welcome, Refuse, Ack, Beat, Gone, Failure.
2. A sender keeps every numbered message until the receiver has acknowledged it, and sends the same
   bytes again where that is needed.
3. A receiver delivers each number once, in whatever order they come (lanes overtake each other). It holds a
   watermark and the numbers above it, never more than `WINDOW` of them.
4. A session is known by (node, incarnation). The same incarnation resumes, a greater one begins anew and
   fences the older off.
5. Silence is the sign of death that counts: a stopped process still accepts connections. Beside it counts only that
   one connection after the other breaks before a message is through.

States, and what moves a session between them:

    NEW   --Welcome-->   OPEN
    OPEN  --connection gone, or silent for half of timeout_s (the dialler hangs up)-->   AWAY
    AWAY  --Welcome-->   OPEN            (what was not acknowledged is sent again)
    OPEN, AWAY  --silent for timeout_s, or breaks_always-->   LOST      (for good)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from geomx.errors import ProtocolError
from geomx.layout import MOST_SLICES
from geomx.wire.messages import payload_size
from geomx.wire.roster_messages import Message

WINDOW = 2 * MOST_SLICES  # a joiner is sent every slice as it stands, and may be sent the next turn behind it
MOST_FRUITLESS = 5  # connections in a row that break before one message is through
ACK_EVERY_MESSAGES = 32
ACK_EVERY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """How an edge's liveness is judged. `resend_s`: for channels that lose single messages; 0: never."""

    heartbeat_s: float = 1.0
    timeout_s: float = 15.0
    resend_s: float = 0.0


class Sent(NamedTuple):
    """A numbered message that has not been acknowledged."""

    message: Message
    payload: Any
    priority: int
    at: float


class Session:
    """The state of one edge, at one of its ends. Times are the `now` of the node's events."""

    __slots__ = (
        "_above",
        "_ack_bytes",
        "_ack_messages",
        "_fruitless_since",
        "_held",
        "_holds",
        "_known_at_opening",
        "breaks_always",
        "conn",
        "fruitless",
        "heard",
        "incarnation",
        "patience",
        "peer",
        "received",
        "sent",
        "spoke",
        "unacknowledged",
    )  # fmt: skip

    def __init__(self, peer: str, incarnation: int, patience: Patience, now: float) -> None:
        self.peer = peer
        self.incarnation = incarnation  # the peer's; 0: not known yet
        self.patience = patience
        self.conn = 0  # the connection that carries it; 0: none
        self.sent = 0
        self.unacknowledged: dict[int, Sent] = {}
        self.received = 0  # every number up to this one has been delivered
        self._above: set[int] = set()
        self._ack_messages = 0
        self._ack_bytes = 0
        self._holds = 0
        self._held: int | None = None
        self.heard = now
        self.spoke = now
        self.fruitless = 0  # connections in a row on which nothing that is kept got through
        self.breaks_always = False  # for longer than `timeout_s`: so it would go on
        self._fruitless_since = self._known_at_opening = -1.0

    @property
    def is_open(self) -> bool:
        return self.conn != 0

    # -- sending ------------------------------------------------------------------------------------

    def enqueue(self, message: Message, payload: Any, priority: int, now: float) -> int:
        """Give a message its number and keep it until it is acknowledged."""
        if len(self.unacknowledged) >= WINDOW:
            raise ProtocolError(
                f"{self.peer} has not acknowledged {WINDOW} messages: it reads none, or answers none"
            )
        self.sent += 1
        self.unacknowledged[self.sent] = Sent(message, payload, priority, now)
        return self.sent

    @property
    def known_received(self) -> int:
        """Every number up to this one has been acknowledged: the peer can never say less."""
        return next(iter(self.unacknowledged), self.sent + 1) - 1

    def acknowledged(self, number: int) -> None:
        """The peer has everything up to `number`."""
        if not 0 <= number <= self.sent:
            raise ProtocolError(f"message {number} is acknowledged, {self.sent} were sent")
        kept = self.unacknowledged
        if number > self.known_received:
            self.fruitless, self.breaks_always = 0, False
        while kept:
            first = next(iter(kept))
            if first > number:
                break
            del kept[first]

    def overdue(self, now: float) -> list[tuple[int, Sent]]:
        """What a lossy channel may have lost, to be sent again now."""
        patience = self.patience
        if not patience.resend_s or not self.conn:
            return []
        due = [(n, kept) for n, kept in self.unacknowledged.items() if now - kept.at >= patience.resend_s]
        for number, kept in due:
            self.unacknowledged[number] = kept._replace(at=now)
        return due

    # -- receiving ----------------------------------------------------------------------------------

    def accept(self, number: int, message: Message) -> bool:
        """Whether this number is new: a message is delivered only then."""
        if number <= self.received or number in self._above:
            self._ack_messages = ACK_EVERY_MESSAGES  # the peer does not know that we have it
            return False
        if number > self.received + WINDOW:
            raise ProtocolError(f"message {number} came when {self.received} was the last without a gap")
        self._ack_messages += 1
        self._ack_bytes += payload_size(message)
        if number != self.received + 1:
            self._above.add(number)
            return True
        self.received = number
        while self._above and self.received + 1 in self._above:
            self.received += 1
            self._above.remove(self.received)
        return True

    def owes_ack(self, at_once: bool = False) -> bool:
        """Whether enough has come that the peer should be told; `at_once`: anything."""
        return (
            self._ack_messages >= (1 if at_once else ACK_EVERY_MESSAGES) or self._ack_bytes >= ACK_EVERY_BYTES
        )

    def ack_watermark(self, now: float) -> int:
        """The watermark, to be put into an Ack, Beat, Hello or Welcome that leaves now."""
        self._ack_messages = self._ack_bytes = 0
        self.spoke = now
        return self.received if self._held is None else min(self.received, self._held)

    def hold(self) -> None:
        """Acknowledge nothing from the last message on that was delivered, until as many `release`."""
        self._holds += 1
        if self._held is None:
            self._held = self.received - 1

    def release(self) -> None:
        """Undo one `hold`."""
        self._holds -= 1
        if not self._holds:
            self._held = None

    # -- connections ----------------------------------------------------------------------------------

    def opened(self, conn: int, received: int, now: float) -> list[tuple[int, Sent]]:
        """A connection carries the session now; returns what must be sent on it again, in order.

        Raises `ProtocolError` where the peer has received less than it has acknowledged before.
        """
        if received < self.known_received:
            raise ProtocolError(
                f"it says that it has received {received} messages, and has acknowledged {self.known_received}"
            )
        self.conn = conn
        self.heard = self.spoke = now
        self.acknowledged(received)
        if self.unacknowledged and self.known_received == self._known_at_opening:
            self._fruitless_since = self._fruitless_since if self.fruitless else now
            self.fruitless += 1
            lasts_s = now - self._fruitless_since
            self.breaks_always = self.fruitless >= MOST_FRUITLESS and lasts_s > self.patience.timeout_s
        self._known_at_opening = self.known_received
        again = list(self.unacknowledged.items())
        for number, kept in again:
            self.unacknowledged[number] = kept._replace(at=now)
        return again

    def away(self) -> None:
        """The connection is gone."""
        self.conn = 0

    def excuse(self, now: float, gap_s: float) -> None:
        """We ourselves stood still for that long: it does not count as the peer's silence."""
        self.heard = min(self.heard + gap_s, now)

    def wants_beat(self, now: float) -> bool:
        """Asked twice in every heartbeat: so a silence lasts no longer than 1.25 of them."""
        return self.conn != 0 and now - self.spoke >= self.patience.heartbeat_s * 0.75

    def silent_s(self, now: float) -> float:
        return now - self.heard

    def is_lost(self, now: float) -> bool:
        return now - self.heard > self.patience.timeout_s or self.breaks_always
