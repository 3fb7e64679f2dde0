"""The tree of a run's nodes: who is whose parent, and what its edges are. The same for both drivers.

`Topology` holds what nodes need to know of `geomx.config.Run`, so that a tree can also be described in a few lines.
`factory.py` makes the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from geomx.channels import channels
from geomx.channels.contract import BlockClasses, EdgeSettings, classes_of
from geomx.codecs.pack.noise import RngKey, key_of
from geomx.config import Run
from geomx.node.peers.peer import Limits
from geomx.wire.messages import Value
from geomx.wire.session import Patience

AS_WAN = "wan"  # instead of the LAN's codec down: what came over the WAN goes on, byte for byte


@dataclass(frozen=True, slots=True)
class Edge:
    """One tier's edges: codecs and channel by name, and how liveness is judged."""

    codec_up: str = "dense"
    codec_down: str = "dense"
    patience: Patience = field(default_factory=Patience)
    channel: str = "tcp"

    def classes(self, stream: RngKey) -> BlockClasses | None:
        """How the channel sends blocks; None: everything goes over connections.

        Each node has its own. `stream`: of the run and the node, for what is drawn.
        """
        seed = key_of(stream.seed, stream.origin)
        return classes_of(channels.make(self.channel, EdgeSettings(seed=seed)))


@dataclass(frozen=True, slots=True)
class Topology:
    """The tree. `parties`: each local server's workers, in order; none: the workers hang on the root itself."""

    run: str
    parties: dict[str, tuple[str, ...]]
    shards: tuple[str, ...] = ("global/0",)
    policy: str = "fsa"
    rule: str = ""  # of the root, as `module:Class`; none: one of torch.optim, as the workers say
    compensation: str = ""
    lan: Edge = field(default_factory=lambda: Edge(codec_down=AS_WAN))
    wan: Edge = field(default_factory=Edge)
    limits: Limits = field(default_factory=Limits)
    manifest: dict[str, Value] = field(default_factory=dict)
    seed: int = 0
    collective: frozenset[str] = frozenset()  # the parties whose workers reduce among themselves
    skips: bool = False  # whether contributions that are not finite are skipped, and the run goes on
    strict: bool = False  # whether what is known to cost accuracy ends the run
    flat: bool = False  # a tree of depth one: every worker is a child of the root
    secret: bytes = field(default=b"", repr=False)  # of the run, see `geomx.wire.proof`

    @classmethod
    def of(cls, run: Run, secret: bytes = b"") -> Topology:
        """The tree that a run's description describes."""
        return cls(
            run=run.run.name,
            parties={party: run.workers_of(party) for party in run.servers},
            shards=run.shard_names,
            policy=run.sync.policy,
            rule=run.optimizer.rule,
            compensation=run.optimizer.compensation,
            lan=_edge(run.lan, run.lan.rejoin_s),
            wan=_edge(run.wan),
            limits=Limits(run.limits.start_s, run.limits.stall_s, run.limits.stop_s, run.limits.turn_s),
            manifest=run.manifest(),
            seed=run.run.seed,
            skips=run.run.on_nonfinite == "skip",
            strict=run.run.strict,
            collective=frozenset(party.name for party in run.parties if party.inside == "collective"),
            secret=secret,
        )

    @classmethod
    def solo(cls) -> Topology:
        """A run of one: a worker and its root."""
        return cls("solo", {"solo": ("solo/0",)}, flat=True)

    def passes(self, party: str) -> bool:
        """Whether a local server sends on what comes over the WAN as it is.

        Not to workers that may hold parts of the model: deltas need the whole.
        """
        return self.lan.codec_down == AS_WAN and party not in self.collective

    def lan_of(self, party: str) -> Edge:
        """A party's edges: with the codec down that they have in the end, and how long a lost worker is awaited."""
        lan = self.lan
        if party in self.collective:  # its job ends with any of its workers
            lan = replace(lan, patience=replace(lan.patience, rejoin_s=0.0))
        if lan.codec_down != AS_WAN:
            return lan
        return replace(lan, codec_down=self.wan.codec_down if self.passes(party) else "dense")

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(name for workers in self.parties.values() for name in workers)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node's name: shards, local servers, workers."""
        return (*self.shards, *(() if self.flat else self.parties), *self.workers)

    def parents(self, worker: str) -> tuple[str, ...]:
        """Whom a worker dials."""
        if self.flat:
            return self.shards
        return (next(party for party, workers in self.parties.items() if worker in workers),)

    def with_patience(self, patience: Patience) -> Topology:
        """The same tree with other patience on every edge."""
        return replace(
            self, lan=replace(self.lan, patience=patience), wan=replace(self.wan, patience=patience)
        )


def _edge(tier: Any, rejoin_s: float = 0.0) -> Edge:
    patience = Patience(tier.heartbeat_s, tier.timeout_s, rejoin_s=rejoin_s)
    return Edge(tier.codec_up, tier.codec_down, patience, tier.channel)
