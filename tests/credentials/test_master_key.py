"""The key of the master destination: made once, and checked against the destination before it is used."""

from __future__ import annotations

from pathlib import Path

import pytest

from garlicfarm.credentials.master_key import check_master_key, mint_master_key
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.destination import decode_destination
from garlicfarm.i2p.encoding import decode, encode


def test_minted_key_is_that_of_its_destination(tmp_path: Path) -> None:
    destination = mint_master_key(tmp_path / "key")
    assert len(decode_destination(destination)) == 391
    check_master_key(tmp_path / "key", destination)


def test_key_of_another_destination_is_refused(tmp_path: Path) -> None:
    mint_master_key(tmp_path / "key")
    other = mint_master_key(tmp_path / "other")
    with pytest.raises(ConfigError, match="does not hold the key of"):
        check_master_key(tmp_path / "key", other)


@pytest.mark.parametrize("change", [lambda key: key[:-1], lambda key: key + b"x", lambda key: key[1:]])
def test_key_of_another_length_is_refused(change, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    destination = mint_master_key(tmp_path / "key")
    key = decode((tmp_path / "key").read_text().strip())
    (tmp_path / "key").write_text(encode(change(key)))
    with pytest.raises(ConfigError, match="does not hold the key of"):
        check_master_key(tmp_path / "key", destination)


def test_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    destination = mint_master_key(tmp_path / "key")
    (tmp_path / "key").write_text("not base64!")
    with pytest.raises(ConfigError, match="does not hold a private key in I2P base64"):
        check_master_key(tmp_path / "key", destination)
