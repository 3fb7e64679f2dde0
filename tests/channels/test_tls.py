from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import pytest
import torch
import trustme
from certificates import issue
from cryptography.hazmat.primitives import serialization
from wires import Witness, listening, on_each_loop, pair, state

from geomx.channels.tcp import Tcp, split_address
from geomx.channels.tls import Contexts, contexts
from geomx.errors import ConfigError
from geomx.wire.messages import Ack


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def ours(tmp_path, authority):
    return contexts(*issue(tmp_path / "ours", authority))


@on_each_loop
async def test_the_right_certificates_get_through_and_their_names_are_known(tmp_path, authority):
    ours = contexts(*issue(tmp_path / "named", authority, "127.0.0.1", "geomx:*/A", "https://example.org/x"))
    async with pair(Tcp(tls=ours)) as (connection, mine, accepted, theirs):
        named = ("geomx:*/A", "https://example.org/x")
        assert (connection.certified, accepted.certified) == (named, named)
        assert connection._transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        payload = torch.arange(3_000_000).to(torch.uint8)
        connection.write(1, state(payload.numel()), payload, 0)
        await theirs.until(lambda: bool(theirs.messages))
        assert torch.equal(theirs.messages[0][2], payload)
        accepted.write(0, Ack(1), None, 0)
        accepted.close("done")
        await mine.until_closed()
        assert mine.messages == [(0, Ack(1), None)]


def bare_client(authority_file, newest=ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """One that knows our authority, and has no certificate of its own."""
    context = ssl.create_default_context(cafile=authority_file)
    context.maximum_version = newest
    return context


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("a stranger", "TLS: CERTIFICATE_VERIFY_FAILED"),
        ("without a certificate", "TLS: PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("older", "TLS: UNSUPPORTED_PROTOCOL"),
        ("plain", "TLS: "),
    ],
)
@on_each_loop
async def test_whoever_dials_without_the_right_certificate_is_refused_for_a_reason(who, why, ours, tmp_path):
    """With TLS 1.3 the client learns of it at its first read, after a handshake that seemed to succeed."""
    root, strange = tmp_path / "ours" / "authority.pem", issue(tmp_path / "strange", trustme.CA())
    dialler = {
        "a stranger": contexts(strange[0], strange[1], root),
        "without a certificate": Contexts(ours.server, bare_client(root)),
        "older": Contexts(ours.server, bare_client(root, ssl.TLSVersion.TLSv1_2)),
        "plain": None,
    }[who]
    mine = Witness()
    async with listening(Tcp(tls=ours)) as (door, theirs):
        try:
            connection = await Tcp(tls=dialler).dial(door.address, mine)
            connection.write(1, Ack(1), None, 0)
            assert await mine.until_closed()
        except OSError:
            assert who in ("a stranger", "older")  # the refusal overtook the end of the handshake
        await theirs.until(lambda: bool(theirs.refusals))
        (refusal,) = theirs.refusals
        assert refusal.startswith(why)
        assert (mine.messages, theirs.messages, theirs.accepted) == ([], [], [])


@pytest.mark.parametrize("is_ours", [True, False])
@on_each_loop
async def test_a_server_of_another_authority_or_host_is_refused(is_ours, ours, tmp_path, authority):
    host = "elsewhere.example" if is_ours else "127.0.0.1"
    other = contexts(*issue(tmp_path / "other", authority if is_ours else trustme.CA(), host))
    async with listening(Tcp(tls=other)) as (door, theirs):
        with pytest.raises(ssl.SSLError):
            await Tcp(tls=ours).dial(door.address, Witness())
        assert theirs.accepted == []


@on_each_loop
async def test_a_tls_dialler_at_a_plain_port_is_refused_at_once_and_by_both_sides(ours):
    async with listening(Tcp()) as (door, theirs):
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on the loop
            await Tcp(tls=ours).dial(door.address, Witness())
        why = await theirs.until_closed()
        assert why.startswith("the peer speaks TLS, and this end does not: give both")
        assert theirs.messages == []


def test_every_unreadable_file_is_named(tmp_path):
    with pytest.raises(ConfigError) as caught:
        contexts(tmp_path / "a.pem", tmp_path / "b.pem", tmp_path / "c.pem")
    assert [fault.where for fault in caught.value.faults] == ["tls.certificate", "tls.key", "tls.authority"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("another's key", "a certificate and its own key"),
        ("a passphrase", "without a passphrase"),
        ("no authority", r"tls\.authority"),
    ],
)
def test_files_that_do_not_fit_are_refused_and_nobody_is_asked_for_anything(wrong, why, tmp_path, authority):
    certificate, key, root = issue(tmp_path / "one", authority)
    if wrong == "another's key":
        key = issue(tmp_path / "other", authority)[1]
    elif wrong == "a passphrase":
        plain = serialization.load_pem_private_key(key.read_bytes(), None)
        secret = serialization.BestAvailableEncryption(b"secret")
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key.write_bytes(plain.private_bytes(*form, secret))
    else:
        root.write_text("not a certificate")
    with pytest.raises(ConfigError, match=why):
        contexts(certificate, key, root)


@pytest.mark.parametrize("at_once", [False, True])
@on_each_loop
async def test_handshakes_that_never_end_push_out_the_oldest_of_themselves_and_let_others_in(
    ours, monkeypatch, at_once
):
    """`at_once`: they all come before the loop has run."""
    monkeypatch.setattr("geomx.channels.tls.MOST_HANDSHAKES", 8)
    loop = asyncio.get_running_loop()
    async with listening(Tcp(tls=ours)) as (door, theirs):
        crowd = []
        for _ in range(50):
            crowd.append(socket.create_connection(split_address(door.address)))
            crowd[-1].setblocking(False)
            if not at_once:
                await asyncio.sleep(0)
        connection = await Tcp(tls=ours).dial(door.address, Witness())
        await theirs.until(lambda: bool(theirs.accepted))
        for sock in crowd[:42]:
            with contextlib.suppress(ConnectionResetError):
                assert await loop.sock_recv(sock, 1) == b""  # hung up
        for sock in crowd:
            sock.close()
        connection.close("done")


@on_each_loop
async def test_a_greeting_that_waits_at_the_door_is_not_lost(ours):
    """Of a dialler that the listener takes late, since it was busy or stood still."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialler = ours.client.wrap_bio(into, out, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        dialler.do_handshake()
    async with listening(Tcp(tls=ours)) as (door, theirs):
        with socket.create_connection(split_address(door.address)) as sock:
            sock.sendall(out.read())  # before the loop has run
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            while out.pending == 0:  # until it has all that the other greets it with, and answers
                into.write(await loop.sock_recv(sock, 1 << 16))
                with contextlib.suppress(ssl.SSLWantReadError):
                    dialler.do_handshake()
            await loop.sock_sendall(sock, out.read())
            await theirs.until(lambda: bool(theirs.accepted))
        theirs.accepted[0].close("done")
