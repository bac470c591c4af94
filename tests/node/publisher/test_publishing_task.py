"""The publishing task: what a node orders, and what it reports of its publishers."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
from garlicfarm.node.publisher.boot_clock import boot_ms
from garlicfarm.node.publisher.publishing_task import PublishingTask

from garlicfarm.application import ApplicationContext
from garlicfarm.config import PublisherSection
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.errors import PublisherError
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.lease_set import MetaLease, decode_meta_lease_set, verify_meta_lease_set
from garlicfarm.node.publisher.published_record import PublishedRecord
from garlicfarm.publisher import KeyReport, Published, Publisher, PublisherSite, PublisherStatus, PublishOrder
from garlicfarm.publishing.documents import MAX_LEASE_SET_BYTES, MetaStatus, NodeReport
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import Lease
from garlicfarm_plugin_simulated.publisher import SimulatedPublisher, SimulatedPublisherConfig
from tests.i2p.encodings import lease_set_2, long_term
from tests.running import background, wait_until

NOW_S = int(time.time())
LEAVES = (MetaLease(b"a" * 32, 0, NOW_S + 3600), MetaLease(b"b" * 32, 3, NOW_S + 1800))


class Named:
    """Context and fold in one: node 1, named or not, with the leaves above."""

    def __init__(self, publishers: int = 1, **section: Any) -> None:
        self.node_id, self.applied_index, self.publisher, self.due_since = 1, 9, 1, 7
        self.interval_ms, self.R, self.publish_index = 30_000, 3, 0
        self.policy = SimpleNamespace(lifetime_ms=3_600_000)
        self.log = SimpleNamespace(info=lambda *a, **k: None, warning=self._warn)
        self.warnings: list[str] = []
        table = PublisherSection(plugin="simulated", **section)
        self.section = SimpleNamespace(publisher=(table,) * publishers)
        self.duplicates = False
        self.able = [2]  # members other than this one that can publish
        self.reports: dict[int, NodeReport] = {}
        self.taken: int | None = None
        self.clock = ""
        self.applied = trio.Event()

    def name(self, publisher: int) -> None:
        self.publisher = publisher
        self.applied.set()
        self.applied = trio.Event()

    def _warn(self, event: str, **fields: object) -> None:
        self.warnings.append(event)

    def leases(self) -> tuple[MetaLease, ...]:
        return LEAVES

    def published_ms(self, own_ms: int) -> int:
        return max(own_ms, (NOW_S + 5) * 1000)

    def eligible(self) -> list[int]:
        return self.able

    def newest(self, member: int) -> tuple[int, Any] | None:
        return None if member not in self.able else (1, SimpleNamespace(meta=MetaStatus(publishing=False)))

    def report(self, member: int) -> NodeReport:
        return self.reports.get(member, NodeReport())

    def taken_index(self, holder: int) -> int | None:
        return self.taken

    def has_duplicate_transients(self, member: int) -> bool:
        return self.duplicates

    def clock_problem(self, date_ms: int) -> str:
        return self.clock

    async def wait_applied(self, beyond: int) -> None:
        await self.applied.wait()


class WithKey(SimulatedPublisher):
    """It has a destination, and a key made offline."""

    expires_ms = (NOW_S + 1000) * 1000

    @property
    def destination(self) -> bytes:
        return bytes(391)

    @property
    def key(self) -> KeyReport:
        return KeyReport(transient="00" * 8, expires_ms=self.expires_ms)


def plugin(tmp_path: Path, kind: type[SimulatedPublisher] = SimulatedPublisher) -> SimulatedPublisher:
    site = PublisherSite(farm="farm", node_id=1, directory=tmp_path / "publisher")
    return kind(SimulatedPublisherConfig(), tmp_path, site)


def task_of(named: Named, tmp_path: Path, *plugins: Publisher, keys: Any = None) -> PublishingTask:
    lease = Lease()
    begun_ms = boot_ms()
    lease.begin(begun_ms, 30_000, 3)
    lease.committed(begun_ms)
    record = PublishedRecord(tmp_path / "publisher" / "published.json")
    context, fold = cast(ApplicationContext, named), cast(PublisherFold, named)
    return PublishingTask(context, fold, lease, keys, plugins, record)


async def test_order_has_the_signed_meta_lease_set_with_the_folds_date(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "master.key")
    order = task_of(Named(0), tmp_path, keys=keys).order()
    assert order.lease_set is not None
    verify_meta_lease_set(order.lease_set, NOW_S + 6)
    meta = decode_meta_lease_set(order.lease_set)
    assert meta.destination == keys.destination
    assert (meta.published_s, meta.leases) == (order.published_ms // 1000, LEAVES)
    assert meta.published_s >= NOW_S + 5
    assert meta.published_s + meta.expires_s == NOW_S + 3600  # with the last of its leaves
    assert (order.due_index, order.expires_ms // 1000) == (7, NOW_S + 3600)


def test_order_after_the_last_date_of_a_lease_set_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(Named(0), tmp_path, keys=create_keys(tmp_path / "master.key"))
    monkeypatch.setattr(time, "time_ns", lambda: 2**32 * 10**9)
    with pytest.raises(PublisherError, match="this node's clock shows a date after 2106-02-07"):
        task.order()


async def test_node_whose_clock_is_wrong_does_not_publish_and_says_so(tmp_path: Path) -> None:
    named = Named()
    task = task_of(named, tmp_path, plugin(tmp_path))
    async with background(task.run):
        await wait_until(lambda: task.publishing_to_report is True)
        named.clock = "is 9 days behind the farm's: correct it"
        named.name(1)
        await wait_until(lambda: task.publishing_to_report is None)
        await wait_until(lambda: task.describe()[0]["state"] == "standby")
        (row,) = task.describe()
        assert row["problems"] == ["this node's clock is 9 days behind the farm's: correct it"]


async def test_order_without_master_keys_has_no_lease_set(tmp_path: Path) -> None:
    assert task_of(Named(0), tmp_path).order().lease_set is None


async def test_node_without_publishers_reports_none_and_nothing_published(tmp_path: Path) -> None:
    task = task_of(Named(0), tmp_path)
    assert task.publishing_to_report is None
    assert task.last_published_ms is None
    assert task.describe() == []


async def test_reports_what_its_publisher_does_from_standby_to_retirement(tmp_path: Path) -> None:
    named, made = Named(), plugin(tmp_path)
    task = task_of(named, tmp_path, made)
    named.publisher = 2
    assert task.publishing_to_report is None  # not ready
    async with background(task.run):
        await task.wait_confirmed()
        assert task.publishing_to_report is False
        assert task.describe()[0]["state"] == "standby"
        named.name(1)
        await wait_until(lambda: made.order is not None)
        await wait_until(lambda: task.publishing_to_report is True)
        assert task.describe()[0]["state"] == "publishing"
        await wait_until(lambda: task.last_published_ms)
        named.duplicates = True  # another member signs with the same transient key
        assert task.publishing_to_report is None
        named.name(2)
        assert task.publishing_to_report is True  # until it has retired
        await wait_until(lambda: made.order is None)
        await wait_until(lambda: task.publishing_to_report is None)
    again = task_of(named, tmp_path, plugin(tmp_path))
    assert again.last_published_ms == task.last_published_ms


async def test_required_publisher_that_is_not_ready_keeps_the_node_from_publishing(tmp_path: Path) -> None:
    for required, expected in ((True, None), (False, False)):
        named, made = Named(required=required), plugin(tmp_path)
        named.publisher = 2

        async def hang(call: str) -> None:
            await trio.sleep_forever()

        made.on_call = hang
        task = task_of(named, tmp_path, made)
        async with background(task.run):
            await trio.testing.wait_all_tasks_blocked()
            assert task.publishing_to_report is expected


# A member that can no longer publish (D22)


async def test_member_whose_router_is_gone_withdraws_and_reports_it_as_news(tmp_path: Path) -> None:
    named, made = Named(), plugin(tmp_path)
    task = task_of(named, tmp_path, made)
    async with background(task.run):
        await wait_until(lambda: task.describe()[0]["state"] == "publishing")
        assert task.news == frozenset()
        made.kill_router()
        await wait_until(lambda: task.news)
        assert task.news == {("withdrawn", 1)}
        assert task.publishing_to_report is None
        assert named.warnings[:2] == ["publication-lost", "cannot-publish"]
        await wait_until(lambda: not any(each.may_be_published(task.lease_ms) for each in task.publishers))
        named.taken = 10
        named.name(2)
        await wait_until(lambda: len(task.news) == 2)
        assert task.news == {("withdrawn", 1), ("released", 10)}
        assert task.publishing_to_report is None


async def test_withdrawn_member_offers_itself_after_r_intervals_with_its_router(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    named, made = Named(), plugin(tmp_path)
    named.publisher = 2
    task = task_of(named, tmp_path, made)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        nursery.start_soon(_report, task)
        await trio.sleep(1)
        assert task.publishing_to_report is False
        made.kill_router()
        await trio.sleep(60)
        assert task.publishing_to_report is None
        made.start_router()
        await trio.sleep(6)
        assert task.describe()[0]["state"] == "standby"
        (problem,) = task.describe()[0]["problems"]
        assert problem.startswith("it could not publish recently, so this node offers itself again in ")
        await trio.sleep(80)
        assert task.publishing_to_report is None
        await trio.sleep(10)
        assert task.publishing_to_report is False
        assert task.describe()[0]["problems"] == []
        nursery.cancel_scope.cancel()


async def test_only_member_that_can_publish_offers_itself_as_soon_as_its_router_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def write_nothing(task: PublishingTask, published: Published) -> None:
        """No thread, whose time is not the test's."""

    monkeypatch.setattr(PublishingTask, "on_published", write_nothing)
    named, made = Named(), plugin(tmp_path)
    named.able = []
    task = task_of(named, tmp_path, made)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        nursery.start_soon(_report, task)
        await trio.sleep(1)
        made.kill_router()
        await trio.sleep(1)
        assert task.publishing_to_report is None  # and the farm names no other, since there is none
        made.start_router()
        await trio.sleep(6)
        assert task.publishing_to_report is True
        assert made.order is not None
        nursery.cancel_scope.cancel()


async def _report(task: PublishingTask) -> None:
    """As the status reporter does, look for news."""
    while True:
        await task.wait_news()


# The LeaseSet of the next publisher (D22)


class Service(SimulatedPublisher):
    """It publishes a LeaseSet2 of its own for each order."""

    keys = long_term(b"\7" * 32)

    @property
    def destination(self) -> bytes:
        return self.keys.destination

    async def publish(self, order: PublishOrder) -> Published:
        published = await super().publish(order)
        data = lease_set_2(self.keys, order.published_ms // 1000, 90, ())
        return msgspec.structs.replace(published, lease_set=data)


async def test_lease_set_of_a_service_is_news_while_it_is_published(tmp_path: Path) -> None:
    named, made = Named(), plugin(tmp_path, Service)
    task = task_of(named, tmp_path, made)
    async with background(task.run):
        assert task.lease_set is None
        await wait_until(lambda: task.lease_set)
        assert task.last_published_ls is None  # that is a Meta LeaseSet's
        assert task.last_published_ms
        assert task.news == {("published", 7)}
        named.name(2)
        assert task.lease_set is None
        assert task.news == frozenset()


async def test_date_of_what_a_service_has_published_again_by_itself_is_reported(tmp_path: Path) -> None:
    """So that its successor dates what it publishes later, whichever clocks are right."""

    again_ms = 2 * NOW_S * 1000

    class Again(Service):
        async def status(self) -> PublisherStatus:
            return msgspec.structs.replace(await super().status(), published_ms=again_ms)

    task = task_of(Named(), tmp_path, plugin(tmp_path, Again))
    async with background(task.run):
        await wait_until(lambda: task.last_published_ms == again_ms)


@pytest.mark.parametrize("size", [MAX_LEASE_SET_BYTES, MAX_LEASE_SET_BYTES + 1])
async def test_lease_set_that_is_too_large_for_a_status_is_left_out(tmp_path: Path, size: int) -> None:
    class Large(Service):
        async def publish(self, order: PublishOrder) -> Published:
            published = await super().publish(order)
            return msgspec.structs.replace(published, lease_set=bytes(size))

    task = task_of(Named(), tmp_path, plugin(tmp_path, Large))
    async with background(task.run):
        await wait_until(lambda: task.describe()[0]["state"] == "publishing")
        assert (task.lease_set is None) is (size > MAX_LEASE_SET_BYTES)


OTHER = long_term(b"\6" * 32)


@pytest.mark.parametrize(
    ("keys", "ahead_s", "begun_at", "is_announced"),
    [
        (Service.keys, 60, 12, True),
        (Service.keys, 60, 11, False),  # of an earlier turn
        (Service.keys, -600, 12, False),  # expired, and older than what this node published
        (Service.keys, -10, 12, False),
        (OTHER, 60, 12, False),
    ],
    ids=["newer", "of-an-earlier-turn", "expired", "older", "of-another-destination"],
)
async def test_lease_set_of_the_next_publisher_is_announced_once_if_it_is_a_newer_one_of_the_service(
    tmp_path: Path, keys: DestinationKeys, ahead_s: int, begun_at: int, is_announced: bool
) -> None:
    named, made = Named(), plugin(tmp_path, Service)
    successor = lease_set_2(keys, int(time.time()) + ahead_s, 90, ())
    task = task_of(named, tmp_path, made)
    calls: list[str] = []
    async with background(task.run):
        await wait_until(lambda: task.lease_set)
        named.due_since = None
        named.name(2)
        await wait_until(lambda: made.order is None)
        await trio.testing.wait_all_tasks_blocked()

        async def note(call: str) -> None:
            calls.append(call)

        made.on_call = note
        named.due_since = 12
        named.reports[2] = NodeReport(applied=begun_at, lease_set=encode(successor))
        for _ in range(3):
            named.name(2)
            await trio.testing.wait_all_tasks_blocked()
    assert made.successor == (successor if is_announced else None)
    assert calls.count("retire") == is_announced


async def test_lease_set_that_is_forged_is_refused_and_told(tmp_path: Path) -> None:
    named, made = Named(), plugin(tmp_path, Service)
    forged = bytearray(lease_set_2(Service.keys, int(time.time()) + 60, 90, ()))
    forged[-1] ^= 1
    task = task_of(named, tmp_path, made)
    async with background(task.run):
        await wait_until(lambda: task.lease_set)
        named.due_since, named.reports[2] = 12, NodeReport(applied=12, lease_set=encode(bytes(forged)))
        named.name(2)
        await wait_until(lambda: named.warnings)
        assert named.warnings == ["successor-refused"]
        assert made.successor is None


class Auxiliary(SimulatedPublisher):
    is_auxiliary = True


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((SimulatedPublisher, Auxiliary), [True, False]),
        ((Auxiliary, Auxiliary), [True, True]),
    ],
)
@pytest.mark.parametrize("required", [True, False, "auto"])
def test_auxiliary_publisher_is_required_by_default_only_without_another_kind(
    tmp_path: Path, kinds: Any, expected: list[bool], required: Any
) -> None:
    plugins = [plugin(tmp_path, kind) for kind in kinds]
    task = task_of(Named(2, required=required), tmp_path, *plugins)
    found = [row["required"] for row in task.describe()]
    assert found == (expected if required == "auto" else [required, required])


async def test_leaf_of_a_publisher_and_its_key_are_reported(tmp_path: Path) -> None:
    named, made = Named(), plugin(tmp_path, WithKey)
    named.publisher = 2
    task = task_of(named, tmp_path, made)
    assert [leaf.destination for leaf in task.leaves()] == [encode(bytes(391))]
    assert task.keys() == [made.key]
    async with background(task.run):
        await task.wait_confirmed()
        assert task.publishing_to_report is False
        cast(WithKey, made).expires_ms = 0
        await wait_until(lambda: task.keys() == [made.key])
        assert task.publishing_to_report is None  # it has expired


async def test_publishes_nothing_with_a_key_that_it_must_not_use_though_it_is_named(tmp_path: Path) -> None:
    """The farm names such a member where no other can publish either."""
    named, made = Named(), plugin(tmp_path, WithKey)
    named.duplicates = True
    task = task_of(named, tmp_path, made)
    async with background(task.run):
        await task.wait_confirmed()
        await trio.testing.wait_all_tasks_blocked()
        assert made.order is None
        named.duplicates = False
        named.name(1)
        await wait_until(lambda: made.order is not None)
        cast(WithKey, made).expires_ms = 0
        named.name(1)
        await wait_until(lambda: made.order is None)


@pytest.mark.parametrize("damage", [b"", b"{", b'{"published_ms":"x"}', b'{"published_ms":-1}'])
def test_record_that_is_damaged_is_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "published.json").write_bytes(damage)
    assert PublishedRecord(tmp_path / "published.json").newest is None


def test_record_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "published.json").mkdir()
    assert PublishedRecord(tmp_path / "published.json").newest is None


def test_record_keeps_a_meta_lease_set_before_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "publisher" / "published.json"
    record = PublishedRecord(path)
    assert record.add(Published(published_ms=1))
    record.write()
    assert PublishedRecord(path).newest == Published(published_ms=1)
    meta = Published(published_ms=2, lease_set=b"meta")
    assert record.add(meta)
    record.write()
    assert not record.add(Published(published_ms=3))
    assert PublishedRecord(path).newest == record.newest == meta
    assert msgspec.json.decode(path.read_bytes())["published_ms"] == 2
