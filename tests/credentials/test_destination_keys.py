"""The files with the keys of a destination: made once, private, and checked before they are used."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from garlicfarm.credentials.destination_keys import create_keys, read_keys, write_bundle
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.encoding import decode, encode
from garlicfarm.i2p.keys import DestinationKeys, make_bundle
from garlicfarm.i2p.offline_signature import sign_offline

SEED = bytes(range(32))
LATER_S = 2**32 - 1


def bundle_of(keys: DestinationKeys, node: int = 1, expires_s: int = LATER_S) -> DestinationKeys:
    return make_bundle(keys, SEED, node=node, expires_s=expires_s, now_ms=0, hops=3, quantity=2)


@pytest.fixture
def keys(tmp_path: Path) -> DestinationKeys:
    return create_keys(tmp_path / "key")


def put(path: Path, data: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(data)
    return path


def test_keys_that_were_made_are_read(tmp_path: Path, keys: DestinationKeys) -> None:
    assert read_keys(tmp_path / "key") == keys
    assert len(keys.destination) == 391
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert len(decode((tmp_path / "key").read_text().strip())) == 679


def test_binary_key_files_of_routers_are_read(tmp_path: Path, keys: DestinationKeys) -> None:
    assert read_keys(put(tmp_path / "key.dat", decode(keys.sam_private_key()))) == keys
    offline = bundle_of(keys)
    read = read_keys(put(tmp_path / "offline.dat", decode(offline.sam_private_key())))
    assert (read.offline, read.seed, read.node) == (offline.offline, SEED, None)


def test_bundle_is_read_as_it_was_written_and_is_private(tmp_path: Path, keys: DestinationKeys) -> None:
    write_bundle(tmp_path / "bundle", bundle_of(keys))
    assert (tmp_path / "bundle").stat().st_mode & 0o777 == 0o600
    assert read_keys(tmp_path / "bundle", node_id=1, destination=keys.destination) == bundle_of(keys)
    with pytest.raises(ConfigError, match="exists"):
        write_bundle(tmp_path / "bundle", bundle_of(keys))


@pytest.mark.parametrize(
    ("mode", "message"), [(0o644, "holds secrets, but its mode is 0644"), (None, "cannot be read")]
)
def test_keys_that_others_can_read_or_that_are_missing_are_refused(mode, message, tmp_path):
    if mode is not None:
        create_keys(tmp_path / "key")
        (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigError, match=message):
        read_keys(tmp_path / "key")


def test_keys_of_another_destination_are_refused(tmp_path: Path, keys: DestinationKeys) -> None:
    other = create_keys(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"does not hold the key of .*b32\.i2p, but that of .*b32\.i2p"):
        read_keys(tmp_path / "key", destination=other.destination)


def test_bundle_of_another_node_is_refused_where_the_node_is_known(tmp_path, keys):
    write_bundle(tmp_path / "bundle", bundle_of(keys, node=2))
    with pytest.raises(ConfigError, match="is the bundle of node 2, and this is node 1"):
        read_keys(tmp_path / "bundle", node_id=1)
    assert read_keys(tmp_path / "bundle").node == 2


def test_expired_keys_are_refused_unless_that_is_allowed(tmp_path: Path, keys: DestinationKeys) -> None:
    expired = bundle_of(keys, expires_s=1_700_000_000)
    write_bundle(tmp_path / "bundle", expired)
    with pytest.raises(ConfigError, match="expired on 2023-11-14: make new bundles with `garlicfarm keys"):
        read_keys(tmp_path / "bundle", node_id=1)
    assert read_keys(tmp_path / "bundle", node_id=1, allow_expired=True) == expired


@pytest.mark.parametrize("change", [lambda key: key[:-1], lambda key: key + b"x", lambda key: key[1:]])
def test_key_of_another_length_is_refused(change, tmp_path, keys):
    changed = put(tmp_path / "changed", encode(change(decode(keys.sam_private_key()))).encode())
    with pytest.raises(ConfigError, match="private key of a destination that can be served"):
        read_keys(changed)


def test_key_that_is_not_that_of_its_destination_is_refused(tmp_path: Path, keys: DestinationKeys) -> None:
    wrong = put(tmp_path / "wrong", decode(keys.sam_private_key())[:-32] + SEED)
    with pytest.raises(ConfigError, match="is not that of its destination"):
        read_keys(wrong)


@pytest.mark.parametrize("content", [b"", b"not base64!", b"AAAA AAAA"])
def test_file_that_is_no_key_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not hold"):
        read_keys(put(tmp_path / "key", content))


def test_bundle_cut_anywhere_is_refused(tmp_path: Path, keys: DestinationKeys) -> None:
    write_bundle(tmp_path / "bundle", bundle_of(keys))
    text = (tmp_path / "bundle").read_text().strip()
    for end in range(0, len(text), 7):
        cut = put(tmp_path / "cut", text[:end].encode())
        with pytest.raises(ConfigError, match=f"^{cut} "):
            read_keys(cut)


def _swap(configurations: dict[str, str]) -> None:
    configurations["standby"], configurations["active"] = configurations["active"], configurations["standby"]


def _signed_by(other: DestinationKeys) -> str:
    transient = bundle_of(other).offline
    assert transient is not None
    return encode(sign_offline(other.sign, transient.transient, LATER_S).encode())


def _flipped(text: str) -> str:
    data = decode(text)
    return encode(data[:500] + bytes([data[500] ^ 1]) + data[501:])


CHANGES: dict[str, Callable[[dict[str, Any], DestinationKeys], object]] = {
    "another destination": lambda bundle, other: bundle.update(destination=encode(other.destination)),
    "signed by another": lambda bundle, other: bundle.update(offline=_signed_by(other)),
    "expires later": lambda bundle, _: bundle.update(
        offline=encode((2**31).to_bytes(4, "big") + decode(bundle["offline"])[4:])
    ),
    "another seed": lambda bundle, other: bundle.update(seed=encode(other.seed)),
    "configuration of another": lambda bundle, other: bundle["configurations"].update(
        meta=encode(bundle_of(other).configurations["meta"])
    ),
    "changed configuration": lambda bundle, _: bundle["configurations"].update(
        active=_flipped(bundle["configurations"]["active"])
    ),
    "missing configuration": lambda bundle, _: bundle["configurations"].pop("standby"),
    "configurations swapped": lambda bundle, _: _swap(bundle["configurations"]),
    "no seed": lambda bundle, _: bundle.pop("seed"),
    "node that is no number": lambda bundle, _: bundle.update(node="1"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_bundle_whose_parts_do_not_belong_together_is_refused(change, tmp_path, keys):
    write_bundle(tmp_path / "bundle", bundle_of(keys))
    document = json.loads((tmp_path / "bundle").read_text())
    change(document, create_keys(tmp_path / "other"))
    changed = put(tmp_path / "changed", json.dumps(document).encode())
    with pytest.raises(ConfigError, match="is not a complete bundle of `garlicfarm keys offline`"):
        read_keys(changed)


def test_bundle_of_another_schema_is_refused_by_its_name(tmp_path: Path, keys: DestinationKeys) -> None:
    with pytest.raises(ConfigError, match=r"has the schema 'garlicfarm\.bundle/2'"):
        read_keys(put(tmp_path / "bundle", b'{"schema": "garlicfarm.bundle/2"}'))


def test_errors_and_reprs_show_no_secret(tmp_path: Path, keys: DestinationKeys) -> None:
    write_bundle(tmp_path / "bundle", bundle_of(keys))
    document = (tmp_path / "bundle").read_text()
    key = keys.sam_private_key()
    shown = [repr(keys), str(keys), repr(bundle_of(keys))]
    for data in (document[:-40], key[:-3], key + "!", document.replace('"node": 1', '"node": "1"')):
        with pytest.raises(ConfigError) as caught:
            read_keys(put(tmp_path / "broken", data.encode()))
        shown += traceback.format_exception(caught.value)
    text = "".join(shown)
    for secret in (SEED, keys.seed):
        assert secret.hex() not in text
        assert encode(secret)[:40] not in text
        assert repr(secret)[2:-1] not in text
    assert key[-43:-3] not in text
