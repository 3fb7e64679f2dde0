"""The keys of a run on sites: whose certificate is whose, what counts no more, and who gets what."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from config_runs import two_parties
from cryptography import x509
from wires import Witness, listening, loop_name, on_each_loop, pair

from geomx.channels.tcp import Tcp
from geomx.channels.tls import Contexts, contexts
from geomx.config import Run
from geomx.errors import ConfigError
from geomx.launch.engines.jobs import jobs_of
from geomx.launch.provision import Keys
from geomx.wire.proof import is_certified

__all__ = ["loop_name"]  # a fixture
SITES = 'site=[{party = "A", serves = ["global"], hosts = ["a"]}, {party = "B", hosts = ["b"]}]'


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "train.py").touch()
    return two_parties(SITES, f"run.script={tmp_path / 'train.py'}", 'global.addresses=["203.0.113.7:1"]')


@pytest.fixture
def keys(run: Run, tmp_path: Path) -> Keys:
    made = Keys(run, tmp_path / "two.toml")
    made.credentials()
    return made


def of_node(keys: Keys, node: str) -> Contexts:
    key = keys.folder / "nodes" / f"{node.replace('/', '.')}.key"
    files = key.with_suffix(".pem"), key, keys.folder / "authority.pem", keys.folder / "revoked.pem"
    return contexts(*files, hosts=False)


def certificate(keys: Keys, node: str) -> x509.Certificate:
    path = keys.folder / "nodes" / f"{node.replace('/', '.')}.pem"
    return x509.load_pem_x509_certificate(path.read_bytes())


@on_each_loop
async def test_each_certificate_says_which_node_it_is(keys: Keys) -> None:
    async with pair(Tcp(tls=of_node(keys, "A/0"))) as (connection, _, accepted, _):
        for end in (connection, accepted):
            assert end.certified is not None
            named = [
                node
                for node in ("global/0", "A", "A/0", "A/1", "B", "B/0")
                if is_certified(end.certified, "two", node)
            ]
            assert named == ["A/0"]
            assert not is_certified(end.certified, "another", "A/0")


def test_a_site_gets_the_keys_of_its_own_nodes_and_the_authority_s_stays(
    run: Run, keys: Keys, tmp_path: Path
) -> None:
    a, b = jobs_of(run, tmp_path / "two.toml", keys.credentials())
    assert {name for name in a.files if name.endswith(".key")} == {
        f"tls/{node.name.replace('/', '.')}.key" for node in a.nodes
    }
    assert {name for name in b.files if name.endswith(".key")} == {
        f"tls/{node.name.replace('/', '.')}.key" for node in b.nodes
    }
    every = b"".join([*a.files.values(), *b.files.values()])
    assert (keys.folder / "authority.key").read_bytes() not in every
    modes = [stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (keys.folder, *keys.folder.rglob("*"))]
    assert not any(modes)
    assert keys.credentials() == keys.credentials()  # made once


@on_each_loop
async def test_who_is_revoked_loses_its_connection_and_gets_no_other(keys: Keys) -> None:
    server, client = of_node(keys, "A"), of_node(keys, "A/0")
    other = of_node(keys, "A/1")
    channel = Tcp(tls=Contexts(server.server, client.client, server.revocation))
    async with pair(channel) as (_, mine, _, theirs):
        keys.revoke(["A/0"])
        assert await theirs.until_closed() == "its certificate is revoked"
        await mine.until_closed()
    async with listening(channel) as (door, witness):
        await refused(channel, door.address, witness, "TLS: CERTIFICATE_VERIFY_FAILED (certificate revoked)")
        renewed = of_node(keys, "A/0")  # it was given a new one
        for count, still in enumerate((other, renewed), 1):
            connection = await Tcp(tls=Contexts(server.server, still.client)).dial(door.address, Witness())
            await witness.until(lambda count=count: len(witness.accepted) == count)
            connection.close("done")


@on_each_loop
async def test_a_handshake_that_was_under_way_when_the_list_came_is_of_no_use(keys: Keys) -> None:
    server, client = of_node(keys, "A"), of_node(keys, "A/0")
    keys.revoke(["A/0"])
    assert server.revocation is not None
    server.revocation._read()
    server.server.verify_flags &= ~ssl.VERIFY_CRL_CHECK_LEAF  # as if it had looked at the list before
    client.client.verify_flags &= ~ssl.VERIFY_CRL_CHECK_LEAF
    async with pair(Tcp(tls=Contexts(server.server, client.client, server.revocation))) as (_, _, _, theirs):
        assert await theirs.until_closed() == "its certificate is revoked"
    assert server.server.num_tickets == 0  # nor can one of before be gone on with


@on_each_loop
async def test_who_has_expired_is_refused_and_that_is_told(keys: Keys) -> None:
    keys.renew(days=0)
    assert keys.expiring()[0] == f"the certificate of global/0 has ended on {datetime.now(UTC):%Y-%m-%d}"
    await asyncio.sleep(1.1)  # they end at a whole second
    ours = of_node(keys, "A")
    channel = Tcp(tls=ours)
    ours.client.verify_mode = ssl.CERT_NONE  # the dialling side would refuse it first
    async with listening(channel) as (door, witness):
        await refused(
            channel, door.address, witness, "TLS: CERTIFICATE_VERIFY_FAILED (certificate has expired)"
        )


async def refused(channel: Tcp, address: str, witness: Witness, why: str) -> None:
    """Dial, and see that the listening side refuses for this reason, and that both sides tell it."""
    connection, dialler = None, Witness()
    with contextlib.suppress(OSError):
        connection = await channel.dial(address, dialler)
    if connection is not None:
        assert (await dialler.until_closed()).startswith("TLS: SSLV3_ALERT_CERTIFICATE_")
    await witness.until(lambda: why in witness.refusals)


def test_it_is_told_two_weeks_before_a_certificate_ends(keys: Keys) -> None:
    assert keys.expiring() == []
    keys.renew(days=13)
    assert len(keys.expiring()) == len(keys.renew(days=90))
    assert keys.expiring() == []
    assert certificate(keys, "A").not_valid_after_utc - datetime.now(UTC) > timedelta(days=89)


def test_all_certificates_that_a_node_ever_had_are_revoked_once_and_its_next_one_counts(keys: Keys) -> None:
    given = [certificate(keys, "A").serial_number]
    keys.renew()
    given.append(certificate(keys, "A").serial_number)
    assert not keys.are_revoked
    for _ in range(2):
        keys.revoke(["A"])
        listed = x509.load_pem_x509_crl(keys.list_of_revoked()["tls/revoked.pem"])
        assert sorted(each.serial_number for each in listed) == sorted(given)
        given.append(certificate(keys, "A").serial_number)
    assert keys.are_revoked


def test_only_a_node_can_be_revoked(keys: Keys) -> None:
    with pytest.raises(ConfigError, match="did you mean `A/0`"):
        keys.revoke(["A.0"])


def test_where_all_is_on_this_machine_or_the_description_has_certificates_there_is_the_secret_alone(
    run: Run, tmp_path: Path
) -> None:
    here = run.changed([f"site[{k}].{change}" for k in (0, 1) for change in ('engine="local"', "hosts=[]")])
    own = run.changed([f"tls.{key}=/etc/{key}.pem" for key in ("certificate", "key", "authority")])
    for each in (here, own):
        assert list(Keys(each, tmp_path / "two.toml").credentials().files) == ["secret"]


def test_keys_that_were_cut_off_or_are_of_another_name_are_made_anew(
    run: Run, keys: Keys, tmp_path: Path
) -> None:
    (keys.folder / "nodes" / "A.pem").write_text("")
    (keys.folder / "nodes" / "B.key").write_bytes((keys.folder / "nodes" / "B.0.key").read_bytes())
    before = certificate(keys, "A/0")
    keys.credentials()
    assert certificate(keys, "A/0") == before
    of_node(keys, "A"), of_node(keys, "B")  # each a pair again
    named = Keys(run.changed(['run.name="other"']), tmp_path / "two.toml")
    named.credentials()
    uris = certificate(keys, "A").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert uris.get_values_for_type(x509.UniformResourceIdentifier) == ["geomx:other/A"]


@pytest.mark.parametrize("name", ["authority.pem", "authority.key", "revoked.pem"])
def test_an_authority_that_is_broken_is_told_with_what_to_do(keys: Keys, name: str) -> None:
    (keys.folder / name).write_text("")
    with pytest.raises(ConfigError, match=r"bring .* back from a copy, or remove it"):
        keys.revoke(["A"])


def test_two_who_make_keys_at_once_make_one_authority(run: Run, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: Keys(run, tmp_path / "two.toml").credentials(), range(4)))
    assert all(each == made[0] for each in made)


def test_the_list_of_who_is_revoked_counts_where_a_clock_is_behind(keys: Keys) -> None:
    listed = x509.load_pem_x509_crl((keys.folder / "revoked.pem").read_bytes())
    assert datetime.now(UTC) - listed.last_update_utc > timedelta(hours=23)


def test_no_key_travels_as_a_file_of_the_script_s(run: Run, keys: Keys, tmp_path: Path) -> None:
    more = run.changed(['run.files=["**/*"]'])
    (job, _) = jobs_of(more, tmp_path / "two.toml", keys.credentials())
    assert {name for name in job.files if name.startswith("work/")} == {
        "work/train.py",
        "work/.geomx-run.json",
    }
    for pattern in ("/etc/passwd", "", "**x", "../*.py"):
        with pytest.raises(ConfigError, match=r"run\.files.*it matches none that may travel"):
            jobs_of(run.changed([f'run.files=["{pattern}"]']), tmp_path / "two.toml", keys.credentials())
