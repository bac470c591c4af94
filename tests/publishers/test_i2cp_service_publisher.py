"""The publisher `i2cp` of a service, against a router that listens on loopback."""

from __future__ import annotations

import itertools
import resource
import struct
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm import service_keys
from garlicfarm.credentials.destination_keys import create_keys, write_bundle
from garlicfarm.credentials.private_files import write_private_file
from garlicfarm.errors import ConfigError, PublisherError
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.lease_set import verify_lease_set
from garlicfarm.i2p.session_configuration import decode_session_configuration, verify_session_configuration
from garlicfarm.levels import OUTSIDE
from garlicfarm.node.publisher import clocks
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import PublisherSite, PublishOrder
from garlicfarm.router import Bandwidth, DestinationStatus, StreamFigures, Tunnels
from garlicfarm.testing.publisher_suite import PublisherSuite
from garlicfarm_plugin_i2cp import I2cpPublisher, service
from garlicfarm_plugin_i2cp.streaming.packet import (
    FROM_INCLUDED,
    MAX_PACKET_SIZE,
    NO_ACK,
    RESET,
    SYNCHRONIZE,
    Packet,
    decode_packet,
    encode_packet,
)
from garlicfarm_plugin_i2cp.streaming.payload import decode_payload, encode_payload
from tests.node.publisher.member import FakeContext, task_of
from tests.publishers.i2cp_keys import bundle, now_ms
from tests.publishers.i2cp_router import (
    CREATE_SESSION,
    DESTROY_SESSION,
    GET_BANDWIDTH_LIMITS,
    RECONFIGURE_SESSION,
    SEND_MESSAGE,
    Listening,
    send,
)
from tests.publishers.renewed_keys import renew
from tests.publishers.streaming.network import PEERS
from tests.running import background, wait_until

Make = Callable[..., I2cpPublisher]


def order(due_index: int = 7) -> PublishOrder:
    return PublishOrder(due_index=due_index, published_ms=now_ms(), expires_ms=now_ms() + 600_000)


def syn(id_: int) -> bytes:
    """The payload that opens a stream."""
    flags = SYNCHRONIZE | FROM_INCLUDED | MAX_PACKET_SIZE | NO_ACK
    peer = PEERS[0]
    packet = Packet(0, id_, 0, 0, flags=flags, destination=peer.destination, max_data=1812)
    return encode_payload(encode_packet(packet, peer.sign), 5, 80)


@pytest.fixture
def keys(tmp_path: Path) -> DestinationKeys:
    """Those in ``site.bundle``."""
    keys = bundle(now_ms(), hops=1)
    write_bundle(tmp_path / "site.bundle", keys)
    return keys


@pytest.fixture
def make(listening: Listening, target: str, keys: DestinationKeys, tmp_path: Path) -> Make:
    """Makes a publisher with the given keys of its configuration."""

    def make(master: DestinationKeys | None = None, node_id: int = 1, **table: Any) -> I2cpPublisher:
        site = PublisherSite(farm="farm", node_id=node_id, directory=tmp_path / "site", master=master)
        table = {"address": listening.address, "target": target, "keys": "site.bundle"} | table
        publisher = make_publisher("i2cp", {"mode": "service"} | table, tmp_path, site)
        assert isinstance(publisher, I2cpPublisher)
        return publisher

    return make


class TestServicePublisher(PublisherSuite):
    @pytest.fixture
    def publisher(self, make: Make) -> I2cpPublisher:
        return make()

    @pytest.fixture
    def unreachable_publisher(self, make: Make, nowhere: str) -> I2cpPublisher:
        return make(address=nowhere)

    @pytest.fixture
    def kill_router(self, listening: Listening) -> Callable[[], None]:
        return listening.kill


@pytest.mark.parametrize("leases", ["default", "fast"])
async def test_router_gets_signed_configurations_and_a_lease_set_of_the_service(
    make: Make, listening: Listening, keys: DestinationKeys, leases: str
) -> None:
    async with make(leases=leases) as publisher:
        assert publisher.destination == keys.destination
        await publisher.standby()
        published = await publisher.publish(order())
        assert published.lease_set is not None
        lease_set = verify_lease_set(published.lease_set, now_ms() // 1000)
        assert lease_set.destination == keys.destination
        assert lease_set.offline == keys.offline
        (lease,) = lease_set.leases
        lasts_s = lease.end_s - lease_set.published_s
        assert lasts_s == pytest.approx({"default": 90, "fast": 50}[leases], abs=2)
        assert lease_set.expires_s == 90
    router = listening.router
    bodies = router.bodies(CREATE_SESSION) + [body[2:] for body in router.bodies(RECONFIGURE_SESSION)]
    configurations = [verify_session_configuration(body) for body in bodies]
    assert [each.options["i2cp.dontPublishLeaseSet"] for each in configurations] == ["true", "true", "false"]
    assert {each.options["inbound.length"] for each in configurations} == {"1"}
    assert router.bodies(DESTROY_SESSION) == [b"\x12\x34"]


async def test_long_term_key_signs_the_options_of_the_table(make, listening, tmp_path):
    create_keys(tmp_path / "site.key")
    async with make(keys="site.key", hops=2, quantity=5) as publisher:
        await publisher.standby()
        assert publisher.key is None
    (configuration,) = map(verify_session_configuration, listening.router.bodies(CREATE_SESSION))
    assert configuration.options["outbound.length"] == "2"
    assert configuration.options["outbound.quantity"] == "5"


async def test_figures_of_the_leaf_are_those_of_its_session(make: Make, keys: DestinationKeys) -> None:
    destination = encode(keys.destination)
    publisher = make(quantity=7)  # those of the bundle are 2
    async with publisher:
        before = (await publisher.status()).leaf
        limits = before.configured_connections if before else None
        nothing = StreamFigures(sent_packets=0, resent_packets=0, refused=0)
        unused = DestinationStatus(
            destination=destination,
            configured_tunnels=Tunnels(in_=2, out=2),
            current_bandwidth=Bandwidth(in_=0, out=0),
            configured_connections=limits,
            current_connections=0,
            streams=nothing,
        )
        assert before == unused
        assert limits
        await publisher.standby()
        status = await publisher.status()
        assert status.leaf is not None
        assert status.leaf.lease_set_expires is not None
        assert status.leaf.lease_set_expires - now_ms() == pytest.approx(600_000, abs=60_000)
        assert status.leaf == msgspec.structs.replace(
            unused,
            uptime=status.leaf.uptime,
            current_tunnels=Tunnels(in_=1),
            lease_set_expires=status.leaf.lease_set_expires,
            lease_ends=(status.leaf.lease_set_expires,),
        )
        assert (status.is_publishing, status.is_ready, status.problems) == (False, True, ())
        assert status.is_withdrawn
        published = await publisher.publish(order())
        status = await publisher.status()
        assert (status.is_publishing, status.is_ready, status.problems) == (True, True, ())
        assert not status.is_withdrawn
        assert status.since_ms == published.published_ms
        assert status.until_ms is not None
        assert status.until_ms - published.published_ms == pytest.approx(90_000, abs=2_000)


async def leaf_where(
    publisher: I2cpPublisher, is_so: Callable[[DestinationStatus], Any]
) -> DestinationStatus:
    """The figures of the leaf, once they are so: asked again and again, as the node does."""
    with trio.fail_after(240):
        for _ in itertools.count():
            leaf = (await publisher.status()).leaf
            assert leaf is not None
            if is_so(leaf):
                return leaf
            await trio.sleep(0.01)
    raise AssertionError("unreachable")


async def test_figures_of_the_leaf_are_those_of_its_streams(make: Make, listening: Listening) -> None:
    async with make() as publisher:
        await publisher.standby()
        await publisher.publish(order())
        for body in (syn(1), b"none"):
            await send(listening.router.streams[0], 31, b"\x12\x34" + struct.pack(">II", 1, len(body)) + body)
        await wait_until(lambda: bool(listening.router.bodies(SEND_MESSAGE)))
        leaf = await leaf_where(publisher, lambda leaf: leaf.streams.refused)
        clients = [sha256(peer.destination).digest() for peer in PEERS[:2]]
        assert [publisher.has_met(client) for client in clients] == [True, False]
        assert leaf.current_connections == 0
        assert (await publisher.status()).refused == {"malformed payload": 1}
        assert leaf.streams == StreamFigures(sent_packets=1, resent_packets=0, refused=1)
        leaf = await leaf_where(publisher, lambda leaf: leaf.current_bandwidth.out)  # that second is over
        assert leaf.current_bandwidth is not None
        assert leaf.current_bandwidth.in_ > 0


async def test_member_whose_farm_bans_a_client_resets_its_streams_and_opens_no_others(
    make: Make, listening: Listening, tmp_path: Path
) -> None:
    client = encode(sha256(PEERS[0].destination).digest())
    farm, publisher = FakeContext(1, level=OUTSIDE), make()

    async def say(body: bytes) -> None:
        await send(listening.router.streams[0], 31, b"\x12\x34" + struct.pack(">II", 1, len(body)) + body)

    def answers() -> list[Packet]:
        """What the client was sent."""
        after = 2 + len(PEERS[0].destination) + 4
        payloads = [body[after:-4] for body in listening.router.bodies(SEND_MESSAGE)]
        return [decode_packet(decode_payload(each).data) for each in payloads]

    task = task_of(farm, tmp_path, publisher)
    async with background(task.run):
        await wait_until(lambda: farm.fold.due_since)
        task.on_own_lease(farm.fold.holding_index(1) or 0, clocks.now().boot_ms + 600_000)
        await wait_until(lambda: task.describe()[0]["state"] == "publishing")
        await say(syn(1))
        await wait_until(answers)
        ack = Packet(answers()[0].from_stream, 1, 0, 0, flags=0)
        await say(encode_payload(encode_packet(ack), 5, 80))
        await leaf_where(publisher, lambda leaf: leaf.streams.round_trip_ms is not None)  # it is established
        farm.order("ban", hash=client, until_ms=None)
        await wait_until(lambda: answers()[-1].flags & RESET)
        await say(syn(2))
        await leaf_where(publisher, lambda leaf: leaf.streams.refused)
        farm.order("unban", hash=client)
        await trio.testing.wait_all_tasks_blocked()
        await say(syn(3))
        await wait_until(lambda: answers()[-1].flags & SYNCHRONIZE)


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ((300, 60, 400, 500, 80, 90, 20), Bandwidth(in_=300 * 1024, out=60 * 1024)),  # Java I2P
        ((300, 60), None),  # before 0.9.62
        ((2456, 3826), None),  # i2pd, which passes so many bytes a second
        ((2**32 - 1,) * 7, Bandwidth(in_=(2**32 - 1) * 1024, out=(2**32 - 1) * 1024)),
    ],
)
async def test_limits_of_the_bandwidth_are_reported_where_the_router_says_its_own(
    make: Make, listening: Listening, limits: tuple[int, ...], found: Bandwidth | None
) -> None:
    listening.router.limits = limits
    async with make() as publisher:
        await publisher.standby()
        await publisher.publish(order())  # it has read the answer then
        status = await publisher.status()
        assert status.leaf is not None
        assert status.leaf.configured_bandwidth == found
        assert status.router_kind == ("java" if found else "i2pd")
        assert len(listening.router.bodies(GET_BANDWIDTH_LIMITS)) == 1


async def test_kind_of_the_router_is_as_configured(make: Make, listening: Listening) -> None:
    async with make(router="java") as publisher:
        assert (await publisher.status()).router_kind is None
        await publisher.standby()
        assert (await publisher.status()).router_kind == "java"
    (configuration,) = map(decode_session_configuration, listening.router.bodies(CREATE_SESSION))
    assert "i2cp.leaseSetOfflineSignature" in configuration.options


async def test_tunnels_that_have_ended_are_none(make: Make, listening: Listening) -> None:
    """Such a leaf is usable for no member, until the router has others."""
    async with make() as publisher:
        await publisher.standby()
        listening.router.tunnel_s = (-1, -2)
        await listening.router.ask()
        leaf = await leaf_where(publisher, lambda leaf: not leaf.lease_ends)
        assert (leaf.current_tunnels, leaf.lease_set_expires) == (Tunnels(in_=0), None)


async def test_session_without_tunnels_shows_that_the_router_has_ended_an_earlier_one(
    make: Make, listening: Any
) -> None:
    listening.router.asks_after_s = None
    async with make() as publisher:
        assert not (await publisher.status()).is_withdrawn
        await wait_until(lambda: bool(listening.router.bodies(CREATE_SESSION)))
        while not (status := await publisher.status()).is_withdrawn:
            await publisher.wait_changed()
        assert not status.is_ready


async def test_key_is_reported_and_its_expiry_keeps_it_from_standby(make: Make, tmp_path: Path) -> None:
    expired = bundle(now_ms(), expires_s=now_ms() // 1000 - 1)
    write_bundle(tmp_path / "expired.bundle", expired)
    async with make(keys="expired.bundle") as publisher:
        key = publisher.key
        assert key is not None
        assert (key.transient, key.expires_ms) == (expired.transient, expired.expires_ms)
        for call in (publisher.standby, lambda: publisher.publish(order())):
            with pytest.raises(PublisherError, match="have expired: make new bundles"):
                await call()
        assert not (await publisher.status()).is_ready


async def test_new_bundle_is_read_without_a_restart_and_a_spoilt_one_is_a_problem(
    make: Make, keys: DestinationKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_keys, "WATCH_S", 0.001)
    async with make() as publisher:
        await publisher.standby()
        new = renew(tmp_path / "site.bundle", now_ms())
        await wait_until(lambda: publisher.key is not None and publisher.key.transient == new.transient)
        published = await publisher.publish(order())
        assert published.lease_set is not None
        assert verify_lease_set(published.lease_set, now_ms() // 1000).offline == new.offline
        (tmp_path / "site.bundle").write_text("{")
        while not (status := await publisher.status()).problems:
            await publisher.wait_changed()
        assert status.problems[0].endswith("the keys that were read before stay in use")
        assert status.is_ready
        newest = renew(tmp_path / "site.bundle", now_ms(), days=30)
        while (status := await publisher.status()).is_ready:
            await publisher.wait_changed()
        assert "holds new keys" in status.problems[0]
        await publisher.retire(None)
        await publisher.standby()
        published = await publisher.publish(order(due_index=8))
        assert published.lease_set is not None
        assert verify_lease_set(published.lease_set, now_ms() // 1000 + 60).offline == newest.offline


async def test_service_that_does_not_listen_keeps_it_from_standby(make: Make, nowhere: str) -> None:
    async with make(target=nowhere) as publisher:
        with pytest.raises(PublisherError, match=rf"nothing listens at the target {nowhere}"):
            await publisher.standby()


async def test_client_opens_no_more_streams_in_a_minute_than_it_may(make: Make, listening: Listening) -> None:
    async with make(max_connections_per_minute=2) as publisher:
        await publisher.standby()
        await publisher.publish(order())
        for number in range(3):
            payload = syn(number + 1)
            body = b"\x12\x34" + struct.pack(">II", number, len(payload)) + payload
            await send(listening.router.streams[0], 31, body)
        leaf = await leaf_where(publisher, lambda leaf: leaf.streams.refused)
        assert leaf.streams == StreamFigures(sent_packets=2, resent_packets=0, refused=1)


async def test_service_of_several_targets_listens_if_one_of_them_does(
    make: Make, target: str, nowhere: str, tmp_path: Path
) -> None:
    write_private_file(tmp_path / "irc.password", b"secret\n")
    publisher = make(
        target="",
        targets=[nowhere, nowhere],
        ports={"6667": [target]},
        balance="order",
        client_addresses=True,
        webirc_password_file="irc.password",
    )
    assert publisher.targets == (nowhere, nowhere, target)
    async with publisher:
        await publisher.standby()
    async with make(target="", targets=[nowhere, nowhere]) as publisher:
        with pytest.raises(PublisherError, match=rf"nothing listens at the target {nowhere} or {nowhere}:"):
            await publisher.standby()


@pytest.mark.slow
async def test_streams_leave_most_open_files_to_the_node(make: Make, listening: Listening) -> None:
    """Of 256 that the process may open, 64 are for streams, and 16 for those of one peer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        publisher = make()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with publisher:
        await publisher.standby()
        await publisher.publish(order())
        for number in range(20):
            payload = syn(number + 1)
            body = b"\x12\x34" + struct.pack(">II", number, len(payload)) + payload
            await send(listening.router.streams[0], 31, body)
        leaf = await leaf_where(publisher, lambda leaf: leaf.streams.refused >= 4)
        assert leaf.configured_connections == 64
        await publisher.retire(None)  # it has read all of them then
        assert (await leaf_where(publisher, bool)).streams.refused == 4


async def test_error_inside_leaves_as_it_is_and_the_session_is_destroyed(
    make: Make, listening: Listening
) -> None:
    async def fail_inside() -> None:
        async with make() as publisher:
            await publisher.standby()
            raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        await fail_inside()
    assert listening.router.bodies(DESTROY_SESSION) == [b"\x12\x34"]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"target": ""}, "mode service needs target and keys"),
        ({"keys": ""}, "mode service needs target and keys"),
        ({"target": "127.0.0.1"}, "publisher i2cp: "),
        ({"target": "127.0.0.1:0"}, "must be HOST:PORT, where the service listens"),
        ({"keys": "nowhere.bundle"}, "nowhere.bundle"),
        ({"leases": "long"}, "leases"),
        ({"address": "192.0.2.1:7654"}, "must be HOST:PORT on loopback"),
        ({"drain_s": 600.1}, "drain_s"),
        ({"max_connections_per_minute": -1}, "max_connections_per_minute"),
        ({"mode": "meta"}, "only for mode service: keys, target"),
        ({"mode": "meta", "target": "", "keys": "", "max_posts": 1}, "only for mode service: max_posts"),
        ({"targets": ["127.0.0.1:1"]}, "name the target in targets, too, and leave out target"),
        ({"target": "", "targets": ["127.0.0.1:1", "nowhere"]}, "publisher i2cp: "),
        ({"target": "", "targets": ["127.0.0.1:1"] * 17}, "targets"),
        ({"balance": "random"}, "balance"),
        ({"ports": {"0": ["127.0.0.1:1"]}}, "ports"),
        ({"ports": {"80": []}}, "ports"),
        ({"ports": {"70000": ["127.0.0.1:1"]}}, "ports.70000: an I2CP port is at most 65535"),
        ({"ports": {"80": ["127.0.0.1"]}}, "ports.80: "),
        (
            {"ports": {"80": ["192.0.2.1:80"]}, "client_addresses": True},
            r"target 192\.0\.2\.1:80 must be at 127\.0\.0\.1, since client_addresses are there",
        ),
        ({"host_override": "a b"}, "host_override must be a host"),
        ({"max_posts": -1}, "max_posts"),
        ({"post_ban_s": 0}, "post_ban_s"),
        ({"webirc_password_file": "nowhere.password"}, "nowhere.password"),
        ({"webirc_password_file": "empty.password"}, "expected a word of 1 to 256 characters"),
        (
            {"webirc_password_file": "empty.password", "client_headers": True},
            "webirc_password_file is for IRC, and other keys here are for HTTP",
        ),
    ],
)
async def test_wrong_table_is_one_clear_problem(
    make: Make, table: Mapping[str, Any], problem: str, tmp_path: Path
) -> None:
    write_private_file(tmp_path / "empty.password", b"\n")
    with pytest.raises(ConfigError, match=problem) as caught:
        make(**table)
    assert len(caught.value.problems) == 1


async def test_every_problem_is_told(make: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        make(address="router.example:1", target="nowhere", keys="nothing")
    assert len(caught.value.problems) == 3


async def test_keys_of_the_master_destination_are_refused(make: Make, keys: DestinationKeys) -> None:
    with pytest.raises(ConfigError, match="holds the master destination; a service needs one of its own"):
        make(master=keys)


async def test_bundle_of_another_node_is_refused(make: Make) -> None:
    with pytest.raises(ConfigError, match="is the bundle of node 1, and this is node 2"):
        make(node_id=2)


async def test_what_was_refused_and_dropped_is_logged_by_cause(make, listening, monkeypatch, caplog):
    monkeypatch.setattr(service, "LOG_S", 0.01)
    caplog.set_level("INFO", "garlicfarm.publisher.i2cp")
    async with make() as publisher:
        await publisher.standby()
        for _ in range(3):
            await send(listening.router.streams[0], 31, b"\x12\x34" + struct.pack(">II", 1, 4) + b"none")
        await wait_until(lambda: caplog.records)
    fields = vars(caplog.records[0])["garlicfarm_fields"]
    assert (fields["event"], fields["farm"]) == ("packets-dropped", "farm")
    assert fields["causes"].startswith("malformed payload: ")
