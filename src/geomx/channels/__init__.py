"""How bytes cross an edge: one file a channel, `contract.py` first.

`tcp.py` (with `connection.py`, `tls.py`, `congestion.py`) and `inproc.py` are the channels; `emulation/` imitates slow
links in user space. From outside: the contract, the channels, `emulation` for whoever describes links, and the registry
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geomx.registry import Registry

if TYPE_CHECKING:
    from geomx.channels.contract import ChannelFactory

channels: Registry[ChannelFactory] = Registry(
    "channel",
    {
        "tcp": "geomx.channels.tcp:of_edge",
        "datagram": "geomx.channels.datagram:datagram",
        "dgt": "geomx.channels.datagram:dgt",
    },
)
