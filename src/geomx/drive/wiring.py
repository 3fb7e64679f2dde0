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
from geomx.config.choice_rules import check_channel
from geomx.config.lossy_channels import Tier, check_proof
from geomx.drive.real import ListeningEdge, Wiring


def wire(run: Run, name: str) -> Wiring:
    """The edges of the node of that name. Raises `ConfigError` where a channel cannot do what it is asked to."""
    check_proof(run)
    if name in run.shard_names:
        return _wire_shard(run, name)
    if name in run.servers:
        return _wire_local_server(run, name)
    party = name.rpartition("/")[0]
    channel = _channel(run, "lan", run.lan.link, LAN_CHUNK_BYTES)
    return Wiring(peers={party: (channel, run.address_of(party))})


def _wire_shard(run: Run, name: str) -> Wiring:
    """Each party has its own link down; the shards, which do not see each other's traffic, get equal shares of it."""
    channel, lead = _channel(run, "wan", None, WAN_CHUNK_BYTES), run.shard_names[0]
    peers = {} if name == lead else {lead: (channel, run.address_of(lead))}
    links = {party: link for party in run.servers if (link := run.link_of(party)) is not None}
    paces = {party: mbps for party in run.servers if (mbps := run.pace_mbps_of(party))}
    if not (links or paces):
        return Wiring(ListeningEdge(channel, run.listen_address_of(name)), peers)
    assert isinstance(channel, ShapingChannel)  # as `check_channel` has seen
    shaping = channel
    downlinks = {party: shaping.downlink(link.spec.shared(run.run.shards)) for party, link in links.items()}

    def shape(connection: Connection, peer: str) -> None:
        if peer in paces:
            shaping.pace(connection, paces[peer])
        if peer in downlinks:
            shaping.shape(connection, downlinks[peer])

    changes = [
        change
        for party, downlink in downlinks.items()
        for change in _changes(run, party, downlink, run.run.shards)
    ]
    return Wiring(ListeningEdge(channel, run.listen_address_of(name), shape), peers, changes)


def _wire_local_server(run: Run, name: str) -> Wiring:
    """All connections to the shards leave through the party's one link."""
    lan = _channel(run, "lan", run.lan.link, LAN_CHUNK_BYTES)
    wan = _channel(run, "wan", run.link_of(name), WAN_CHUNK_BYTES, run.pace_mbps_of(name))
    peers = {shard: (wan, run.address_of(shard)) for shard in run.shard_names}
    uplink = wan.uplink if isinstance(wan, ShapingChannel) else None
    changes = [] if uplink is None else _changes(run, name, uplink, 1)
    return Wiring(ListeningEdge(lan, run.listen_address_of(name)), peers, changes)


def _changes(
    run: Run, party: str, pacer: LinkPacer, shares: int
) -> list[tuple[LinkChange, Callable[[], None]]]:
    """What becomes of a party's link, one way, and how it is done to the pacer."""
    return [
        (change, partial(pacer.change, change.link.shared(shares))) for change in run.link_changes_of(party)
    ]


def _channel(
    run: Run, tier: Tier, link: LinkTable | None, chunk_bytes: int, pace_mbps: float = 0.0
) -> Channel:
    """The channel of a tier's edges. Raises `ConfigError` where it cannot do what the description asks of it."""
    edge = run.wan if tier == "wan" else run.lan
    spec = None if link is None else link.spec
    settings = EdgeSettings(spec, chunk_bytes, edge.congestion, pace_mbps, _tls(run), run.run.seed)
    made: Channel = channels.make(edge.channel, settings)
    check_channel(run, tier, made)
    return made


def _tls(run: Run) -> Contexts | None:
    tls = run.tls
    if tls is None or tls.certificate is None or tls.key is None or tls.authority is None:
        return None
    return contexts(tls.certificate, tls.key, tls.authority)
