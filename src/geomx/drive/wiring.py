"""From the description of a run to the edges of one node: addresses, channels, links, certificates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from geomx.channels import channels
from geomx.channels.contract import Channel, Connection, EdgeSettings, ShapingChannel
from geomx.channels.emulation.pacing import LinkPacer
from geomx.channels.tcp import LAN_CHUNK_BYTES, WAN_CHUNK_BYTES
from geomx.channels.tls import Contexts, contexts
from geomx.config import LinkChange, LinkTable, Run
from geomx.config.compatibility.choice_rules import check_channel
from geomx.config.compatibility.lossy_channels import LAN, WAN, check_proof, edge_tables
from geomx.config.reading.problems import KeyPath
from geomx.drive.real import ListeningEdge, Wiring
from geomx.node.topology import Topology
from geomx.tree import ROW_SERVERS, TOP

Changes = list[tuple[LinkChange, Callable[[], None]]]


def wire(run: Run, name: str, place: int = 0) -> Wiring:
    """The edges of the node of that name. `place`: of its addresses, where it is.

    Raises `ConfigError` where a channel cannot do what it is asked to.
    """
    check_proof(run)
    tree = run.tree
    if tree.is_worker(name):
        party, channel = tree.parent(name), _lan(run)
        door, others = _beside(run, name, channel, _channel(run, LAN, None, LAN_CHUNK_BYTES))
        return Wiring(peers={party: (channel, run.addresses_of(party)), **others}, beside=door)
    if name in ROW_SERVERS:
        channel = _channel_below(run, TOP)
        return Wiring(peers={shard: (channel, run.addresses_of(shard)) for shard in tree.shards})
    listening, changes = _listening(run, name, run.listen_address_of(name, place))
    if tree.is_shard(name):
        channel, beside = _channel_below(run, TOP), tree.beside(name, run.run.replicas)
        return Wiring(listening, {shard: (channel, run.addresses_of(shard)) for shard in beside}, changes)
    own = run.link_of(name)
    above = _channel_below(run, tree.parent(name), own, run.pace_mbps_of(name))
    peers = {parent: (above, run.addresses_of(parent)) for parent in tree.parents(name)}
    uplink = above.uplink if isinstance(above, ShapingChannel) else None
    changes += [] if uplink is None else _changes(run, name, uplink, 1)
    door, others = _beside(run, name, above, _channel_below(run, tree.parent(name)))
    return Wiring(listening, {**peers, **others}, changes, door)


def _beside(
    run: Run, name: str, dials: Channel, listens: Channel
) -> tuple[ListeningEdge | None, dict[str, tuple[Channel, str]]]:
    """With an overlay: where a node is dialled by others of its tier, and those that it may dial.

    What it sends to them crosses its own emulated link, as what it sends up does: the uplink of `dials`.
    """
    topology = Topology.of(run)
    addresses = run.addresses_beside
    others = {
        other: (dials, addresses[other]) for other in topology.beside(name) if topology.may_dial(name, other)
    }
    address = run.listen_beside_of(name)
    if not address:
        return None, others
    uplink = dials.uplink if isinstance(dials, ShapingChannel) else None

    def shape(connection: Connection, _: str) -> None:
        if uplink is not None and isinstance(listens, ShapingChannel):
            listens.shape(connection, uplink)

    return ListeningEdge(listens, address, shape), others


def _listening(run: Run, name: str, address: str) -> tuple[ListeningEdge, Changes]:
    """Where children are answered, each server of them over a link of its own.

    Shards do not see each other's traffic: each has an equal share of its children's links.
    """
    tree = run.tree
    below = [child for child in tree.children(name) if not tree.is_worker(child)]
    if not below:
        return ListeningEdge(_lan(run), address), []
    channel = _channel_below(run, TOP if tree.is_shard(name) else name)
    links = {child: link for child in below if (link := run.link_of(child)) is not None}
    paces = {child: mbps for child in below if (mbps := run.pace_mbps_of(child))}
    if not (links or paces):
        return ListeningEdge(channel, address), []
    assert isinstance(channel, ShapingChannel)  # as `check_channel` has seen
    shaping = channel
    downlinks = {
        child: shaping.downlink(link.spec.shared(len(tree.parents(child)))) for child, link in links.items()
    }

    def shape(connection: Connection, peer: str) -> None:
        if peer in paces:
            shaping.pace(connection, paces[peer])
        if peer in downlinks:
            shaping.shape(connection, downlinks[peer])

    changes = [
        change
        for child, downlink in downlinks.items()
        for change in _changes(run, child, downlink, len(tree.parents(child)))
    ]
    return ListeningEdge(channel, address, shape), changes


def _changes(run: Run, server: str, pacer: LinkPacer, shares: int) -> Changes:
    """What becomes of a server's link, one way, and how it is done to the pacer."""
    return [
        (change, partial(pacer.change, change.link.shared(shares))) for change in run.link_changes_of(server)
    ]


def _lan(run: Run) -> Channel:
    """The channel between a party's workers and their server."""
    return _channel(run, LAN, run.lan.link, LAN_CHUNK_BYTES)


def _channel_below(run: Run, server: str, link: LinkTable | None = None, pace_mbps: float = 0.0) -> Channel:
    """The channel between a region's server, or `TOP`, and the servers below; at the lower end with its link."""
    names = [region.name for region in run.regions]
    path: KeyPath = WAN if server == TOP else ("region", names.index(server), "below")
    return _channel(run, path, link, WAN_CHUNK_BYTES, pace_mbps)


def _channel(
    run: Run, path: KeyPath, link: LinkTable | None, chunk_bytes: int, pace_mbps: float = 0.0
) -> Channel:
    """The channel of the edges whose table stands there. Raises `ConfigError` where it cannot do what they ask."""
    edge = edge_tables(run)[path]
    spec = None if link is None else link.spec
    settings = EdgeSettings(spec, chunk_bytes, edge.congestion, pace_mbps, _tls(run), run.run.seed)
    made: Channel = channels.make(edge.channel, settings)
    check_channel(run, path, made)
    return made


def _tls(run: Run) -> Contexts | None:
    tls = run.tls
    if tls is None or tls.certificate is None or tls.key is None or tls.authority is None:
        return None
    return contexts(tls.certificate, tls.key, tls.authority, tls.revoked, tls.hosts)
