"""How datagrams are sealed: encrypted and authenticated, each direction under a key of its own.

    flow u32 | number u48 | AES-128-GCM of the body (16 bytes longer)

The first ten bytes are authenticated as well. A datagram's number is its nonce, and never repeats under one key: each
connection has new keys. Both ends derive them (HKDF, RFC 5869) from a random salt, which travelled on the connection,
and from what they know of the run's secret. Where the connection is in TLS, the salt is secret as well.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from geomx.errors import ProtocolError

SALT_BYTES, MOST_FLOWS = 32, 1 << 32
HEAD = struct.Struct("<IIH")
TAG_BYTES = 16
SEAL_BYTES = HEAD.size + TAG_BYTES
ENVELOPE_BYTES = SEAL_BYTES + 28  # with the headers of UDP and IPv4
_KEY_BYTES = 16
_NONCE = struct.Struct("<IHxxxxxx")


class Seal:
    """One direction of a flow."""

    def __init__(self, flow: int, key: bytes) -> None:
        self._flow = flow
        self._cipher = AESGCM(key)

    def close(self, number: int, body: bytes) -> bytes:
        """The datagram of a body. No number may be used twice."""
        low, high = number & 0xFFFFFFFF, number >> 32
        head = HEAD.pack(self._flow, low, high)
        return head + self._cipher.encrypt(_NONCE.pack(low, high), body, head)

    def open(self, datagram: bytes | memoryview) -> tuple[int, bytes] | None:
        """The number and body of a datagram; None: it is not from the other end of this flow."""
        if len(datagram) < SEAL_BYTES:
            return None
        _, low, high = HEAD.unpack_from(datagram)
        head, sealed = datagram[: HEAD.size], datagram[HEAD.size :]
        try:
            body = self._cipher.decrypt(_NONCE.pack(low, high), sealed, head)
        except InvalidTag:
            return None
        return low | high << 32, body


def seals(flow: int, salt: bytes, secret: bytes) -> tuple[Seal, Seal]:
    """Those of the way up and of the way down. Raises `ProtocolError`."""
    if not 0 < flow < MOST_FLOWS or len(salt) != SALT_BYTES:
        raise ProtocolError(f"a flow with the number {flow} and a salt of {len(salt)} bytes")
    keys = HKDF(hashes.SHA256(), 2 * _KEY_BYTES, salt, b"geomx flow").derive(secret + salt)
    return Seal(flow, keys[:_KEY_BYTES]), Seal(flow, keys[_KEY_BYTES:])


def flow_of(datagram: bytes | memoryview) -> int:
    """The flow that a datagram says it belongs to; 0: none."""
    return int(HEAD.unpack_from(datagram)[0]) if len(datagram) >= SEAL_BYTES else 0
