"""Who is who (D10): derived passwords, the lookup of a farm, and files that hold secrets."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from garlicfarm.credentials.member_credentials import (
    member_lookup,
    member_password,
    read_secret_file,
    write_secret_file,
)
from garlicfarm.credentials.private_files import read_private_file
from garlicfarm.errors import ConfigError, LocalProtocolError
from garlicfarm.http.digest import ALGORITHMS, REALM, ha1

SECRET = bytes(range(32))
FARM_ID = bytes(range(100, 116))


def test_member_password_is_what_hkdf_of_a_library_derives() -> None:
    hkdf = HKDF(algorithm=SHA256(), length=32, salt=FARM_ID, info=b"garlicfarm member 42")
    expected = base64.urlsafe_b64encode(hkdf.derive(SECRET)).rstrip(b"=").decode()
    assert member_password(SECRET, FARM_ID, 42) == expected
    assert len(expected) == 43


@pytest.mark.parametrize(
    ("secret", "farm_id", "member_id"),
    [
        (SECRET[1:], FARM_ID, 1),
        (SECRET, FARM_ID[1:], 1),
        (SECRET, FARM_ID, 0),
        (SECRET, FARM_ID, 2**31),
        (SECRET, FARM_ID, -1),
    ],
)
def test_member_password_out_of_range_is_the_callers_fault(secret, farm_id, member_id):
    with pytest.raises(LocalProtocolError):
        member_password(secret, farm_id, member_id)


def test_lookup_knows_every_id_under_both_secrets_and_asks_others_for_names_only() -> None:
    asked: list[str] = []

    def others(user: str) -> Mapping[str, Sequence[str]]:
        asked.append(user)
        return {"MD5": ("stored",)}

    old = hashlib.sha256(b"old").digest()
    lookup = member_lookup([SECRET, old], FARM_ID, others)
    for user in ("1", "7", str(2**31 - 1)):
        passwords = [member_password(secret, FARM_ID, int(user)) for secret in (SECRET, old)]
        assert lookup(user) == {a: tuple(ha1(a, user, REALM, p) for p in passwords) for a in ALGORITHMS}
    assert asked == []
    assert lookup("alice") == {"MD5": ("stored",)}
    assert lookup("") == {"MD5": ("stored",)}
    assert asked == ["alice", ""]


@pytest.mark.parametrize("user", ["0", "07", str(2**31), "9" * 4000, "٧", "²"])
def test_lookup_of_digits_that_are_no_id_is_nobody_and_never_asks_others(user: str) -> None:
    def others(user: str) -> Mapping[str, Sequence[str]]:
        raise AssertionError(user)

    assert member_lookup([SECRET], FARM_ID, others)(user) == {}


def test_secret_file_written_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "farm.secret"
    write_secret_file(path, SECRET)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_secret_file(path) == (SECRET,)


def test_secret_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "farm.secret"
    write_secret_file(path, SECRET)
    with pytest.raises(ConfigError, match="never overwritten"):
        write_secret_file(path, SECRET[::-1])
    assert read_secret_file(path) == (SECRET,)
    with pytest.raises(LocalProtocolError):
        write_secret_file(tmp_path / "short", SECRET[1:])


def private(path: Path, text: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text)
    path.chmod(mode)
    return path


def test_secret_file_of_two_lines_gives_both_in_order(tmp_path: Path) -> None:
    lines = base64.urlsafe_b64encode(SECRET) + b"\n" + base64.urlsafe_b64encode(SECRET[::-1]).rstrip(b"=")
    assert read_secret_file(private(tmp_path / "s", lines)) == (SECRET, SECRET[::-1])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"short",
        base64.b64encode(b"\xff" * 32),
        base64.urlsafe_b64encode(b"x" * 33),
        3 * (base64.urlsafe_b64encode(SECRET) + b"\n"),
        b"\xff" * 43,
    ],
)
def test_secret_file_with_other_contents_is_refused_without_quoting_them(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        read_secret_file(private(tmp_path / "s", text))
    message = str(caught.value)
    assert str(tmp_path / "s") in message
    assert not text.strip() or text.decode("latin-1").strip() not in message
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_private_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match=f"mode is 0{mode:o}: chmod 600"):
        read_private_file(private(tmp_path / "s", b"x", mode))


def test_private_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_private_file(tmp_path / "absent")
