"""The tables of a run's description: which keys there are, what they mean, what each allows by itself.

What keys must be to each other stands in `rules.py`. A key's attribute has the key's name, but for `global`
(a word of Python: `global_`), `[[party]]` (`parties`) and `[[event]]` (`events`).
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
    LanCodecName,
    Limit,
    ListenAddress,
    ListenAddressOrNone,
    Moment,
    PartyName,
    PolicyName,
    Rate,
    RuleName,
    RunName,
    Share,
    Silence,
    Wander,
)
from geomx.layout import PACK_BELOW


class Table(BaseModel):
    """The root of all tables: frozen, without unknown keys, and `3` is no text, `"3"` no number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class LinkTable(Table):
    """A link as geomx imitates it, in user space and in both directions."""

    rate_mbps: Rate = Field(
        0.0, description="Each way, in Mbit/s on the wire, headers included. 0: unlimited."
    )
    delay_ms: Delay = Field(0.0, description="Delay one way; a round trip takes twice as long.")
    jitter_ms: Wander = Field(0.0, description="How far the delay wanders, to either side.")
    loss: Share = Field(0.0, description="Share of packets that is lost.")

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

    factor: float = Field(1.0, ge=1, le=1000, description="Times as long as the computation takes by itself.")
    jitter: float = Field(0.0, ge=0, le=1, description="How far a step strays from that, as a share of it.")


class RunTable(Table):
    """The run as a whole."""

    name: RunName = Field(description="The run's name. Left out: the file's name without its ending.")
    script: File | None = Field(
        None, description="The training script that workers run, relative to this file's folder."
    )
    arguments: tuple[Argument, ...] = Field((), strict=False, description="The script's arguments.")
    preset: Literal["", "slow-link", "geomx-bisparse", "geomx-fp16", "geomx-mpq"] = Field(
        "",
        description="Settings that are known to go together, in place of the defaults: see "
        "[which setting for my model](settings.md).",
    )
    seed: int = Field(0, ge=0, le=2**32 - 1, description="Seed of everything that is drawn by chance.")
    shards: int = Field(
        1, ge=1, le=MOST_SHARDS, description="How many global servers share the model (MultiGPS)."
    )
    secret_file: File | None = Field(
        None,
        description="A file with the run's secret, which every node proves to know; `geomx secret FILE` makes one. "
        "Left out: `geomx run` makes one for itself; elsewhere nodes prove membership by `[tls]` alone, or not at all.",
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop",
        description="What becomes of a contribution with NaN, Inf, or a number that its codec has no room for. `stop`: "
        "the run ends, and names worker, parameter and step; `skip`: it counts nothing, and the run goes on; see "
        "[numbers that are not finite](training-loop.md#when-a-gradient-is-nan-or-inf).",
    )
    strict: bool = Field(
        False,
        description="Whether what is known to cost accuracy, and is told as a warning else, is an error; "
        "`--strict` on the command line.",
    )
    ledger: bool = Field(
        False, description="Carry an int64 slice that counts every contribution, as a proof of exactly-once."
    )


class SyncTable(Table):
    """When nodes answer."""

    policy: PolicyName = Field(
        "fsa", description="The sync policy, and parameters as `staleness=4`; see [sync policies](sync.md)."
    )
    weight: Literal["samples", "equal", "dataset_size"] = Field(
        "samples",
        description="How much a worker's contribution counts: by the samples it saw, the same for all, "
        "or by its party's `dataset_size`.",
    )
    buffers: Literal["auto", "own", "average"] = Field(
        "auto",
        description="Buffers in float32 and float64 where a policy averages weights. `auto`: the running statistics "
        "of BatchNorm and its like are averaged with them; `average`: every buffer is; `own`: each worker keeps its "
        "own until `run.save`.",
    )


class OptimizerTable(Table):
    """What an aggregate does to the weights."""

    place: Literal["auto", "server", "workers"] = Field(
        "auto",
        description="Where the optimizer runs. `auto`: on the global servers if its update is elementwise, "
        "else on the workers.",
    )
    rule: RuleName = Field(
        "",
        description="What the global servers do with a gradient: a rule of your own as `module:Class`, which each of "
        "them imports (see [extending](extending.md)). Left out: what the script's optimizer does, if it is one of "
        "PyTorch's and elementwise.",
    )
    compensation: CompensationName = Field(
        "",
        description="What makes up for the age of gradients where parties do not wait for each other: `dcasgd`, and "
        "parameters as `strength=0.04`.",
    )


class WorkerTable(Table):
    """How a worker trains."""

    overlap: Literal["none", "forward"] = Field(
        "none",
        description="`forward`: the next forward begins before the update is complete, "
        "and each module waits for its own weights.",
    )
    push_at: Literal["backward", "step"] = Field(
        "backward",
        description="When gradients leave. `backward`: as soon as each is complete; `step`: with `step()`, "
        "so that they may be edited before.",
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="Threads of a worker's arithmetic. 0: with `geomx run` this machine's cores by its processes, else "
        "what PyTorch takes.",
    )


class LayoutTable(Table):
    """How the model is cut into slices."""

    slice_elements: Elements = Field(
        0,
        description="Elements of the largest slice. 0: by the model's size, and larger where codecs send less.",
    )
    pack_below: int = Field(
        PACK_BELOW,
        ge=1,
        le=MOST_ELEMENTS,
        description="Tensors of fewer elements are packed several to a slice. Which ones are tiny for a codec is the "
        "codec's own parameter, `size_lower_bound`; see [codecs](codecs.md).",
    )


class GlobalTable(Table):
    """The global servers."""

    addresses: tuple[Address, ...] = Field(
        (),
        strict=False,
        description="Where each shard is dialled. Left out: `geomx run` chooses free ports on this machine.",
    )
    listen: tuple[ListenAddress, ...] = Field(
        (), strict=False, description="Where each shard listens, if not at the address that others dial."
    )


class PartyTable(Table):
    """A data center or organisation: a local server and its workers. One table for each."""

    name: PartyName = Field(
        description="The party's name, which is its local server's name as well. No two differ in upper and lower "
        "case alone."
    )
    workers: int = Field(
        ge=1,
        le=MOST_WORKERS_OF_A_PARTY,
        description=f"How many workers it has. All parties together have {MOST_WORKERS} or fewer.",
    )
    address: AddressOrNone = Field(
        "", description='Where its workers dial its local server. "": `geomx run` chooses a free port.'
    )
    listen: ListenAddressOrNone = Field(
        "", description="Where the local server listens, if not at the address that workers dial."
    )
    link: LinkTable | None = Field(
        None, description="Its link to the global servers, in place of `wan.link`."
    )
    pace_mbps: Rate | None = Field(None, description="In place of `wan.pace_mbps`, both ways.")
    worker_delay: DelayTable | None = Field(
        None, description="Makes its workers slower than they are, to try what that does to a run."
    )
    inside: Literal["server", "collective"] = Field(
        "server",
        description="Where its workers' gradients are added up. `server`: at their local server; `collective`: among "
        "themselves, by `torch.distributed`; see [inside a party](inside.md).",
    )
    dataset_size: int | None = Field(
        None, ge=1, le=10**12, description='Samples in its data set, for `sync.weight = "dataset_size"`.'
    )

    @property
    def worker_names(self) -> tuple[str, ...]:
        """`A/0`, `A/1`, ... by rank."""
        return tuple(f"{self.name}/{rank}" for rank in range(self.workers))


class EventTable(Table):
    """A party's emulated link changes while the run goes on.

    While several events last, the later one wins, key by key; when one is over, what it covered shows again.
    The events of a party stand in the order of their times.
    """

    at_s: Moment = Field(description="When, in seconds since the end of `attach`, as the sending end saw it.")
    party: PartyName = Field(description="Whose link to the global servers changes, in both directions.")
    for_s: Duration | None = Field(
        None, description="How long; what it covered then shows again. Left out: for good."
    )
    rate_mbps: Rate | None = Field(None, description="As in Links, where it changes.")
    delay_ms: Delay | None = Field(None, description="As in Links, where it changes.")
    jitter_ms: Wander | None = Field(None, description="As in Links, where it changes.")
    loss: Share | None = Field(None, description="As in Links, where it changes.")
    cut: bool | None = Field(
        None, description="`true`: nothing passes, until `for_s` is over or a later event says `cut = false`."
    )

    @property
    def changes(self) -> dict[str, float | bool]:
        """What of the link is different."""
        return self.model_dump(exclude_none=True, exclude={"at_s", "for_s", "party"})


class EdgeTable(Table):
    """What the edges of one tier have in common."""

    codec_up: CodecName = Field(
        "dense", description="What contributions travel as: a codec, and parameters as `ratio=0.01`."
    )
    codec_down: CodecName = Field("dense", description="What updates travel as.")
    channel: ChannelName = Field(
        "tcp",
        description="How bytes cross: a channel, which may be your own (see [extending](extending.md)).",
    )
    congestion: Literal["system", "bbr", "cubic", "reno"] = Field(
        "system",
        description="TCP's congestion control. `system`: as this machine is set. `bbr`: for links that lose packets, "
        "where `cubic` slows down much.",
    )
    heartbeat_s: Heartbeat = Field(1.0, description="A node that has nothing to say says so this often.")
    timeout_s: Silence = Field(
        description="A node that is silent or away for this long is lost. At least 3 × `heartbeat_s`."
    )
    link: LinkTable | None = Field(None, description="The link to imitate. Left out: the network as it is.")


class WanTable(EdgeTable):
    """The edges between local servers and global servers."""

    pace_mbps: Rate = Field(
        0.0,
        description="Mbit/s of payload at which a party's bytes leave at most, up and down (Linux); 0: as TCP finds. "
        "97 % of the link's rate leaves its queue empty: the fastest with `cubic`, where nothing is lost.",
    )
    timeout_s: Silence = Field(15.0, description=EdgeTable.model_fields["timeout_s"].description)


class LanTable(EdgeTable):
    """The edges between workers and their local server."""

    codec_down: LanCodecName = Field(
        "wan", description="What updates travel as. `wan`: as they came over the WAN, byte for byte."
    )
    timeout_s: Silence = Field(5.0, description=EdgeTable.model_fields["timeout_s"].description)
    rejoin_s: float = Field(
        0.0,
        ge=0,
        description="How long a worker that is lost is awaited, so that it can be started again (see "
        "[sync policies](sync.md#when-a-worker-is-lost)). 0: the run ends with it. Needs an optimizer on the global "
        'servers, or local steps; without effect in a party with `inside = "collective"`.',
    )


class LimitsTable(Table):
    """How long a node waits."""

    start_s: Limit = Field(300.0, description="For the others to join, before it ends with an error.")
    stall_s: Limit = Field(
        30.0,
        description="For anything, before it reports for whom and for what; and where every worker waits inside geomx "
        "and nothing moves, before the run ends.",
    )
    stop_s: Limit = Field(
        10.0,
        description="For an orderly end, before it is ended; and to tell those who join behind a failure.",
    )
    turn_s: float = Field(
        0.0,
        ge=0,
        description="For the members of one turn, before the run ends. 0: for as long as they speak, since a script "
        "may do as it likes between two steps.",
    )


class TlsTable(Table):
    """TLS 1.3 with mutual certificates on every edge: all three files, or none."""

    certificate: File | None = Field(None, description="This node's certificate chain (PEM).")
    key: File | None = Field(
        None, description="Its private key (PEM), which only its owner may be able to read."
    )
    authority: File | None = Field(
        None, description="The certificates that sign the nodes of this run (PEM)."
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
    wan: WanTable = Field(default_factory=WanTable)
    lan: LanTable = Field(default_factory=LanTable)
    limits: LimitsTable = Field(default_factory=LimitsTable)
    tls: TlsTable = Field(default_factory=TlsTable)
    events: tuple[EventTable, ...] = Field((), alias="event", strict=False, max_length=MOST_EVENTS)
