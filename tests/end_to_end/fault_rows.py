"""One fault in one run of real processes: what is done to whom, and what is promised of it.

A run has party A with two workers and party B with one. A fault strikes one node, or one link, at one of these:

    joining   a server that listens, and nobody has come yet; a worker that has joined, and whose model the others await
    middle    amid the steps
    end       a worker that has trained and not yet left, when the others have; a server with one worker left below it
    left      a worker that has left, and whose process goes on
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import Literal

from launched_runs import LAUNCHER

What = Literal[
    "interrupt", "kill", "stop", "term", "sleep", "restart", "cut", "reset", "up", "down", "absent", "idle"
]
When = Literal["joining", "middle", "end", "left"]
Fate = Literal["gone", "goes on"]

BOUND_S = 150.0  # after a fault and the end of what it lasts: who has not ended by then hangs
TIMEOUT_S = 2.0
USUAL = (f"lan.timeout_s={TIMEOUT_S}", f"wan.timeout_s={TIMEOUT_S}", "limits.start_s=12", "limits.stop_s=5")
PATIENT = ("lan.timeout_s=100", "wan.timeout_s=100", "limits.start_s=100", "limits.stop_s=100")
# Who is silent for so long is lost, and nobody else, also on a machine that is busy.
LOST_S = 4.0
CONTINUE = (
    "run.on_loss=continue", "run.wait_s=60", "run.ledger=true", "limits.start_s=60",
    f"lan.timeout_s={LOST_S}", f"wan.timeout_s={LOST_S}",
)  # fmt: skip
FOR_EVER = 1_000_000
FOLDER = "FOLDER"  # in settings: the run's
STORE = (f"store.url=file://{FOLDER}/store",)
REPLICAS = ("run.replicas=1",)
NODE = re.compile(r"(?<![\w/])(global/\d+|[AB](?:/\d+)?)(?![\w/])")
SIGNALS = {
    "kill": signal.SIGKILL,
    "restart": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "sleep": signal.SIGSTOP,
    "term": signal.SIGTERM,
    "interrupt": signal.SIGINT,
}

LAUNCHER_ENDS = {"kill": -signal.SIGKILL, "interrupt": 130, "term": 130}


@dataclass(frozen=True)
class Row:
    """A fault, and what is promised of it.

    `whom`: a node, or several as `B+B/0`, or the two ends of a link as `A/0-A`, whoever dials first. `for_s`: how long
    a cut lasts, a stopped process stays so, a killed one is away. Who may be named for it is the node, or the link's
    two ends, or who is `named`. `lost`: who does not come to the end of a run that goes on; `either`: who may or not.
    """

    what: What
    whom: str
    when: When = "middle"
    fate: Fate = "gone"
    after: str = "step 10"  # where the last worker is, in the middle
    for_s: float = 0.0
    settings: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    only: dict[str, tuple[str, ...]] = field(default_factory=dict, hash=False)  # words of one worker's own
    workers: tuple[int, ...] = (2, 1)
    shards: int = 1
    lost: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # nodes that are never started
    launched: bool = False  # by `geomx run`, which tells what came of it
    note: str = ""

    def __str__(self) -> str:
        for_s = f" {self.for_s:g} s" if self.for_s or self.what == "restart" else ""
        launched = "geomx run" if self.launched and self.whom != LAUNCHER else ""
        note = ", ".join(filter(None, ("continue" if self.continues else "", launched, self.note)))
        note = f" ({note})" if note else ""
        return f"{self.what}{for_s} {self.whom} {self.when}{note}"

    @property
    def ends(self) -> tuple[str, ...]:
        """The nodes that are struck, or the two ends of the link."""
        return tuple(re.split("[-+]", self.whom))

    @property
    def blamed(self) -> frozenset[str]:
        return frozenset((*self.ends, *self.named))

    @property
    def is_of_link(self) -> bool:
        return self.what in ("cut", "reset", "up", "down")

    @property
    def ended(self) -> tuple[str, ...]:
        """The nodes that the fault itself ends; who is asked to leave has all below it leave."""
        if self.what == "term" and self.fate == "goes on":
            return (*self.ends, *self.lost)
        return self.ends if self.what in ("kill", "stop", "term", "absent") else ()

    @property
    def continues(self) -> bool:
        """Whether the run is to go on without whoever is lost."""
        return "run.on_loss=continue" in self.settings

    @property
    def is_awaited(self) -> bool:
        """Whether the run waits all the same, since too few would be left."""
        return any(setting.startswith("run.least_") for setting in self.settings)

    @property
    def is_in_step(self) -> bool:
        """Whether all workers take each step together, and exchange in each."""
        return not any(setting.startswith("sync.policy=") for setting in self.settings)

    @property
    def cut_off(self) -> tuple[str, ...]:
        """The nodes from which the fault parts the others."""
        return self.ends[:1] if self.is_of_link else self.ends
