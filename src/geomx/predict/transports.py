"""What carries messages over a WAN link, as far as it changes how long they take: TCP, or datagrams.

A link of rate C and round trip R loses a share p of its packets, at random. Of n packets of the last round trip that
must arrive, some are lost with probability 1 − (1 − p)^n, and come one round trip later: a *tail* takes
R · (1 − (1 − p)^n).

    emulated TCP   busy: bytes · 1500/1448 / (C · (1 − p)); the end is held up as `formulas.travel_s` says
    BBR            busy as long, and a tail: it does not slow down for a loss
    cubic          as BBR, at the rate W · 1448/R a connection, if that is less than C: W is the mean window (RFC 9438,
                   5.1 and 4.3), max(1.054 · (R/s)^¾ / p^¾, √(1.5/p)) segments
    datagrams      busy: bytes · 1500/1428 · Σ share · copies / C over the classes of blocks. Of reliable ones, parity
                   replaces what is lost: copies = 1 + p + 2 · √(p/128), and no tail. Of others, with so many tries,
                   copies = (1 − p^tries)/(1 − p), and a tail as long as the channel waits for them

What goes down must arrive, as does what goes up as it stands: all of it counts as reliable.

Left out: acknowledgements, what is lost twice, what parity cannot replace, waiting in order within a stream, the start
of a connection, BBR's pauses, and tiny slices of a channel that may lose blocks, which are reliable.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

import torch

from geomx.channels.contract import NOT_SENT, BlockClasses
from geomx.channels.emulation.shaping import PACKET_BYTES, SEGMENT_BYTES
from geomx.codecs.contract import Block
from geomx.config.tables import LinkTable
from geomx.layout import Layout, Tensor
from geomx.predict.formulas import link_s, travel_s
from geomx.wire.flow.outbox import BEHIND
from geomx.wire.flow.packets import MOST_IN_GROUP

DATAGRAM_BYTES = 1428  # of a payload, in a packet of 1,500
SEALED_BYTES = 1472  # of it, with what geomx adds: what sockets count
BLOCKS_ASKED = 240  # of the channel: which class each has
ASKED_ELEMENTS = 8  # in each


class Transport(Protocol):
    """How bytes cross a link in one direction."""

    def busy_s(self, size_bytes: float, link: LinkTable) -> float:
        """How long the link is busy with so many bytes."""

    def travel_s(self, size_bytes: float, link: LinkTable) -> float:
        """How long the last of them is under way on average."""

    def sent_bytes(self, size_bytes: float, link: LinkTable) -> float:
        """What sockets send for them, as they count."""


@dataclass(frozen=True, slots=True)
class EmulatedTcp:
    """See the module's text."""

    def busy_s(self, size_bytes: float, link: LinkTable) -> float:
        return link_s(size_bytes, link)

    def travel_s(self, size_bytes: float, link: LinkTable) -> float:
        return travel_s(size_bytes, link)

    def sent_bytes(self, size_bytes: float, link: LinkTable) -> float:
        return size_bytes


@dataclass(frozen=True, slots=True)
class BbrTcp(EmulatedTcp):
    """See the module's text."""

    def travel_s(self, size_bytes: float, link: LinkTable) -> float:
        return 1e-3 * link.delay_ms + _tail_s(size_bytes / SEGMENT_BYTES, self.busy_s(size_bytes, link), link)


@dataclass(frozen=True, slots=True)
class CubicTcp(BbrTcp):
    """See the module's text. `connections`: of a party, one to each shard."""

    connections: int = 1

    def busy_s(self, size_bytes: float, link: LinkTable) -> float:
        return link_s(size_bytes, self._slowed(link))

    def _slowed(self, link: LinkTable) -> LinkTable:
        """The link as a sender that slows down uses it."""
        most = self.connections * cubic_mbps(link)
        is_enough = most >= (link.rate_mbps or math.inf)
        slowed: LinkTable = link if is_enough else link.model_copy(update={"rate_mbps": most})
        return slowed


def cubic_mbps(link: LinkTable) -> float:
    """The rate on the wire of one connection with cubic, headers and what is lost included; inf: as the link's."""
    round_trip_s = 2e-3 * link.delay_ms
    if not link.loss or not round_trip_s:
        return math.inf
    window = max(1.054 * math.pow(round_trip_s / link.loss, 0.75), math.sqrt(1.5 / link.loss))
    return 8e-6 * PACKET_BYTES * window / round_trip_s


@dataclass(frozen=True, slots=True)
class Datagrams:
    """See the module's text.

    `reliable`: the share of blocks that is sent until it has come. `tried`: shares of others, each with how often they
    are sent at most. What is left is not sent. `grace`: in round trips, as in `BlockClasses`.
    """

    reliable: float = 1.0
    tried: tuple[tuple[float, int], ...] = ()
    grace: float = 0.0

    @classmethod
    def of(cls, classes: BlockClasses, loss: float = 1.0) -> Datagrams:
        """As the channel itself gives classes in a run's first round, for new `classes`. `loss`: the script's."""
        elements = BLOCKS_ASKED * ASKED_ELEMENTS
        slice_ = Layout((Tensor("asked", (elements,), "float32"),), slice_elements=elements).slices[0]
        nothing = torch.empty(0, dtype=torch.uint8)
        starts = range(0, elements, ASKED_ELEMENTS)
        blocks = [Block(start, start + ASKED_ELEMENTS, nothing) for start in starts]
        levels = Counter(classes.levels(slice_, 1, blocks, lambda: torch.linspace(0.0, 1.0, elements), loss))
        shares = {level: count / BLOCKS_ASKED for level, count in levels.items() if level != NOT_SENT}
        tried = tuple((share, classes.tries[level - 1]) for level, share in sorted(shares.items()) if level)
        return cls(shares.get(0, 0.0), tried, classes.grace)

    def copies(self, loss: float) -> float:
        """How often a block is sent on average."""
        tried = sum(share * (1.0 - loss**tries) for share, tries in self.tried)
        parity = loss + BEHIND * math.sqrt(loss / MOST_IN_GROUP)
        return self.reliable * (1.0 + parity) + tried / (1.0 - loss)

    def busy_s(self, size_bytes: float, link: LinkTable) -> float:
        sent = size_bytes * self.copies(link.loss) * SEGMENT_BYTES / DATAGRAM_BYTES
        return link_s(sent, _lossless(link))

    def travel_s(self, size_bytes: float, link: LinkTable) -> float:
        count, busy_s = size_bytes / DATAGRAM_BYTES, self.busy_s(size_bytes, link)
        others_s = _tail_s(count, busy_s, link, sum(share for share, _ in self.tried))
        return 1e-3 * link.delay_ms + min(self.grace, 1.0) * others_s

    def sent_bytes(self, size_bytes: float, link: LinkTable) -> float:
        return size_bytes * self.copies(link.loss) * SEALED_BYTES / DATAGRAM_BYTES


def _lossless(link: LinkTable) -> LinkTable:
    """The link as if it lost nothing."""
    without: LinkTable = link.model_copy(update={"loss": 0.0})
    return without


def _tail_s(packets: float, busy_s: float, link: LinkTable, share: float = 1.0) -> float:
    """See the module's text. `packets` keep the link busy for so long; the `share` of them must arrive."""
    round_trip_s = 2e-3 * link.delay_ms
    last = share * packets * (min(1.0, round_trip_s / busy_s) if busy_s else 1.0)
    return -round_trip_s * math.expm1(last * math.log1p(-link.loss))
