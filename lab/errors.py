"""What the lab raises. A message says what is wrong and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class LabError(Exception):
    """The root of the tree; the commands print it without a traceback."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a network's description."""

    where: str  # the key, such as `link[1].rate_mbps`
    found: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}; allowed: {self.allowed}"


class DescriptionError(LabError):
    """A network's description does not hold together. `faults` has every fault, not the first alone."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        lines = "\n".join(f"  - {fault}" for fault in self.faults)
        super().__init__(f"{source}: {len(self.faults)} fault{'s' if len(self.faults) != 1 else ''}\n{lines}")


class Unavailable(LabError):
    """This machine, or this user, cannot have a lab; the message names what is missing."""


class RouterError(LabError):
    """The router ended, did not answer, or refused a request."""
