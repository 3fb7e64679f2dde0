"""The tables of emulated links and machines, and of what becomes of them."""

from __future__ import annotations

from pydantic import Field

from geomx.channels.emulation.link import LinkSpec
from geomx.config.tables.base import Table
from geomx.config.value_types import (
    Delay,
    Duration,
    Moment,
    PartyName,
    Rate,
    Share,
    Wander,
)


class LinkTable(Table):
    """An emulated network link: geomx imitates it in user space, without root, alike in both directions."""

    rate_mbps: Rate = Field(
        0.0, description="Mbit/s on the wire in each direction, headers included. 0: unlimited."
    )
    delay_ms: Delay = Field(
        0.0, description="One-way delay in milliseconds; a round trip takes twice as long."
    )
    jitter_ms: Wander = Field(0.0, description="Milliseconds by which the delay varies, up and down.")
    loss: Share = Field(
        0.0,
        description="Fraction of packets lost; 0.01 is 1 %. TCP's are sent again; datagrams do not arrive.",
    )

    @property
    def words(self) -> str:
        """`100 Mbit/s, 20 ± 2 ms one way, loss 1 %`."""
        return self.spec.words

    @property
    def spec(self) -> LinkSpec:
        """The link that is imitated."""
        return LinkSpec(**self.model_dump())


class DelayTable(Table):
    """Workers that are slower than they are: each computes for `factor` times as long."""

    factor: float = Field(
        1.0, ge=1, le=1000, description="How many times as long a step's computation takes."
    )
    jitter: float = Field(0.0, ge=0, le=1, description="Fraction of `factor` by which steps vary.")


class EventTable(Table):
    """A change of a party's emulated link during the run.

    Where events overlap, the later one wins, key by key, until it ends. List a party's events in the order of their
    times.
    """

    at_s: Moment = Field(description="Start, in seconds after `attach` has returned.")
    party: PartyName = Field(description="Party or region whose link to its parent changes.")
    for_s: Duration | None = Field(None, description="Duration in seconds. Default: to the end of the run.")
    rate_mbps: Rate | None = Field(None, description="New rate in Mbit/s.")
    delay_ms: Delay | None = Field(None, description="New one-way delay in milliseconds.")
    jitter_ms: Wander | None = Field(None, description="New jitter in milliseconds.")
    loss: Share | None = Field(None, description="New fraction of packets lost.")
    cut: bool | None = Field(
        None, description="`true`: nothing passes until `for_s` is over or a later event has `cut = false`."
    )

    @property
    def changes(self) -> dict[str, float | bool]:
        """What of the link is different."""
        return self.model_dump(exclude_none=True, exclude={"at_s", "for_s", "party"})
