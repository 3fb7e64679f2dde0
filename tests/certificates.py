"""Certificates of an authority of the tests, with whatever names: of hosts, and of nodes as URIs."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Files = tuple[Path, Path, Path]  # certificate, key, authority


def issue(folder: Path, authority: trustme.CA, *names: str) -> Files:
    """A certificate in a new folder; without names, of 127.0.0.1 alone."""
    signer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    signing = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(signer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(map(_general, names or ("127.0.0.1",))), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),  # type: ignore[arg-type]
            critical=False,
        )
        .sign(signing, hashes.SHA256())
    )
    folder.mkdir()
    paths = folder / "certificate.pem", folder / "key.pem", folder / "authority.pem"
    pem = serialization.Encoding.PEM
    paths[0].write_bytes(certificate.public_bytes(pem))
    paths[1].touch(0o600)
    paths[1].write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    authority.cert_pem.write_to_path(str(paths[2]))
    return paths


def _general(name: str) -> x509.GeneralName:
    if ":" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
