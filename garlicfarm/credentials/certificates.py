"""Self-signed certificates, and the pins by which peers recognise them (D11).

A pin needs no `cryptography`, which takes long to import: only what makes a certificate imports it.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from garlicfarm.durable_files import write_new_file
from garlicfarm.errors import ConfigError, StorageError
from garlicfarm.regular_files import read_file

_VALIDITY = timedelta(days=3650)
_PEM = re.compile(rb"-----BEGIN ((?:X509 )?CERTIFICATE)-----\s(.*?)-----END \1-----", re.DOTALL)


def pin_of(der: bytes) -> str:
    """The pin of a certificate: ``sha256-`` and the SHA-256 of its DER, base64url without padding."""
    return "sha256-" + base64.urlsafe_b64encode(hashlib.sha256(der).digest()).rstrip(b"=").decode()


def pin_of_file(certificate: Path) -> str:
    """The pin of the first certificate in a PEM file.

    Raises `ConfigError`: the file cannot be read, or holds no certificate.
    """
    try:
        first = _PEM.search(read_file(certificate))
    except OSError as exc:
        raise ConfigError([f"{certificate}: {exc.strerror}"]) from exc
    try:
        der = base64.b64decode(first[2] if first else b"")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=der)  # it is a certificate
    except (ValueError, ssl.SSLError) as exc:
        raise ConfigError([f"{certificate} holds no certificate in PEM form"]) from exc
    return pin_of(der)


def make_certificate(
    certificate: Path, private_key: Path, common_name: str, now: datetime | None = None
) -> str:
    """Make a key (EC P-256) and a self-signed certificate for it, durably; return its pin.

    ``common_name`` is a host name or an address. The key's file has mode 0600. The certificate is valid for
    ten years from a day before ``now``; peers that pin it do not check that. Raises `ConfigError`: one of the
    files exists (nothing is overwritten); `StorageError`: they cannot be written.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])
    begin = (now or datetime.now(UTC)) - timedelta(days=1)
    alternative: x509.GeneralName
    try:
        alternative = x509.IPAddress(ipaddress.ip_address(common_name))
    except ValueError:
        alternative = x509.DNSName(common_name.encode("idna").decode())
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + _VALIDITY)
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(private_key, secret, 0o600)
    _write(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)
    return pin_of(made.public_bytes(serialization.Encoding.DER))


def _write(path: Path, data: bytes, mode: int) -> None:
    try:
        write_new_file(path, data, mode)
    except OSError as exc:
        if isinstance(exc, FileExistsError) and path.exists():
            raise ConfigError([f"{path} exists already; nothing was overwritten"]) from exc
        raise StorageError(f"cannot write {path}: {exc.strerror}") from exc
