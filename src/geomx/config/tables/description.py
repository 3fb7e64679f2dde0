"""All tables of a description, and those of the run itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from geomx.config.reading.forms import TextForm
from geomx.config.tables.base import Table
from geomx.config.tables.edges import LanTable, TlsTable, WanTable
from geomx.config.tables.links import EventTable
from geomx.config.tables.members import GlobalTable, PartyTable, RegionTable, ServerTable
from geomx.config.tables.sites import SiteTable
from geomx.config.value_types import (
    MOST_ELEMENTS,
    MOST_EVENTS,
    MOST_PARTIES,
    MOST_SHARDS,
    MOST_SITES,
    WEEK_S,
    Argument,
    ClassName,
    CompensationName,
    Elements,
    File,
    Limit,
    OverlayName,
    PolicyName,
    RuleName,
    RunName,
)
from geomx.layout import PACK_BELOW
from geomx.rounds.losses import OnLoss
from geomx.tree import GUESTS

URL = r"(file:///.+|(s3a?|gs|azure?|adl|abfss?|https?)://[^/\s].*)?"


GUEST = tuple(GUESTS)


class RunTable(Table):
    """The run as a whole."""

    name: RunName = Field(description="Name of the run.")
    script: File | None = Field(
        None,
        description="Training script of `geomx run` and `geomx up`; `geomx worker` takes a command.",
    )
    arguments: tuple[Argument, ...] = Field((), strict=False, description="Its command-line arguments.")
    files: tuple[Argument, ...] = Field(
        (),
        strict=False,
        description="Files that `geomx up` copies beside the script, as patterns, such as `data/*.npz`. Those of "
        "Python (`*.py`) are copied anyway.",
    )
    preset: Literal["", "slow-link", "geomx-bisparse", "geomx-fp16", "geomx-mpq"] = Field(
        "",
        description="Settings that go well together; keys given in the file take precedence. See "
        "[which setting for my model](settings.md).",
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**32 - 1,
        description="Seed of geomx's draws: order of samples, rounding, emulated loss. The script seeds PyTorch.",
    )
    shards: int = Field(
        1, ge=1, le=MOST_SHARDS, description="Number of global servers that share the model (MultiGPS)."
    )
    secret_file: File | None = Field(
        None,
        description="File with the run's secret, which `geomx secret FILE` makes. Default: `geomx run` makes its own; "
        "nodes started by hand need `[tls]`, or stay on loopback and use `tcp`.",
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop",
        description="On a contribution with NaN, Inf or a number too large for its codec. `stop`: the run ends and "
        "names worker, parameter and step. `skip`: it is left out. See "
        "[NaN or Inf](training-loop.md#when-a-gradient-is-nan-or-inf).",
    )
    on_loss: OnLoss = Field(
        "stop",
        description="When a worker, local server or party is lost. `stop`: the run ends and names it. `wait`: the "
        "others wait until it is back. `continue`: they go on without it; it may come back. See "
        "[when a worker is lost](sync.md#when-a-worker-is-lost).",
    )
    wait_s: float = Field(
        300.0,
        gt=0,
        le=WEEK_S,
        description="Seconds for which `wait` awaits who is lost. With `continue`: for which a node that is cut off "
        "tries to get back, and the run waits below the least parties or workers. An error with `stop`.",
    )
    least_parties: int = Field(
        1,
        ge=1,
        description="With `continue`: with fewer, the run waits. An error with `stop` and `wait`.",
    )
    least_workers: int = Field(1, ge=1, description="The same of workers, in all parties together.")
    open: bool = Field(
        False,
        description=f"With `continue`: parties that the others' descriptions do not name may come later, as "
        f"`{GUEST[0]}` to `{GUEST[-1]}`, with up to {len(GUESTS[GUEST[0]])} workers each. See "
        "[machines that come and go](machines-come-and-go.md#a-party-that-comes-later).",
    )
    replicas: int = Field(
        0,
        ge=0,
        le=1,
        description="1: each of several global servers keeps what the one before it has decided in its memory, so that "
        "one that dies can be started again, without a store. See "
        "[a global server](machines-come-and-go.md#without-a-store).",
    )
    overlay: OverlayName = Field(
        "",
        description="How servers below the global ones add and pass on for each other: `trees` or `ts` by what is "
        "measured, or a fixed table. Default: all send to the global servers. See [overlays](overlay.md).",
    )
    strict: bool = Field(
        False,
        description="Warnings about lost accuracy, and parties that train on the same samples, are errors. Same as "
        "`--strict`.",
    )
    calls: bool = Field(
        False,
        description="Whether a script that trains a model makes [collective calls](calls.md) as well. One that trains "
        "none needs no key.",
    )
    table_classes: tuple[ClassName, ...] = Field(
        (),
        strict=False,
        description="Your own rules and inits of [tables](tables.md), as `module:Class`. No others are "
        "imported.",
    )
    ledger: bool = Field(
        False,
        description="Prove, in an extra slice, that each contribution counted exactly once.",
    )


class SyncTable(Table):
    """When workers synchronize, and how much each contribution counts."""

    policy: PolicyName = Field("fsa", description="When servers answer, and what workers contribute.")
    weight: Literal["samples", "equal", "dataset_size"] = Field(
        "samples",
        description="How a contribution counts: by its samples, the same for all, or by its share of its party's "
        "`dataset_size`.",
    )
    quorum: float = Field(
        1.0,
        gt=0,
        le=1,
        description="With local steps and `continue`: of which share of the workers contributions must be in before a "
        "turn closes without the rest, which counts in the next. 1: of all. See "
        "[a quorum](sync.md#go-on-without-the-slowest).",
    )
    grace_s: float = Field(
        1.0, ge=0, le=WEEK_S, description="Seconds for which the rest is awaited behind the quorum."
    )
    buffers: Literal["auto", "own", "average"] = Field(
        "auto",
        description="Buffers of floating point under policies that average weights. `auto`: average running "
        "statistics, such as BatchNorm's. `average`: average all. `own`: each worker keeps its own until `run.save`.",
    )


class OptimizerTable(Table):
    """How contributions change the weights."""

    place: Literal["auto", "server", "workers"] = Field(
        "auto",
        description="Where the optimizer runs. `auto`: on the global servers if it is one of PyTorch's elementwise "
        "ones, else on the workers.",
    )
    rule: RuleName = Field(
        "",
        description="An update rule of your own for the global servers ([extending](extending.md)). Default: the "
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
        description="`backward`: each gradient is sent as soon as it is complete. `step`: in `step()`, so that the "
        "script may edit it before.",
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="CPU threads of each worker. 0: with `geomx run` the cores divided by its processes, else "
        "PyTorch's default.",
    )


class LayoutTable(Table):
    """How the model is cut into slices."""

    slice_elements: Elements = Field(
        0,
        description="Elements in the largest slice. 0: chosen for about 64 slices, or fewer with codecs.",
    )
    pack_below: int = Field(
        PACK_BELOW,
        ge=1,
        le=MOST_ELEMENTS,
        description="Tensors with fewer elements share slices. What is tiny for a codec: its "
        "[`size_lower_bound`](codecs.md#all-codecs).",
    )


class LimitsTable(Table):
    """How long nodes wait, in seconds."""

    start_s: Limit = Field(300.0, description="For the other nodes to join, before giving up with an error.")
    stall_s: Limit = Field(
        30.0,
        description="For another node, before reporting which one. The run ends if for as long every worker waits "
        "inside geomx and nothing moves.",
    )
    stop_s: Limit = Field(
        10.0,
        description="For a process to end by itself, before it is killed. A node that ends after a failure stays as "
        "long to tell late nodes.",
    )
    turn_s: float = Field(
        0.0,
        ge=0,
        description="For a live worker to come to its next step, before the run ends. 0: no limit.",
    )


class StoreTable(Table):
    """Where the global servers keep what outlives them. See [machines that come and go](machines-come-and-go.md)."""

    url: Annotated[str, TextForm("`file:///...`, or a bucket's URL, such as `s3://bucket/folder`", URL)] = (
        Field(
            "",
            description="A folder or a bucket, of this run alone. A global server that dies can be started again where "
            "it is reached. Default: none, and the run ends with it.",
        )
    )
    every_s: float = Field(
        60.0,
        gt=0,
        le=WEEK_S,
        description="How often each global server writes its whole state there: so long is what one that is started "
        "again has to repeat, at most.",
    )
    keep_mb: float = Field(
        1024.0,
        gt=0,
        description="MB of contributions that are kept until the next such state, which is written earlier then; where "
        "the state is larger, as much as that. They are in the store, or with `run.replicas` in memory.",
    )
    lease_s: float = Field(
        4.0,
        ge=0.5,
        le=3600,
        description="Where a global server has several addresses: after so long without a word of whoever has its "
        "place, another that stands by takes it.",
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
    store: StoreTable = Field(default_factory=StoreTable)
    tls: TlsTable = Field(default_factory=TlsTable)
    events: tuple[EventTable, ...] = Field((), alias="event", strict=False, max_length=MOST_EVENTS)
    sites: tuple[SiteTable, ...] = Field((), alias="site", strict=False, max_length=MOST_SITES)

    @property
    def server_tables(self) -> tuple[ServerTable, ...]:
        """Those of all servers but the shards, regions first."""
        return (*self.regions, *self.parties)
