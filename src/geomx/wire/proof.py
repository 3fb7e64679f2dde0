"""How a node proves in its greeting that it belongs to a run: by the run's secret, and by its certificate.

The secret proves membership. It never travels: each side sends an HMAC of who it is and of both sides' nonces, so a
proof fits one connection, one direction and one name. A certificate proves a name: it bears `geomx:RUN/NAME` as a
URI among its alternative names.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Literal

import msgspec

NONCE_BYTES = 16
SCHEME = "geomx:"
ANY_RUN = "*"

Side = Literal["dials", "listens"]


def proof(
    secret: bytes, side: Side, run: str, node: str, incarnation: int, nonces: tuple[bytes, bytes]
) -> bytes:
    """What `side` sends to prove that it knows the secret.

    Args:
        secret: the run's; empty where the run has none, and then this proves nothing.
        side: which of the two the sender is.
        run: the run's name.
        node: the sender's name.
        incarnation: the sender's.
        nonces: of the side that listens, then of the one that dials.

    Returns:
        32 bytes, HMAC-SHA256 (RFC 2104).
    """
    said = msgspec.msgpack.encode((side, run, node, incarnation, *nonces))
    return hmac.digest(secret, said, "sha256")


def flow_secret(secret: bytes, nonces: tuple[bytes, bytes]) -> bytes:
    """What both ends of one connection know, and nobody else. `nonces` as in `proof`; empty without a secret."""
    return hmac.digest(secret, b"flow" + b"".join(nonces), "sha256") if secret else b""


def is_proved(shown: bytes, expected: bytes) -> bool:
    """Whether the two are the same, in a time that does not tell where they differ."""
    return hmac.compare_digest(shown, expected)


def is_certified(uris: Iterable[str], run: str, node: str) -> bool:
    """Whether one of a certificate's URIs names this node: itself, or the party whose worker it is."""
    for uri in uris:
        of, _, name = uri.removeprefix(SCHEME).partition("/")
        is_ours = uri.startswith(SCHEME) and of in (ANY_RUN, run)
        if is_ours and name and (node == name or node.startswith(f"{name}/")):
            return True
    return False
