"""From the description of a run to its nodes: the same for both drivers.

`Topology` holds what the nodes need to know of `geomx.config.Run`, so that a tree can also be described in a few lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from geomx.codecs.contract import Codec
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.config import Run
from geomx.errors import ConfigError, Fault
from geomx.node.aggregator import Aggregator
from geomx.node.peers.peer import Identity, Limits
from geomx.node.root import Root
from geomx.node.server import ChildEdges, Server
from geomx.node.slices.clipping import Clipping
from geomx.node.slices.update_stream import UpdateDecoder, UpdateEncoder
from geomx.node.worker import Worker
from geomx.optim.contract import RootOptimizer, compensations, optimizers
from geomx.sync.contract import AccumulateStep, GradientStep, LocalStep, StepController, policies
from geomx.wire.messages import Message, Value
from geomx.wire.session import Patience

AS_WAN = "wan"  # instead of the LAN's codec down: what came over the WAN goes on, byte for byte


@dataclass(frozen=True, slots=True)
class Edge:
    """One tier's edges: codecs by name, and how liveness is judged."""

    codec_up: str = "dense"
    codec_down: str = "dense"
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class Topology:
    """The tree. `parties`: each local server's workers, in order; none: the workers hang on the root itself."""

    run: str
    parties: dict[str, tuple[str, ...]]
    shards: tuple[str, ...] = ("global/0",)
    policy: str = "fsa"
    compensation: str = ""
    lan: Edge = field(default_factory=lambda: Edge(codec_down=AS_WAN))
    wan: Edge = field(default_factory=Edge)
    limits: Limits = field(default_factory=Limits)
    manifest: dict[str, Value] = field(default_factory=dict)
    seed: int = 0
    collective: frozenset[str] = frozenset()  # the parties whose workers reduce among themselves
    flat: bool = False  # a tree of depth one: every worker is a child of the root

    @classmethod
    def of(cls, run: Run) -> Topology:
        """The tree that a run's description describes."""
        return cls(
            run=run.run.name,
            parties={party: run.workers_of(party) for party in run.servers},
            shards=run.shard_names,
            policy=run.sync.policy,
            compensation=run.optimizer.compensation,
            lan=_edge(run.lan),
            wan=_edge(run.wan),
            limits=Limits(run.limits.start_s, run.limits.stall_s, run.limits.stop_s),
            manifest=run.manifest(),
            seed=run.run.seed,
            collective=frozenset(party.name for party in run.parties if party.inside == "collective"),
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
        """The LAN's edges of a party, with the codec down that they have in the end."""
        if self.lan.codec_down != AS_WAN:
            return self.lan
        return replace(self.lan, codec_down=self.wan.codec_down if self.passes(party) else "dense")

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


def make_node(plan: Topology, name: str, incarnation: int = 1) -> Server | Worker:
    """The node of that name."""
    if name in plan.shards:
        return make_shard(plan, name, incarnation)
    if name in plan.parties and not plan.flat:
        return make_local_server(plan, name, incarnation)
    return make_worker(plan, name, incarnation)


def make_worker(plan: Topology, name: str, incarnation: int = 1) -> Worker:
    parents = dict.fromkeys(plan.parents(name), plan.lan.patience)
    party = next(party for party, workers in plan.parties.items() if name in workers)
    up, down = _ends(plan, plan.lan_of(party), name)
    return Worker(_identity(plan, name, incarnation), plan.limits, parents, up, down)


def make_local_server(plan: Topology, name: str, incarnation: int = 1) -> Server:
    up, down = _ends(plan, plan.wan, name)
    children: dict[str, tuple[str, ...]] = {worker: (worker,) for worker in plan.parties[name]}
    return Server(
        _identity(plan, name, incarnation),
        plan.limits,
        _child_edges(children, plan, plan.lan_of(name), plan.passes(name)),
        policies.make(plan.policy),
        lambda server: Aggregator(server, plan.shards, up, down),
        dials=dict.fromkeys(plan.shards, plan.wan.patience),
    )


def make_shard(plan: Topology, name: str, incarnation: int = 1) -> Server:
    """One shard of the global server. The others dial the first, for what must be known of all slices."""
    policy = policies.make(plan.policy)
    place, lead = plan.shards.index(name), plan.shards[0]
    others = plan.shards[1:] if name == lead else ()
    if plan.flat:
        edges = _child_edges({worker: (worker,) for worker in plan.workers}, plan, plan.lan_of(""))
    else:
        edges = _child_edges(dict(plan.parties), plan, plan.wan)

    def sink(server: Server) -> Root:
        def send(shard: str, message: Message) -> None:
            peer = server.peer(shard)
            assert peer is not None  # shards start only together
            server.send(peer, message)

        clipping = Clipping(send, others, "" if name == lead else lead)
        compensation = compensations.make(plan.compensation) if plan.compensation else None
        return Root(server, place, len(plan.shards), _optimizer, clipping, policy.lockstep, compensation)

    return Server(
        _identity(plan, name, incarnation),
        plan.limits,
        edges,
        policy,
        sink,
        dials={} if name == lead else {lead: plan.wan.patience},
        others=dict.fromkeys(others, plan.wan.patience),
        step_controller=policy if name == lead and isinstance(policy, StepController) else None,
    )


def _optimizer(name: str) -> RootOptimizer:
    """`torch.optim.Adam`, or a rule of the user's own as `module:Class`."""
    short = name.removeprefix("torch.optim.")
    return optimizers.find(short)(short)


def _identity(plan: Topology, name: str, incarnation: int) -> Identity:
    return Identity(name, plan.run, incarnation, plan.manifest)


def _child_edges(
    children: dict[str, tuple[str, ...]], plan: Topology, edge: Edge, passes: bool = False
) -> ChildEdges:
    """The upper ends of a server's downward edges. All children get the same bytes, whoever sends them."""
    stream = RngKey(plan.seed)
    sender = UpdateEncoder(make_codec(edge.codec_down, stream), passes)
    return ChildEdges(children, edge.patience, make_codec(edge.codec_up, stream), sender)


def _ends(plan: Topology, edge: Edge, name: str) -> tuple[Codec, UpdateDecoder]:
    """The lower ends of a node's upward edges."""
    up = make_codec(edge.codec_up, RngKey(plan.seed, name))
    return up, UpdateDecoder(make_codec(edge.codec_down, RngKey(plan.seed)))


def check_choices(run: Run) -> None:
    """Raises `ConfigError` or `UnknownName` where what a description names cannot be made, or does not go together."""
    momentum = {spec: make_codec(spec, RngKey(run.run.seed)).momentum for spec in run.codecs}
    policy = policies.make(run.sync.policy)
    apart = policy.sync_group != "run"
    own_pace = policy.sync_group == "worker" or isinstance(policy, StepController)
    faults = [
        Fault(
            f"party.{party.name}.inside",
            "'collective'",
            "'server'",
            f"with sync.policy = {run.sync.policy!r} each worker of a party has its own pace",
        )
        for party in run.parties
        if party.inside == "collective" and own_pace
    ]
    for tier, edge in (("wan", run.wan), ("lan", run.lan)):
        if momentum.get(edge.codec_down):
            faults.append(
                Fault(
                    f"{tier}.codec_down",
                    repr(edge.codec_down),
                    "a codec without momentum",
                    "an update is how far the weights have moved already, and momentum would carry it beyond",
                )
            )
        if momentum.get(edge.codec_up) and getattr(policy, "momentum", 0.0):
            faults.append(
                Fault(
                    f"{tier}.codec_up",
                    repr(edge.codec_up),
                    "a codec without momentum, or a policy without",
                    f"sync.policy = {run.sync.policy!r} has momentum as well: it would count twice",
                )
            )
    if run.optimizer.compensation:
        compensations.make(run.optimizer.compensation)
        if not apart or policy.plans is not GradientStep:
            faults.append(
                Fault(
                    "optimizer.compensation",
                    repr(run.optimizer.compensation),
                    "only with a policy whose parties do not wait for each other, such as mixed",
                    f"with sync.policy = {run.sync.policy!r} the servers know of no gradient how old it is",
                )
            )
    if run.sync.buffers == "average" and policy.plans is not LocalStep:
        faults.append(
            Fault(
                "sync.buffers",
                "'average'",
                "'own'",
                f"with sync.policy = {run.sync.policy!r} no weights are averaged",
            )
        )
    if run.sync.weight == "dataset_size" and policy.plans is AccumulateStep:
        faults.append(
            Fault(
                "sync.weight",
                "'dataset_size'",
                "'samples' or 'equal'",
                f"with sync.policy = {run.sync.policy!r} every push counts whole",
            )
        )
    if run.optimizer.place == "workers" and apart:
        faults.append(
            Fault(
                "optimizer.place",
                "'workers'",
                "'auto' or 'server'",
                f"with sync.policy = {run.sync.policy!r} parties share nothing but what the global servers optimize",
            )
        )
    if run.optimizer.place == "server" and policy.plans is LocalStep:
        faults.append(
            Fault(
                "optimizer.place",
                "'server'",
                "'auto' or 'workers'",
                f"with sync.policy = {run.sync.policy!r} each worker's own optimizer takes the steps",
            )
        )
    if run.worker.overlap == "forward" and policy.plans is not GradientStep:
        faults.append(
            Fault(
                "worker.overlap",
                "'forward'",
                "'none'",
                f"with sync.policy = {run.sync.policy!r} steps are each worker's own, and wait for no weights",
            )
        )
    if faults:
        raise ConfigError(f"run {run.run.name}", faults)


def _edge(tier: Any) -> Edge:
    return Edge(tier.codec_up, tier.codec_down, Patience(tier.heartbeat_s, tier.timeout_s))
