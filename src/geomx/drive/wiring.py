"""From the description of a run to the edges of one node: addresses, channels, links, certificates."""

from __future__ import annotations

from geomx.channels.base import Connection
from geomx.channels.tcp import LAN_CHUNK_BYTES, WAN_CHUNK_BYTES, Tcp
from geomx.channels.tls import Contexts, contexts
from geomx.config import Run
from geomx.config.tables import Edge, Link
from geomx.drive.real import Door, Wiring


def wire(run: Run, name: str) -> Wiring:
    """The edges of the node of that name."""
    if name in run.shard_names:
        return _wire_shard(run, name)
    if name in run.servers:
        return _wire_local_server(run, name)
    party = name.rpartition("/")[0]
    channel = _tcp(run, run.lan, run.lan.link, LAN_CHUNK_BYTES)
    return Wiring(peers={party: (channel, run.address_of(party))})


def _wire_shard(run: Run, name: str) -> Wiring:
    """Each party has its own link down; the shards, which do not see each other's traffic, get equal shares of it."""
    channel = _tcp(run, run.wan, None, WAN_CHUNK_BYTES)

    def shape(connection: Connection, peer: str) -> None:
        if peer not in run.servers:
            return
        channel.pace(connection, run.pace_mbps_of(peer))
        link = run.link_of(peer)
        if link is not None:
            shared = link.model_copy(update={"rate_mbps": link.rate_mbps / run.run.shards})
            channel.shape(connection, shared)

    lead = run.shard_names[0]
    peers = {} if name == lead else {lead: (channel, run.address_of(lead))}
    return Wiring(Door(channel, run.listen_address_of(name), shape), peers)


def _wire_local_server(run: Run, name: str) -> Wiring:
    """All connections to the shards leave through the party's one link."""
    lan = _tcp(run, run.lan, run.lan.link, LAN_CHUNK_BYTES)
    wan = _tcp(run, run.wan, run.link_of(name), WAN_CHUNK_BYTES, run.pace_mbps_of(name))
    peers = {shard: (wan, run.address_of(shard)) for shard in run.shard_names}
    return Wiring(Door(lan, run.listen_address_of(name)), peers)


def _tcp(run: Run, edge: Edge, link: Link | None, chunk_bytes: int, pace_mbps: float = 0.0) -> Tcp:
    return Tcp(
        link,
        chunk_bytes=chunk_bytes,
        congestion=edge.congestion,
        pace_mbps=pace_mbps,
        tls=_tls(run),
        seed=run.run.seed,
    )


def _tls(run: Run) -> Contexts | None:
    tls = run.tls
    if tls is None or tls.certificate is None or tls.key is None or tls.authority is None:
        return None
    return contexts(tls.certificate, tls.key, tls.authority)
