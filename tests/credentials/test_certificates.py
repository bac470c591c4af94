"""Certificates: what is in them, where they are put, and their pins."""

from __future__ import annotations

import base64
import hashlib
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from garlicfarm.credentials.certificates import make_certificate, pin_of, pin_of_file
from garlicfarm.errors import ConfigError, StorageError


def test_pin_is_the_digest_of_the_der(tmp_path: Path) -> None:
    pin = make_certificate(tmp_path / "c", tmp_path / "k", "a.example")
    der = ssl.PEM_cert_to_DER_cert((tmp_path / "c").read_text())
    digest = hashlib.sha256(der).digest()
    assert base64.urlsafe_b64decode(pin.removeprefix("sha256-") + "=") == digest
    assert pin == pin_of(der) == pin_of_file(tmp_path / "c")
    assert len(pin) == len("sha256-") + 43


def test_pin_of_a_chain_is_that_of_its_first_certificate(tmp_path: Path) -> None:
    pin = make_certificate(tmp_path / "c", tmp_path / "k", "a.example")
    make_certificate(tmp_path / "c2", tmp_path / "k2", "b.example")
    (tmp_path / "chain").write_bytes((tmp_path / "c").read_bytes() + (tmp_path / "c2").read_bytes())
    assert pin_of_file(tmp_path / "chain") == pin


def test_pin_of_a_file_with_the_ends_of_lines_of_windows_is_the_same(tmp_path: Path) -> None:
    pin = make_certificate(tmp_path / "c", tmp_path / "k", "a.example")
    (tmp_path / "crlf").write_bytes((tmp_path / "c").read_bytes().replace(b"\n", b"\r\n"))
    assert pin_of_file(tmp_path / "crlf") == pin


@pytest.mark.parametrize("body", [b"", b"AAAA", b"A", b"MIIB" * 20])
def test_frame_of_a_certificate_around_something_else_is_a_config_error(body: bytes, tmp_path: Path) -> None:
    frame = b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n" % body
    (tmp_path / "c").write_bytes(frame)
    with pytest.raises(ConfigError, match="no certificate in PEM form"):
        pin_of_file(tmp_path / "c")


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_pin_of_no_certificate_is_a_config_error_with_the_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match=str(tmp_path / name)):
        pin_of_file(tmp_path / name)


def test_certificate_is_p256_for_ten_years_from_yesterday(tmp_path: Path) -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    make_certificate(tmp_path / "c", tmp_path / "k", "a.example", now=now)
    made = x509.load_pem_x509_certificate((tmp_path / "c").read_bytes())
    key = made.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert made.not_valid_before_utc == now - timedelta(days=1)
    assert made.not_valid_after_utc == now + timedelta(days=3649)


@pytest.mark.parametrize(
    ("name", "alternative"),
    [
        ("127.0.0.1", ("IP Address", "127.0.0.1")),
        ("a.example", ("DNS", "a.example")),
        ("b\u00fccher.example", ("DNS", "xn--bcher-kva.example")),
        ("a" * 60 + ".example", ("DNS", "a" * 60 + ".example")),
    ],
)
def test_certificate_names_its_host(tmp_path: Path, name: str, alternative: tuple[str, str]) -> None:
    make_certificate(tmp_path / "c", tmp_path / "k", name)
    made = x509.load_pem_x509_certificate((tmp_path / "c").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    kind: Any = {"DNS": x509.DNSName, "IP Address": x509.IPAddress}[alternative[0]]
    assert [str(each) for each in names.get_values_for_type(kind)] == [alternative[1]]


@pytest.mark.openssl
def test_certificate_is_its_own_anchor_under_strict_rules(tmp_path: Path) -> None:
    make_certificate(tmp_path / "c", tmp_path / "k", "a.example")
    subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", tmp_path / "c", tmp_path / "c"], check=True
    )


@pytest.mark.parametrize("there", ["c", "k"])
def test_certificate_never_overwrites(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("precious")
    with pytest.raises(ConfigError, match="exists already"):
        make_certificate(tmp_path / "c", tmp_path / "k", "a.example")
    assert (tmp_path / there).read_text() == "precious"


def test_certificate_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        make_certificate(tmp_path / "file" / "c", tmp_path / "file" / "k", "a.example")
