"""What the nodes of a run need to know of its description: the tree, its edges, and what servers decide by.

`Topology` is the same for both drivers, and can also be described in a few lines. `factory.py` makes the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from geomx.channels import channels
from geomx.channels.contract import BlockClasses, EdgeSettings, classes_of
from geomx.codecs.pack.noise import RngKey, key_of
from geomx.config import Run
from geomx.config.tables import EdgeTable
from geomx.node.peers.peer import Limits
from geomx.rounds.losses import Losses, Quorum
from geomx.tree import GLOBAL, SOLO, TOP, Tree
from geomx.wire.messages import Value
from geomx.wire.session import Patience

LEAST_BEATS = 3  # that somebody of one tier is silent before another goes on without it
AS_ABOVE = "wan"  # instead of a codec down: what came from above goes on, byte for byte


@dataclass(frozen=True, slots=True)
class Edge:
    """The edges between a server and its children: codecs and channel by name, and how liveness is judged.

    `passes`: whether updates go on as they came, byte for byte; then `codec_down` is that of the edge above.
    """

    codec_up: str = "dense"
    codec_down: str = "dense"
    patience: Patience = field(default_factory=Patience)
    channel: str = "tcp"
    passes: bool = False

    def classes(self, stream: RngKey) -> BlockClasses | None:
        """How the channel sends blocks; None: everything goes over connections.

        Each node has its own. `stream`: of the run and the node, for what is drawn.
        """
        seed = key_of(stream.seed, stream.origin)
        return classes_of(channels.make(self.channel, EdgeSettings(seed=seed)))


@dataclass(frozen=True, slots=True)
class Topology:
    """The tree, its edges by their upper end (`TOP`: the shards), and what is the same everywhere."""

    run: str
    tree: Tree
    edges: Mapping[str, Edge]
    policy: str = "fsa"
    table_classes: tuple[str, ...] = ()  # rules and inits of tables beside the built-in ones
    rule: str = ""  # of the root, as `module:Class`; none: one of torch.optim, as the workers say
    compensation: str = ""
    limits: Limits = field(default_factory=Limits)
    losses: Losses = field(default_factory=Losses)
    collective: frozenset[str] = frozenset()  # the parties whose workers reduce among themselves
    manifest: dict[str, Value] = field(default_factory=dict)
    seed: int = 0
    skips: bool = False  # whether contributions that are not finite are skipped, and the run goes on
    strict: bool = False  # whether what is known to cost accuracy ends the run
    is_durable: bool = False  # whether shards keep a log, and may be started again
    replicas: int = 0  # in the memory of so many others; 0: in a store
    cut_every_s: float = 60.0  # how often they write their whole state
    keep_bytes: float = 1e9  # or so much has been written since
    secret: bytes = field(default=b"", repr=False)  # of the run, see `geomx.wire.proof`
    overlays: Mapping[str, str] = field(default_factory=dict)  # by upper end of edges: a planner, as a spec
    addressed: frozenset[str] | None = None  # who can be dialled by nodes of its tier; None: all
    neighbours: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # to whom nodes may send; not in it: to all

    @classmethod
    def of(cls, run: Run, secret: bytes = b"") -> Topology:
        """The tree that a run's description describes."""
        below = {region.name: _edge(region.below) for region in run.regions}
        below |= {party: _edge(run.lan) for party in run.open_tree.parties}
        quorum = Quorum(run.sync.quorum, run.sync.grace_s)
        losses = Losses(run.run.on_loss, run.run.wait_s, run.run.least_parties, run.run.least_workers, quorum)
        collective = [party.name for party in run.parties if party.inside == "collective"]
        return cls(
            run=run.run.name,
            tree=run.open_tree,
            edges=resolved(run.open_tree, {TOP: _edge(run.wan)} | below, collective),
            collective=frozenset(collective),
            policy=run.sync.policy,
            table_classes=tuple(run.run.table_classes),
            rule=run.optimizer.rule,
            compensation=run.optimizer.compensation,
            limits=Limits(run.limits.start_s, run.limits.stall_s, run.limits.stop_s, run.limits.turn_s),
            losses=losses,
            manifest=run.manifest(),
            seed=run.run.seed,
            skips=run.run.on_nonfinite == "skip",
            strict=run.run.strict,
            is_durable=run.is_durable,
            replicas=run.run.replicas,
            overlays=run.overlays,
            addressed=frozenset(run.addresses_beside),
            neighbours={
                server.name: frozenset(server.neighbours) for server in run.server_tables if server.neighbours
            },
            cut_every_s=run.store.every_s,
            keep_bytes=run.store.keep_mb * 1e6,
            secret=secret,
        )

    @classmethod
    def of_parties(
        cls,
        run: str,
        parties: Mapping[str, Iterable[str]],
        *,
        regions: Mapping[str, Iterable[str]] | None = None,
        shards: Sequence[str] = ("global/0",),
        wan: Edge | None = None,
        below: Edge | None = None,
        lan: Edge | None = None,
        collective: Iterable[str] = (),
        **more: Any,
    ) -> Topology:
        """A tree in a few lines.

        `regions`: see `Tree.of_parties`. `wan`: the shards' edges, `below` those of regions, `lan` those of parties.
        """
        tree = Tree.of_parties(parties, regions, shards)
        passing = Edge(codec_down=AS_ABOVE)
        edges = {TOP: wan or Edge()} | dict.fromkeys(regions or {}, below or passing)
        edges |= dict.fromkeys(parties, lan or passing)
        return cls(run, tree, resolved(tree, edges, collective), collective=frozenset(collective), **more)

    @classmethod
    def solo(cls) -> Topology:
        """A run of one: a worker and its root."""
        return cls(SOLO, Tree.solo(), {TOP: Edge()})

    def above(self, name: str) -> Edge:
        """A node's edges up."""
        return self.edges[self.tree.parent(name)]

    def below(self, name: str) -> Edge:
        """A server's edges down."""
        return self.edges[TOP if self.tree.is_shard(name) else name]

    def overlay_above(self, name: str) -> str:
        """The planner of the tier to which a node belongs; empty: there is none."""
        return "" if self.tree.is_shard(name) else self.overlays.get(self.tree.parent(name), "")

    def beside(self, name: str) -> dict[str, Patience]:
        """The nodes of a node's tier with which it may be connected, and with what patience."""
        if not self.overlay_above(name):
            return {}
        tier, given = self.tree.children(self.tree.parent(name)), self.above(name).patience
        timeout_s = max(LEAST_BEATS * given.heartbeat_s, given.timeout_s / 3)
        patience = replace(given, timeout_s=timeout_s)
        return {other: patience for other in tier if self.may_dial(name, other) or self.may_dial(other, name)}

    def may_dial(self, name: str, other: str) -> bool:
        """Whether it is `name` that dials `other`, of the same tier."""
        tier = self.tree.children(self.tree.parent(name))
        here, there = (self.addressed is None or each in self.addressed for each in (name, other))
        return name != other and there and (not here or tier.index(name) > tier.index(other))

    def may_send(self, one: str, other: str) -> bool:
        """Whether a table may have a node send to another."""
        tree, shards = self.tree, [each for each in (one, other) if self.tree.is_shard(each)]
        if len(shards) == 2:
            return False
        ends = [(here, GLOBAL if there in shards else there) for here, there in ((one, other), (other, one))]
        if any(there not in self.neighbours[here] for here, there in ends if here in self.neighbours):
            return False
        is_up = bool(shards) or one == tree.parent(other) or other == tree.parent(one)
        return is_up or self.may_dial(one, other) or self.may_dial(other, one)

    def losses_at(self, name: str) -> Losses:
        """What a node does about losses. A job of workers that reduce among themselves ends with any of them."""
        ends = self.losses.on_loss == "wait" and name in self.collective
        return Losses() if ends else self.losses

    def job_of(self, worker: str) -> frozenset[str]:
        """The others of a worker's party, where they reduce among themselves."""
        party = self.tree.cohort_at(worker, 1)
        return frozenset(self.tree.leaves(party)) - {worker} if party in self.collective else frozenset()

    def later_s(self, name: str) -> float:
        """How much later than the lowest servers below a server notices what they notice, at most."""
        below = [child for child in self.tree.children(name) if not self.tree.is_worker(child)]
        return self.below(name).patience.timeout_s + max(map(self.later_s, below)) if below else 0.0

    def with_patience(self, patience: Patience) -> Topology:
        """The same tree with other patience on every edge."""
        edges = {name: replace(edge, patience=patience) for name, edge in self.edges.items()}
        return replace(self, edges=edges)


def resolved(tree: Tree, edges: Mapping[str, Edge], collective: Iterable[str] = ()) -> dict[str, Edge]:
    """The edges with the codecs down that they have in the end.

    `collective`: the parties whose workers reduce among themselves. Each may hold parts of the model, but deltas need
    the whole, so nothing is passed on to them as it came.
    """
    found: dict[str, Edge] = {}

    def of(name: str) -> Edge:
        if name in found:
            return found[name]
        edge = edges[name]
        if edge.codec_down == AS_ABOVE:
            passes = name not in collective
            codec_down = of(tree.parent(name)).codec_down if passes else "dense"
            edge = replace(edge, codec_down=codec_down, passes=passes)
        return found.setdefault(name, edge)

    return {name: of(name) for name in edges}


def _edge(table: EdgeTable) -> Edge:
    patience = Patience(table.heartbeat_s, table.timeout_s)
    return Edge(table.codec_up, table.codec_down, patience, table.channel)
