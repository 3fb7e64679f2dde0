"""Ports of this machine: free ones for servers that are not told where to listen, and whether those that are can."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from typing import Any

from geomx.channels import channels
from geomx.config import Run
from geomx.errors import ConfigError, Fault

TRIES = 8  # another program may have the number that is free for TCP for its datagrams


class Ports(ExitStack):
    """Ports that are kept from everybody else until the `with` block ends."""

    def hold(self) -> int:
        """One more free port of 127.0.0.1.

        A process takes seconds to start, and in them anybody may be given a port that was only found free. So a socket
        that never listens stays bound to each. Beside it Linux lets whoever sets SO_REUSEADDR listen there (asyncio,
        uvloop and PyTorch's stores do), but gives it to nobody who asks for any port, and to no connection as its own
        end. Other systems let nobody listen beside it: there a port is found, and let go.
        """
        for _ in range(TRIES):
            sock = self.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
            port: int = sock.getsockname()[1]
            if _is_free_for_datagrams(port):
                break
        if sys.platform != "linux":
            self.close()
        return port

    def claim(self, run: Run, node: str, by: str, place: int = 0) -> None:
        """Where a server is to listen, `by` a command; raises `ConfigError` where it could not by now.

        `place`: of its addresses.

        A server imports PyTorch before it listens, for seconds in which nobody else sees its address as taken. So it is
        claimed by a name in Linux's abstract namespace, which ends with this process: two servers, or two runs, that
        begin at the same time are told at once. Channels that are not geomx's know themselves what is an address.
        """
        address = run.listen_address_of(node, place)
        host, _, port = address.rpartition(":")
        is_ours = run.edge_below(node).channel.split(maxsplit=1)[0] in channels.names
        if not is_ours or not port.isdecimal() or not int(port):
            return
        try:
            for family, *_, where in socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                _try_to_bind(family, where)
        except OSError as error:
            raise _taken(run, node, address, error.strerror or str(error)) from error
        if sys.platform == "linux":
            name = self.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                name.bind(f"\0{by} {address}")
            except OSError as error:
                reason = f"another `{by}` of this machine has it"
                raise _taken(run, node, address, reason) from error


def _try_to_bind(family: int, place: Any) -> None:
    """As asyncio does, but without listening: whoever dials must not be taken for welcome."""
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(place)


def _taken(run: Run, node: str, address: str, reason: str) -> ConfigError:
    key = "address" if address in run.addresses_of(node) else "listen"
    where = f"{'party' if node in run.servers else 'region'}.{node}.{key}"
    if node in run.shard_names:
        where = f"global.{'addresses' if key == 'address' else key}[{run.shard_names.index(node)}]"
    return ConfigError(node, [Fault(where, address, "an address of this machine with a free port", reason)])


def _is_free_for_datagrams(port: int) -> bool:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
