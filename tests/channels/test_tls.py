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
from wires import ANY_PORT, LOOPS, Witness, run_on, state

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


@pytest.mark.parametrize("loop_name", LOOPS)
def test_the_right_certificates_get_through(loop_name, ours):
    async def main():
        mine, theirs, tcp = Witness(), Witness(), Tcp(tls=ours)
        door = await tcp.listen(ANY_PORT, theirs, theirs.accept)
        connection = await tcp.dial(door.address, mine)
        assert connection._transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        payload = torch.arange(3_000_000).to(torch.uint8)
        connection.write(1, state(payload.numel()), payload, 0)
        await theirs.until(lambda: bool(theirs.messages))
        assert torch.equal(theirs.messages[0][2], payload)
        theirs.accepted[0].write(0, Ack(1), None, 0)
        theirs.accepted[0].close("done")
        await mine.until_closed()
        assert mine.messages == [(0, Ack(1), None)]
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_strangers_certificate_is_refused(loop_name, ours, tmp_path, authority):
    """With TLS 1.3 the client learns of it at its first read, after a handshake that seemed to succeed."""
    strange = issue(tmp_path / "strange", trustme.CA())
    stranger = contexts(strange[0], strange[1], tmp_path / "ours" / "authority.pem")

    async def main():
        mine, theirs = Witness(), Witness()
        door = await Tcp(tls=ours).listen(ANY_PORT, theirs, theirs.accept)
        try:
            connection = await Tcp(tls=stranger).dial(door.address, mine)
            connection.write(1, Ack(1), None, 0)
            assert await mine.until_closed()
        except OSError:
            pass  # the refusal overtook the end of the handshake
        await theirs.until(lambda: bool(theirs.refusals))
        assert theirs.refusals == ["TLS: CERTIFICATE_VERIFY_FAILED"]
        assert (mine.messages, theirs.messages, theirs.accepted) == ([], [], [])
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_server_of_another_authority_is_refused(loop_name, ours, tmp_path):
    strange = contexts(*issue(tmp_path / "strange", trustme.CA()))

    async def main():
        theirs = Witness()
        door = await Tcp(tls=strange).listen(ANY_PORT, theirs, theirs.accept)
        with pytest.raises(ssl.SSLError):
            await Tcp(tls=ours).dial(door.address, Witness())
        assert theirs.accepted == []
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_certificate_for_another_host_is_refused(loop_name, ours, tmp_path, authority):
    elsewhere = contexts(*issue(tmp_path / "elsewhere", authority, "elsewhere.example"))

    async def main():
        door = await Tcp(tls=elsewhere).listen(ANY_PORT, Witness(), lambda _: None)
        with pytest.raises(ssl.SSLCertVerificationError):
            await Tcp(tls=ours).dial(door.address, Witness())
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_plain_bytes_at_a_tls_port_do_no_harm(loop_name, ours):
    async def main():
        theirs, tcp = Witness(), Tcp(tls=ours)
        door = await tcp.listen(ANY_PORT, theirs, theirs.accept)
        plain = Witness()
        connection = await Tcp().dial(door.address, plain)
        connection.write(1, state(5000), torch.zeros(5000, dtype=torch.uint8), 0)
        assert await plain.until_closed()
        _, writer = await asyncio.open_connection(*split_address(door.address))
        writer.close()
        good = await tcp.dial(door.address, Witness())
        good.write(1, Ack(1), None, 0)
        await theirs.until(lambda: theirs.numbers == [1])
        assert len(theirs.accepted) == 1
        good.close("done")
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_the_plain_dialler_of_a_tls_port_is_refused_for_a_reason(loop_name, ours):
    async def main():
        theirs, mine = Witness(), Witness()
        door = await Tcp(tls=ours).listen(ANY_PORT, theirs, theirs.accept)
        connection = await Tcp().dial(door.address, mine)
        connection.write(0, Ack(1), None, 0)
        assert await mine.until_closed()
        await theirs.until(lambda: bool(theirs.refusals))
        assert theirs.refusals[0].startswith("TLS: ")
        assert (mine.messages, theirs.messages, theirs.accepted) == ([], [], [])
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_tls_dialler_at_a_plain_port_is_refused_at_once_and_by_both_sides(loop_name, ours):
    async def main():
        theirs = Witness()
        door = await Tcp().listen(ANY_PORT, theirs, theirs.accept)
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on the loop
            await Tcp(tls=ours).dial(door.address, Witness())
        assert (await theirs.until_closed()).startswith(
            "the peer speaks TLS, and this end does not: give both"
        )
        assert theirs.messages == []
        await door.close()

    run_on(loop_name, main)


def bare_client(authority_file, older: bool) -> ssl.SSLContext:
    """One that knows our authority, and has no certificate of its own."""
    context = ssl.create_default_context(cafile=authority_file)
    if older:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize("loop_name", LOOPS)
def test_who_has_no_certificate_is_refused(loop_name, ours, tmp_path):
    """As with a stranger's certificate, the dialler learns of it at its first read."""
    bare = bare_client(tmp_path / "ours" / "authority.pem", older=False)

    async def main():
        mine, theirs = Witness(), Witness()
        door = await Tcp(tls=ours).listen(ANY_PORT, theirs, theirs.accept)
        connection = await Tcp(tls=Contexts(ours.server, bare)).dial(door.address, mine)
        connection.write(0, Ack(1), None, 0)
        assert await mine.until_closed()
        await theirs.until(lambda: bool(theirs.refusals))
        assert theirs.refusals == ["TLS: PEER_DID_NOT_RETURN_A_CERTIFICATE"]
        assert (mine.messages, theirs.messages, theirs.accepted) == ([], [], [])
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_older_versions_are_not_spoken(loop_name, ours, tmp_path):
    older = bare_client(tmp_path / "ours" / "authority.pem", older=True)

    async def main():
        theirs = Witness()
        door = await Tcp(tls=ours).listen(ANY_PORT, theirs, theirs.accept)
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on what arrives first
            await Tcp(tls=Contexts(ours.server, older)).dial(door.address, Witness())
        await theirs.until(lambda: bool(theirs.refusals))
        assert (theirs.refusals, theirs.accepted) == (["TLS: UNSUPPORTED_PROTOCOL"], [])
        await door.close()

    run_on(loop_name, main)


def test_every_unreadable_file_is_named(tmp_path):
    with pytest.raises(ConfigError) as caught:
        contexts(tmp_path / "a.pem", tmp_path / "b.pem", tmp_path / "c.pem")
    assert [fault.where for fault in caught.value.faults] == ["tls.certificate", "tls.key", "tls.authority"]


def test_a_key_that_is_anothers_is_refused(tmp_path, authority):
    one, other = issue(tmp_path / "one", authority), issue(tmp_path / "other", authority)
    with pytest.raises(ConfigError, match="a certificate and its own key"):
        contexts(one[0], other[1], one[2])


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(tmp_path, authority):
    certificate, key, root = issue(tmp_path / "one", authority)
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key.write_bytes(plain.private_bytes(*form, secret))
    with pytest.raises(ConfigError, match="without a passphrase"):
        contexts(certificate, key, root)


def test_an_authority_that_is_no_certificate_is_refused(tmp_path, authority):
    certificate, key, root = issue(tmp_path / "one", authority)
    root.write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"tls\.authority"):
        contexts(certificate, key, root)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_handshakes_that_never_end_push_out_the_oldest_of_themselves_and_let_others_in(
    loop_name, ours, monkeypatch
):
    monkeypatch.setattr("geomx.channels.tls.MOST_HANDSHAKES", 8)

    async def main():
        mine, theirs, tcp = Witness(), Witness(), Tcp(tls=ours)
        door = await tcp.listen(ANY_PORT, theirs, theirs.accept)
        crowd = [await asyncio.open_connection(*split_address(door.address)) for _ in range(50)]
        connection = await tcp.dial(door.address, mine)
        await theirs.until(lambda: bool(theirs.accepted))
        for reader, _ in crowd[:42]:
            assert await reader.read() == b""  # hung up
        for _, writer in crowd:
            writer.close()
        connection.close("done")
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_so_do_those_that_come_all_at_once(loop_name, ours, monkeypatch):
    monkeypatch.setattr("geomx.channels.tls.MOST_HANDSHAKES", 8)

    async def main():
        theirs = Witness()
        door = await Tcp(tls=ours).listen(ANY_PORT, theirs, theirs.accept)
        crowd = [socket.create_connection(split_address(door.address)) for _ in range(50)]
        for sock in crowd:
            sock.setblocking(False)
        for sock in crowd[:42]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""  # hung up
        for sock in crowd:
            sock.close()
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_greeting_that_waits_at_the_door_is_not_lost(loop_name, ours):
    """Of a dialler that the listener takes late, since it was busy or stood still."""

    async def main():
        theirs = Witness()
        door = await Tcp(tls=ours).listen(ANY_PORT, theirs, theirs.accept)
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        dialler = ours.client.wrap_bio(into, out, server_hostname="127.0.0.1")
        with contextlib.suppress(ssl.SSLWantReadError):
            dialler.do_handshake()
        with socket.create_connection(split_address(door.address)) as sock:
            sock.sendall(out.read())  # before the loop has run
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            while not theirs.accepted:
                into.write(await loop.sock_recv(sock, 1 << 16))
                with contextlib.suppress(ssl.SSLWantReadError):
                    dialler.do_handshake()
                await loop.sock_sendall(sock, out.read())
                await asyncio.sleep(0.01)
        theirs.accepted[0].close("done")
        await door.close()

    run_on(loop_name, main)


@pytest.mark.parametrize("loop_name", LOOPS)
def test_the_names_in_a_certificate_are_known_at_both_ends(loop_name, tmp_path, authority):
    paths = issue(tmp_path / "named", authority, "127.0.0.1", "geomx:*/A", "https://example.org/x")

    async def main():
        mine, theirs, tcp = Witness(), Witness(), Tcp(tls=contexts(*paths))
        door = await tcp.listen(ANY_PORT, theirs, theirs.accept)
        connection = await tcp.dial(door.address, mine)
        await theirs.until(lambda: bool(theirs.accepted))
        named = ("geomx:*/A", "https://example.org/x")
        assert (connection.certified, theirs.accepted[0].certified) == (named, named)
        connection.close("done")
        await door.close()

    run_on(loop_name, main)
