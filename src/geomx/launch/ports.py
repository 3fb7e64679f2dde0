"""Ports of this machine, for servers of a run that are not told where to listen."""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack


class Ports(ExitStack):
    """Free ports of 127.0.0.1, kept from everybody else until the `with` block ends.

    A process takes seconds to start, and in them anybody may be given a port that was only found free. So a socket
    that never listens stays bound to each. Beside it Linux lets whoever sets SO_REUSEADDR listen there (asyncio, uvloop
    and PyTorch's stores do), but gives it to nobody who asks for any port, and to no connection as its own end. Other
    systems let nobody listen beside it: there a port is found, and let go.
    """

    def hold(self) -> int:
        """One more port."""
        sock = self.enter_context(socket.socket())
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        if sys.platform != "linux":
            self.close()
        return port
