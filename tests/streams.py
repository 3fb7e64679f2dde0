"""Streams for an `EmulatedLink`: senders whose chunks a test has counted out."""

from __future__ import annotations

from geomx.channels.emulation.shaping import EmulatedLink

CHUNK = 65_536
MBIT_100 = 8e-8 * 1500 / 1448  # seconds for one byte of a stream at 100 Mbit/s on the wire


class Stream:
    """A sender with chunks of one priority; remembers when each was delivered."""

    def __init__(self, name: str, sizes: list[int], priority: int = 0) -> None:
        self.name, self.priority = name, priority
        self.sizes = list(sizes)
        self.held = False
        self.delivered: list[tuple[str, int]] = []
        self.taken: list[tuple[str, int]] = []

    def urgency(self) -> int | None:
        return self.priority if self.sizes and not self.held else None

    def take(self) -> tuple[bytes, ...]:
        chunk = (bytes(self.sizes.pop(0)),)
        self.taken.append((self.name, len(chunk[0])))
        return chunk

    def deliver(self, chunk) -> None:
        self.delivered.append((self.name, len(chunk[0])))


def streams(*given: Stream) -> list[tuple[str, int]]:
    """Let them share one record of what was taken, in order."""
    record: list[tuple[str, int]] = []
    for stream in given:
        stream.taken = record
    return record


def drive(uplink: EmulatedLink, now: float, late_s: float = 0.0) -> float:
    """Run until nothing is due, each time a little late; returns the last time."""
    while (due := uplink.run(now)) is not None:
        now = max(now, due) + late_s
    return now
