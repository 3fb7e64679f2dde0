"""Makes the node of a name: the one place where a tree's parts are put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from geomx.channels.contract import BlockClasses
from geomx.codecs.contract import Codec
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.returning import for_lossy_channel
from geomx.codecs.spec import make_codec
from geomx.errors import UnknownName
from geomx.node.aggregator import Aggregator
from geomx.node.durable.cut import CutTimes
from geomx.node.edges import ChildEdges
from geomx.node.members.top import Top
from geomx.node.overlay.conductor import Conductor
from geomx.node.peers.beside import Siblings
from geomx.node.peers.peer import Identity
from geomx.node.requests import Asked
from geomx.node.root import Root
from geomx.node.rows.row_server import RowServer
from geomx.node.rows.row_servers import RowServers
from geomx.node.same_data import SameDataWatch
from geomx.node.server import Server
from geomx.node.slices.blocks import flows_to
from geomx.node.slices.clipping import Clipping
from geomx.node.slices.update_stream import UpdateDecoder, UpdateEncoder
from geomx.node.topology import Topology
from geomx.node.worker import Worker
from geomx.optim import compensations, optimizers
from geomx.optim.contract import RootOptimizer
from geomx.overlay import overlays
from geomx.sync import policies
from geomx.sync.contract import StepController
from geomx.tables.shard import TableShard
from geomx.tree import ROW_SERVERS, TOP
from geomx.wire.roster_messages import Message


def make_node(
    topology: Topology, name: str, incarnation: int = 1, term: int = 0
) -> Server | Worker | RowServer:
    """The node of that name: a worker is a leaf, a shard is at the top, and every server between adds and passes on.

    `term`: see `Welcome`.
    """
    tree, identity = (
        topology.tree,
        Identity(name, topology.run, incarnation, topology.manifest, topology.secret, term),
    )
    if tree.is_shard(name):
        return _shard(topology, identity)
    if name in ROW_SERVERS:
        patience = topology.below(tree.shards[0]).patience
        return RowServer(identity, topology.limits, tree, patience, partial(_tables, topology))
    parents = tree.parents(name)
    up, down, classes = _up_edges(topology, name)
    dials = dict.fromkeys(parents, topology.above(name).patience)
    losses = topology.losses_at(tree.cohort_at(name, 1) if tree.is_worker(name) else name)
    returning = frozenset(name for name in parents if topology.is_durable or not tree.is_shard(name))
    beside = topology.beside(name)
    dialled = frozenset(other for other in beside if topology.may_dial(name, other))
    siblings = Siblings(beside, dialled) if topology.overlay_above(name) else None
    if tree.is_worker(name):
        job = topology.job_of(name) if losses.on_loss == "continue" else frozenset[str]()
        return Worker(
            identity,
            topology.limits,
            tree,
            dials,
            up,
            down,
            classes,
            losses,
            returning,
            job,
            siblings,
            topology.skips,
        )
    return Server(
        identity,
        topology.limits,
        tree,
        _down_edges(topology, name),
        policies.make(topology.policy),
        lambda server: Aggregator(server, up, down, topology.skips, classes),
        dials=dials,
        flows=flows_to(parents, classes),
        losses=losses,
        returning=returning,
        conducts=_conducts(topology, name),
        siblings=siblings,
    )


def _shard(topology: Topology, identity: Identity) -> Server:
    """One shard of the global server. The others dial the first, for what must be known of all slices."""
    name = identity.name
    policy, shards = policies.make(topology.policy), topology.tree.shards
    place, lead, patience = shards.index(name), shards[0], topology.below(name).patience
    others: tuple[str, ...] = shards[1:] if name == lead else ()
    dialled = {shard: topology.tree.beside(shard, topology.replicas) for shard in shards}
    beside = (shards[(place + 1) % len(shards)], shards[place - 1]) if topology.replicas else None

    def sink(server: Server) -> Root:
        def send(shard: str, message: Message) -> None:
            peer = server.peer(shard)
            if peer is not None and not server.journal.is_replaying:  # what it misses, `Top.renewed` tells it
                server.send(peer, message)

        above = "" if name == lead else lead
        clipping = Clipping(send, others, above, server.journal.write)

        def top(root: Root) -> Top:
            asked = Asked(server, place, topology.limits.stall_s, partial(_tables, topology))
            row_servers = RowServers(server, topology.tree, asked, others, name == lead, send)
            return Top(server, root.hyper, clipping, topology.losses, send, shards, row_servers, asked)

        compensation = compensations.make(topology.compensation) if topology.compensation else None
        make = partial(_optimizer, topology.rule)
        return Root(
            server,
            place,
            len(shards),
            make,
            clipping,
            top,
            policy.lockstep,
            compensation,
            skips=topology.skips,
        )

    return Server(
        identity,
        topology.limits,
        topology.tree,
        _down_edges(topology, name),
        policy,
        sink,
        dials=dict.fromkeys(dialled[name], patience),
        others={shard: patience for shard in shards if name in dialled[shard]},
        step_controller=policy if name == lead and isinstance(policy, StepController) else None,
        same_data=SameDataWatch(topology.tree, topology.strict) if name == lead else None,
        losses=topology.losses,
        cuts=CutTimes(topology.cut_every_s, topology.keep_bytes) if topology.is_durable else None,
        beside=beside,
        conducts=_conducts(topology, name),
        siblings=Siblings(dict.fromkeys(ROW_SERVERS, patience), relays=False),
    )


def _tables(topology: Topology, asked: Asked) -> TableShard:
    """What answers about tables at a shard, or a row server."""
    tree, goes_on = topology.tree, topology.losses.on_loss == "continue"
    classes = topology.table_classes
    return TableShard(asked, topology.seed, goes_on, classes, asked.place, tree.holders, len(tree.shards))


def _conducts(topology: Topology, name: str) -> Callable[[Server], Conductor] | None:
    """What says by which ways the contributions of a server's children travel; None: they all send to it."""
    tree, is_shard = topology.tree, topology.tree.is_shard(name)
    spec = topology.overlays.get(TOP if is_shard else name, "")
    if not spec:
        return None
    holders = tree.shards if is_shard else (name,)
    children = {child: tree.leaves(child) for child in tree.children(name)}

    def make(server: Server) -> Conductor:
        def tell(holder: str, message: Message) -> None:
            peer = server.peer(holder)
            if peer is not None and not server.journal.is_replaying:
                server.send(peer, message)

        own = (*topology.neighbours, *holders) if topology.neighbours else ()
        return Conductor(server, children, holders, overlays.make(spec), topology.may_send, tell, own)

    return make


def _optimizer(rule: str, name: str) -> RootOptimizer:
    """`torch.optim.Adam`, or the `rule` of the description: nothing is imported because a peer names it."""
    short = name.removeprefix("torch.optim.")
    if name != rule and short not in optimizers.names:
        raise UnknownName(
            f"the workers ask for the rule {name!r}; this run has {rule or 'those of torch.optim'}"
        )
    return optimizers.find(short)(short)


def _down_edges(topology: Topology, name: str) -> ChildEdges:
    """What a server has of its edges down. All children get the same bytes, whoever sends them."""
    edge, stream = topology.below(name), RngKey(topology.seed)
    children = {child: topology.tree.leaves(child) for child in topology.tree.children(name)}
    sender = UpdateEncoder(make_codec(edge.codec_down, stream), edge.passes)
    classes = edge.classes(RngKey(topology.seed, name))
    up, later_s = make_codec(edge.codec_up, stream), topology.later_s(name)
    return ChildEdges(children, edge.patience, up, sender, classes, later_s)


def _up_edges(topology: Topology, name: str) -> tuple[Codec, UpdateDecoder, BlockClasses | None]:
    """What a node has of its edges up, and how blocks go there."""
    edge, stream = topology.above(name), RngKey(topology.seed, name)
    up, classes = make_codec(edge.codec_up, stream), edge.classes(stream)
    if classes is not None and classes.loses:
        up = for_lossy_channel(up)
    return up, UpdateDecoder(make_codec(edge.codec_down, RngKey(topology.seed)), topology.is_durable), classes
