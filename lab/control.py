"""Talking to a running lab's router: one JSON object asks, one answers.

`{"do": NAME, ...}` is answered by `{"ok": ...}` or `{"error": TEXT}`. Each is one message of a SOCK_SEQPACKET
socket in a directory that only root can enter.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from lab.errors import RouterError
from lab.namespaces import control_path

MAX_MESSAGE_BYTES = 1 << 20
_TIMEOUT_S = 10.0


class Control:
    """A connection to one lab's router. Not for several threads at once."""

    def __init__(self, owner: str) -> None:
        """RouterError where no router of that owner listens."""
        self._owner = owner
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_TIMEOUT_S)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MAX_MESSAGE_BYTES)
        try:
            self._socket.connect(str(control_path(owner)))
        except OSError as error:
            self._socket.close()
            raise RouterError(
                f"no router of lab {owner} listens ({error.strerror}): is the lab up?"
            ) from None

    def ask(self, do: str, **arguments: Any) -> Any:
        """The router's answer. RouterError where it refuses, ends or is silent for 10 s."""
        try:
            self._socket.send(json.dumps({"do": do, **arguments}).encode())
            answer = self._socket.recv(MAX_MESSAGE_BYTES)
        except OSError as error:
            raise RouterError(f"the router of lab {self._owner} does not answer: {error}") from None
        if not answer:
            raise RouterError(f"the router of lab {self._owner} has ended")
        reply = json.loads(answer)
        if "error" in reply:
            raise RouterError(reply["error"])
        return reply["ok"]

    def close(self) -> None:
        """Close the connection; the lab goes on."""
        self._socket.close()
