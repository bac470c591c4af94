"""How clients of a service may encrypt."""

from __future__ import annotations

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from trio.testing import wait_all_tasks_blocked

from garlicfarm.i2p.lease_set import ML_KEM_768, X25519, decode_lease_set
from garlicfarm_plugin_i2cp.connection import has_ml_kem
from garlicfarm_plugin_i2cp.service_session import DEFAULT
from tests.publishers.i2cp_router import CREATE_LEASE_SET_2
from tests.publishers.service_keeper.keeper_bench import Bench

KEY_BYTES = 2 + 2 + 32


async def standby(bench: Bench, nursery: trio.Nursery, version: bytes) -> Bench:
    """One that would have both types, at a router of this version."""
    made = Bench(nursery, bench.keys, DEFAULT, encryption=(ML_KEM_768, X25519))
    made.router.version = version
    nursery.start_soon(made.run)
    await made.keeper.standby()
    await wait_all_tasks_blocked()
    return made


async def test_lease_set_has_a_key_of_its_own_for_each_type(bench, nursery, autojump_clock):
    made = await standby(bench, nursery, b"0.9.68")
    body = made.router.bodies(CREATE_LEASE_SET_2)[0]
    lease_set = decode_lease_set(body[3 : -2 * KEY_BYTES - 1])
    assert [key.type for key in lease_set.encryption_keys] == [ML_KEM_768, X25519]
    assert len({key.key for key in lease_set.encryption_keys}) == 2
    assert body[-2 * KEY_BYTES - 1] == 2
    for at, public in zip((-2 * KEY_BYTES, -KEY_BYTES), lease_set.encryption_keys, strict=True):
        private = X25519PrivateKey.from_private_bytes(body[at + 4 :][:32])
        assert body[at : at + 4] == public.type.to_bytes(2, "big") + b"\0\x20"
        assert private.public_key().public_bytes_raw() == public.key
    assert made.keeper.problem == ""


async def test_router_without_ml_kem_is_given_x25519_alone_and_that_is_told(bench, nursery, autojump_clock):
    made = await standby(bench, nursery, b"2.45.1")
    assert [key.type for key in made.given[0].lease_set.encryption_keys] == [X25519]
    assert "is too old for ML-KEM" in made.keeper.problem


@pytest.mark.parametrize(
    ("version", "has_it"),
    [("0.9.67", True), ("0.10.0", True), ("0.9.66", False), ("2.45.1", False), ("", False), ("0.9.x", False)],
)
def test_versions_of_i2p_with_ml_kem_are_known(version: str, has_it: bool) -> None:
    assert has_ml_kem(version) is has_it
