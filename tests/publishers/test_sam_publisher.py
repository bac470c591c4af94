from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import garlicfarm_plugin_sam as module
from garlicfarm import service_keys
from garlicfarm.credentials.destination_keys import create_keys, read_keys, write_bundle
from garlicfarm.errors import ConfigError, PublisherError
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.plugins import make_publisher
from garlicfarm.publisher import PublisherSite, PublishOrder
from garlicfarm.router import DestinationStatus, Tunnels
from garlicfarm.testing.publisher_suite import PublisherSuite
from garlicfarm_plugin_sam import SamPublisher
from tests.publishers.i2cp_keys import bundle, now_ms
from tests.publishers.renewed_keys import renew
from tests.publishers.sam_router import SamRouter

LIMIT_S = module.ANSWER_TIMEOUT_S
ORDER = PublishOrder(due_index=7, published_ms=1_000, expires_ms=601_000)
Make = Callable[..., SamPublisher]


@pytest.fixture
def make(router: SamRouter, target: str, tmp_path: Path) -> Make:
    """Makes a publisher with the given keys of its configuration."""
    create_keys(tmp_path / "service.key")

    def make(**keys: Any) -> SamPublisher:
        site = PublisherSite(farm="farm", node_id=1, directory=tmp_path / "site")
        table = {"address": router.address, "target": target, "keys": "service.key"} | keys
        publisher = make_publisher("sam", table, tmp_path, site)
        assert isinstance(publisher, SamPublisher)
        return publisher

    return make


@pytest.fixture(autouse=True)
def _at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No waits that only real routers need, but where a test has a clock for them."""
    if "mock_clock" in request.fixturenames:
        return
    monkeypatch.setattr(module, "REOPEN_AFTER_S", 0.0)
    monkeypatch.setattr(module, "LOOKUP_INTERVAL_S", 0.001)
    monkeypatch.setattr(module, "WATCH_INTERVAL_S", 0.001)
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", math.inf)


@asynccontextmanager
async def publishing(publisher: SamPublisher) -> AsyncIterator[SamPublisher]:
    async with publisher:
        await publisher.standby()
        await publisher.publish(ORDER)
        yield publisher


async def lost(publisher: SamPublisher) -> str:
    """Its problem, when it no longer publishes."""
    while (await publisher.status()).is_publishing:  # noqa: ASYNC110 - as the node asks
        await trio.sleep(0.001)
    (problem,) = (await publisher.status()).problems
    return problem


class TestSamPublisher(PublisherSuite):
    @pytest.fixture
    def publisher(self, make: Make) -> SamPublisher:
        return make()

    @pytest.fixture
    def unreachable_publisher(self, make: Make, nowhere: str) -> SamPublisher:
        return make(address=nowhere)

    @pytest.fixture
    def kill_router(self, router: SamRouter) -> Callable[[], None]:
        return router.kill


async def test_router_that_hangs_is_noticed_on_standby(make, router, monkeypatch):
    async with make() as publisher:
        await publisher.standby()
        monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.01)
        router.replies["HELLO VERSION"] = None
        while (status := await publisher.status()).is_ready:
            await publisher.wait_changed()
        assert "does not answer within" in status.problems[0]


async def test_router_that_closes_idle_connections_is_not_gone(make: Make, router: SamRouter) -> None:
    async with make() as publisher:
        await publisher.standby()
        for _ in range(3):
            greetings = len(router.told("HELLO VERSION"))
            router.cut()
            await router.seen("HELLO VERSION", greetings + 4)
            assert (await publisher.status()).is_ready


async def test_session_that_is_refused_does_not_mean_that_the_router_is_gone(make, router):
    router.replies["SESSION CREATE"] = "SESSION STATUS RESULT=DUPLICATED_DEST"
    async with make() as publisher:
        await publisher.standby()
        with pytest.raises(PublisherError, match="DUPLICATED_DEST"):
            await publisher.publish(ORDER)
        assert (await publisher.status()).is_ready


async def test_publishing_opens_one_session_of_the_service_and_forwards_to_the_target(
    make: Make, router: SamRouter, target: str, tmp_path: Path
) -> None:
    keys = read_keys(tmp_path / "service.key", allow_expired=True)
    async with publishing(make(hops=1, quantity=2)) as publisher:
        assert publisher.destination == keys.destination
        assert publisher.targets == (target,)
        (session,) = (name for name, key in router.sessions.items() if key == keys.sam_private_key())
        assert router.forwards == {session: target.partition(":")[2]}
        created, client = router.told("SESSION CREATE")
        assert created["inbound.length"] == created["outbound.length"] == client["inbound.length"] == "1"
        assert created["inbound.quantity"] == created["outbound.quantity"] == "2"
        assert client["DESTINATION"] == "TRANSIENT"
        (looked_up,) = router.told("STREAM CONNECT")
        assert looked_up["DESTINATION"] == b32_address(keys.destination)
        (forwarded,) = router.told("STREAM FORWARD")
        assert forwarded["SILENT"] == "true"
        await publisher.publish(msgspec.structs.replace(ORDER, due_index=8, published_ms=2_000))
        assert len(router.told("SESSION CREATE")) == 2
        await publisher.retire(None)
        assert session not in router.sessions
        assert session not in router.forwards


async def test_figures_of_the_leaf_are_those_of_its_session(make: Make) -> None:
    publisher = make(quantity=2)
    destination = encode(publisher.destination)
    async with publisher:
        await publisher.standby()
        assert (await publisher.status()).leaf == DestinationStatus(destination=destination)
        before_ms = now_ms()
        published = await publisher.publish(ORDER)
        status = await publisher.status()
        assert before_ms <= published.published_ms == status.since_ms
        assert status.leaf == DestinationStatus(
            destination=destination, uptime=status.leaf.uptime, configured_tunnels=Tunnels(in_=2, out=2)
        )
        assert status.leaf.uptime >= 0
        assert status.problems == ()


async def test_publication_counts_when_a_look_up_finds_the_service(make: Make, router: SamRouter) -> None:
    router.is_found = False
    async with make() as publisher, trio.open_nursery() as nursery:
        await publisher.standby()
        nursery.start_soon(publisher.publish, ORDER)
        await router.seen("STREAM CONNECT", 3)
        status = await publisher.status()
        assert not status.is_publishing
        assert "cannot be found from this router yet" in status.problems[0]
        router.is_found = True
    assert router.streams == 1


async def test_cancelled_publication_goes_on_when_it_is_called_again(make: Make, router: SamRouter) -> None:
    router.is_found = False
    async with make() as publisher:
        await publisher.standby()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.publish, ORDER)
            await router.seen("STREAM CONNECT")
            nursery.cancel_scope.cancel()
        (session,) = {name for name, key in router.sessions.items() if key != "TRANSIENT"}
        router.is_found = True
        await publisher.publish(ORDER)
        assert session in router.sessions


async def test_java_that_forwards_only_for_a_ready_session_is_asked_again(make, router, target):
    router.is_java, router.is_found = True, False
    router.replies["SESSION CREATE"] = None
    async with make() as publisher, trio.open_nursery() as nursery:
        await publisher.standby()
        nursery.start_soon(publisher.publish, ORDER)
        await router.seen("STREAM FORWARD")
        await router.seen("SESSION CREATE", 2)
        await wait_all_tasks_blocked()
        await router.answer_sessions()
        await router.seen("STREAM CONNECT", 3)
        assert [*router.forwards.values()] == [target.partition(":")[2]]
        status = await publisher.status()
        assert "cannot be found from this router yet" in status.problems[0]
        router.is_found = True
        while not (await publisher.status()).is_publishing:  # noqa: ASYNC110 - as the node asks
            await trio.sleep(0.001)
        await router.seen("HELLO VERSION", len(router.told("HELLO VERSION")) + 5)
        status = await publisher.status()
        assert (status.is_publishing, status.is_ready, status.problems) == (True, True, ())
        assert len(router.told("STREAM FORWARD")) == 2
        router.cut("STREAM FORWARD")
        assert "closed the SAM connection" in await lost(publisher)


async def test_refusal_of_a_forwarding_that_comes_after_the_session_is_ready_is_understood(make, router):
    router.replies["STREAM FORWARD"] = None
    async with make() as publisher, trio.open_nursery() as nursery:
        await publisher.standby()
        nursery.start_soon(publisher.publish, ORDER)
        await router.seen("STREAM FORWARD")
        await router.seen("SESSION CREATE", 2)
        await wait_all_tasks_blocked()
        del router.replies["STREAM FORWARD"]
        late = b'STREAM STATUS RESULT=I2P_ERROR MESSAGE="specified ID is not a STREAM session"\n'
        await router.say("STREAM FORWARD", late)
        await router.seen("STREAM FORWARD", 2)
    assert len(router.told("STREAM FORWARD")) == 2


async def test_forwarding_that_is_never_answered_is_told(make, router, monkeypatch):
    router.replies["STREAM FORWARD"] = None
    async with make() as publisher:
        await publisher.standby()
        monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", LIMIT_S)
        await refused(publisher, f"does not answer within {LIMIT_S:g} s")
        while router.sessions:
            await router.changed.wait()


@pytest.mark.parametrize("command", ["SESSION CREATE", "STREAM FORWARD"])
async def test_answers_that_come_twice_end_nothing(make, router, command):
    async with publishing(make()) as publisher:
        topic = {"SESSION CREATE": "SESSION STATUS", "STREAM FORWARD": "STREAM STATUS"}[command]
        await router.say(command, f"{topic} RESULT=OK\n{topic} RESULT=I2P_ERROR\n".encode())
        await router.seen("HELLO VERSION", len(router.told("HELLO VERSION")) + 3)
        assert (await publisher.status()).is_publishing
        router.cut(command)
        assert "closed the SAM connection" in await lost(publisher)


async def test_destination_is_opened_half_a_minute_after_a_router_may_have_closed_it(
    make, router, mock_clock, monkeypatch
):
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", math.inf)
    returned: list[float] = []

    async def standby(publisher: SamPublisher) -> None:
        await publisher.standby()
        returned.append(trio.current_time())

    async def retire() -> None:
        await publisher.retire(None)

    async def hang() -> None:
        router.cut()
        while (await publisher.status()).is_publishing:
            await publisher.wait_changed()
        mock_clock.jump(100)

    async with make() as publisher:
        for end in (retire, hang, retire):  # at first, after a retirement, and after a router that hung
            start = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(standby, publisher)
                while len(returned) == 0 or returned[-1] < start:
                    await wait_all_tasks_blocked(0.01)
                    mock_clock.jump(1.0)
            assert returned[-1] >= start + 30
            await publisher.publish(ORDER)
            await end()


async def test_session_that_the_router_ends_is_no_longer_published(make: Make, router: SamRouter) -> None:
    async with publishing(make()) as publisher:
        router.cut()
        assert "closed the SAM connection" in await lost(publisher)
        await publisher.publish(ORDER)
        assert (await publisher.status()).is_publishing
        assert (await publisher.status()).problems == ()


async def test_session_whose_forwarding_ends_is_no_longer_published(make: Make, router: SamRouter) -> None:
    async with publishing(make()) as publisher:
        router.cut("STREAM FORWARD")
        assert "closed the SAM connection" in await lost(publisher)
        assert router.forwards == {}


async def test_retirement_waits_for_the_router_and_cancelled_ends_all_the_same(make, router):
    async with publishing(make()) as publisher:
        router.closing = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publisher.retire, None)
            await wait_all_tasks_blocked()
            assert nursery.child_tasks
            nursery.cancel_scope.cancel()
        assert not (await publisher.status()).is_publishing
        with trio.CancelScope() as scope:
            scope.cancel()
            await publisher.retire(None)
        router.closing.set()
        await publisher.publish(ORDER)
        with trio.CancelScope() as scope:
            scope.cancel()
            await publisher.retire(None)
        assert not (await publisher.status()).is_publishing
        await publisher.publish(ORDER)
        assert (await publisher.status()).is_publishing


async def test_router_that_hangs_is_no_longer_published(make, router, monkeypatch):
    # The limit of the product, from the beginning: the check that is under way has to have it, too.
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", LIMIT_S)
    async with publishing(make()) as publisher:
        router.replies["HELLO VERSION"] = None
        assert "does not answer within" in await lost(publisher)
        while router.sessions:
            await router.changed.wait()


async def test_router_that_hangs_while_it_is_published_is_told_soon(make, router, monkeypatch):
    # From the beginning: the check that is under way has to have it, too.
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", LIMIT_S)
    publisher = make()
    async with publisher, trio.open_nursery() as nursery:
        await publisher.standby()
        router.replies["SESSION CREATE"] = None
        nursery.start_soon(refused, publisher, f"does not answer within {LIMIT_S:g} s")
        await router.seen("SESSION CREATE", 2)
        router.replies["HELLO VERSION"] = None
    assert router.sessions == {}


async def refused(publisher: SamPublisher, words: str) -> None:
    with trio.fail_after(240), pytest.raises(PublisherError, match=words):
        await publisher.publish(ORDER)


async def test_router_that_goes_away_is_named_by_standby_and_comes_back(make, router):
    async with publishing(make()) as publisher:
        port = int(router.address.partition(":")[2])
        router.kill()
        await lost(publisher)
        with pytest.raises(PublisherError, match="nothing listens at the SAM address"):
            await publisher.standby()
        await router.start(port)
        await publisher.standby()
        await publisher.publish(ORDER)


@pytest.mark.parametrize(
    ("command", "reply", "sentence"),
    [
        ("SESSION CREATE", "SESSION STATUS RESULT=DUPLICATED_DEST", "DUPLICATED_DEST; end the tunnel"),
        (
            "SESSION CREATE",
            'SESSION STATUS RESULT=I2P_ERROR MESSAGE="Error creating I2PSocketManager: [SAM TCP '
            "Client(CLOSED)]: Failed to build tunnels - Disconnected from router while waiting for tunnels: "
            'duplicate destination"',  # Java I2P
            "duplicate destination; end the tunnel",
        ),
        ("SESSION CREATE", "SESSION STATUS RESULT=INVALID_KEY", "INVALID_KEY; are the keys complete"),
        (
            "SESSION CREATE",
            'SESSION STATUS RESULT=I2P_ERROR MESSAGE="out of tunnels"',
            "refused SESSION CREATE: I2P_ERROR: out of tunnels",
        ),
        ("SESSION CREATE", b"\xff\n", "the answer of .* to SESSION CREATE is not SAM's"),
        ("SESSION CREATE", "", "closed the SAM connection"),
        (
            "STREAM FORWARD",
            'SESSION STATUS RESULT=I2P_ERROR MESSAGE="Already accepting"',
            "refused STREAM FORWARD: I2P_ERROR: Already accepting",
        ),
        ("STREAM CONNECT", "STREAM STATUS RESULT=I2P_ERROR", "refused STREAM CONNECT: I2P_ERROR"),
    ],
)
async def test_refusal_is_told_and_the_publisher_goes_on(make, router, tmp_path, command, reply, sentence):
    secret = read_keys(tmp_path / "service.key", allow_expired=True).sam_private_key()
    async with make() as publisher:
        await publisher.standby()
        router.replies[command] = reply
        with pytest.raises(PublisherError, match=sentence) as caught:
            await publisher.publish(ORDER)
        assert secret[-40:] not in str(caught.value)
        assert str(caught.value).isprintable()
        assert not (await publisher.status()).is_publishing
        router.replies.clear()
        await publisher.publish(ORDER)
        assert (await publisher.status()).is_publishing


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is that the router's SAM port"),
        ("HELLO REPLY RESULT=NOVERSION", "refused HELLO: NOVERSION"),
        (None, "does not answer within 0.01 s"),
    ],
)
async def test_port_of_another_program_is_told_by_standby(make, router, monkeypatch, reply, sentence):
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_S", 0.01 if reply is None else math.inf)
    router.replies["HELLO VERSION"] = reply
    async with make() as publisher:
        with pytest.raises(PublisherError, match=sentence):
            await publisher.standby()


async def test_target_where_nothing_listens_is_told_by_standby(make: Make, nowhere: str) -> None:
    async with make(target=nowhere) as publisher:
        with pytest.raises(PublisherError, match=f"nothing listens at the target {nowhere}"):
            await publisher.standby()


async def test_session_ends_when_the_publisher_is_left_by_an_error(make: Make, router: SamRouter) -> None:
    with pytest.raises(ZeroDivisionError):
        async with publishing(make()):
            raise ZeroDivisionError
    while router.sessions:
        await router.changed.wait()


def use_bundle(directory: Path, days: float) -> DestinationKeys:
    """Of the file ``service.bundle``."""
    keys = bundle(now_ms(), expires_s=round(now_ms() / 1000 + days * 86400))
    write_bundle(directory / "service.bundle", keys)
    return keys


async def test_bundle_is_used_and_reported(make: Make, router: SamRouter, tmp_path: Path) -> None:
    keys = use_bundle(tmp_path, days=90)
    async with publishing(make(keys="service.bundle")) as publisher:
        assert (publisher.key.transient, publisher.key.expires_ms) == (keys.transient, keys.expires_ms)
        assert keys.sam_private_key() in router.sessions.values()
    assert make().key is None


async def test_new_bundle_is_used_in_the_next_session_and_another_member_is_named_until_then(
    make: Make, router: SamRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_keys, "WATCH_S", 0.001)
    old = use_bundle(tmp_path, days=5)
    async with publishing(make(keys="service.bundle")) as publisher:
        new = renew(tmp_path / "service.bundle", now_ms())
        while (status := await publisher.status()).is_ready:
            await publisher.wait_changed()
        assert status.is_publishing
        assert "holds new keys" in status.problems[0]
        assert publisher.key is not None
        assert publisher.key.transient == old.transient
        await publisher.retire(None)
        await publisher.standby()
        assert (await publisher.status()).problems == ()
        assert publisher.key.transient == new.transient
        await publisher.publish(ORDER)
        assert new.sam_private_key() in router.sessions.values()
        (tmp_path / "service.bundle").write_text("{")
        while not (status := await publisher.status()).problems:
            await publisher.wait_changed()
        assert status.problems[0].endswith("the keys that were read before stay in use")
        assert status.is_ready


async def test_expired_bundle_does_not_publish_and_the_node_starts(make: Make, tmp_path: Path) -> None:
    use_bundle(tmp_path, days=-1)
    async with make(keys="service.bundle") as publisher:
        for call in (publisher.standby(), publisher.publish(ORDER)):
            with pytest.raises(PublisherError, match=r"service.bundle have expired: .* keys offline"):
                await call


async def test_bundle_that_expires_while_it_is_published_ends_the_session(
    make: Make, router: SamRouter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_bundle(tmp_path, days=90)
    async with publishing(make(keys="service.bundle")) as publisher:
        monkeypatch.setattr(module, "_now_ms", lambda: publisher.key.expires_ms)
        with pytest.raises(PublisherError, match="have expired"):
            await publisher.publish(ORDER)
        assert not (await publisher.status()).is_publishing
        while router.sessions:
            await router.changed.wait()


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"address": "192.0.2.1:7656"}, "must be HOST:PORT on loopback"),
        ({"address": "7656"}, "not of the form"),
        ({"target": "192.0.2.1:80"}, r"must be a port of 127.0.0.1, because the router forwards"),
        ({"target": "127.0.0.1"}, "not of the form"),
        ({"keys": "missing.key"}, "missing.key cannot be read"),
        ({"hops": 8}, "hops"),
        ({"quantity": 0}, "quantity"),
        ({"tunnels": 3}, "unknown key 'tunnels'"),
    ],
)
async def test_configuration_that_cannot_work_is_refused(make, table, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        make(**table)
    assert len(caught.value.problems) == 1


async def test_keys_are_not_shown(make: Make, tmp_path: Path) -> None:
    publisher = make()
    secret = read_keys(tmp_path / "service.key", allow_expired=True).sam_private_key()[-40:]
    assert secret not in f"{publisher!r} {vars(publisher)}"


async def test_router_that_asks_for_a_login_gets_it_on_each_connection(make, router, tmp_path):
    password_file = tmp_path / "sam.password"
    password_file.touch(mode=0o600)
    password_file.write_text("s3cret!\r\nsecond line\n")
    async with publishing(make(user="farm", password_file="sam.password")):
        hellos = {command for command in router.commands if command.startswith("HELLO")}
    assert hellos == {"HELLO VERSION MIN=3.0 MAX=3.1 USER=farm PASSWORD=s3cret!"}
