"""What an engine is: it starts the nodes of one site by the site's own means, tells what became of them, ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from geomx.config.tables.sites import RestartTable, SiteTable
from geomx.errors import GeomxError

NodeIs = Literal["absent", "starting", "running", "waiting", "ended", "failed", "stopped"]
FileOf = Literal["logs", "records"]
NEVER = RestartTable(most=0)
PYTHON = "PYTHON"  # among a node's words: the site's Python
CHUNK = 1 << 20
HOST = "{HOST}"  # within them: the first of the machines that an engine has chosen


def file_name(node: str) -> str:
    """`paris/0` as the name of a file."""
    return node.replace("/", ".")


class SiteError(GeomxError):
    """What a site's machines or its engine refuse, in a line that names the machine and says what to do."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What nodes show each other. `files`: of all, by path in a job's folder; `of_node`: of one alone, by its name.

    `settings`: `key=value` of each node, which name them.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    of_node: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobNode:
    """One node of a job.

    `argv` runs in a folder beside `code`, and `PYTHON` in it is the site's. `machine`: which of the site's, from 0.
    `vital`: the run ends with it, so that it is never started again. `listens`, `dials`: addresses. `datagrams`: they
    come to where it listens, too.
    """

    name: str
    argv: tuple[str, ...]
    machine: int = 0
    serves: bool = False
    vital: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    listens: tuple[str, ...] = ()
    dials: tuple[str, ...] = ()
    datagrams: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """What one site is to run.

    `name`: of the site: its party, or what else it serves. `files`: by path relative to the job's folder, all of them
    for their owner alone. `stop_s`: how long its nodes may take to end. `restart`: of nodes that are not vital.
    """

    run: str
    name: str
    site: SiteTable
    nodes: tuple[JobNode, ...]
    files: Mapping[str, bytes]
    stop_s: float
    restart: RestartTable = NEVER

    def on(self, machine: int) -> tuple[JobNode, ...]:
        """The nodes of one machine."""
        return tuple(node for node in self.nodes if node.machine == machine)


@dataclass(frozen=True, slots=True)
class NodeState:
    """What became of a node.

    `absent`: nobody has started it here. `starting`: the site's engine has it, and not begun yet. `waiting`: it is
    about to be started again. `failed`: it stays down. `how`: it ended, in words. `since`: in Unix time.
    """

    state: NodeIs
    machine: str = ""
    how: str = ""
    since: float | None = None
    restarts: int = 0


class Dialled(NamedTuple):
    """Where a server of a site is reached by nodes of the same site, unless its description says.

    `host`: may be `HOST`. `listen`: the host at which it listens itself, if another one.
    """

    host: str
    listen: str = ""


class Engine(Protocol):
    """Starts and ends the nodes of one job. Made of a `Job`; its own parameters are keyword-only.

    Every method may take as long as the site does, and raises `SiteError` where the site refuses. Methods of engines
    of different sites are called side by side, on several threads.
    """

    @staticmethod
    def machines(site: SiteTable) -> int:
        """On how many machines workers are shared evenly, unless the site says how many one has."""

    @staticmethod
    def dialled(site: SiteTable, run: str, server: str, machines: int) -> Dialled:
        """Where a server is reached whose party has so many machines."""

    def prepare(self) -> Sequence[str]:
        """What is in the way of a start, a line each, with what to do; nothing is changed. Empty: all is well."""

    def start(self) -> str:
        """Start what of the job does not run, or raise `SiteError` where all does; says by what it was started."""

    def state(self) -> Mapping[str, NodeState]:
        """What became of each node of the job."""

    def read(self, file: FileOf, offsets: Mapping[str, int]) -> Mapping[str, bytes]:
        """Up to `CHUNK` bytes of the log or the records of each of these nodes, from an offset on.

        A negative offset counts from the end. A node is left out where there is nothing of it.
        """

    def send(self, files: Mapping[str, bytes]) -> None:
        """Put these in place of files of a job that runs, each at once and whole."""

    def stop(self, purge: bool) -> Sequence[str]:
        """End the job, and remove what `start` has left there; nothing happens where it does not run.

        What scripts have written stays, unless `purge`. Says where it is, a line each.
        """

    def bundled(self) -> bytes:
        """All files of the job in a tar, for who brings them there by hand."""

    def printed(self) -> str:
        """How an administrator does `start` by hand: commands and files."""
