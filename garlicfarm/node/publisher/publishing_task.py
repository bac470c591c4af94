"""Has the publishers of a farm publish while this node is the publisher, within its lease.

It also says what to report of them, and what of that cannot wait for the next status: that this member can no
longer publish, that it has let the role go, and the LeaseSet that it has published, which its predecessor
passes on to its clients.

Source: docs/reference/protocol.md, D19, D22 and "The common algorithm", points 3 and 6.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Sequence
from typing import Any, NoReturn

import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import PublisherError
from garlicfarm.i2p.encoding import decode, encode
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.lease_set import MetaLeaseSet, encode_meta_lease_set, verify_lease_set
from garlicfarm.node.publisher import boot_clock
from garlicfarm.node.publisher.hosted_publisher import HostedPublisher
from garlicfarm.node.publisher.published_record import PublishedRecord
from garlicfarm.node.publisher.withdrawal import Withdrawal
from garlicfarm.publisher import KeyReport, Published, Publisher, PublishOrder
from garlicfarm.publishing.documents import MAX_LEASE_SET_BYTES, DestinationStatus
from garlicfarm.publishing.entries import DATE_END_MS
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.lease import Lease, lease_ms

MAX_EXPIRES_S = 65_535  # a LeaseSet's header has 16 bits for it
WATCH_S = 1.0  # services, keys and time change without an event


class PublishingTask:
    """Runs the publishers of one farm, tells them this node's role (it is their
    `garlicfarm.node.publisher.hosted_publisher.PublisherRole`), and says what to report of them.

    ``lease`` is this process's, kept by the status reporter. ``keys``: of the master destination.
    """

    def __init__(
        self,
        context: ApplicationContext,
        fold: PublisherFold,
        lease: Lease,
        keys: DestinationKeys | None,
        publishers: Sequence[Publisher],
        record: PublishedRecord,
    ) -> None:
        self._context = context
        self._fold = fold
        self._lease = lease
        self._keys = keys
        self._record = record
        self._withdrawal = Withdrawal()
        self._announced_since: int | None = None  # the turn of the successor that was announced last
        self._changed = trio.Event()
        are_all_auxiliary = all(plugin.is_auxiliary for plugin in publishers)
        self.publishers = []
        for plugin, section in zip(publishers, context.section.publisher, strict=True):
            is_required = section.required
            if is_required == "auto":
                is_required = are_all_auxiliary or not plugin.is_auxiliary
            hosted = HostedPublisher(plugin, section, self, context.log, is_required=is_required)
            self.publishers.append(hosted)

    async def run(self) -> NoReturn:
        """Run them until cancelled; then they stop."""
        async with trio.open_nursery() as nursery:
            for publisher in self.publishers:
                nursery.start_soon(publisher.run)
            while True:
                await self._context.wait_applied(self._context.applied_index)
                self._announce_successor()
                self.on_changed()
        raise AssertionError("unreachable: it runs until cancelled")

    async def wait_confirmed(self) -> None:
        """Return when every publisher has confirmed that nothing of an earlier process is published."""
        for publisher in self.publishers:
            await publisher.confirmed.wait()

    # ------------------------------------------------------------------ the role

    @property
    def is_due(self) -> bool:
        return self._is_named and self._fold.due_since is not None and self._may_sign

    @property
    def _is_named(self) -> bool:
        return self._fold.publisher == self._context.node_id

    @property
    def lease_ms(self) -> int:
        return lease_ms(self._fold.interval_ms, self._fold.R)

    @property
    def lease_left_ms(self) -> int:
        expires_ms = self._lease.expires_ms
        return 0 if expires_ms is None else max(0, expires_ms - boot_clock.boot_ms())

    @property
    def listed(self) -> Hashable:
        return tuple((lease.hash, lease.cost) for lease in self._fold.leases())

    @property
    def forced_index(self) -> int:
        return self._fold.publish_index

    def order(self) -> PublishOrder:
        fold, now_ms = self._fold, time.time_ns() // 1_000_000
        published_ms = fold.published_ms(now_ms)
        if published_ms >= DATE_END_MS:
            raise PublisherError(
                "this node's clock shows a date after 2106-02-07, which no LeaseSet can have"
            )
        published_s = published_ms // 1000
        leases = fold.leases()
        end_s = max(
            (lease.end_date for lease in leases), default=published_s + fold.policy.lifetime_ms // 1000
        )
        expires_s = min(max(end_s - published_s, 1), MAX_EXPIRES_S)
        lease_set = None
        if self._keys is not None and leases:
            keys = self._keys
            meta = MetaLeaseSet(
                destination=keys.destination,
                published_s=published_s,
                expires_s=expires_s,
                leases=leases,
                offline=keys.offline,
            )
            lease_set = encode_meta_lease_set(meta, keys.sign)
        assert fold.due_since is not None
        return PublishOrder(
            due_index=fold.due_since,
            published_ms=published_ms,
            expires_ms=published_ms + expires_s * 1000,
            lease_set=lease_set,
        )

    async def on_published(self, published: Published) -> None:
        if not self._record.add(published):
            return
        try:
            await trio.to_thread.run_sync(self._record.write, abandon_on_cancel=True)
        except OSError as error:  # it is published all the same
            self._context.log.warning("publication-not-recorded", cause=str(error))

    async def wait_changed(self) -> None:
        await self._context.wait_applied(self._context.applied_index)

    def on_changed(self) -> None:
        fold, withdrawal, log = self._fold, self._withdrawal, self._context.log
        others_can = any(
            member != self._context.node_id and self._reports_publishing(member) for member in fold.eligible()
        )
        if withdrawal.observe(
            trio.current_time(), can_publish=self.can_publish, others_can=others_can, pause_s=self._pause_s
        ):
            if withdrawal.is_withdrawn:
                log.warning("cannot-publish", cause="; ".join(self._problems()) or "for no known reason")
            else:
                log.info("can-publish")
        self._changed.set()
        self._changed = trio.Event()

    def _reports_publishing(self, member: int) -> bool:
        newest = self._fold.newest(member)
        return newest is not None and newest[1].meta is not None and newest[1].meta.publishing is not None

    @property
    def _pause_s(self) -> float:
        return self._fold.R * self._fold.interval_ms / 1000

    def _announce_successor(self) -> None:
        """Once this node has stopped, tell its clients of the LeaseSet that the next publisher has
        published; once for each."""
        fold = self._fold
        if fold.publisher is None or self._is_named or fold.due_since in (None, self._announced_since):
            return
        report = fold.report(fold.publisher)
        if report.lease_set is None or (report.applied or 0) < (fold.due_since or 0):
            return
        self._announced_since = fold.due_since
        data = decode(report.lease_set)
        try:
            lease_set = verify_lease_set(data, time.time_ns() // 1_000_000_000)
        except ValueError as error:
            self._context.log.warning("successor-refused", member=fold.publisher, cause=str(error))
            return
        for publisher in self.publishers:
            last = publisher.published
            is_its = publisher.destination == lease_set.destination
            if is_its and last is not None and lease_set.published_s * 1000 > last.published_ms:
                publisher.announce(data)

    # ------------------------------------------------------------------ what to report

    @property
    def can_publish(self) -> bool:
        """Whether all required publishers are ready, their services up and their keys valid, and no other
        member with a lower id signs with the same transient key."""
        required = [publisher for publisher in self.publishers if publisher.is_required]
        return (
            bool(self.publishers)
            and all(publisher.is_ready for publisher in required)
            and all(publisher.check is None or publisher.check.is_up for publisher in required)
            and self._may_sign
        )

    @property
    def _may_sign(self) -> bool:
        """Whether this node's clock can be right, and all keys are valid, and no other member's. If no member
        can publish, the farm names one that cannot."""
        now_ms = time.time_ns() // 1_000_000
        is_shared = self._fold.has_duplicate_transients(self._context.node_id)
        is_valid = not is_shared and all(key.expires_ms > now_ms for key in self.keys())
        return is_valid and not self._fold.clock_problem(now_ms)

    @property
    def publishing_to_report(self) -> bool | None:
        """The value of ``meta.publishing`` in the status; None: leave the key out.

        After this node has lost the role, the next publisher starts once this one reports false. So it
        reports true until every publisher has confirmed that it stopped.
        """
        publishers = self.publishers
        is_able = self.can_publish and not self._withdrawal.is_withdrawn
        if self._is_named:
            if not is_able:
                return None
            return any(publisher.is_publishing or publisher.is_starting for publisher in publishers)
        if self._may_be_published:
            return True
        return False if is_able else None

    @property
    def _may_be_published(self) -> bool:
        return any(publisher.may_be_published(self.lease_ms) for publisher in self.publishers)

    @property
    def news(self) -> frozenset[tuple[str, int]]:
        """What cannot wait for the next status, each with the index, or the number, of the change that it
        belongs to: ``withdrawn``, ``released``, ``published``."""
        found: set[tuple[str, int]] = set()
        if self._withdrawal.is_withdrawn:
            found.add(("withdrawn", self._withdrawal.count))
        taken = self._fold.taken_index(self._context.node_id)
        if taken is not None and not self._may_be_published:
            found.add(("released", taken))
        if self.lease_set is not None:
            found.add(("published", self._fold.due_since or 0))
        return frozenset(found)

    async def wait_news(self) -> None:
        """Return when `news` may have changed."""
        with trio.move_on_after(WATCH_S):
            await self._changed.wait()
            return
        self.on_changed()

    @property
    def lease_set(self) -> bytes | None:
        """The LeaseSet of a service, as this node has given it to its router; None unless it publishes one
        that a status can carry."""
        master = None if self._keys is None else self._keys.destination
        for publisher in self.publishers if self._is_named else ():
            published = publisher.published if publisher.is_publishing else None
            if published is not None and publisher.destination not in (None, master):
                data = published.lease_set
                if data is not None and len(data) <= MAX_LEASE_SET_BYTES:
                    return data
        return None

    @property
    def last_published_ms(self) -> int | None:
        """When a router has last taken something, wall clock, 0: never; None without publishers."""
        if not self.publishers:
            return None
        newest = self._record.newest
        recorded_ms = 0 if newest is None else newest.published_ms
        if newest is not None and newest.lease_set is not None:
            return recorded_ms  # of the Meta LeaseSet, which is reported beside it
        return max([recorded_ms, *(publisher.status.published_ms or 0 for publisher in self.publishers)])

    @property
    def last_published_ls(self) -> bytes | None:
        """Its bytes, where they are known."""
        return None if self._record.newest is None else self._record.newest.lease_set

    def leaves(self) -> list[DestinationStatus]:
        """The leaves that publishers serve, with the figures that their sessions give."""
        master = None if self._keys is None else self._keys.destination
        return [
            publisher.status.leaf or DestinationStatus(destination=encode(publisher.destination))
            for publisher in self.publishers
            if publisher.destination is not None and publisher.destination != master
        ]

    def is_backend_up(self, destination: bytes) -> bool:
        """Whether the service behind a leaf answers; True where nothing checks it."""
        return all(
            publisher.check.is_up
            for publisher in self.publishers
            if publisher.destination == destination and publisher.check is not None
        )

    def describe(self) -> list[dict[str, Any]]:
        """Each publisher, for the farm's status: ready for JSON. ``state``: `HostedPublisher.state`."""
        clock = self._fold.clock_problem(time.time_ns() // 1_000_000)
        own = [f"this node's clock {clock}"] if clock else []
        return [
            {
                "plugin": publisher.name,
                "required": publisher.is_required,
                "state": publisher.state,
                "since_ms": publisher.status.since_ms,
                "until_ms": publisher.status.until_ms,
                "problems": [*own, *publisher.problems(), *self._withdrawal_problem(publisher)],
            }
            for publisher in self.publishers
        ]

    def _withdrawal_problem(self, publisher: HostedPublisher) -> list[str]:
        """Why a publisher that is ready is not offered to the farm."""
        if not (self._withdrawal.is_withdrawn and self.can_publish and publisher.is_required):
            return []
        left_s = self._withdrawal.left_s(trio.current_time(), self._pause_s)
        return [f"it could not publish recently, so this node offers itself again in {math.ceil(left_s)} s"]

    def _problems(self) -> list[str]:
        return [problem for publisher in self.publishers for problem in publisher.problems()]

    def keys(self) -> list[KeyReport]:
        """The offline keys that this node signs with, each once."""
        found = [publisher.key for publisher in self.publishers]
        if self._keys is not None and self._keys.transient is not None and self._keys.expires_ms is not None:
            found.append(KeyReport(transient=self._keys.transient, expires_ms=self._keys.expires_ms))
        return list({key.transient: key for key in found if key is not None}.values())
