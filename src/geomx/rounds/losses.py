"""What becomes of a run that loses some of its workers: as its description says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

OnLoss = Literal["stop", "wait", "continue"]


@dataclass(frozen=True, slots=True)
class Quorum:
    """Of which share of those who take part contributions must be in, and how long the rest is awaited behind that."""

    share: float = 1.0
    grace_s: float = 1.0

    def needs(self, members: int) -> int:
        """How many of so many; 0.75 of 3 are 3."""
        return math.ceil(self.share * members - 1e-9)


EVERYBODY = Quorum()


@dataclass(frozen=True, slots=True)
class Losses:
    """What the description has about members: of `[run]`, and the quorum of `[sync]`.

    Attributes:
        on_loss: "stop": the run ends. "wait": turns stay open until whoever is lost is back. "continue": the others go
            on without.
        wait_s: How long somebody is awaited, in seconds: who is lost, and by whoever is cut off, the run.
        least_parties: With fewer parties left than that, "continue" waits.
        least_workers: Likewise of workers.
        quorum: With how many of those who take part a turn of local steps closes.
    """

    on_loss: OnLoss = "stop"
    wait_s: float = 300.0
    least_parties: int = 1
    least_workers: int = 1
    quorum: Quorum = EVERYBODY

    @property
    def may_return(self) -> bool:
        """Whether who is lost can come back."""
        return self.on_loss != "stop"

    @property
    def awaited_s(self) -> float:
        """How long somebody is awaited, in seconds; 0: nobody is."""
        return self.wait_s if self.may_return else 0.0
