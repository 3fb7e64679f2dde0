"""Runs an `EmulatedLink` on an event loop: the one place of a shaped link where time passes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from geomx.channels.emulation.link import LinkSpec
from geomx.channels.emulation.shaping import EmulatedLink, PacedStream

TICK_S = 0.001  # uvloop's timers count milliseconds; waking more often would only burn the processor


class LinkPacer:
    """Wakes an uplink when something is due. Belongs to the loop that it is first used on."""

    def __init__(self, uplink: EmulatedLink) -> None:
        self._uplink = uplink
        self._timer: asyncio.Handle | None = None
        self._due_at = 0.0

    @property
    def spec(self) -> LinkSpec:
        """How the link is."""
        return self._uplink.spec

    def change(self, spec: LinkSpec) -> None:
        """From now on the link is so."""
        now = time.monotonic()
        self._uplink.run(now)
        self._uplink.change(spec, now)
        self._wake_at(now, now)

    def want(self, sender: PacedStream) -> None:
        """A stream has something to send, or may go on sending."""
        now = time.monotonic()
        self._uplink.want(sender, now)
        self._wake_at(now, now)

    def offer(self, size_bytes: int, deliver: Callable[[], None]) -> None:
        """A datagram leaves its sender; see `EmulatedLink.offer`."""
        now = time.monotonic()
        self._uplink.offer(size_bytes, deliver, now)
        self._wake_at(now, now)

    def forget(self, sender: PacedStream) -> None:
        """A stream has ended."""
        self._uplink.forget(sender)

    def _wake_at(self, due_at: float, now: float) -> None:
        if self._timer is not None:
            if self._due_at <= due_at:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._due_at = due_at
        if due_at <= now:
            self._timer = loop.call_soon(self._run)
        else:
            self._timer = loop.call_later(max(due_at - now, TICK_S), self._run)

    def _run(self) -> None:
        self._timer = None
        due_at = self._uplink.run(time.monotonic())
        if due_at is not None:
            self._wake_at(due_at, time.monotonic())
