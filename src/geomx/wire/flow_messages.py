"""The messages about datagrams beside a connection; see `geomx.wire.flow` and `geomx.channels.datagram`."""

from __future__ import annotations

import msgspec

from geomx.wire.roster_messages import Message


class Beside(msgspec.Struct, frozen=True, array_like=True):
    """The payload of this message does not follow it: it comes in datagrams, see `geomx.wire.flow`.

    `load`: its number there. `blocks`: how many. `reliable`: a bitmap of those that are sent until they have come, as
    in `geomx.wire.presence`. `size`: their bytes together. `is_whole`: they are the payload as it stands, byte by byte.
    """

    load: int
    blocks: int
    reliable: bytes | None
    size: int
    is_whole: bool = False


class FlowOpen(Message, frozen=True, array_like=True, tag=True):
    """From whoever listens: datagrams may be sent beside this connection, see `geomx.channels.datagram`.

    `flow`: what each of them begins with; 0, and no salt: whoever listens cannot receive any. `salt`: from which, and
    the run's secret, both ends derive their keys.
    """

    flow: int
    salt: bytes


class FlowBroken(Message, frozen=True, array_like=True, tag=True):
    """Datagrams do not pass: the sender's loads below this number that are open come on the connection."""

    below: int
