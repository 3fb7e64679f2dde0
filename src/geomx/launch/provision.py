"""The keys of a run that leaves this machine: a secret, an authority of its own, and a certificate for each node.

All of it is in one folder beside the description (`sites.keys` beside `sites.toml`), which only its owner can read:

    secret                   of the run
    authority.key, .pem      sign certificates; the key stays here
    revoked.pem              what counts no more, signed
    nodes/paris.0.key, .pem  of each node: which one it is stands in the certificate, as `geomx:RUN/NAME`
    nodes/paris.0.serials    of every certificate that this node was ever given
    bundles/paris.tar        what one site needs, for who brings it there by hand

A site gets the keys of its own nodes, and of nobody else. What was cut off while it was made, or is of a run of another
name, is made anew. `cryptography` does the work.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

from geomx.config import Run
from geomx.drive.secret import make_secret, secret_of
from geomx.errors import ConfigError, Fault, nearest
from geomx.launch.engines.contract import Credentials
from geomx.launch.engines.jobs import keys_of
from geomx.wire.proof import SCHEME

DAYS = 90  # of a node's certificate
TOLD_DAYS = 14  # before one ends
AUTHORITY_DAYS = 3650
PEM = serialization.Encoding.PEM


class Keys:
    """The folder with a run's keys. What is missing is made when it is asked for."""

    def __init__(self, run: Run, file: Path) -> None:
        self._run = run
        self.folder = keys_of(file)

    def credentials(self) -> Credentials:
        """What each node shows the others: the run's secret, and by TLS its certificate.

        A description that names TLS files of its own keeps them; one whose sites are all this machine needs none.
        """
        with self._alone():
            return self._credentials()

    def _credentials(self) -> Credentials:
        common = {"secret": self._secret()}
        if not self._has_certificates:
            return Credentials(common)
        common |= {"tls/authority.pem": self._authority()[1].public_bytes(PEM), **self.list_of_revoked()}
        files, settings = {}, {}
        for node in self._run.tree.nodes:
            key, certificate = self._of_node(node)
            name = f"tls/{node.replace('/', '.')}"
            files[node] = {f"{name}.key": key.read_bytes(), f"{name}.pem": certificate.read_bytes()}
            settings[node] = (
                f"tls.certificate=../{name}.pem",
                f"tls.key=../{name}.key",
                "tls.authority=../tls/authority.pem",
                "tls.revoked=../tls/revoked.pem",
                "tls.hosts=false",  # the authority is this run's own, and each certificate says whose it is
            )
        return Credentials(common, files, settings)

    @property
    def are_revoked(self) -> bool:
        """Whether the certificates of some node count no more."""
        path = self.folder / "revoked.pem"
        return path.exists() and len(self._listed()) > 0

    def list_of_revoked(self) -> dict[str, bytes]:
        """The signed list as a job's file."""
        path = self.folder / "revoked.pem"
        if not path.exists():
            self._sign_list([])
        return {"tls/revoked.pem": path.read_bytes()}

    def renew(self, days: int = DAYS) -> list[str]:
        """Make a new certificate for each node, whose old one counts until it ends; gives the nodes."""
        with self._alone():
            for node in self._run.tree.nodes:
                self._of_node(node, days, anew=True)
        return list(self._run.tree.nodes)

    def revoke(self, nodes: Iterable[str]) -> None:
        """Let all certificates that these nodes were given count no more; they get new ones. Raises `ConfigError`."""
        known = self._run.tree.nodes
        for node in nodes:
            if node not in known:
                fault = Fault("--revoke", node, ", ".join(known), nearest(node, known))
                raise ConfigError("the command line", [fault])
            if not self._has_certificates:
                found = "a run whose certificates are not made here"
                raise ConfigError(
                    "the command line", [Fault("--revoke", found, "one with sites, and without [tls]")]
                )
        with self._alone():
            self.list_of_revoked()
            revoked = list(self._listed())
            gone, now = {each.serial_number for each in revoked}, datetime.now(UTC)
            for node in nodes:
                newest = x509.load_pem_x509_certificate(self._of_node(node)[1].read_bytes())
                given = {int(each) for each in self._path(node, ".serials").read_text().split()}
                for serial in (given | {newest.serial_number}) - gone:
                    builder = x509.RevokedCertificateBuilder().serial_number(serial)
                    revoked.append(builder.revocation_date(now).build())
                self._of_node(node, anew=True)
            self._sign_list(revoked)

    def expiring(self, within: timedelta = timedelta(days=TOLD_DAYS)) -> list[str]:
        """A line of each node whose certificate ends within this time, or has ended."""
        lines, now = [], datetime.now(UTC)
        for node in self._run.tree.nodes:
            with suppress(OSError, ValueError):  # it will be made
                found = x509.load_pem_x509_certificate(self._path(node, ".pem").read_bytes())
                if (ends := found.not_valid_after_utc) - now < within:
                    word = "ends" if ends > now else "has ended"
                    lines.append(f"the certificate of {node} {word} on {ends:%Y-%m-%d}")
        return lines

    def bundle(self, site: str, tar: bytes) -> Path:
        """Keep what one site needs, to be brought there by hand; gives where."""
        path = self.folder / "bundles" / f"{site}.tar"
        _write(path, tar)
        return path

    @property
    def _has_certificates(self) -> bool:
        is_here = all(site.engine.split()[0] == "local" for site in self._run.sites)
        return not is_here and self._run.tls.certificate is None

    # -- what is made ---------------------------------------------------------------------------------------------

    def _secret(self) -> bytes:
        if self._run.run.secret_file is not None:
            return secret_of(self._run)
        path = self.folder / "secret"
        if not path.exists():
            make_secret(path)
        return secret_of(self._run.changed([f'run.secret_file="{path}"']))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else makes keys in this folder meanwhile."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(self.folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _authority(self) -> tuple[ed25519.Ed25519PrivateKey, x509.Certificate]:
        key, certificate = self.folder / "authority.key", self.folder / "authority.pem"
        if not key.exists():
            new = ed25519.Ed25519PrivateKey.generate()
            name = _name(f"geomx run {self._run.run.name}")
            builder = _certificate(name, name, new.public_key(), AUTHORITY_DAYS)
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
            identifier = x509.SubjectKeyIdentifier.from_public_key(new.public_key())
            signed = builder.add_extension(identifier, critical=False).sign(new, None)
            _write(certificate, signed.public_bytes(PEM))
            _write(key, _private(new))  # last: whoever has it has both
        try:
            return _loaded(key, certificate)
        except (OSError, ValueError) as error:
            raise self._broken("authority", error) from error

    def _listed(self) -> x509.CertificateRevocationList:
        try:
            return x509.load_pem_x509_crl((self.folder / "revoked.pem").read_bytes())
        except (OSError, ValueError) as error:
            raise self._broken("revoked.pem", error) from error

    def _broken(self, name: str, error: Exception) -> ConfigError:
        hint = f"bring {self.folder} back from a copy, or remove it: then all nodes get new keys"
        return ConfigError(str(self.folder), [Fault(name, str(error), "what geomx has written there", hint)])

    def _of_node(self, node: str, days: int = DAYS, anew: bool = False) -> tuple[Path, Path]:
        """A node's key and certificate."""
        key, certificate = self._path(node, ".key"), self._path(node, ".pem")
        signer, authority = self._authority()
        uri = x509.UniformResourceIdentifier(f"{SCHEME}{self._run.run.name}/{node}")
        if anew or not _are_right(key, certificate, authority, uri):
            new = ed25519.Ed25519PrivateKey.generate()
            builder = _certificate(_name(node), authority.subject, new.public_key(), days)
            builder = builder.add_extension(x509.SubjectAlternativeName([uri]), critical=False)
            identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
            signed = builder.add_extension(identifier, critical=False).sign(signer, None)
            serials = self._path(node, ".serials")
            before = serials.read_bytes() if serials.exists() else b""
            _write(
                serials, before + b"%d\n" % signed.serial_number
            )  # first: what is out there can be revoked
            _write(key, _private(new))
            _write(certificate, signed.public_bytes(PEM))
        return key, certificate

    def _path(self, node: str, ending: str) -> Path:
        return self.folder / "nodes" / f"{node.replace('/', '.')}{ending}"

    def _sign_list(self, revoked: Sequence[x509.RevokedCertificate]) -> None:
        """From yesterday on, since clocks may differ; newer than the list before: OpenSSL takes the newest it knows."""
        signer, authority = self._authority()
        path, at = self.folder / "revoked.pem", datetime.now(UTC) - timedelta(days=1)
        if path.exists():
            at = max(at, self._listed().last_update_utc + timedelta(seconds=1))
        builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
        builder = builder.last_update(at).next_update(at + timedelta(days=AUTHORITY_DAYS))
        for each in revoked:
            builder = builder.add_revoked_certificate(each)
        _write(path, builder.sign(signer, None).public_bytes(PEM))


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ed25519.Ed25519PublicKey, days: int
) -> x509.CertificateBuilder:
    """Of somebody, from yesterday on: clocks may differ."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
    )


def _loaded(key: Path, certificate: Path) -> tuple[ed25519.Ed25519PrivateKey, x509.Certificate]:
    """A pair that fits. Raises OSError and ValueError."""
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
    if not isinstance(private, ed25519.Ed25519PrivateKey) or private.public_key() != loaded.public_key():
        raise ValueError(f"{key} is not the key of {certificate}")
    return private, loaded


def _are_right(
    key: Path, certificate: Path, authority: x509.Certificate, uri: x509.UniformResourceIdentifier
) -> bool:
    """Whether a node's pair is whole, of this authority, and names this node of this run."""
    try:
        loaded = _loaded(key, certificate)[1]
        loaded.verify_directly_issued_by(authority)
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return uri in names


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _private(key: ed25519.Ed25519PrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    """A whole file for its owner alone, or none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)
