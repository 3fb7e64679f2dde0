"""Run: the one description of a run that every part of geomx reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from geomx.config.addresses import each_of
from geomx.config.compatibility.presets import apply_preset
from geomx.config.compatibility.rules import RULES
from geomx.config.link_changes import LinkChange, changes_of
from geomx.config.reading.checking import broken, checked
from geomx.config.reading.document import Document, read_json, read_text, read_toml
from geomx.config.reading.extends import extended
from geomx.config.reading.overrides import apply_overrides
from geomx.config.tables import (
    BelowTable,
    Description,
    EdgeTable,
    LinkTable,
    PartyTable,
    ServerTable,
    WanTable,
)
from geomx.errors import ConfigError, Fault, nearest
from geomx.tree import GUESTS, TOP, Tree

# The keys on which all nodes of a run must agree; `docs/configuration.md` marks them.
AGREED = (
    "run.name",
    "run.seed",
    "run.shards",
    "run.on_nonfinite",
    "run.on_loss",
    "run.wait_s",
    "run.least_parties",
    "run.least_workers",
    "run.open",
    "run.replicas",
    "run.overlay",
    "run.strict",
    "run.calls",
    "run.ledger",
    "sync.policy",
    "sync.weight",
    "sync.quorum",
    "sync.grace_s",
    "sync.buffers",
    "optimizer.place",
    "optimizer.rule",
    "optimizer.compensation",
    "layout.slice_elements",
    "layout.pack_below",
    "wan.channel",
    "wan.codec_up",
    "wan.codec_down",
    "wan.heartbeat_s",
    "wan.timeout_s",
    "lan.channel",
    "lan.codec_up",
    "lan.codec_down",
    "lan.heartbeat_s",
    "lan.timeout_s",
    "lan.overlay",
)
AGREED_OF_EACH = {  # of tables of which there may be several
    "party": ("parent", "workers", "inside", "dataset_size"),
    "region": (
        "parent",
        "below.channel",
        "below.codec_up",
        "below.codec_down",
        "below.heartbeat_s",
        "below.timeout_s",
    ),
}


class Run(Description):
    """The description of a run, read from a file and checked as a whole.

    Each table of the file is an attribute: `run.wan.codec_up`. Names of nodes: `A/0` is the first worker of party A,
    `A` its local server, `global/0` the first shard.

    Raises:
        ConfigError: From every method that reads or makes a description: it lists every fault.
    """

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        if problems := broken(RULES, Description, self.model_dump(by_alias=True)):
            raise ConfigError(f"run {self.run.name}", Document({}).faults(problems))
        return self

    # -- files -------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """Read a description from a file.

        Args:
            path: A `.toml` file, or a `.json` file that `save` wrote.
            overrides: Changes as on the command line, such as `"wan.codec_up=fp16"`.
        """
        return cls.parse(read_text(Path(path)), str(path), overrides)

    @classmethod
    def parse(cls, text: str, source: str, overrides: Sequence[str] = ()) -> Self:
        """Read a description from text.

        Args:
            text: TOML, or JSON if `source` ends in `.json`.
            source: The name of its file, for messages. Paths in the description are relative to its folder.
            overrides: Changes as on the command line.
        """
        document, faults = document_of(text, source, overrides)
        return cls.of_document(document, source, faults)

    @classmethod
    def of_document(cls, document: Document, source: str, faults: Sequence[Fault] = ()) -> Self:
        """The run that a document describes; raises `ConfigError` with its faults and those found before."""
        context = {"folder": Path(source).parent}
        checked(Description, document, source, RULES, context, faults)
        return cls.model_validate(document.data, context=context)

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `load` reads: every key that has a value, with absolute paths."""
        Path(path).write_text(
            json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    def as_dict(self) -> dict[str, Any]:
        """Every key that has a value, as nested dicts of JSON's types, named as in the TOML."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    # -- nodes -------------------------------------------------------------------------------------

    @cached_property
    def tree(self) -> Tree:
        """Who hangs on whom."""
        servers = {server.name: server.parent or TOP for server in self.server_tables}
        workers = {worker: party.name for party in self.parties for worker in party.worker_names}
        return Tree(servers | workers, self.shard_names)

    @cached_property
    def open_tree(self) -> Tree:
        """The same with places for parties that come later (`run.open`): as the run's nodes know it."""
        return self.tree.with_guests(GUESTS) if self.run.open else self.tree

    @property
    def shard_names(self) -> tuple[str, ...]:
        """The global servers, from `global/0` on."""
        return tuple(f"global/{shard}" for shard in range(self.run.shards))

    @property
    def servers(self) -> tuple[str, ...]:
        """The local servers; each has the name of its party."""
        return tuple(party.name for party in self.parties)

    @property
    def workers(self) -> tuple[str, ...]:
        """All workers, by party in the order of the file, then by rank."""
        return tuple(name for party in self.parties for name in party.worker_names)

    @property
    def overlays(self) -> dict[str, str]:
        """By the upper end of its edges, each tier that has an overlay, and its planner."""
        above = {TOP: self.run.overlay} if self.run.overlay else {}
        return above | (dict.fromkeys(self.open_tree.parties, self.lan.overlay) if self.lan.overlay else {})

    @property
    def is_durable(self) -> bool:
        """Whether a global server that dies can be started again."""
        return bool(self.store.url) or self.run.replicas > 0

    def workers_of(self, party: str) -> tuple[str, ...]:
        """A party's workers, by rank."""
        return self.party(party).worker_names

    def party(self, name: str) -> PartyTable:
        """The table of the party of that name; raises `ConfigError` if there is none."""
        for party in self.parties:
            if party.name == name:
                return party
        raise self._no_such("party", name, self.servers)

    def server(self, name: str) -> ServerTable:
        """The table of the party or region of that name; raises `ConfigError` if there is none."""
        for server in self.server_tables:
            if server.name == name:
                return server
        raise self._no_such("party", name, tuple(server.name for server in self.server_tables))

    def edge_above(self, server: str) -> WanTable | BelowTable:
        """The table of a local server's or a region's edges to its parent."""
        parent = self.server(server).parent
        return next((region.below for region in self.regions if region.name == parent), self.wan)

    def edge_below(self, server: str) -> EdgeTable:
        """The table of any server's edges to its children."""
        if server in self.shard_names:
            return self.wan
        return next((region.below for region in self.regions if region.name == server), self.lan)

    def link_of(self, server: str) -> LinkTable | None:
        """The emulated link between a party or region and its parent; None: the network as it is."""
        return self.server(server).link or self.edge_above(server).link

    def link_changes_of(self, server: str) -> tuple[LinkChange, ...]:
        """What becomes of that link while the run goes on."""
        link, events = self.link_of(server), [event for event in self.events if event.party == server]
        return () if link is None else tuple(changes_of(link.spec, events))

    def pace_mbps_of(self, server: str) -> float:
        """At which the bytes between a party or region and each of its parents leave, either way; 0: as TCP finds."""
        own = self.server(server).pace_mbps
        return (self.edge_above(server).pace_mbps if own is None else own) / self.shares_of(server)

    def shares_of(self, server: str) -> int:
        """Among how many parents a server's link is shared: the shards, or one region's server."""
        return 1 if self.server(server).parent else self.run.shards

    @property
    def codecs(self) -> tuple[str, ...]:
        """The codecs of all edges, up and down, with their parameters."""
        edges = (self.wan, *(region.below for region in self.regions), self.lan)
        specs = (spec for edge in edges for spec in (edge.codec_up, edge.codec_down))
        return tuple(spec for spec in specs if spec != "wan")

    # -- addresses ---------------------------------------------------------------------------------

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each server, of several the first, by node name; empty if it is not known yet."""
        shards = [each_of([each])[0] for each in self.global_.addresses] or [""] * self.run.shards
        servers = {server.name: server.address for server in self.server_tables}
        return dict(zip(self.shard_names, shards, strict=True)) | servers

    def address_of(self, node: str) -> str:
        """The address of one server; raises `ConfigError` if there is no such server, or it has no address."""
        addresses = self.addresses
        if node not in addresses:
            raise self._no_such("server", node, tuple(addresses))
        if not addresses[node]:
            kind = "region" if node in self.tree.servers and node not in self.servers else "party"
            key = "global.addresses" if node in self.shard_names else f"{kind}.{node}.address"
            fault = Fault(key, "nothing", '"host:port"', "give one, or let `geomx run` choose")
            raise ConfigError(f"run {self.run.name}", [fault])
        return addresses[node]

    def addresses_of(self, node: str) -> tuple[str, ...]:
        """All addresses of one server, of which it is at one at a time; raises `ConfigError` as `address_of` does."""
        first = self.address_of(node)
        shards = dict(zip(self.shard_names, self.global_.addresses, strict=False))
        return tuple(each_of([shards.get(node, first)]))

    def listen_address_of(self, node: str, place: int = 0) -> str:
        """Where a server listens: its own `listen`, or else the address that others dial. `place`: of its addresses."""
        listen = {server.name: [server.listen] for server in self.server_tables if server.listen}
        listen |= {
            shard: each_of([given])
            for shard, given in zip(self.shard_names, self.global_.listen, strict=False)
        }
        return listen.get(node, self.addresses_of(node))[place]

    @property
    def addresses_beside(self) -> dict[str, str]:
        """Where nodes can be reached by others of their tier, by name; with an overlay."""
        top = [server for server in self.server_tables if not server.parent and self.run.overlay]
        found = {server.name: server.address_wan for server in top if server.address_wan}
        for party in self.parties if self.lan.overlay else ():
            given = zip(party.worker_names, party.worker_addresses, strict=False)
            found |= {name: address for name, address in given if address}
        return found

    def listen_beside_of(self, node: str) -> str:
        """Where a node listens for others of its tier; empty: it does not."""
        listen = {server.name: server.listen_wan for server in self.server_tables if server.listen_wan}
        address = self.addresses_beside.get(node, "")
        return listen.get(node, address) if address else ""

    def with_addresses_beside(self, choose: Callable[[str], str]) -> Self:
        """A copy in which nodes of overlays have addresses, where no node of their tier has one."""
        data, known = self.as_dict(), self.addresses_beside
        if self.run.overlay and not any(server.name in known for server in self.server_tables):
            for server in (each for each in (*data["party"], *data["region"]) if not each["parent"]):
                server["address_wan"] = choose(server["name"])
        for party in self.parties if self.lan.overlay else ():
            if not known.keys() & set(party.worker_names):
                table = next(each for each in data["party"] if each["name"] == party.name)
                table["worker_addresses"] = list(map(choose, party.worker_names))
        return self.of_document(Document(data), f"run {self.run.name}")

    def with_addresses(self, addresses: Mapping[str, str]) -> Self:
        """A copy in which the named servers have these addresses, `host:port` by node name."""
        if unknown := [node for node in addresses if node not in self.addresses]:
            raise self._no_such("server", unknown[0], tuple(self.addresses))
        known = self.addresses | dict(addresses)
        data = self.as_dict()
        several = dict(zip(self.shard_names, self.global_.addresses, strict=False))
        data["global"]["addresses"] = [
            [known[shard], *each_of([several.get(shard, "")])[1:]]
            for shard in self.shard_names
            if known[shard]
        ]
        for server in (*data["party"], *data["region"]):
            server["address"] = known[server["name"]]
        return self.of_document(Document(data), f"run {self.run.name}")

    def changed(self, overrides: Sequence[str]) -> Self:
        """A copy with settings changed as on the command line, such as `run.changed(["wan.codec_up=fp16"])`."""
        document, source = Document(self.as_dict()), f"run {self.run.name}"
        return self.of_document(document, source, apply_overrides(document, overrides))

    def _no_such(self, what: str, name: str, names: Sequence[str]) -> ConfigError:
        fault = Fault(what, f"no {what} `{name}`", ", ".join(f"`{n}`" for n in names), nearest(name, names))
        return ConfigError(f"run {self.run.name}", [fault])

    # -- agreement ---------------------------------------------------------------------------------

    def manifest(self) -> dict[str, str | int | float | bool | None]:
        """The settings on which all nodes of a run must agree, by key."""
        data = self.model_dump(by_alias=True)
        manifest = {}
        for key in AGREED:
            table, _, name = key.partition(".")
            manifest[key] = data[table][name]
        manifest["store"] = self.is_durable  # those below await a shard that has one
        mine = [name for name in self.servers if self.run.open and name in GUESTS]
        manifest["party"] = ", ".join(
            name for name in self.servers if name not in mine
        )  # sums are taken in this order
        manifest["addressed"] = ", ".join(name for name in self.addresses_beside if name not in GUESTS)
        for server in self.server_tables:
            if server.neighbours:
                manifest[f"{server.name}.neighbours"] = ", ".join(server.neighbours)
        for kind, names in AGREED_OF_EACH.items():
            for table in data[kind]:
                for name in names if table["name"] not in mine else ():
                    *outer, key = name.split(".")
                    inner = reduce(getitem, outer, table)
                    manifest[f"{kind}.{table['name']}.{name}"] = inner[key]
        return manifest


def document_of(text: str, source: str, overrides: Sequence[str] = ()) -> tuple[Document, list[Fault]]:
    """A description's text, changed as on the command line, and the faults of those changes. Raises `ConfigError`."""
    is_json = source.endswith(".json")
    document = read_json(text, source) if is_json else extended(read_toml(text, source), source)
    faults = apply_overrides(document, overrides)
    apply_preset(document)
    _name_after_file(document, source)
    return document, faults


def _name_after_file(document: Document, source: str) -> None:
    table = document.data.setdefault("run", {})
    if isinstance(table, dict) and "name" not in table:
        table["name"] = Path(source).stem
        document.places[("run", "name")] = "from the file's name"
