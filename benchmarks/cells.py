"""A cell of the benchmark: one system in one configuration, on one workload and network. And what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

Hub = Literal["own site", "A", "none"]
Where = Literal["lab", "loopback", "simulator"]

HUB_SITE = "hub"
OK = "ok"


@dataclass(frozen=True, slots=True)
class Workload:
    """What is trained. `step_ms`: how long a step of a synthetic workload computes (it sleeps)."""

    name: str
    parameters: int
    batch: int = 32
    step_ms: float = 0.0
    target_accuracy: float | None = None
    evaluate_every: int = 0  # steps; 0: never

    @property
    def size_bytes(self) -> int:
        """Of its float32 parameters."""
        return 4 * self.parameters


CNN_179K = Workload("cnn-179k", 178_762)
CNN_1M = Workload("cnn-1m", 1_068_490)
CNN_10M = Workload("cnn-10m", 9_999_946)
GPT_10M = Workload("gpt-10m", 10_761_216, batch=4)


def synthetic(parameters: int, step_ms: float = 0.0) -> Workload:
    """Gradients of this many parameters and no model, so that only communication is measured."""
    return Workload("synthetic", parameters, step_ms=step_ms)


def party_names(count: int) -> tuple[str, ...]:
    """`A` to `Z`, then `P26`, `P27`, ..."""
    return tuple(chr(65 + place) if place < 26 else f"P{place}" for place in range(count))


@dataclass(frozen=True, slots=True)
class Cell:
    """One system on one workload and network.

    `network`: a file of lab/networks, without its ending. `hub`: where the servers of all parties stand. `every`: steps
    between two synchronisations, so that a round has this many steps. `limit_s`: of one turn.
    """

    system: str
    config: str
    workload: Workload
    network: str
    parties: int = 2
    workers: int = 2
    hub: Hub = "own site"
    congestion: str = "bbr"
    where: Where = "lab"
    rounds: int = 10
    warmup: int = 2
    limit_s: float = 120.0
    every: int = 1
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def sites(self) -> tuple[str, ...]:
        """The parties' sites, which have their names."""
        return party_names(self.parties)

    @property
    def hub_site(self) -> str:
        """Where servers of all parties stand; systems without a hub have none, and nothing is put there."""
        return "A" if self.hub == "A" else HUB_SITE

    @property
    def worker_names(self) -> tuple[str, ...]:
        """`A/0`, `A/1`, ..., `B/0`, ..."""
        return tuple(f"{site}/{rank}" for site in self.sites for rank in range(self.workers))

    @property
    def steps(self) -> int:
        """Of a whole turn, warm-up included."""
        return (self.rounds + self.warmup) * self.every

    @property
    def shape(self) -> str:
        return f"{self.parties}×{self.workers}"

    @property
    def sitting(self) -> tuple[object, ...]:
        """What the cells that are compared have in common."""
        return Result.of(self).sitting

    @property
    def identity(self) -> tuple[object, ...]:
        """What no other cell of a suite has."""
        return Result.of(self).identity

    def __str__(self) -> str:
        hub = "" if self.hub == "none" else f", hub in {self.hub}"
        place = f"{self.network} ({self.congestion})" if self.where == "lab" else self.where
        return f"{self.system} {self.config}, {self.workload.name}, {place}, {self.shape}{hub}"


@dataclass(slots=True)
class Result:
    """A line of SUITE.jsonl. None: not measured, or not known for this system."""

    system: str
    config: str
    workload: str
    parameters: int
    network: str
    parties: int
    workers: int
    hub: str
    congestion: str
    where: str
    every: int  # steps a round
    batch: int
    step_ms: float
    state: str = OK  # or why there are no figures
    rounds: int = 0  # measured, over all turns
    turns: list[dict[str, Any]] = field(default_factory=list)  # of each: at, load, rounds, round_s_median
    round_s_median: float | None = None
    round_s_p95: float | None = None
    step_s_mean: float | None = None
    floor_s: float | None = None  # dense float32, push and update pipelined
    raw_floor_s: float | None = None  # what raw sockets took for the same bytes in the same sitting
    ratio_to_floor: float | None = None
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
    def of(cls, cell: Cell, **more: Any) -> Result:
        """What a cell says of itself, with figures or a state."""
        return cls(
            system=cell.system,
            config=cell.config,
            workload=cell.workload.name,
            parameters=cell.workload.parameters,
            network=cell.network,
            parties=cell.parties,
            workers=cell.workers,
            hub=cell.hub,
            congestion=cell.congestion,
            where=cell.where,
            every=cell.every,
            batch=cell.workload.batch,
            step_ms=cell.workload.step_ms,
            **more,
        )

    @property
    def step_s(self) -> float | None:
        """The median round's time a step."""
        return None if self.round_s_median is None else self.round_s_median / self.every

    @property
    def is_ok(self) -> bool:
        return self.state == OK

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

    def line(self) -> str:
        """As JSON; seconds to microseconds."""
        return json.dumps({key: _rounded(value) for key, value in asdict(self).items()}, ensure_ascii=False)


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Put the results of one sitting into a suite's file, in the place of those of the same cells."""
    if not results:
        return
    new = {result.identity for result in results}
    kept = [result for result in read_results(path) if result.identity not in new]
    sitting = results[0].sitting
    beside_raw([*(result for result in kept if result.sitting == sitting), *results])
    part = path.with_suffix(".part")
    part.write_text("".join(result.line() + "\n" for result in (*kept, *results)), encoding="utf-8")
    part.replace(path)


def beside_raw(results: Sequence[Result]) -> None:
    """Give each result what raw sockets took in the same sitting, to a hub in the same place.

    Systems without a hub are held against the one in a site of its own.
    """
    raw = {result.hub: result.round_s_median for result in results if result.system == "raw"}
    for result in results:
        result.raw_floor_s = raw.get("own site" if result.hub == "none" else result.hub)


def read_results(path: Path) -> list[Result]:
    """The lines of a suite's file, if there is one. Keys that are no longer known are left out."""
    if not path.exists():
        return []
    known = {each.name for each in fields(Result)}
    rows: Iterable[dict[str, Any]] = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Result(**{key: value for key, value in row.items() if key in known}) for row in rows]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return value
