"""All tables of a description, and those of the run itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from geomx.config.tables.base import Table
from geomx.config.tables.edges import LanTable, TlsTable, WanTable
from geomx.config.tables.links import EventTable
from geomx.config.tables.members import GlobalTable, PartyTable, RegionTable, ServerTable
from geomx.config.value_types import (
    MOST_ELEMENTS,
    MOST_EVENTS,
    MOST_PARTIES,
    MOST_SHARDS,
    WEEK_S,
    Argument,
    CompensationName,
    Elements,
    File,
    Limit,
    PolicyName,
    RuleName,
    RunName,
)
from geomx.layout import PACK_BELOW
from geomx.rounds.losses import OnLoss


class RunTable(Table):
    """The run as a whole."""

    name: RunName = Field(description="Name of the run. Default: the file's name without its ending.")
    script: File | None = Field(
        None,
        description="Training script that `geomx run` starts in each worker; `geomx worker` takes a command.",
    )
    arguments: tuple[Argument, ...] = Field(
        (), strict=False, description="Command-line arguments that `geomx run` gives the script."
    )
    preset: Literal["", "slow-link", "geomx-bisparse", "geomx-fp16", "geomx-mpq"] = Field(
        "",
        description="A set of settings that go well together; keys given in the file take precedence. See "
        "[which setting for my model](settings.md).",
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**32 - 1,
        description="Seed of what geomx draws: order of samples, rounding, emulated loss. The script seeds PyTorch.",
    )
    shards: int = Field(
        1, ge=1, le=MOST_SHARDS, description="Number of global servers that share the model (MultiGPS)."
    )
    secret_file: File | None = Field(
        None,
        description="File with the run's secret, by which nodes prove that they belong to the run; `geomx secret FILE` "
        "makes one. Default: `geomx run` makes its own; nodes started by hand need `[tls]`, or stay on loopback and "
        "use `tcp`.",
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop",
        description="What happens to a contribution with NaN, Inf or a number too large for its codec. `stop`: the run "
        "ends and names worker, parameter and step. `skip`: it is left out and training goes on. See "
        "[NaN or Inf](training-loop.md#when-a-gradient-is-nan-or-inf).",
    )
    on_loss: OnLoss = Field(
        "stop",
        description="What happens when a worker, a local server or a whole party is lost. `stop`: the run ends and "
        "names it. `wait`: the others wait until it is back. `continue`: they go on without it; it may come back. See "
        "[when a worker is lost](sync.md#when-a-worker-is-lost).",
    )
    wait_s: float = Field(
        300.0,
        gt=0,
        le=WEEK_S,
        description="Seconds for which `wait` awaits who is lost. With `continue`, how long a node that is cut off "
        "tries to get back, and how long the run waits with fewer parties or workers than the least. An error with "
        "`stop`, where nobody waits.",
    )
    least_parties: int = Field(
        1,
        ge=1,
        description="With `continue`: if fewer parties would be left, the run waits. An error with `stop` and `wait`.",
    )
    least_workers: int = Field(1, ge=1, description="The same of workers, in all parties together.")
    strict: bool = Field(
        False,
        description="Make warnings about lost accuracy, and about parties that train on the same samples, errors. Same "
        "as `--strict`.",
    )
    ledger: bool = Field(
        False,
        description="Count every contribution in an extra slice, to prove that each counted exactly once.",
    )


class SyncTable(Table):
    """When workers synchronize, and how much each contribution counts."""

    policy: PolicyName = Field("fsa", description="When servers answer, and what workers contribute.")
    weight: Literal["samples", "equal", "dataset_size"] = Field(
        "samples",
        description="How much a worker's contribution counts: by its samples, the same for all, or by its share of its "
        "party's `dataset_size`.",
    )
    buffers: Literal["auto", "own", "average"] = Field(
        "auto",
        description="Buffers in float32 and float64 under policies that average weights. `auto`: average running "
        "statistics, such as BatchNorm's. `average`: average all. `own`: each worker keeps its own until `run.save`.",
    )


class OptimizerTable(Table):
    """How contributions change the weights."""

    place: Literal["auto", "server", "workers"] = Field(
        "auto",
        description="Where the optimizer runs. `auto`: on the global servers if it is an elementwise one of PyTorch's, "
        "otherwise on the workers.",
    )
    rule: RuleName = Field(
        "",
        description="An update rule of your own for the global servers (see [extending](extending.md)). Default: the "
        "script's optimizer.",
    )
    compensation: CompensationName = Field(
        "",
        description="Corrects gradients for their age where parties do not wait for each other.",
    )


class WorkerTable(Table):
    """How workers train."""

    overlap: Literal["none", "forward"] = Field(
        "none",
        description="`none`: `step()` returns when all weights have come. `forward`: it returns at once, and in the "
        "next forward pass each module waits for its own weights.",
    )
    push_at: Literal["backward", "step"] = Field(
        "backward",
        description="When gradients are sent. `backward`: each as soon as it is complete. `step`: in `step()`, so that "
        "the script may edit them before.",
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="CPU threads of each worker. 0: with `geomx run` the cores divided by its processes, otherwise "
        "PyTorch's default.",
    )


class LayoutTable(Table):
    """How the model is cut into slices."""

    slice_elements: Elements = Field(
        0,
        description="Elements in the largest slice. 0: chosen for about 64 slices, or fewer where codecs send less.",
    )
    pack_below: int = Field(
        PACK_BELOW,
        ge=1,
        le=MOST_ELEMENTS,
        description="Tensors with fewer elements share slices. Which tensors are tiny for a codec is that codec's "
        "`size_lower_bound`; see [codecs](codecs.md#all-codecs).",
    )


class LimitsTable(Table):
    """How long nodes wait, in seconds."""

    start_s: Limit = Field(300.0, description="For the other nodes to join, before giving up with an error.")
    stall_s: Limit = Field(
        30.0,
        description="For another node, before reporting which one. If every worker waits inside geomx and nothing "
        "moves for as long, the run ends.",
    )
    stop_s: Limit = Field(
        10.0,
        description="For a process to end by itself, before it is killed. A node that ends after a failure stays as "
        "long to tell late nodes.",
    )
    turn_s: float = Field(
        0.0,
        ge=0,
        description="For a worker that is alive but does not come to the next step, before the run ends. 0: no limit, "
        "as a script may do anything between two steps.",
    )


class Description(Table):
    """All tables of a run; each is valid by itself."""

    run: RunTable
    sync: SyncTable = Field(default_factory=SyncTable)
    optimizer: OptimizerTable = Field(default_factory=OptimizerTable)
    worker: WorkerTable = Field(default_factory=WorkerTable)
    layout: LayoutTable = Field(default_factory=LayoutTable)
    global_: GlobalTable = Field(default_factory=GlobalTable, alias="global")
    parties: tuple[PartyTable, ...] = Field(
        alias="party", strict=False, min_length=1, max_length=MOST_PARTIES
    )
    regions: tuple[RegionTable, ...] = Field((), alias="region", strict=False, max_length=MOST_PARTIES)
    wan: WanTable = Field(default_factory=WanTable)
    lan: LanTable = Field(default_factory=LanTable)
    limits: LimitsTable = Field(default_factory=LimitsTable)
    tls: TlsTable = Field(default_factory=TlsTable)
    events: tuple[EventTable, ...] = Field((), alias="event", strict=False, max_length=MOST_EVENTS)

    @property
    def server_tables(self) -> tuple[ServerTable, ...]:
        """Those of all servers but the shards, regions first."""
        return (*self.regions, *self.parties)
