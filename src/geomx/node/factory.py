"""Makes the node of a name: the one place where a tree's parts are put together."""

from __future__ import annotations

from functools import partial

from geomx.channels.contract import BlockClasses
from geomx.codecs.contract import Codec
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.returning import for_lossy_channel
from geomx.codecs.spec import make_codec
from geomx.errors import UnknownName
from geomx.node.aggregator import Aggregator
from geomx.node.edges import ChildEdges
from geomx.node.peers.peer import Identity
from geomx.node.root import Root
from geomx.node.same_data import SameDataWatch
from geomx.node.server import Server
from geomx.node.slices.blocks import flows_to
from geomx.node.slices.clipping import Clipping
from geomx.node.slices.update_stream import UpdateDecoder, UpdateEncoder
from geomx.node.topology import Edge, Topology
from geomx.node.worker import Worker
from geomx.optim import compensations, optimizers
from geomx.optim.contract import RootOptimizer
from geomx.sync import policies
from geomx.sync.contract import StepController
from geomx.wire.messages import Message


def make_node(topology: Topology, name: str, incarnation: int = 1) -> Server | Worker:
    """The node of that name."""
    if name in topology.shards:
        return make_shard(topology, name, incarnation)
    if name in topology.parties and not topology.flat:
        return make_local_server(topology, name, incarnation)
    return make_worker(topology, name, incarnation)


def make_worker(topology: Topology, name: str, incarnation: int = 1) -> Worker:
    parents = dict.fromkeys(topology.parents(name), topology.lan.patience)
    party = next(party for party, workers in topology.parties.items() if name in workers)
    lan = topology.lan_of(party)
    up, down, classes = _ends(topology, lan, name)
    return Worker(_identity(topology, name, incarnation), topology.limits, parents, up, down, classes)


def make_local_server(topology: Topology, name: str, incarnation: int = 1) -> Server:
    up, down, classes = _ends(topology, topology.wan, name)
    lan = topology.lan_of(name)
    children: dict[str, tuple[str, ...]] = {worker: (worker,) for worker in topology.parties[name]}
    return Server(
        _identity(topology, name, incarnation),
        topology.limits,
        _child_edges(children, topology, lan, name, topology.passes(name)),
        policies.make(topology.policy),
        lambda server: Aggregator(server, topology.shards, up, down, topology.skips, classes),
        dials=dict.fromkeys(topology.shards, topology.wan.patience),
        flows=flows_to(topology.shards, classes),
    )


def make_shard(topology: Topology, name: str, incarnation: int = 1) -> Server:
    """One shard of the global server. The others dial the first, for what must be known of all slices."""
    policy = policies.make(topology.policy)
    place, lead = topology.shards.index(name), topology.shards[0]
    others = topology.shards[1:] if name == lead else ()
    if topology.flat:
        edges = _child_edges(
            {worker: (worker,) for worker in topology.workers}, topology, topology.lan_of(""), name
        )
    else:
        edges = _child_edges(dict(topology.parties), topology, topology.wan, name)

    def sink(server: Server) -> Root:
        def send(shard: str, message: Message) -> None:
            peer = server.peer(shard)
            assert peer is not None  # shards start only together
            server.send(peer, message)

        clipping = Clipping(send, others, "" if name == lead else lead)
        compensation = compensations.make(topology.compensation) if topology.compensation else None
        make, shards = partial(_optimizer, topology.rule), len(topology.shards)
        return Root(
            server, place, shards, make, clipping, policy.lockstep, compensation, skips=topology.skips
        )

    return Server(
        _identity(topology, name, incarnation),
        topology.limits,
        edges,
        policy,
        sink,
        dials={} if name == lead else {lead: topology.wan.patience},
        others=dict.fromkeys(others, topology.wan.patience),
        step_controller=policy if name == lead and isinstance(policy, StepController) else None,
        same_data=SameDataWatch(topology.strict) if name == lead else None,
    )


def _optimizer(rule: str, name: str) -> RootOptimizer:
    """`torch.optim.Adam`, or the `rule` of the description: nothing is imported because a peer names it."""
    short = name.removeprefix("torch.optim.")
    if name != rule and short not in optimizers.names:
        raise UnknownName(
            f"the workers ask for the rule {name!r}; this run has {rule or 'those of torch.optim'}"
        )
    return optimizers.find(short)(short)


def _identity(topology: Topology, name: str, incarnation: int) -> Identity:
    return Identity(name, topology.run, incarnation, topology.manifest, topology.secret)


def _child_edges(
    children: dict[str, tuple[str, ...]], topology: Topology, edge: Edge, name: str, passes: bool = False
) -> ChildEdges:
    """The upper ends of a server's downward edges. All children get the same bytes, whoever sends them."""
    stream = RngKey(topology.seed)
    sender = UpdateEncoder(make_codec(edge.codec_down, stream), passes)
    classes = edge.classes(RngKey(topology.seed, name))
    return ChildEdges(children, edge.patience, make_codec(edge.codec_up, stream), sender, classes)


def _ends(topology: Topology, edge: Edge, name: str) -> tuple[Codec, UpdateDecoder, BlockClasses | None]:
    """The lower ends of a node's upward edges, and how blocks go up there."""
    stream = RngKey(topology.seed, name)
    up, classes = make_codec(edge.codec_up, stream), edge.classes(stream)
    if classes is not None and classes.loses:
        up = for_lossy_channel(up)
    return up, UpdateDecoder(make_codec(edge.codec_down, RngKey(topology.seed))), classes
