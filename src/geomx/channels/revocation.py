"""Certificates that count no more: a list, signed by the authority, that is read again when its file changes.

OpenSSL refuses who shows one of them in a handshake; a connection that stands is ended. Both happen within `LOOK_S` of
the change, and of the newest list that was readable: a file that is half written, or gone, changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path

from cryptography import x509

LOOK_S = 2.0
REASON = "its certificate is revoked"
End = Callable[[str], None]
_logger = logging.getLogger("geomx")


class Revocation:
    """Watches a list for one channel. `contexts`: those of its handshakes."""

    def __init__(self, path: Path, *contexts: ssl.SSLContext) -> None:
        """Read the list. Raises OSError and ValueError where there is none."""
        self._path, self._contexts = path, contexts
        self._serials: frozenset[int] = frozenset()
        self._connections = weakref.WeakKeyDictionary[object, tuple[int | None, weakref.WeakMethod[End]]]()
        self._seen: object = None
        self._watching = False
        self._read()
        for context in contexts:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF

    def admit(self, connection: object, serial: int | None, end: End) -> None:
        """End this connection by `end(reason)`, a method of it, once its peer's certificate is on the list."""
        self._connections[connection] = serial, weakref.WeakMethod(end)
        if serial in self._serials:  # the list came while it shook hands
            asyncio.get_running_loop().call_soon(end, REASON)
        if not self._watching:
            self._watching = True
            _again(weakref.ref(self))

    def look(self) -> None:
        """Read the list again if its file has changed."""
        try:
            if self._state() == self._seen:
                return
            self._read()
        except (OSError, ValueError) as error:
            if self._seen is not None:
                _logger.warning("%s cannot be read (%s): the list before it holds", self._path, error)
            self._seen = None
            return
        for serial, method in list(self._connections.values()):
            if serial in self._serials and (end := method()) is not None:
                end(REASON)

    def _read(self) -> None:
        state = self._state()
        revoked = x509.load_pem_x509_crl(self._path.read_bytes())
        for context in self._contexts:
            context.load_verify_locations(self._path)
        self._serials = frozenset(each.serial_number for each in revoked)
        self._seen = state

    def _state(self) -> object:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino


def _again(watched: weakref.ref[Revocation]) -> None:
    """Have it look every `LOOK_S`, as long as its channel is there."""
    revocation = watched()
    if revocation is not None:
        revocation.look()
        asyncio.get_running_loop().call_later(LOOK_S, _again, watched)
