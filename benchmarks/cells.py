"""A cell of the benchmark: one system in one configuration, on one workload and network. And what came of it.

Needs the standard library alone: every system's training processes read their cell.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

OK, HUB_SITE = "ok", "hub"


@dataclass(slots=True)
class Cell:
    """One system on one workload and network.

    `network`: a file of lab/networks, without its ending. `hub`: where the servers of all parties stand, in a site of
    their own, in party A's, or "none" where there are none. `where`: lab, loopback or simulator. `every`: steps between
    two synchronisations, so that a round has this many. `limit_s`: of one turn. `evaluate_every`: steps, 0 for never.
    """

    system: str
    config: str
    workload: str
    parameters: int
    network: str
    parties: int = 2
    workers: int = 2
    hub: str = "own site"
    congestion: str = "bbr"
    where: str = "lab"
    every: int = 1
    batch: int = 32
    step_ms: float = 0.0
    target_accuracy: float | None = None
    evaluate_every: int = 0
    rounds_a_turn: int = 10
    warmup: int = 2
    limit_s: float = 120.0

    @property
    def sites(self) -> tuple[str, ...]:
        """The parties' sites, which have their names: `A` to `Z`, then `P26`, `P27`, ..."""
        return tuple(chr(65 + place) if place < 26 else f"P{place}" for place in range(self.parties))

    @property
    def hub_site(self) -> str:
        """Where servers of all parties stand; systems without a hub put nothing there."""
        return "A" if self.hub == "A" else HUB_SITE

    @property
    def worker_names(self) -> tuple[str, ...]:
        """`A/0`, `A/1`, ..., `B/0`, ..."""
        return tuple(f"{site}/{rank}" for site in self.sites for rank in range(self.workers))

    @property
    def size_bytes(self) -> int:
        """Of the float32 parameters."""
        return 4 * self.parameters

    @property
    def steps(self) -> int:
        """Of a whole turn, warm-up included."""
        return (self.rounds_a_turn + self.warmup) * self.every

    @property
    def shape(self) -> str:
        return f"{self.parties}×{self.workers}"

    @property
    def sitting(self) -> tuple[object, ...]:
        """What the cells that are compared have in common."""
        return self.workload, self.parameters, self.step_ms, self.network, self.congestion, self.shape

    @property
    def identity(self) -> tuple[object, ...]:
        """What no other cell of a suite has."""
        return *self.sitting, self.system, self.config, self.hub, self.where

    def __str__(self) -> str:
        hub = "" if self.hub == "none" else f", hub in {self.hub}"
        place = f"{self.network} ({self.congestion})" if self.where == "lab" else self.where
        return f"{self.system} {self.config}, {self.workload}, {place}, {self.shape}{hub}"


@dataclass(slots=True)
class Result(Cell):
    """A line of SUITE.jsonl. None: not measured, or not known for this system."""

    state: str = OK  # or why there are no figures
    rounds: int = 0  # measured, over all turns
    turns: list[dict[str, Any]] = field(default_factory=list)  # of each: at, load, state, round_s_median
    round_s_median: float | None = None
    round_s_p95: float | None = None
    floor_s: float | None = None  # dense float32, push and update pipelined
    raw_floor_s: float | None = None  # what raw sockets took for the same bytes in the same sitting
    wan_bytes_up: float | None = None  # per round and party, as the namespaces count them
    wan_bytes_down: float | None = None
    samples_per_s: float | None = None
    accuracy: float | None = None
    to_accuracy_s: float | None = None
    to_accuracy_wan_bytes: float | None = None
    cpu_s: dict[str, float] = field(default_factory=dict)  # by node, over the measured rounds
    rss_mb: dict[str, float] = field(default_factory=dict)  # the most, by node
    load: float | None = None  # of the machine, before the first turn
    commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def of(cls, cell: Cell, **figures: Any) -> Result:
        return cls(**asdict(cell), **figures)

    @property
    def step_s(self) -> float | None:
        """The median round's time a step."""
        return None if self.round_s_median is None else self.round_s_median / self.every

    @property
    def is_ok(self) -> bool:
        return self.state == OK

    def line(self) -> str:
        """As JSON; seconds to microseconds."""
        rounded = json.loads(json.dumps(asdict(self)), parse_float=lambda text: round(float(text), 6))
        return json.dumps(rounded, ensure_ascii=False)


def write_results(path: Path, results: list[Result]) -> None:
    """Put the results of one sitting into a suite's file, in the place of those of the same cells."""
    new = {result.identity for result in results}
    lines = [*(result for result in read_results(path) if result.identity not in new), *results]
    sitting = [line for line in lines if results and line.sitting == results[0].sitting]
    raw = {result.hub: result.round_s_median for result in sitting if result.system == "raw"}
    for result in sitting:  # who has no hub is held against raw sockets to the one in a site of its own
        result.raw_floor_s = raw.get("own site" if result.hub == "none" else result.hub)
    part = path.with_suffix(".part")
    part.write_text("".join(line.line() + "\n" for line in lines), encoding="utf-8")
    part.replace(path)


def read_results(path: Path) -> list[Result]:
    """The lines of a suite's file, if there is one. Keys that are no longer known are left out."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    known = {each.name for each in fields(Result)}
    return [Result(**{k: v for k, v in json.loads(line).items() if k in known}) for line in lines]
