"""The session of a service at a router, from standby to its end: memory streams, a clock that jumps."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from garlicfarm.credentials.destination_keys import write_bundle
from garlicfarm.errors import PublisherError
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.lease_set import LeaseSet, encode_lease_set, verify_lease_set
from garlicfarm.i2p.session_configuration import verify_session_configuration
from garlicfarm.i2p.session_options import Purpose, session_options
from garlicfarm.publisher import Publication, PublisherSite
from garlicfarm.publishing.documents import MAX_LEASE_SET_BYTES
from garlicfarm.service import ServiceKeys
from garlicfarm_plugin_i2cp.service_keeper import MAX_QUEUED, ServiceKeeper
from garlicfarm_plugin_i2cp.service_session import DEFAULT, FAST, PASS_ON_S, LeasePlan
from tests.publishers.i2cp_keys import bundle, long_term_keys
from tests.publishers.i2cp_router import (
    CREATE_LEASE_SET_2,
    CREATE_SESSION,
    DESTROY_SESSION,
    RECONFIGURE_SESSION,
    SEND_MESSAGE,
    FakeRouter,
    send,
)

START_MS = 1_800_000_000_000
SESSION = b"\x12\x34"
BUNDLE_S = 3600


@dataclass
class Given:
    """A LeaseSet that the router was given, and when; with the private key in the same message."""

    at_s: float
    data: bytes
    lease_set: LeaseSet
    private_key: bytes
    is_published: bool


@dataclass
class Bench:
    """A keeper that runs, and its router. The router's clock is ``START_MS`` at 0 s."""

    nursery: trio.Nursery
    keys: ServiceKeys
    plan: LeasePlan
    running: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_up: bool = True
    clock_off_ms: int = 0
    router_off_ms: int = 0
    connected_at: list[float] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    """What the keeper had room for when it said that it had some."""
    abandoned_at: list[float] = field(default_factory=list)
    """When the keeper said that no session serves the clients any more."""

    def __post_init__(self) -> None:
        self.router = FakeRouter(self.router_ms)
        self.keeper = ServiceKeeper(
            "127.0.0.1:7654",
            self.keys,
            self.plan,
            connect=self.connect,
            configuration=self.configuration,
            now_ms=self.now_ms,
            on_payload=self.payloads.append,
            on_abandoned=self.on_abandoned,
            on_room=self.on_room,
            on_passed_on=self.on_passed_on,
        )

    def on_abandoned(self) -> None:
        self.abandoned_at.append(trio.current_time())
        self.keeper.send(b"peer", b"RESET")

    def on_passed_on(self) -> None:
        self.keeper.send(b"peer", b"ACK")

    def on_room(self) -> None:
        self.rooms.append(self.keeper.room)

    def router_ms(self) -> int:
        return START_MS + round(trio.current_time() * 1000) + self.router_off_ms

    def now_ms(self) -> int:
        return START_MS + round(trio.current_time() * 1000) + self.clock_off_ms

    def configuration(self, purpose: Purpose, now_ms: int) -> bytes:
        return self.keys.keys.session_configuration(session_options(purpose, 1, 2), now_ms, purpose)

    def order(self, due_index: int = 7, published_ms: int = START_MS) -> Publication:
        return Publication(due_index=due_index, published_ms=published_ms, expires_ms=START_MS + 10**9)

    async def connect(self) -> trio.abc.Stream:
        self.connected_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if not self.is_up:
            raise OSError("all attempts failed") from ExceptionGroup(
                "all attempts failed", [ConnectionRefusedError(111, "Connection refused")]
            )
        ours, theirs = memory_stream_pair()
        self.nursery.start_soon(self.router.serve, theirs)
        return ours

    async def run(self) -> None:
        with self.running:
            await self.keeper.run()

    @property
    def given(self) -> list[Given]:
        """What the router was given, verified as a floodfill does."""
        found = []
        is_published = False
        for at_s, type_, body in self.router.received:
            if type_ in (CREATE_SESSION, RECONFIGURE_SESSION):
                configuration = verify_session_configuration(body[2 if type_ == RECONFIGURE_SESSION else 0 :])
                is_published = configuration.options["i2cp.dontPublishLeaseSet"] == "false"
            if type_ == CREATE_LEASE_SET_2:
                assert body[:3] == SESSION + b"\3"
                assert body[-37:-32] == bytes.fromhex("01 0004 0020")
                data, private = body[3:-37], body[-32:]
                lease_set = verify_lease_set(data, (START_MS + round(at_s * 1000)) // 1000)
                found.append(Given(at_s, data, lease_set, private, is_published))
        return found

    @property
    def published(self) -> list[Given]:
        return [each for each in self.given if each.is_published]

    def successor(self, later_s: int = 1, keys: DestinationKeys | None = None, expires_s: int = 90) -> bytes:
        """The LeaseSet of the member that publishes next."""
        keys = keys or self.keys.keys
        lease_set = LeaseSet(
            destination=keys.destination,
            published_s=self.router_ms() // 1000 + later_s,
            expires_s=expires_s,
            encryption_key=b"\x77" * 32,
            leases=(),
            offline=keys.offline,
        )
        return encode_lease_set(lease_set, keys.sign)

    def configurations(self) -> list[str]:
        """``standby`` or ``active``, as the router was told in turn."""
        bodies = [
            *self.router.bodies(CREATE_SESSION)[:1],
            *(body[2:] for body in self.router.bodies(RECONFIGURE_SESSION)),
        ]
        options = [verify_session_configuration(body).options for body in bodies]
        return ["standby" if each["i2cp.dontPublishLeaseSet"] == "true" else "active" for each in options]


@pytest.fixture
def plan() -> LeasePlan:
    return DEFAULT


@pytest.fixture
async def bench(tmp_path: Path, plan: LeasePlan) -> AsyncIterator[Bench]:
    """On standby."""
    path = tmp_path / "site.bundle"
    write_bundle(path, bundle(START_MS, expires_s=START_MS // 1000 + BUNDLE_S))
    keys = ServiceKeys(path, PublisherSite(farm="farm", node_id=1, directory=tmp_path))
    async with trio.open_nursery() as nursery:
        made = Bench(nursery, keys, plan)
        nursery.start_soon(made.run)
        yield made
        nursery.cancel_scope.cancel()


async def publishing(bench: Bench) -> Given:
    """The first LeaseSet that is published."""
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order())
    (first,) = bench.published
    return first


# ---------------------------------------------------------------------- standby


async def test_standby_session_answers_every_request_and_publishes_nothing(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.router.asks_after_s = 3.0
    await bench.keeper.standby()
    assert trio.current_time() == pytest.approx(3)
    for _ in range(3):
        await trio.sleep(30)
        await bench.router.ask()
    await wait_all_tasks_blocked()
    assert [each.at_s for each in bench.given] == pytest.approx([3, 33, 63, 93])
    assert bench.published == []
    assert len({each.private_key for each in bench.given}) == 1
    assert bench.configurations() == ["standby", "standby"]


async def test_standby_waits_for_tunnels_and_says_so(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.asks_after_s = 70
    building = "the router at 127.0.0.1:7654 has not asked for a LeaseSet yet; it is building tunnels"
    for _ in range(2):
        with pytest.raises(PublisherError, match=building):
            await bench.keeper.standby()
        assert not bench.keeper.is_ready
    assert trio.current_time() == pytest.approx(50)
    await bench.keeper.standby()
    assert trio.current_time() == pytest.approx(70)
    assert (bench.keeper.is_ready, bench.keeper.problem) == (True, "")


async def test_request_that_is_repeated_at_once_is_answered_once_or_twice(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    await bench.router.ask()
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert 1 <= len(bench.published) - 1 <= 2
    dates = [each.lease_set.published_s for each in bench.published]
    assert dates == sorted({*dates})


async def test_session_without_tunnels_is_not_ready(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.tunnel_s = (60,)
    await bench.keeper.standby()
    await trio.sleep(61)
    assert not bench.keeper.is_ready
    assert bench.keeper.problem == "the router at 127.0.0.1:7654 has no tunnels for the service"
    bench.router.tunnel_s = ()
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert not bench.keeper.is_ready
    bench.router.tunnel_s = (600,)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert (bench.keeper.is_ready, bench.keeper.problem) == (True, "")


# ---------------------------------------------------------------------- election


async def test_elected_session_is_reconfigured_and_published_at_once(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await bench.keeper.standby()
    await trio.sleep(100)
    published = await bench.keeper.publish(bench.order(published_ms=bench.now_ms()))
    assert trio.current_time() == pytest.approx(100)
    (first,) = bench.published
    assert published.lease_set == first.data
    assert published.published_ms == first.lease_set.published_s * 1000 == START_MS + 100_000
    assert bench.configurations() == ["standby", "standby", "active"]
    session = bench.keeper.session
    assert session is not None
    assert session.is_publishing(trio.current_time())
    assert session.until_ms == START_MS + 190_000


async def test_key_of_the_lease_set_is_that_of_the_private_key_beside_it(
    bench: Bench, autojump_clock: MockClock
) -> None:
    first = await publishing(bench)
    private = X25519PrivateKey.from_private_bytes(first.private_key)
    assert first.lease_set.encryption_key == private.public_key().public_bytes_raw()
    assert first.lease_set.offline == bench.keys.keys.offline


async def test_order_before_there_are_tunnels_is_carried_out_with_the_first_request(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.router.asks_after_s = 13.0
    await bench.keeper.publish(bench.order())
    assert trio.current_time() == pytest.approx(13)
    assert [each.is_published for each in bench.given] == [True]
    assert bench.configurations() == ["standby", "standby", "active"]


@pytest.mark.parametrize(("plan", "interval_s", "lease_s"), [(DEFAULT, 25, 90), (FAST, 30, 50)])
async def test_it_is_published_again_at_each_interval_with_leases_cut_short(
    bench: Bench, autojump_clock: MockClock, interval_s: int, lease_s: int
) -> None:
    bench.router.tunnel_s = (600, 580, 100)
    await publishing(bench)
    await trio.sleep(4 * interval_s + 1)
    times = [each.at_s for each in bench.published]
    assert times == pytest.approx([interval_s * i for i in range(5)])
    for each in bench.published:
        begun_s = START_MS // 1000 + round(each.at_s)
        lease_set = each.lease_set
        assert (lease_set.published_s, lease_set.expires_s) == (begun_s, 90)
        last_s = START_MS // 1000 + 100
        expected = [begun_s + lease_s] * 2 + [min(begun_s + lease_s, last_s)] * (begun_s < last_s)
        assert [lease.end_s for lease in lease_set.leases] == expected
        assert {lease.gateway for lease in lease_set.leases} == {bytes(range(32))}


async def test_tunnels_that_have_all_ended_are_not_published(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.tunnel_s = (60,)
    await publishing(bench)
    await trio.sleep(300)
    assert [each.at_s for each in bench.published] == pytest.approx([0, 25, 50])
    await bench.router.ask()
    await trio.sleep(26)
    assert [each.at_s for each in bench.published[3:]] == pytest.approx([300, 325])


async def test_newer_order_is_published_no_sooner_than_20_s_after_the_last(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    await trio.sleep(5)
    published = await bench.keeper.publish(bench.order(published_ms=START_MS + 5000))
    assert trio.current_time() == pytest.approx(20)
    assert published.lease_set == bench.published[-1].data
    await trio.sleep(24)
    assert [each.at_s for each in bench.published] == pytest.approx([0, 20])


async def test_equal_orders_are_one(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.standby()
    assert await bench.keeper.publish(bench.order()) == await bench.keeper.publish(bench.order())
    assert len(bench.published) == 1


@pytest.mark.parametrize("off_ms", [-300_000, 300_000])
async def test_lease_sets_are_dated_by_the_clock_of_the_router(
    bench: Bench, autojump_clock: MockClock, off_ms: int
) -> None:
    bench.clock_off_ms = off_ms
    first = await publishing(bench)
    assert first.lease_set.published_s == START_MS // 1000
    assert [lease.end_s for lease in first.lease_set.leases] == [START_MS // 1000 + 90]


async def test_router_whose_clock_is_set_right_dates_later_lease_sets_by_it(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    bench.router_off_ms = 60_000
    await trio.sleep(26)
    first, second = bench.published
    assert second.lease_set.published_s - first.lease_set.published_s == 25 + 60
    assert second.lease_set.leases[0].end_s - first.lease_set.leases[0].end_s == 25 + 60


@pytest.mark.parametrize("off_ms", [700_000, -700_000, 2**63])
async def test_router_whose_clock_leaps_far_is_not_followed(
    bench: Bench, autojump_clock: MockClock, off_ms: int
) -> None:
    await publishing(bench)
    bench.router_off_ms = off_ms
    await trio.sleep(40)
    assert bench.keeper.session is None
    assert "correct the wrong one" in bench.keeper.problem
    assert len(bench.published) <= 2
    bench.router_off_ms = 0
    await trio.sleep(30)
    assert bench.keeper.is_ready


async def test_lease_set_has_the_tunnels_that_last_longest_and_fits_into_a_status(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.router.tunnel_s = tuple(range(1, 17))
    first = await publishing(bench)
    ends = [lease.end_s - START_MS // 1000 for lease in first.lease_set.leases]
    assert ends == list(range(16, 6, -1))
    assert len(first.data) <= MAX_LEASE_SET_BYTES


async def test_publication_ends_with_its_last_lease(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.tunnel_s = (60,)
    await publishing(bench)
    session = bench.keeper.session
    assert session is not None
    assert session.is_publishing(59.0)
    assert not session.is_publishing(60.0)


async def test_no_lease_set_is_dated_before_its_order(bench: Bench, autojump_clock: MockClock) -> None:
    """The predecessor's clock may be ahead."""
    await bench.keeper.standby()
    published = await bench.keeper.publish(bench.order(published_ms=START_MS + 300_500))
    assert published.published_ms == START_MS + 301_000
    await trio.sleep(26)
    assert [each.lease_set.published_s - START_MS // 1000 for each in bench.published] == [301, 302]
    assert [each.lease_set.leases[0].end_s - START_MS // 1000 for each in bench.published] == [90, 115]


@pytest.mark.parametrize("after_ms", [10_000, 10_001, 10_500, 10_999])
async def test_successor_that_is_ordered_at_once_is_newer_than_what_was_published_again(
    bench: Bench, autojump_clock: MockClock, after_ms: int
) -> None:
    """Routers ask at any time, and a LeaseSet that is not newer is neither stored nor passed on."""
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order(published_ms=START_MS + 1))
    await trio.sleep(after_ms / 1000)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    ordered_ms = bench.router_ms() + 1
    date_s = -(-ordered_ms // 1000)
    assert bench.published[-1].lease_set.published_s < date_s
    await bench.keeper.retire(successor := bench.successor(later_s=date_s - bench.router_ms() // 1000))
    await wait_all_tasks_blocked()
    assert bench.given[-1].data == successor


async def test_keys_that_expire_end_the_session(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.tunnel_s = (2 * BUNDLE_S,)
    await publishing(bench)
    await trio.sleep(BUNDLE_S + 30)
    assert bench.keeper.session is None
    assert "have expired: make new bundles" in bench.keeper.problem
    for call in (bench.keeper.standby, lambda: bench.keeper.publish(bench.order(9))):
        with pytest.raises(PublisherError, match="have expired"):
            await call()
    assert bench.published[-1].at_s < BUNDLE_S


# ---------------------------------------------------------------------- retirement


async def test_retired_session_publishes_nothing_more_and_composes_nothing(
    bench: Bench, autojump_clock: MockClock
) -> None:
    first = await publishing(bench)
    await bench.keeper.retire(None)
    assert bench.configurations() == ["standby", "standby", "active", "standby"]
    await trio.sleep(50)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert [each.data for each in bench.given[-2:]] == [first.data, first.data]
    assert len(bench.published) == 1
    assert len(bench.router.bodies(CREATE_SESSION)) == 1


async def test_retired_session_serves_until_its_last_lease_is_forgotten_and_another_one_begins(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    await trio.sleep(30)  # published again at 25 s
    await bench.keeper.retire(None)
    await bench.keeper.standby()
    assert trio.current_time() == pytest.approx(30)
    await trio.sleep(25 + 90 + 60 - 30 - 1)
    assert bench.router.bodies(DESTROY_SESSION) == []
    await send(bench.router.streams[0], 31, SESSION + struct.pack(">II", 1, 3) + b"GET")
    await trio.sleep(2)
    assert bench.payloads == [b"GET"]
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]
    assert len(bench.router.bodies(CREATE_SESSION)) == 2
    assert bench.keeper.is_ready
    keys = {each.private_key for each in bench.given}
    assert len(keys) == 2
    assert not bench.given[-1].is_published


async def test_streams_end_before_the_session_that_served_them(
    bench: Bench, autojump_clock: MockClock
) -> None:
    """Another session must send nothing to these clients, nor would they find it."""
    await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(149)
    assert bench.router.bodies(SEND_MESSAGE) == []
    await trio.sleep(2)
    types = [type_ for _, type_, _ in bench.router.received]
    assert types[types.index(DESTROY_SESSION) - 1] == SEND_MESSAGE
    assert types.count(SEND_MESSAGE) == 1


@pytest.mark.parametrize("is_dead", [False, True])
async def test_session_after_a_retired_one_may_take_a_while_to_have_tunnels(
    bench: Bench, autojump_clock: MockClock, is_dead: bool
) -> None:
    """That is no reason to tell the farm that this member cannot publish."""
    await publishing(bench)
    bench.router.asks_after_s = None
    await bench.keeper.retire(None)
    await trio.sleep(152)
    assert len(bench.router.bodies(CREATE_SESSION)) == 2
    assert bench.keeper.is_ready
    if is_dead:
        await bench.router.kill()
        await wait_all_tasks_blocked()
    else:
        await trio.sleep(25)
    assert not bench.keeper.is_ready


async def test_successors_lease_set_is_passed_on_with_the_own_private_key_and_no_other_is(
    bench: Bench, autojump_clock: MockClock
) -> None:
    first = await publishing(bench)
    await bench.keeper.retire(None)
    await bench.keeper.standby()
    await trio.sleep(5)
    successor, another = bench.successor(), bench.successor(later_s=2)
    await bench.keeper.retire(successor)
    await bench.keeper.retire(another)
    await wait_all_tasks_blocked()
    assert [each.data for each in bench.given[2:]] == [successor]
    pushed = bench.given[-1]
    assert (pushed.private_key, pushed.is_published) == (first.private_key, False)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert [each.data for each in bench.given[2:]] == [successor, successor]


async def test_successors_lease_set_is_passed_on_again_until_it_has_expired(
    bench: Bench, autojump_clock: MockClock
) -> None:
    """i2pd gives it to no client that comes later, nor to one whose acknowledgement of an earlier LeaseSet
    arrives after it."""
    await publishing(bench)
    await trio.sleep(3)
    await bench.keeper.retire(successor := bench.successor(expires_s=60))
    await trio.sleep(7)
    await bench.keeper.standby()  # as nodes do twice a minute
    await trio.sleep(100)
    passed_on = [each for each in bench.given[2:] if each.data == successor]
    assert passed_on == bench.given[2:]
    assert [each.at_s for each in passed_on] == [3.0 + PASS_ON_S * i for i in range(13)]
    assert not any(each.is_published for each in passed_on)


async def test_successor_known_at_once_is_passed_on_after_the_retirement(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    await bench.keeper.retire(successor := bench.successor())
    await wait_all_tasks_blocked()
    assert bench.given[-1].data == successor
    assert not bench.given[-1].is_published


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("another destination", "another destination"),
        ("older", "older than what was published here"),
        ("equal", "older than what was published here"),
        ("signature", "signature does not match"),
        ("expired", "it has expired"),
        ("transient", "transient key has expired"),
        ("garbage", "not a destination"),
    ],
)
async def test_what_no_successor_publishes_is_not_passed_on(
    bench: Bench, autojump_clock: MockClock, case: str, sentence: str
) -> None:
    await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(3)
    expired = bundle(START_MS, expires_s=START_MS // 1000 + 2)
    successor = {
        "another destination": lambda: bench.successor(keys=long_term_keys(2)),
        "older": lambda: bench.successor(later_s=-60),
        "equal": lambda: bench.successor(later_s=-3),
        "signature": lambda: bench.successor()[:-1] + b"\x55",
        "expired": lambda: bench.successor(later_s=-2, expires_s=1),
        "transient": lambda: bench.successor(keys=expired),
        "garbage": lambda: b"no LeaseSet",
    }[case]()
    before = len(bench.given)
    await bench.keeper.retire(successor)
    await wait_all_tasks_blocked()
    assert len(bench.router.bodies(CREATE_LEASE_SET_2)) == before
    assert bench.keeper.problem.startswith("the successor's LeaseSet is not passed on to clients: ")
    assert sentence in bench.keeper.problem
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert sentence in bench.keeper.problem
    await bench.keeper.retire(successor := bench.successor())
    await wait_all_tasks_blocked()
    assert bench.given[-1].data == successor


async def test_successor_without_a_retired_session_changes_nothing(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await bench.keeper.standby()
    await bench.keeper.retire(bench.successor())
    await wait_all_tasks_blocked()
    assert len(bench.given) == 1
    assert (bench.keeper.is_ready, bench.keeper.problem) == (True, "")


async def test_named_again_while_it_drains_another_session_is_opened(
    bench: Bench, autojump_clock: MockClock
) -> None:
    first = await publishing(bench)
    await bench.keeper.retire(None)
    bench.router.asks_after_s = 4.0
    await trio.sleep(10)
    await bench.keeper.publish(bench.order(8, START_MS + 10_000))
    assert trio.current_time() == pytest.approx(14)
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]
    assert bench.published[-1].private_key != first.private_key
    assert bench.published[-1].lease_set.published_s > first.lease_set.published_s


async def test_named_again_before_any_other_was_the_session_goes_on(
    bench: Bench, autojump_clock: MockClock
) -> None:
    """As by a farm that had no leader for a while: clients notice nothing."""
    first = await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(30)
    await bench.keeper.standby()
    await bench.keeper.publish(bench.order(published_ms=bench.now_ms()))
    assert trio.current_time() == pytest.approx(30)
    assert bench.configurations() == ["standby", "standby", "active", "standby", "active"]
    assert bench.published[-1].private_key == first.private_key
    await trio.sleep(60)
    assert [each.at_s for each in bench.published] == pytest.approx([0, 30, 55, 80])
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    await trio.sleep(200)
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]


async def test_retired_again_before_it_was_active_again_it_composes_nothing(
    bench: Bench, autojump_clock: MockClock
) -> None:
    """Its clients know it: it goes on to serve them, and hands them over."""
    await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(5)
    with trio.move_on_after(5):  # the next LeaseSet is due 20 s after the last
        await bench.keeper.publish(bench.order(published_ms=bench.now_ms()))
    await bench.keeper.retire(None)
    await bench.router.ask()
    await wait_all_tasks_blocked()
    assert len({each.data for each in bench.given}) == 1
    successor = bench.successor()
    await bench.keeper.retire(successor)
    await wait_all_tasks_blocked()
    assert bench.given[-1].data == successor
    await trio.sleep(200)
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]


async def test_clients_are_sent_something_after_each_time_that_the_successor_is_passed_on(
    bench: Bench, autojump_clock: MockClock
) -> None:
    """A router sends a LeaseSet along with the next message. Beside a SYN answer it would come too early."""
    await publishing(bench)
    await bench.keeper.retire(None)
    bench.router.received.clear()
    await bench.keeper.retire(bench.successor())
    await trio.sleep(PASS_ON_S + 1)
    types = [type_ for _, type_, _ in bench.router.received if type_ in (CREATE_LEASE_SET_2, SEND_MESSAGE)]
    assert types == [CREATE_LEASE_SET_2, SEND_MESSAGE] * 2


async def test_named_again_after_a_successor_the_session_does_not_go_on(
    bench: Bench, autojump_clock: MockClock
) -> None:
    first = await publishing(bench)
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    await bench.keeper.publish(bench.order(published_ms=START_MS + 1000))
    assert bench.published[-1].private_key != first.private_key


async def test_retired_before_it_was_active_the_session_stays_on_standby(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.router.asks_after_s = 13.0
    with trio.move_on_after(5):
        await bench.keeper.publish(bench.order())
    await bench.keeper.retire(None)
    await trio.sleep(300)
    assert bench.published == []
    assert len(bench.router.bodies(CREATE_SESSION)) == 1


async def test_router_that_does_not_read_the_retirement_loses_its_connection(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    bench.router.is_silent = True
    await bench.keeper.retire(None)
    assert trio.current_time() == pytest.approx(2)
    assert bench.keeper.session is None
    assert not bench.keeper.is_ready


async def test_retired_at_a_router_that_has_died_is_retired_at_once(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    bench.is_up = False
    await bench.router.kill()
    await bench.keeper.retire(None)
    await bench.keeper.retire(bench.successor())
    assert trio.current_time() == pytest.approx(0)


# ---------------------------------------------------------------------- a router that fails


async def test_router_that_dies_is_noticed_at_once(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    bench.is_up = False
    told: list[tuple[bool, str]] = []

    async def tell() -> None:
        await bench.keeper.wait_changed()
        told.append((bench.keeper.is_ready, bench.keeper.problem))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        await wait_all_tasks_blocked()
        await bench.router.kill()
    assert trio.current_time() == pytest.approx(0)
    assert told == [(False, "the router at 127.0.0.1:7654 has closed the connection")]
    assert bench.keeper.session is None
    with pytest.raises(PublisherError, match="Connection refused"):
        await bench.keeper.standby()


async def test_router_that_hangs_is_noticed_after_two_heartbeats(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await bench.keeper.standby()
    await trio.sleep(60)
    assert bench.keeper.is_ready
    bench.router.is_silent = True
    await trio.sleep(10.1)
    assert not bench.keeper.is_ready
    assert bench.keeper.problem == "I2CP at 127.0.0.1:7654 has not answered for 5 s"


async def test_router_that_is_started_again_serves_a_new_session_on_standby(
    bench: Bench, autojump_clock: MockClock
) -> None:
    first = await publishing(bench)
    bench.is_up = False
    await bench.router.kill()
    await bench.keeper.retire(None)
    await trio.sleep(40)
    assert bench.connected_at == pytest.approx([0, 1, 3, 7, 15, 31])
    bench.is_up = True
    await trio.sleep(30)
    assert bench.keeper.is_ready
    assert not bench.given[-1].is_published
    assert bench.given[-1].private_key != first.private_key


async def test_order_that_stands_is_carried_out_in_the_next_session(
    bench: Bench, autojump_clock: MockClock
) -> None:
    first = await publishing(bench)
    await trio.sleep(10)
    await send(bench.router.streams[0], 20, SESSION + b"\0")
    await trio.sleep(2)
    assert [each.at_s for each in bench.published] == pytest.approx([0, 11])
    assert bench.published[1].private_key != first.private_key
    assert bench.published[1].lease_set.published_s > first.lease_set.published_s


async def test_streams_outlast_a_session_that_dies_as_long_as_an_order_stands(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    bench.is_up = False
    await bench.router.kill()
    await trio.sleep(10)
    assert bench.abandoned_at == []
    await bench.keeper.retire(None)
    assert bench.abandoned_at == pytest.approx([10])


async def test_streams_end_with_a_retired_session_that_dies(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    await bench.keeper.retire(None)
    await trio.sleep(10)
    assert bench.abandoned_at == []
    await bench.router.kill()
    await wait_all_tasks_blocked()
    assert bench.abandoned_at == pytest.approx([10])


async def test_keys_that_have_expired_on_standby_publish_nothing(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await bench.keeper.standby()
    await trio.sleep(BUNDLE_S + 1)
    with pytest.raises(PublisherError, match="have expired"):
        await bench.keeper.publish(bench.order())
    assert bench.configurations() == ["standby", "standby"]
    assert bench.keeper.session is not None


async def test_keys_that_have_expired_by_the_routers_clock_only_open_no_session_again_and_again(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.router_off_ms = 300_000
    await bench.keeper.standby()
    await trio.sleep(BUNDLE_S - 290)
    bench.router.received.clear()
    bench.connected_at.clear()
    await bench.router.ask()
    problems = set()
    for _ in range(200):
        await trio.sleep(1)
        problems.add(bench.keeper.problem)
    (problem,) = problems
    assert "have expired by the router's clock: make new bundles" in problem
    assert bench.router.bodies(CREATE_SESSION) == []
    assert len(bench.connected_at) < 12


async def test_router_that_answers_everything_twice_is_of_use(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await bench.keeper.standby()
    (stream,) = bench.router.streams
    await send(stream, 20, SESSION + b"\1")
    await send(stream, 33, struct.pack(">Q", bench.router_ms()) + b"\x062.45.1")
    await bench.keeper.publish(bench.order())
    await wait_all_tasks_blocked()
    await send(stream, 20, SESSION + b"\2")
    await trio.sleep(30)
    assert bench.router.streams == [stream]
    assert len(bench.published) == 2


async def test_session_that_was_of_use_is_opened_again_soon(bench: Bench, autojump_clock: MockClock) -> None:
    bench.router.statuses = [3] * 4
    await trio.sleep(20)
    for _ in range(2):
        await bench.router.kill()
        await trio.sleep(5)
    assert bench.connected_at == pytest.approx([0, 1, 3, 7, 15, 21, 26])


@pytest.mark.parametrize(("status", "word"), [(3, "invalid"), (4, "refused"), (0, "ended the session")])
async def test_refused_session_is_reported_and_tried_again_with_back_off(
    bench: Bench, autojump_clock: MockClock, status: int, word: str
) -> None:
    bench.router.statuses = [status] * 6
    with pytest.raises(PublisherError, match=word):
        await bench.keeper.standby()
    await trio.sleep(200)
    assert bench.router.times(CREATE_SESSION) == pytest.approx([0, 1, 3, 7, 15, 31, 61])
    assert (bench.keeper.is_ready, bench.keeper.problem) == (True, "")


async def test_clock_that_is_far_off_opens_no_session(bench: Bench, autojump_clock: MockClock) -> None:
    bench.clock_off_ms = -1_000_000
    with pytest.raises(PublisherError, match="s ahead of this node's; correct the wrong one"):
        await bench.keeper.standby()
    assert bench.router.bodies(CREATE_SESSION) == []


async def test_keeper_that_is_cancelled_ends_its_session(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    bench.running.cancel()
    await wait_all_tasks_blocked()
    assert bench.router.bodies(DESTROY_SESSION) == [SESSION]
    assert bench.router.streams == []
    assert bench.keeper.session is None


# ---------------------------------------------------------------------- messages of peers


async def test_messages_pass_in_both_directions_in_order(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    for i in range(MAX_QUEUED):
        bench.keeper.send(b"peer", b"%d" % i)
    await send(bench.router.streams[0], 31, SESSION + struct.pack(">II", 1, 3) + b"SYN")
    await trio.sleep(1)
    assert bench.payloads == [b"SYN"]
    bodies = bench.router.bodies(SEND_MESSAGE)
    prefix = SESSION + b"peer"
    assert [body.removeprefix(prefix)[4:-4] for body in bodies] == [b"%d" % i for i in range(MAX_QUEUED)]


async def test_what_is_queued_is_sent_before_the_session_ends(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    await wait_all_tasks_blocked()
    bench.running.cancel()
    bench.keeper.send(b"peer", b"RESET")
    await wait_all_tasks_blocked()
    types = [type_ for _, type_, _ in bench.router.received]
    assert types[-2:] == [SEND_MESSAGE, DESTROY_SESSION]


async def test_message_without_a_session_is_dropped_and_counted(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.is_up = False
    await trio.sleep(1)
    bench.keeper.send(b"peer", b"early")
    bench.is_up = True
    await publishing(bench)
    assert bench.keeper.dropped == {"no session": 1}
    assert bench.router.bodies(SEND_MESSAGE) == []


async def test_session_on_standby_sends_nothing_to_peers(bench: Bench, autojump_clock: MockClock) -> None:
    await bench.keeper.standby()
    bench.keeper.send(b"peer", b"late")
    await publishing(bench)
    await bench.keeper.retire(None)
    bench.keeper.send(b"peer", b"answer")
    await trio.sleep(200)
    bench.keeper.send(b"peer", b"later")
    await trio.sleep(1)
    assert [body[10:-4] for body in bench.router.bodies(SEND_MESSAGE)] == [b"answer", b"RESET"]
    assert bench.keeper.dropped == {"on standby": 2}


async def test_queue_is_bounded_and_tells_when_it_has_room(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    bench.rooms.clear()
    for _ in range(MAX_QUEUED + 1):
        bench.keeper.send(b"peer", bytes(2000))
    assert bench.keeper.room == 0
    assert bench.keeper.dropped == {"queue full": 1}
    await trio.sleep(1)
    assert len(bench.router.bodies(SEND_MESSAGE)) == MAX_QUEUED
    assert 0 < bench.rooms[0] < bench.rooms[-1] == MAX_QUEUED


async def test_queue_has_room_when_its_session_has_ended(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    for _ in range(MAX_QUEUED):
        bench.keeper.send(b"peer", bytes(2000))
    bench.rooms.clear()
    await bench.router.kill()
    await trio.sleep(0.5)
    assert bench.rooms[-1] == MAX_QUEUED


async def test_message_of_an_earlier_session_is_not_sent_in_the_next(
    bench: Bench, autojump_clock: MockClock
) -> None:
    """Its id may be another."""
    await publishing(bench)
    await bench.router.kill()
    bench.keeper.send(b"peer", b"late")
    await trio.sleep(2)
    assert bench.keeper.session is not None
    assert bench.router.bodies(SEND_MESSAGE) == []


async def test_requests_are_answered_while_much_is_queued(bench: Bench, autojump_clock: MockClock) -> None:
    await publishing(bench)
    for _ in range(60):
        bench.keeper.send(b"peer", bytes(60_000))
    await bench.router.ask()
    await trio.sleep(1)
    types = [type_ for _, type_, _ in bench.router.received]
    answer = len(types) - 1 - types[::-1].index(CREATE_LEASE_SET_2)
    assert types[answer:].count(SEND_MESSAGE) > types[:answer].count(SEND_MESSAGE)


async def test_router_that_floods_with_requests_is_answered_without_queueing_answers(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    bench.router.is_silent = True
    for _ in range(1000):
        await bench.router.ask()
    await wait_all_tasks_blocked()
    session = bench.keeper.session
    assert session is not None
    assert len(session.take_messages()) < 10


async def test_router_that_asks_all_the_time_is_answered_a_few_times_a_second(
    bench: Bench, autojump_clock: MockClock
) -> None:
    await publishing(bench)
    before = len(bench.given)
    for _ in range(100):
        await trio.sleep(0.01)
        await bench.router.ask()
    await trio.sleep(1)
    assert 2 <= len(bench.given) - before <= 6


def test_plans_keep_their_headers_beyond_the_next_publication() -> None:
    """i2pd's floodfills drop an entry 51 s before its header expires."""
    for plan in (DEFAULT, FAST):
        assert plan.header_s >= 51 + plan.republish_s
    assert msgspec.structs.astuple(DEFAULT) == (90, 90, 25)
    assert msgspec.structs.astuple(FAST) == (50, 90, 30)
