"""The publishing task: what a node orders, and what it reports of its publishers."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.config import PublisherSection
from garlicfarm.credentials.destination_keys import create_keys
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.lease_set import MetaLease, decode_meta_lease_set, verify_meta_lease_set
from garlicfarm.node.publisher.boot_clock import boot_ms
from garlicfarm.node.publisher.published_record import PublishedRecord
from garlicfarm.node.publisher.publishing_task import PublishingTask
from garlicfarm.publisher import KeyReport, Published, Publisher, PublisherSite
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.publishing.lease import Lease
from garlicfarm_plugin_simulated.publisher import SimulatedPublisher, SimulatedPublisherConfig

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

    def has_duplicate_transients(self, member: int) -> bool:
        return self.duplicates

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
    context, fold = cast(ApplicationContext, named), cast(PublisherApplication, named)
    return PublishingTask(context, fold, lease, keys, plugins, record)


async def until(condition: Any) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - of several objects, without an event in common
            await trio.sleep(0.01)


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
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        await task.wait_confirmed()
        assert task.publishing_to_report is False
        assert task.describe()[0]["state"] == "standby"
        named.name(1)
        await until(lambda: made.order is not None)
        await until(lambda: task.publishing_to_report is True)
        assert task.describe()[0]["state"] == "publishing"
        await until(lambda: task.last_published_ms)
        named.duplicates = True  # another member signs with the same transient key
        assert task.publishing_to_report is None
        named.name(2)
        assert task.publishing_to_report is True  # until it has retired
        await until(lambda: made.order is None)
        await until(lambda: task.publishing_to_report is None)
        nursery.cancel_scope.cancel()
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
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task.run)
            await trio.testing.wait_all_tasks_blocked()
            assert task.publishing_to_report is expected
            nursery.cancel_scope.cancel()


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
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        await task.wait_confirmed()
        assert task.publishing_to_report is False
        cast(WithKey, made).expires_ms = 0
        await until(lambda: task.keys() == [made.key])
        assert task.publishing_to_report is None  # it has expired
        nursery.cancel_scope.cancel()


async def test_publishes_nothing_with_a_key_that_it_must_not_use_though_it_is_named(tmp_path: Path) -> None:
    """The farm names such a member where no other can publish either."""
    named, made = Named(), plugin(tmp_path, WithKey)
    named.duplicates = True
    task = task_of(named, tmp_path, made)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(task.run)
        await task.wait_confirmed()
        await trio.testing.wait_all_tasks_blocked()
        assert made.order is None
        named.duplicates = False
        named.name(1)
        await until(lambda: made.order is not None)
        cast(WithKey, made).expires_ms = 0
        named.name(1)
        await until(lambda: made.order is None)
        nursery.cancel_scope.cancel()


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
    record.add(Published(published_ms=1))
    assert PublishedRecord(path).newest == Published(published_ms=1)
    meta = Published(published_ms=2, lease_set=b"meta")
    record.add(meta)
    record.add(Published(published_ms=3))
    assert PublishedRecord(path).newest == record.newest == meta
    assert msgspec.json.decode(path.read_bytes())["published_ms"] == 2
