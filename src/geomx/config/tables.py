"""The tables of a run's description: which keys there are, what they mean, what each allows by itself.

What keys must be to each other stands in `rules.py`. A key's attribute has the key's name, but for `global`
(a word of Python: `global_`), `[[party]]` (`parties`), `[[region]]` (`regions`) and `[[event]]` (`events`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from geomx.channels.emulation.link import LinkSpec
from geomx.config.value_types import (
    MOST_ELEMENTS,
    MOST_EVENTS,
    MOST_PARTIES,
    MOST_SHARDS,
    MOST_WORKERS,
    MOST_WORKERS_OF_A_PARTY,
    WEEK_S,
    Address,
    AddressOrNone,
    Argument,
    ChannelName,
    CodecName,
    CompensationName,
    Delay,
    Duration,
    Elements,
    File,
    Heartbeat,
    Limit,
    ListenAddress,
    ListenAddressOrNone,
    Moment,
    PartyName,
    PartyNameOrNone,
    PassingCodecName,
    PolicyName,
    Rate,
    RuleName,
    RunName,
    Share,
    Silence,
    Wander,
)
from geomx.layout import PACK_BELOW
from geomx.rounds.losses import OnLoss


class Table(BaseModel):
    """The root of all tables: frozen, without unknown keys, and `3` is no text, `"3"` no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LinkTable(Table):
    """An emulated network link: geomx imitates it in user space, without root, alike in both directions."""

    rate_mbps: Rate = Field(
        0.0, description="Mbit/s on the wire in each direction, headers included. 0: unlimited."
    )
    delay_ms: Delay = Field(
        0.0, description="One-way delay in milliseconds; a round trip takes twice as long."
    )
    jitter_ms: Wander = Field(0.0, description="Milliseconds by which the delay varies, up and down.")
    loss: Share = Field(
        0.0,
        description="Fraction of packets lost; 0.01 is 1 %. TCP's are sent again; datagrams do not arrive.",
    )

    @property
    def words(self) -> str:
        """`100 Mbit/s, 20 ± 2 ms one way, loss 1 %`."""
        return self.spec.words

    @property
    def spec(self) -> LinkSpec:
        """The link that is imitated."""
        return LinkSpec(**self.model_dump())


class DelayTable(Table):
    """Workers that are slower than they are: each computes for `factor` times as long."""

    factor: float = Field(
        1.0, ge=1, le=1000, description="How many times as long a step's computation takes."
    )
    jitter: float = Field(0.0, ge=0, le=1, description="Fraction of `factor` by which steps vary.")


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


class GlobalTable(Table):
    """The global servers."""

    addresses: tuple[Address, ...] = Field(
        (),
        strict=False,
        description="Address of each shard, as others reach it. Default: `geomx run` picks free ports.",
    )
    listen: tuple[ListenAddress, ...] = Field(
        (),
        strict=False,
        description="Address at which each shard listens, if another one (NAT, containers). Default: `addresses`.",
    )


class ServerTable(Table):
    """A server that is no global server, and its edge to its parent."""

    name: PartyName
    parent: PartyNameOrNone = Field(
        "", description="Region whose server it hangs on. Default: the global servers."
    )
    address: AddressOrNone = Field(
        "",
        description="Address of its server, as those below reach it. Default: `geomx run` picks a free port.",
    )
    listen: ListenAddressOrNone = Field(
        "", description="Address at which its server listens, if another one. Default: `address`."
    )
    link: LinkTable | None = Field(
        None, description="Of its server to its parent, in place of `wan.link` or the region's `below.link`."
    )
    pace_mbps: Rate | None = Field(
        None, description="In place of `wan.pace_mbps` or the region's `below.pace_mbps`."
    )


class PartyTable(ServerTable):
    """A data center or organisation: a local server and its workers. One table for each."""

    name: PartyName = Field(
        description="Name of the party and its local server. Must differ from others in more than upper and lower case."
    )
    workers: int = Field(
        ge=1,
        le=MOST_WORKERS_OF_A_PARTY,
        description=f"Number of workers; at most {MOST_WORKERS} in all parties together.",
    )
    worker_delay: DelayTable | None = Field(
        None,
        description="Slows its workers down, to try out unequal sites: `{ factor = 2, jitter = 0.1 }` makes them "
        "compute twice as long, ± 10 %.",
    )
    inside: Literal["server", "collective"] = Field(
        "server",
        description="Who adds up its workers' gradients. `server`: the local server. `collective`: the workers, by "
        "`torch.distributed`; see [inside a party](inside.md).",
    )
    dataset_size: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description='Samples in its data set. Needed with `sync.weight = "dataset_size"`, an error without it.',
    )

    @property
    def worker_names(self) -> tuple[str, ...]:
        """`A/0`, `A/1`, ... by rank."""
        return tuple(f"{self.name}/{rank}" for rank in range(self.workers))


class EventTable(Table):
    """A change of a party's emulated link during the run.

    Where events overlap, the later one wins, key by key; when it ends, the earlier values return. List a party's events
    in the order of their times.
    """

    at_s: Moment = Field(description="Start, in seconds after `attach` has returned.")
    party: PartyName = Field(description="Party or region whose link to its parent changes.")
    for_s: Duration | None = Field(None, description="Duration in seconds. Default: to the end of the run.")
    rate_mbps: Rate | None = Field(None, description="New rate in Mbit/s.")
    delay_ms: Delay | None = Field(None, description="New one-way delay in milliseconds.")
    jitter_ms: Wander | None = Field(None, description="New jitter in milliseconds.")
    loss: Share | None = Field(None, description="New fraction of packets lost.")
    cut: bool | None = Field(
        None, description="`true`: nothing passes until `for_s` is over or a later event has `cut = false`."
    )

    @property
    def changes(self) -> dict[str, float | bool]:
        """What of the link is different."""
        return self.model_dump(exclude_none=True, exclude={"at_s", "for_s", "party"})


class EdgeTable(Table):
    """What the edges of one tier have in common."""

    codec_up: CodecName = Field("dense", description="Encoding of contributions, on their way up.")
    codec_down: CodecName = Field("dense", description="Encoding of updates, on their way down.")
    channel: ChannelName = Field(
        "tcp",
        description="How contributions and updates travel. `tcp`: by TCP. `datagram`, `dgt`: in datagrams beside it, "
        "for links that lose packets; see [channels](#channels).",
    )
    congestion: Literal["system", "bbr", "cubic", "reno"] = Field(
        "system",
        description="TCP congestion control. `system`: the machine's own. Use `bbr` on links that lose packets, where "
        "`cubic` is slow.",
    )
    heartbeat_s: Heartbeat = Field(
        1.0, description="Seconds between heartbeats of a node that has nothing else to send."
    )
    timeout_s: Silence = Field(
        description="Seconds after which a silent or unreachable node is lost. At least 3 × `heartbeat_s`."
    )
    link: LinkTable | None = Field(None, description="Emulated link. Default: the real network.")


class WanTable(EdgeTable):
    """Connections between local servers and global servers."""

    pace_mbps: Rate = Field(
        0.0,
        description="Limit of a party's rate in each direction, in Mbit/s of payload (Linux). 0: no limit. With "
        "`cubic` on a link without loss, 97 % of the link's rate is fastest.",
    )
    timeout_s: Silence = Field(15.0, description=EdgeTable.model_fields["timeout_s"].description)


class BelowTable(EdgeTable):
    """Connections between a region's server and the servers that hang on it."""

    codec_down: PassingCodecName = Field(
        "wan", description="Encoding of updates. `wan`: pass on the bytes that came from above."
    )
    pace_mbps: Rate = Field(0.0, description="As `wan.pace_mbps`.")
    timeout_s: Silence = Field(15.0, description=EdgeTable.model_fields["timeout_s"].description)


class RegionTable(ServerTable):
    """A server between local servers and global servers, such as a continent's; it has no workers. One table for each.

    Contributions from below are added there, and cross the way to the global servers once.
    """

    name: PartyName = Field(description="Name of the region and its server, unlike any party's.")
    below: BelowTable = Field(
        default_factory=BelowTable, description="The edges to the servers that hang on it."
    )


class LanTable(EdgeTable):
    """Connections between workers and their local server."""

    codec_down: PassingCodecName = Field(
        "wan",
        description="Encoding of updates. `wan`: pass on the bytes that came over the WAN.",
    )
    timeout_s: Silence = Field(5.0, description=EdgeTable.model_fields["timeout_s"].description)


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


class TlsTable(Table):
    """TLS 1.3, certificates at both ends of every connection ([security](security.md)): all three files or none."""

    certificate: File | None = Field(None, description="This node's certificate chain (PEM).")
    key: File | None = Field(
        None, description="The certificate's private key (PEM). Only its owner may be able to read it."
    )
    authority: File | None = Field(None, description="Certificates that sign the nodes of this run (PEM).")


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
