"""The tables of edges: how nodes of one tier are connected."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from geomx.config.tables.base import Table
from geomx.config.tables.links import LinkTable
from geomx.config.value_types import (
    ChannelName,
    CodecName,
    File,
    Heartbeat,
    OverlayName,
    PassingCodecName,
    Rate,
    Silence,
)


class EdgeTable(Table):
    """What the edges of one tier have in common."""

    codec_up: CodecName = Field("dense", description="Encoding of contributions, on their way up.")
    codec_down: CodecName = Field("dense", description="Encoding of updates, on their way down.")
    channel: ChannelName = Field(
        "tcp",
        description="How contributions and updates travel.",
    )
    congestion: Literal["system", "bbr", "cubic", "reno"] = Field(
        "system",
        description="TCP congestion control. `system`: the machine's own. Use `bbr` on links that lose packets.",
    )
    heartbeat_s: Heartbeat = Field(
        1.0, description="Seconds between heartbeats of a node that sends nothing else."
    )
    timeout_s: Silence = Field(
        description="Seconds after which a silent or unreachable node is lost. At least 3 × `heartbeat_s`."
    )
    link: LinkTable | None = Field(None, description="Emulated link. Default: the real network.")


class WanTable(EdgeTable):
    """Connections between local servers and global servers."""

    pace_mbps: Rate = Field(
        0.0,
        description="Limit of a party's rate in each direction, in Mbit/s of payload (Linux). 0: no limit. With "
        "`cubic` on a link without loss, 97 % of the link's rate is fastest.",
    )
    timeout_s: Silence = Field(15.0, description=EdgeTable.model_fields["timeout_s"].description)


class BelowTable(EdgeTable):
    """Connections between a region's server and the servers below it."""

    codec_down: PassingCodecName = Field(
        "wan", description="Encoding of updates. `wan`: pass on the bytes that came from above."
    )
    pace_mbps: Rate = Field(0.0, description="As `wan.pace_mbps`.")
    timeout_s: Silence = Field(15.0, description=EdgeTable.model_fields["timeout_s"].description)


class LanTable(EdgeTable):
    """Connections between workers and their local server."""

    codec_down: PassingCodecName = Field(
        "wan",
        description="Encoding of updates. `wan`: pass on the bytes that came over the WAN.",
    )
    overlay: OverlayName = Field(
        "", description="As `run.overlay`, among the workers of each party, before their local server."
    )
    timeout_s: Silence = Field(5.0, description=EdgeTable.model_fields["timeout_s"].description)


class TlsTable(Table):
    """TLS 1.3, certificates at both ends of every connection ([security](security.md)): all three files or none."""

    certificate: File | None = Field(None, description="This node's certificate chain (PEM).")
    key: File | None = Field(
        None, description="The certificate's private key (PEM). Only its owner may be able to read it."
    )
    authority: File | None = Field(None, description="Certificates that sign the nodes of this run (PEM).")
    revoked: File | None = Field(
        None, description="The authority's list of revoked certificates (PEM); read again when it changes."
    )
    hosts: bool = Field(
        True,
        description="Who connects checks the server's host name, besides the node's own, which is always checked.",
    )
