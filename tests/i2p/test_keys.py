"""Destinations, keys, offline signatures and I2CP configurations as bytes."""

from __future__ import annotations

from functools import partial
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import ConfigError
from garlicfarm.i2p.destination import make_destination, signing_key, split_destination
from garlicfarm.i2p.encoding import b32_address, decode, encode
from garlicfarm.i2p.keys import DestinationKeys, decode_private_key, make_bundle
from garlicfarm.i2p.offline_signature import OfflineSignature, sign_offline, signer
from garlicfarm.i2p.session_configuration import (
    SessionConfiguration,
    decode_session_configuration,
    encode_session_configuration,
    verify_session_configuration,
)
from garlicfarm.i2p.session_options import PURPOSES, Purpose, session_options
from tests.i2p.encodings import (
    NEVER_S,
    SEEDS,
    U32,
    all_keys,
    cut,
    destination_of,
    ecdsa_keys,
    flipped,
    long_term,
    public,
    refuses,
)

SEED, TRANSIENT_SEED = bytes(range(32)), b"\7" * 32
KEYS = long_term(SEED)
BUNDLE = make_bundle(KEYS, TRANSIENT_SEED, node=2, expires_s=5000, now_ms=9, hops=1, quantity=4)
TEXTS = st.text(st.characters(max_codepoint=127), max_size=255)


# destinations


def test_destination_is_split_from_what_follows() -> None:
    assert split_destination(KEYS.destination + b"rest") == (KEYS.destination, b"rest")
    longer = bytes(384) + b"\5\0\6" + bytes(6)
    assert split_destination(longer + b"x") == (longer, b"x")
    for part in cut(KEYS.destination):
        if len(part) < len(KEYS.destination):
            refuses(split_destination, part)


def test_address_of_a_destination_is_known() -> None:
    destination = make_destination(public(SEED), SEED * 11)
    assert b32_address(destination) == "5wglh6tgecmnszusgys3ibbqx3w2apbk6adfbq2ctlpiwqiy6yba.b32.i2p"


def test_key_of_another_type_is_refused() -> None:
    for certificate, type_ in (
        ("000000", 0),
        ("05000400080000", 8),
        ("05000400000000", 0),
        ("0500020007", 0),
    ):
        with pytest.raises(ValueError, match=f"of type {type_}.* are not supported"):
            signing_key(bytes(384) + bytes.fromhex(certificate))


def test_key_of_what_is_no_destination_is_refused() -> None:
    for part in cut(KEYS.destination):
        with pytest.raises(ValueError, match="not a destination"):
            signing_key(part)


@pytest.mark.parametrize(("key", "filler"), [(31, 352), (32, 351)])
def test_destination_of_the_wrong_size_is_not_made(key: int, filler: int) -> None:
    with pytest.raises(ValueError, match="is made of"):
        make_destination(bytes(key), bytes(filler))


# offline signatures


@given(SEEDS, SEEDS, U32, st.integers(0))
def test_offline_signature_round_trips_and_with_a_bit_flipped_is_refused(seed, transient, expires_s, bit):
    destination = long_term(seed).destination
    offline = sign_offline(long_term(seed).sign, public(transient), expires_s)
    data = offline.encode()
    assert len(data) == 102
    assert OfflineSignature.decode(data) == offline
    assert signer(destination, offline).public == public(transient)
    refuses(lambda changed: OfflineSignature.decode(changed).verify(destination), flipped(data, bit))


def test_offline_signature_of_another_length_or_range_is_refused() -> None:
    offline = sign_offline(KEYS.sign, public(TRANSIENT_SEED), 5)
    for part in cut(offline.encode()):
        refuses(OfflineSignature.decode, part)
    for expires_s, transient in ((-1, bytes(32)), (2**32, bytes(32)), (5, bytes(31))):
        with pytest.raises(ValueError, match="needs a public key"):
            sign_offline(KEYS.sign, transient, expires_s)
    with pytest.raises(ValueError, match="64 bytes"):
        OfflineSignature(5, bytes(32), bytes(63)).encode()


# configurations


@given(st.dictionaries(TEXTS, TEXTS, max_size=6), st.integers(0, 2**64 - 1), SEEDS, st.integers(0))
def test_configuration_round_trips_and_with_a_bit_flipped_is_refused(options, now_ms, seed, bit):
    keys = long_term(seed)
    data = encode_session_configuration(keys.destination, options, now_ms, keys.sign)
    assert verify_session_configuration(data) == SessionConfiguration(keys.destination, options, now_ms)
    refuses(verify_session_configuration, flipped(data, bit))


def test_configuration_is_the_specified_bytes() -> None:
    data = KEYS.session_configuration({"b": "2", "a": ""}, 0x0102)
    mapping = bytes.fromhex("000b 0161 3d 00 3b 0162 3d 0132 3b")
    body = KEYS.destination + mapping + bytes.fromhex("0000000000000102")
    assert data == body + KEYS.sign(body)


def test_configuration_cut_at_any_byte_is_refused() -> None:
    for part in cut(KEYS.session_configuration(session_options("active", 3, 2), 5)):
        refuses(decode_session_configuration, part)


@pytest.mark.parametrize(
    "mapping",
    [
        b"\1b=\0;\1a=\0;",
        b"\1a=\0;\1a=\0;",
        b"\1a=\0",
        b"\1a:\0;",
        b"\1a=\0:",
        b"\1\xff=\0;",
        b"\5a=\0;",
        b"a",
    ],
)
def test_configuration_that_we_would_not_write_is_refused(mapping: bytes) -> None:
    data = KEYS.destination + len(mapping).to_bytes(2, "big") + mapping + bytes(72)
    refuses(decode_session_configuration, data)


@pytest.mark.parametrize(
    ("options", "now_ms"),
    [
        ({"a": "x" * 256}, 0),
        ({"ä": ""}, 0),
        ({}, -1),
        ({}, 2**64),
        ({str(n): "x" * 255 for n in range(256)}, 0),
    ],
)
def test_configuration_that_cannot_be_written_is_refused(options: dict[str, str], now_ms: int) -> None:
    with pytest.raises(ValueError, match=r"255|ascii|64 bits|65535"):
        KEYS.session_configuration(options, now_ms)


# keys


@given(all_keys(), st.binary(max_size=100))
def test_keys_sign_for_their_destination(keys: DestinationKeys, data: bytes) -> None:
    signer(keys.destination, keys.offline).check(keys.sign(data), data)


@given(all_keys())
def test_private_key_for_sam_is_read_back(keys: DestinationKeys) -> None:
    data = decode(keys.sam_private_key())
    assert len(data) == (679 if keys.offline is None else 813)
    read = decode_private_key(data)
    assert (read.destination, read.seed, read.offline) == (keys.destination, keys.seed, keys.offline)
    assert read.sam_private_key() == keys.sam_private_key()


@pytest.mark.parametrize("keys", [KEYS, BUNDLE], ids=["long-term", "offline"])
def test_private_key_cut_at_any_byte_is_refused(keys: DestinationKeys) -> None:
    for part in cut(decode(keys.sam_private_key())):
        refuses(decode_private_key, part)


def test_offline_private_key_with_a_long_term_seed_is_refused() -> None:
    data = decode(BUNDLE.sam_private_key())
    refuses(decode_private_key, data[:647] + SEED + data[679:])


def test_private_encryption_key_of_a_router_is_kept() -> None:
    data = KEYS.destination + b"\5" * 256 + SEED
    assert decode(decode_private_key(data).sam_private_key()) == data


def test_bundle_names_its_node_its_transient_key_and_its_end() -> None:
    assert (KEYS.expires_ms, KEYS.transient, KEYS.node) == (None, None, None)
    assert (BUNDLE.expires_ms, BUNDLE.node) == (5_000_000, 2)
    assert BUNDLE.transient == sha256(public(TRANSIENT_SEED)).digest()[:8].hex()


@pytest.mark.parametrize("purpose", PURPOSES)
def test_configurations_of_a_bundle_are_those_that_the_long_term_key_signed(purpose: Purpose) -> None:
    signed = BUNDLE.session_configuration({"ignored": "1"}, 77, purpose)
    assert signed == KEYS.session_configuration(session_options(purpose, 1, 4), 9, purpose)
    assert verify_session_configuration(signed).options["inbound.length"] == "1"
    assert verify_session_configuration(signed).options["outbound.quantity"] == "4"


@pytest.mark.parametrize("purpose", PURPOSES)
def test_transient_key_of_a_bundle_signs_the_same_options_now_for_java(purpose: Purpose) -> None:
    signed = BUNDLE.session_configuration({"ignored": "1"}, 77, purpose, "java")
    assert BUNDLE.offline is not None
    assert decode_session_configuration(signed) == SessionConfiguration(
        BUNDLE.destination,
        session_options(purpose, 1, 4)
        | {
            "i2cp.leaseSetOfflineExpiration": "5000",
            "i2cp.leaseSetOfflineSignature": encode(BUNDLE.offline.signature),
            "i2cp.leaseSetTransientPublicKey": f"7:{encode(public(TRANSIENT_SEED))}",
        },
        77,
    )
    signer(BUNDLE.destination, BUNDLE.offline).check(signed[-64:], signed[:-64])
    refuses(verify_session_configuration, signed)


def test_long_term_key_signs_the_same_for_both_kinds_of_routers() -> None:
    assert KEYS.session_configuration({"a": "b"}, 77, kind="java") == KEYS.session_configuration(
        {"a": "b"}, 77
    )


def test_options_of_a_service_differ_by_what_is_published() -> None:
    standby, active = (session_options(purpose, 3, 2) for purpose in ("standby", "active"))
    assert dict(active.items() ^ standby.items()).keys() == {"i2cp.dontPublishLeaseSet"}
    assert (standby["i2cp.dontPublishLeaseSet"], standby["i2cp.leaseSetType"]) == ("true", "3")
    assert session_options("meta", 3, 2)["i2cp.leaseSetType"] == "7"


def test_offline_key_of_a_router_has_no_configuration() -> None:
    keys = decode_private_key(decode(BUNDLE.sam_private_key()))
    with pytest.raises(ConfigError, match="make a bundle with `garlicfarm keys offline`"):
        keys.session_configuration({}, 0)


def test_bundle_cannot_sign_a_bundle() -> None:
    with pytest.raises(ValueError, match="only the long-term key"):
        make_bundle(BUNDLE, SEED, node=1, expires_s=NEVER_S, now_ms=0, hops=3, quantity=2)


def test_keys_that_do_not_belong_together_are_not_made() -> None:
    make = partial(DestinationKeys, destination=KEYS.destination, seed=TRANSIENT_SEED, offline=BUNDLE.offline)
    make(configurations=BUNDLE.configurations)
    for wrong in (
        {"seed": SEED},
        {"seed": SEED[:31]},
        {"offline": None},
        {"destination": long_term(b"\1" * 32).destination},
        {"configurations": {"meta": BUNDLE.configurations["active"]}},
        {"configurations": {"meta": long_term(b"\1" * 32).session_configuration({}, 0)}},
    ):
        refuses(lambda _, wrong=wrong: make(**wrong), b"")  # type: ignore[misc]


def test_repr_of_keys_shows_no_secret() -> None:
    for keys in (KEYS, BUNDLE):
        assert repr(keys).startswith("<DestinationKeys ")
        assert keys.seed.hex() not in repr(keys)
        assert repr(keys.seed)[2:-1] not in repr(keys)


# signing types


@given(st.integers(1, 2**250), st.binary(max_size=100), st.integers(0))
def test_ecdsa_key_signs_and_signs_bundles(number: int, data: bytes, bit: int) -> None:
    keys = ecdsa_keys(number)
    assert keys.type == 1
    check = signing_key(keys.destination).check
    check(keys.sign(data), data)
    refuses(lambda changed: check(changed, data), flipped(keys.sign(data), bit))
    made = make_bundle(keys, SEED, node=1, expires_s=9, now_ms=0, hops=1, quantity=2)
    assert (made.type, signer(made.destination, made.offline).type) == (7, 7)


def test_private_key_of_another_ecdsa_destination_is_refused() -> None:
    with pytest.raises(ValueError, match="not that of its destination"):
        DestinationKeys(destination=ecdsa_keys(5).destination, seed=ecdsa_keys(6).seed)


def test_reddsa_key_is_for_routers_only() -> None:
    keys = DestinationKeys(destination=destination_of(11, public(SEED)), seed=SEED)
    assert decode_private_key(decode(keys.sam_private_key())) == keys
    with pytest.raises(ConfigError, match=r"type 11 \(RedDSA_SHA512_Ed25519\).* the plugin sam"):
        keys.session_configuration({}, 0)
    with pytest.raises(ValueError, match="do not sign here"):
        keys.sign(b"")
    with pytest.raises(ValueError, match="sign no bundle here"):
        make_bundle(keys, SEED, node=1, expires_s=9, now_ms=0, hops=1, quantity=2)


@pytest.mark.parametrize("kind", [0, 2, 3, 5])
def test_private_key_of_a_type_that_no_service_has_is_refused(kind: int) -> None:
    size = {0: 128, 2: 96, 3: 132, 5: 128}[kind]
    refuses(decode_private_key, destination_of(kind, bytes(size)) + bytes(256 + 32))
