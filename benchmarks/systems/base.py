"""What the runner asks of a system: which processes stand in which site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.cells import Cell
from benchmarks.grounds import Ground

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Node:
    """A process of a cell. `serves`: it is ended once all others have ended by themselves."""

    name: str
    site: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    serves: bool = False


@dataclass(frozen=True, slots=True)
class Desk:
    """What an adapter works with: a cell, where it runs, its system's Python, and a folder for this turn."""

    cell: Cell
    ground: Ground
    python: Path
    folder: Path
    options: Mapping[str, Any]

    def address(self, site: str) -> str:
        return self.ground.address(site)

    def endpoint(self, site: str) -> str:
        """`host:port` at a site, with a port of its own."""
        return f"{self.ground.address(site)}:{self.ground.port()}"

    @property
    def job(self) -> Path:
        """What training processes are told; written before they start."""
        return self.folder / "job.json"

    def worker(self, name: str, script: Path, env: Mapping[str, str] | None = None) -> Node:
        """A training process, at its party's site."""
        argv = (str(self.python), str(script), str(self.job), name)
        return Node(name, name.partition("/")[0], argv, env or {})

    def workers(self, script: Path, env: Mapping[str, str] | None = None) -> list[Node]:
        """A training process for each worker of the cell."""
        return [self.worker(name, script, env) for name in self.cell.worker_names]


class System(Protocol):
    """An adapter."""

    configs: Mapping[
        str, Mapping[str, Any]
    ]  # options by the name of a configuration; `train.py` sees them in its job
    has_hub: bool  # whether servers of all parties stand somewhere

    def refuses(self, cell: Cell) -> str | None:
        """Why a cell cannot be had with this system, if it cannot."""

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        """The processes of a cell, in the order of their start, and the addresses that workers are told."""
