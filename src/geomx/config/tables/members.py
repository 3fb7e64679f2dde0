"""The tables of who takes part: shards, regions, parties."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from geomx.config.tables.base import Table
from geomx.config.tables.edges import BelowTable
from geomx.config.tables.links import DelayTable, LinkTable
from geomx.config.value_types import (
    MOST_WORKERS,
    MOST_WORKERS_OF_A_PARTY,
    Addresses,
    AddressOrNone,
    ListenAddresses,
    ListenAddressOrNone,
    PartyName,
    PartyNameOrNone,
    Rate,
)


class GlobalTable(Table):
    """The global servers."""

    addresses: tuple[Addresses, ...] = Field(
        (),
        strict=False,
        description="Address of each shard, as others reach it; a list of several where others stand by to take its "
        "place. Default: `geomx run` picks free ports.",
    )
    listen: tuple[ListenAddresses, ...] = Field(
        (),
        strict=False,
        description="Address at which each shard listens, if another one (NAT, containers). Default: `addresses`.",
    )


class ServerTable(Table):
    """A server that is no global server, and its edge to its parent."""

    name: PartyName
    parent: PartyNameOrNone = Field("", description="Region above it. Default: the global servers.")
    address: AddressOrNone = Field(
        "",
        description="Address of its server, as those below reach it. Default: `geomx run` picks a free port.",
    )
    listen: ListenAddressOrNone = Field(
        "", description="Address at which its server listens, if another one. Default: `address`."
    )
    address_wan: AddressOrNone = Field(
        "",
        description="With `run.overlay`: address of its server, as others of its tier reach it. Default: it only "
        "dials; `geomx run` picks free ports where nobody has one.",
    )
    listen_wan: ListenAddressOrNone = Field(
        "",
        description="Address at which its server listens for them, if another one. Default: `address_wan`.",
    )
    neighbours: tuple[str, ...] = Field(
        (),
        strict=False,
        description="With `run.overlay`: servers of its tier, and `global`, to which it has ways of their own, that it "
        "does not share with ways to others. An overlay sends along these alone. Default: all.",
    )
    link: LinkTable | None = Field(
        None, description="Of its server to its parent, in place of `wan.link` or the region's `below.link`."
    )
    pace_mbps: Rate | None = Field(
        None, description="In place of `wan.pace_mbps` or the region's `below.pace_mbps`."
    )


class PartyTable(ServerTable):
    """A local server and its workers; one table for each party."""

    name: PartyName = Field(
        description="Name of the party and its local server. Must differ from others in more than case."
    )
    workers: int = Field(
        ge=1,
        le=MOST_WORKERS_OF_A_PARTY,
        description=f"Number of workers; at most {MOST_WORKERS} in all parties together.",
    )
    worker_delay: DelayTable | None = Field(
        None,
        description="Slows its workers down for trials: with `{ factor = 2, jitter = 0.1 }` they compute twice as "
        "long, ± 10 %.",
    )
    worker_addresses: tuple[AddressOrNone, ...] = Field(
        (),
        strict=False,
        max_length=MOST_WORKERS_OF_A_PARTY,
        description="With `lan.overlay`: address of each worker, as the others of its party reach it. Default: "
        "`geomx run` picks free ports; else only those that are given are dialled.",
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
        description='Samples in its data. Needed with `sync.weight = "dataset_size"`, else an error.',
    )

    @property
    def worker_names(self) -> tuple[str, ...]:
        """`A/0`, `A/1`, ... by rank."""
        return tuple(f"{self.name}/{rank}" for rank in range(self.workers))


class RegionTable(ServerTable):
    """A server that adds what comes from parties or regions below, before it crosses the way to the global servers."""

    name: PartyName = Field(description="Name of the region and its server, unlike any party's.")
    below: BelowTable = Field(default_factory=BelowTable, description="The edges to the servers below.")
