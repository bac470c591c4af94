"""The publisher `i2cp` against a router that listens on loopback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from garlicfarm.errors import ConfigError, PublisherError
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.lease_set import verify_meta_lease_set
from garlicfarm.i2p.session_configuration import verify_session_configuration
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import PublisherSite, PublishOrder
from garlicfarm.testing.publisher_suite import Order, PublisherSuite
from garlicfarm_plugin_i2cp import I2cpConfig, I2cpPublisher
from tests.publishers.i2cp_keys import LIFETIME_S, bundle, long_term_keys, now_ms, publication
from tests.publishers.i2cp_router import CREATE_LEASE_SET_2, CREATE_SESSION, DATE, DESTROY_SESSION, Listening

KEYS = long_term_keys()


def site(keys: DestinationKeys | None = KEYS) -> PublisherSite:
    return PublisherSite(farm="farm", node_id=1, directory=Path("nowhere"), master=keys)


def publisher_at(address: str, keys: DestinationKeys = KEYS) -> I2cpPublisher:
    return I2cpPublisher(I2cpConfig(address=address), Path(), site(keys))


class TestI2cpPublisher(PublisherSuite):
    @pytest.fixture
    def publisher(self, listening: Listening) -> I2cpPublisher:
        return publisher_at(listening.address)

    @pytest.fixture
    def unreachable_publisher(self, nowhere: str) -> I2cpPublisher:
        return publisher_at(nowhere)

    @pytest.fixture
    def order(self) -> Order:
        return lambda due_index, published_ms: publication(KEYS, due_index, published_ms)


@pytest.mark.parametrize("keys", [KEYS, bundle(now_ms())], ids=["long-term", "bundle"])
async def test_router_gets_a_signed_session_and_the_signed_lease_set(listening, keys):
    order = publication(keys, 7, now_ms())
    async with publisher_at(listening.address, keys) as publisher:
        assert publisher.destination == keys.destination
        await publisher.standby()
        published = await publisher.publish(order)
        assert (published.published_ms, published.lease_set) == (order.published_ms, order.lease_set)
    (configuration,) = map(verify_session_configuration, listening.router.bodies(CREATE_SESSION))
    assert configuration.destination == keys.destination
    assert configuration.options["i2cp.leaseSetType"] == "7"
    assert configuration.options["inbound.length"] == configuration.options["outbound.length"] == "3"
    (lease_set,) = listening.router.lease_sets
    assert verify_meta_lease_set(lease_set, now_ms() // 1000).destination == keys.destination


@pytest.mark.parametrize("keys", [KEYS, bundle(now_ms())], ids=["long-term", "bundle"])
async def test_java_gets_the_meta_lease_set_and_nothing_behind_it(java_listening, keys):
    async with publisher_at(java_listening.address, keys) as publisher:
        await publisher.standby()
        for number in range(2):
            await publisher.publish(publication(keys, 7 + number, now_ms()))
        assert (await publisher.status()).is_publishing
        assert (await publisher.status()).problems == ()
    body = java_listening.router.bodies(CREATE_LEASE_SET_2)[0]
    assert verify_meta_lease_set(body[3:], now_ms() // 1000).destination == keys.destination
    assert len(java_listening.router.bodies(CREATE_SESSION)) == 1


async def test_error_inside_leaves_as_it_is_and_the_session_is_destroyed(listening: Listening) -> None:
    async def fail_inside() -> None:
        async with publisher_at(listening.address) as publisher:
            await publisher.publish(publication(KEYS, 7, now_ms()))
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        await fail_inside()
    assert listening.router.bodies(DESTROY_SESSION) == [b"\x12\x34"]


async def test_publisher_is_left_when_cancelled(listening: Listening) -> None:
    with trio.CancelScope() as scope:
        async with publisher_at(listening.address) as publisher:
            await publisher.publish(publication(KEYS, 7, now_ms()))
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert listening.router.bodies(DESTROY_SESSION) == [b"\x12\x34"]


def _of_another(keys: DestinationKeys) -> PublishOrder:
    return publication(long_term_keys(2), 7, now_ms())


def _bad_signature(keys: DestinationKeys) -> PublishOrder:
    order = publication(keys, 7, now_ms())
    assert order.lease_set is not None
    return msgspec.structs.replace(order, lease_set=order.lease_set[:-1] + b"\x55")


def _expired(keys: DestinationKeys) -> PublishOrder:
    return publication(keys, 7, now_ms() - (LIFETIME_S + 1) * 1000)


def _without(keys: DestinationKeys) -> PublishOrder:
    return msgspec.structs.replace(publication(keys, 7, now_ms()), lease_set=None)


def _expired_transient_key(keys: DestinationKeys) -> PublishOrder:
    return publication(bundle(now_ms(), expires_s=now_ms() // 1000 - 1), 7, now_ms())


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        (_without, "there is no Meta LeaseSet to publish: no leaf is usable, or"),
        (_of_another, "this Meta LeaseSet belongs to another destination than the farm's"),
        (_bad_signature, "no floodfill would take this Meta LeaseSet: "),
        (_expired, "no floodfill would take this Meta LeaseSet: it has expired"),
        (_expired_transient_key, "no floodfill would take this Meta LeaseSet: its transient key has expired"),
    ],
)
async def test_what_must_not_be_published_never_reaches_the_router(listening, order, sentence):
    assert callable(order)
    async with publisher_at(listening.address) as publisher:
        with pytest.raises(PublisherError, match=sentence):
            await publisher.publish(order(KEYS))
        assert not (await publisher.status()).is_publishing
    assert listening.router.received == []


def test_plugin_is_found_by_name() -> None:
    publisher = make_publisher("i2cp", {"hops": 1, "quantity": 3}, Path(), site())
    assert isinstance(publisher, I2cpPublisher)
    assert publisher.config == I2cpConfig(mode="meta", address="127.0.0.1:7654", hops=1, quantity=3)
    assert publisher.key is None


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"mode": "service"}, "mode service needs target and keys"),
        ({"mode": "both"}, "mode"),
        ({"hops": 8}, "hops"),
        ({"quantity": 0}, "quantity"),
        ({"adress": "127.0.0.1:7654"}, "did you mean 'address'"),
        ({"address": "192.0.2.1:7654"}, "must be HOST:PORT on loopback"),
        ({"address": "router.example:7654"}, "must be HOST:PORT on loopback"),
        ({"address": "127.0.0.1"}, "must be HOST:PORT on loopback"),
        ({"address": "127.0.0.1:99999"}, "must be HOST:PORT on loopback"),
        ({"address": "127.0.0.1:²"}, "must be HOST:PORT on loopback"),
    ],
)
def test_wrong_table_is_one_clear_problem(table: Mapping[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        make_publisher("i2cp", table, Path(), site())
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("address", ["[::1]:7654", "localhost:7654", "127.1.2.3:1"])
def test_every_loopback_address_is_allowed(address: str) -> None:
    make_publisher("i2cp", {"address": address}, Path(), site())


def test_node_without_the_master_key_is_told_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"set destination and key_file in \[farm\.meta\]"):
        make_publisher("i2cp", {}, Path(), site(None))


def test_keys_without_a_configuration_are_refused_before_anything_starts() -> None:
    keys = replace(bundle(now_ms()), configurations={})
    with pytest.raises(ConfigError, match="without an I2CP configuration for meta"):
        make_publisher("i2cp", {}, Path(), site(keys))


async def test_router_that_asks_for_a_login_gets_it_first(listening: Listening, tmp_path: Path) -> None:
    password_file = tmp_path / "i2cp.password"
    password_file.touch(mode=0o600)
    password_file.write_text("s3cret!\n")
    config = I2cpConfig(address=listening.address, user="farm", password_file=str(password_file))
    async with I2cpPublisher(config, tmp_path, site()) as publisher:
        await publisher.standby()
        await publisher.publish(publication(KEYS, 7, now_ms()))
    words = b"\x0di2cp.password=\x07s3cret!;" + b"\x0di2cp.username=\x04farm;"
    asked = listening.router.bodies(DATE)
    assert asked[0] == b"\x060.9.57" + len(words).to_bytes(2, "big") + words
    assert {*asked} == {asked[0], b"\x060.9.57"}
