"""TLS 1.3 with a certificate on both sides: who has none from our authority does not get in.

The dialling side also checks the host's name. With TLS 1.3 a client that is refused still sees its handshake
succeed; the refusal shows at its first read. So a connection counts for nothing before the peer's `Welcome`. Event
loops end the connection before the reason has left: `_Handshake` sends it. No session is resumed, since that would
look at no certificate.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from geomx.channels.revocation import Revocation
from geomx.errors import ConfigError, Fault

HANDSHAKE_LIMIT_S = 10.0
MOST_HANDSHAKES = 256  # under way at a time


class Contexts(NamedTuple):
    """What the listening and the dialling side of a channel use."""

    server: _Context
    client: ssl.SSLContext
    revocation: Revocation | None = None


def contexts(
    certificate: Path | str,
    key: Path | str,
    authority: Path | str,
    revoked: Path | str | None = None,
    hosts: bool = True,
) -> Contexts:
    """Both sides' contexts, from PEM files: this node's certificate (with its chain), its key, the authority.

    `revoked`: the authority's list of revoked certificates. `hosts`: the dialling side checks the host's name.
    Raises `ConfigError` naming each file that cannot be read, a key that others can read, or the pair that does not
    fit.
    """
    files = {"certificate": Path(certificate), "key": Path(key), "authority": Path(authority)}
    unreadable = [
        Fault(f"tls.{what}", str(path), "a readable PEM file", problem)
        for what, path in files.items()
        if (problem := _problem(path))
    ]
    if not unreadable and (open_to := _open_to(files["key"])):
        hint = f"chmod 600 {files['key']}"
        found = f"{files['key']}, which {open_to}"
        unreadable = [Fault("tls.key", found, "a private key that only its owner can read", hint)]
    if unreadable:
        raise ConfigError("tls", unreadable)
    server = _context(ssl.PROTOCOL_TLS_SERVER, **files)
    server.num_tickets = 0
    client = _context(ssl.PROTOCOL_TLS_CLIENT, **files)
    client.check_hostname = hosts
    return Contexts(server, client, None if revoked is None else _revocation(Path(revoked), server, client))


def _revocation(path: Path, *contexts: ssl.SSLContext) -> Revocation:
    try:
        return Revocation(path, *contexts)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        fault = Fault("tls.revoked", f"{path}: {why}", "a list of revoked certificates in PEM")
        raise ConfigError("tls", [fault]) from error


def report_to(context: ssl.SSLContext, refused: Callable[[str], None]) -> None:
    """Call `refused(reason)` whenever a handshake with this context fails; event loops themselves keep silent."""

    class _Reporting(_Handshake):
        def failed(self, error: ssl.SSLError) -> None:
            refused(reason_of(error))
            super().failed(error)

    context.sslobject_class = _Reporting


class _Context(ssl.SSLContext):
    """Of the listening side: its handshakes know whom they speak to. `dialled`: the socket of the one that begins."""

    dialled: int | None = None

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **named: Any
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *more, **named)
        if isinstance(made, _Handshake):
            made.outgoing, made.file = outgoing, self.dialled
        return made


class _Handshake(ssl.SSLObject):
    """One that tells who has dialled why it fails: nothing else is on its way to them by then."""

    outgoing: ssl.MemoryBIO | None = None
    file: int | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.failed(error)
            raise

    def failed(self, error: ssl.SSLError) -> None:
        """Send what OpenSSL says of it."""
        del error
        if self.outgoing is not None and self.file is not None:
            with suppress(OSError):
                os.write(self.file, self.outgoing.read())


def certified_uris(certificate: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """The URIs among a certificate's names, as `ssl.SSLSocket.getpeercert` tells it; None: there is no certificate."""
    if certificate is None:
        return None
    return tuple(value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI")


def reason_of(error: ssl.SSLError) -> str:
    """What OpenSSL calls it, and what is wrong with a certificate; an error that Python has raised has no such name."""
    why = getattr(error, "verify_message", "")
    return f"TLS: {getattr(error, 'reason', None) or error}{f' ({why})' if why else ''}"


def feed(protocol: asyncio.BufferedProtocol, data: bytes | bytearray) -> None:
    """Give a protocol bytes that somebody else has read for it."""
    left = memoryview(data)
    while left:
        into = memoryview(protocol.get_buffer(len(left)))
        size = min(len(into), len(left))
        into[:size] = left[:size]
        protocol.buffer_updated(size)
        left = left[size:]


class TlsDoor:
    """The handshakes of those who have dialled: bounded in number, so that whoever never ends one takes no more.

    `make`: the connection of somebody whose handshake is over. A flood pushes out the oldest of itself.
    """

    def __init__(self, context: _Context, make: Callable[[], asyncio.BufferedProtocol]) -> None:
        self._context = context
        self._make = make
        self._under_way: dict[asyncio.Transport, asyncio.Task[None]] = {}  # the oldest first
        self._beginning = asyncio.Lock()

    def arriving(self) -> asyncio.Protocol:
        """The protocol of somebody who has just dialled."""
        return _Arriving(self._begin)

    def _begin(self, arriving: _Arriving, transport: asyncio.Transport) -> None:
        if len(self._under_way) >= MOST_HANDSHAKES:
            oldest = next(iter(self._under_way))
            del self._under_way[oldest]  # now: many may come before its task has noticed
            oldest.abort()
        task = asyncio.get_running_loop().create_task(self._shake_hands(arriving, transport))
        self._under_way[transport] = task

    async def _shake_hands(self, arriving: _Arriving, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._beginning:
                if transport.is_closing():
                    return
                self._context.dialled = transport.get_extra_info("socket").fileno()
                shaking = loop.create_task(
                    loop.start_tls(
                        transport,
                        arriving,
                        self._context,
                        server_side=True,
                        ssl_handshake_timeout=HANDSHAKE_LIMIT_S,
                    )
                )
                for _ in range(2):  # one turn of the loop in which it begins, and one in which it may read
                    await asyncio.sleep(0)
                self._context.dialled = None
            if not shaking.done() and (hello := arriving.take_early()):
                feed(cast(asyncio.BufferedProtocol, transport.get_protocol()), hello)
            secured = await shaking
        except OSError:  # of TLS as well, which `report_to` has told
            transport.abort()
            return
        finally:
            self._under_way.pop(transport, None)
        if (
            secured is not None and not transport.is_closing()
        ):  # a handshake that is cut off ends without an error
            connection = self._make()
            secured.set_protocol(connection)
            connection.connection_made(secured)
            arriving.hand_over(connection)


class _Arriving(asyncio.Protocol):
    """Somebody whose handshake is under way.

    Keeps what comes before it begins (uvloop reads at once, and a pause that is asked for now is forgotten), and
    then what comes between its end and the connection's beginning.
    """

    def __init__(self, begin: Callable[[_Arriving, asyncio.Transport], None]) -> None:
        self._begin = begin
        self._early = bytearray()
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._begin(self, cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def eof_received(self) -> bool:
        self._has_ended = True
        return False

    def take_early(self) -> bytes:
        """What has come until now."""
        early, self._early = bytes(self._early), bytearray()
        return early

    def hand_over(self, connection: asyncio.BufferedProtocol) -> None:
        """Give what has come to the connection."""
        feed(connection, self._early)
        if self._has_ended:
            connection.eof_received()


def _problem(path: Path) -> str:
    try:
        with path.open("rb"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _open_to(key: Path) -> str:
    """Who else can read a private key, in words. Nobody may; its group may where the key belongs to another user."""
    status = key.stat()
    mode = f"can read (mode {stat.S_IMODE(status.st_mode):04o})"
    if status.st_mode & stat.S_IROTH:
        return f"everybody {mode}"
    if status.st_mode & stat.S_IRGRP and status.st_uid == os.geteuid():
        return f"its group {mode}"
    return ""


def _no_passphrase() -> str:
    """In place of OpenSSL, which would ask at the terminal and have the node wait."""
    return ""


def _context(protocol: int, certificate: Path, key: Path, authority: Path) -> _Context:
    context = _Context(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ssl.SSLError as error:
        allowed = "a certificate and its own key, without a passphrase"
        fault = Fault("tls.certificate", f"{certificate} with {key}", allowed, str(error))
        raise ConfigError("tls", [fault]) from error
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        fault = Fault("tls.authority", str(authority), "certificates in PEM", str(error))
        raise ConfigError("tls", [fault]) from error
    return context
