"""Posts the local router's status, every interval of the farm's, and keeps its own lease clock."""

from __future__ import annotations

import time
from typing import NoReturn

import trio

from garlicfarm._version import __version__
from garlicfarm.config import FarmSection
from garlicfarm.errors import EntryRefused, GarlicFarmError, NotSupported, RouterError
from garlicfarm.node.publisher.publishing_task import PublishingTask, boot_ms
from garlicfarm.node.replica import Replica
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.publishing.documents import (
    ConnectTest,
    DestinationStatus,
    MetaStatus,
    NodeReport,
    RemoteRouter,
    RouterStatus,
    StatusDocument,
)
from garlicfarm.publishing.entries import encode_status
from garlicfarm.publishing.i2p_base64 import decode_destination, encode, router_hash
from garlicfarm.publishing.lease import Lease, lease_ms
from garlicfarm.router import Router

__all__ = ["StatusReporter"]

ROUTER_TIMEOUT_S = 5.0
RETRY_PAUSE_S = 0.5


class StatusReporter:
    """One member's statuses.

    A status that may or may not have been committed is posted again, the same bytes, until its outcome
    is known: its ``sequence`` makes the repetition harmless (D17).
    """

    def __init__(
        self,
        farm: Replica,
        application: PublisherApplication,
        router: Router | None,
        publisher: PublishingTask | None,
        lease: Lease,
        admin_url: str | None,
    ) -> None:
        self._farm = farm
        self._application = application
        self._router = router
        self._publisher = publisher
        self._lease = lease
        self._admin_url = admin_url
        self._section: FarmSection = farm.section
        self._sequence = 0
        self._posted = trio.Event()
        self._sensed: frozenset[int] = frozenset()  # silent members that were tried since they are

    async def run(self) -> NoReturn:
        """Post until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sense)
            await self._post_all()
        raise AssertionError("unreachable: it posts for ever")

    async def _sense(self) -> NoReturn:
        """After each status: of members that have fallen silent, see anew which this node reaches, and where
        that is one, whether it reaches all others as well. Their connections may be up only because nothing
        was sent on them, and who reaches more than the leader is made leader
        (`garlicfarm.node.publisher.handover`)."""
        peers, application = self._farm.peers, self._application
        while True:
            await self._posted.wait()
            self._posted = trio.Event()
            others = frozenset(application.members) - {self._farm.node_id}
            silent = frozenset(member for member in others if not application.is_recent(member))
            # An idle connection outlives a trial that failed; nobody else would find that it failed but once.
            doubted = frozenset(
                member
                for member in others
                if peers.connected(member) and (test := peers.handshake(member)) and not test[1]
            )
            await peers.try_handshakes(silent | doubted)
            if any((test := peers.handshake(member)) and test[1] for member in silent):
                await peers.try_handshakes(others - silent)
            self._sensed = silent

    async def _post_all(self) -> NoReturn:
        while self._farm.applied_index == 0:  # nothing is known of the farm before it has a leader
            await self._farm.wait_applied(0)
        if self._publisher is not None:
            # Its first status lets others publish: not while the router may still do so for an earlier
            # process. One that does not answer is waited for as long as a dead node's would be.
            application = self._application
            with trio.move_on_after(lease_ms(application.interval_ms, application.R) / 1000):
                await self._publisher.cleared.wait()
        due = trio.current_time()
        while True:
            begun_ms = boot_ms()
            named_ms = self._application.interval_ms
            self._lease.begin(begun_ms, named_ms, self._application.R)
            try:
                entry = encode_status(await self._status())
                await self._post(entry)
                # The fold skips a status whose sequence is not above the last, as after a clock that was
                # set back: nobody counts it, so no lease rests on it.
                if self._application.last_sequence(self._farm.node_id) == self._sequence:
                    self._lease.committed(begun_ms)
            except EntryRefused as error:
                self._farm.log.error("status-refused", cause=str(error))
            self._posted.set()
            due = await self._next_turn(due, named_ms)

    async def _next_turn(self, last_due: float, named_ms: int) -> float:
        """Wait an interval, never less; a shorter one takes force at once. A longer one begins with the next
        status: the lease rests on ``named_ms``, which the last one named, and would end long before. Returns
        when it was due."""
        begun = trio.current_time()
        while True:
            interval_ms = self._application.interval_ms
            due = max(last_due + min(interval_ms, named_ms) / 1000, begun)
            with trio.move_on_at(due):
                while self._application.interval_ms == interval_ms:
                    await self._farm.wait_applied(self._farm.applied_index)
                continue
            return due

    async def _post(self, entry: bytes) -> None:
        """Returns once the entry is committed and applied here."""
        while True:
            try:
                index, _ = await self._farm.post_entry(entry, self._farm.node_id)
            except EntryRefused:
                raise
            except GarlicFarmError as error:
                self._farm.log.warning("status-not-posted", cause=str(error))
                await trio.sleep(RETRY_PAUSE_S)
            else:
                break
        while self._farm.applied_index < index:
            await self._farm.wait_applied(self._farm.applied_index)

    async def _status(self) -> StatusDocument:
        farm, application = self._farm, self._application
        now_ms = time.time_ns() // 1_000_000
        self._sequence = max(application.last_sequence(farm.node_id) + 1, now_ms)
        status = farm.raw.status()
        node = NodeReport(
            version=__version__,
            term=status.term,
            role=status.role.value,
            commit=status.commit,
            applied=farm.applied_index,
            interval_ms=application.interval_ms,
            R=application.R,
            admin_url=self._admin_url,
        )
        deadline = trio.current_time() + ROUTER_TIMEOUT_S
        destinations = [await self._leaf(leaf.destination, deadline) for leaf in self._section.leaf]
        others = [member for member in application.members if member != farm.node_id]
        return StatusDocument(
            cluster=farm.name,
            date=now_ms,
            id=farm.node_id,
            sequence=self._sequence,
            config={"node": node},
            meta=self._meta(),
            router=await self._router_status(deadline),
            destinations=tuple(destinations),
            remote_routers=tuple(map(self._remote_router, others)) or None,
        )

    def _remote_router(self, member: int) -> RemoteRouter:
        """What this node's own handshakes say of the other member's router (D9); of one that is silent, those
        that were made since it is."""
        handshake, newest = self._farm.peers.handshake(member), self._application.newest(member)
        if member not in self._sensed and not self._application.is_recent(member):
            handshake = None
        router = newest[1].router if newest else None
        info = router.last_published_ri if router else None
        return RemoteRouter(
            hash=encode(router_hash(info)) if info else None,
            member=member,
            connect_test=ConnectTest(ms=round(handshake[0] * 1000), ok=handshake[1]) if handshake else None,
        )

    def _meta(self) -> MetaStatus:
        meta = self._section.meta
        publisher = self._publisher
        return MetaStatus(
            destination=meta.destination or None,
            publish_config=meta.publish,
            last_published_time=publisher.last_published_ms if publisher else None,
            publishing=publisher.reported if publisher else None,
        )

    async def _router_status(self, deadline: float) -> RouterStatus | None:
        if self._router is None:
            return None
        try:
            with trio.fail_at(deadline):
                status = await self._router.get_local_router_status()
        except (RouterError, trio.TooSlowError) as error:
            self._count("error")
            self._farm.log.warning("router-silent", cause=str(error) or "no answer in time")
            return None
        self._count("ok")
        return status

    async def _leaf(self, destination: str, deadline: float) -> DestinationStatus:
        """What the router says of a leaf; what it cannot be asked is left out (D13)."""
        if self._router is not None:
            try:
                with trio.fail_at(deadline):
                    return await self._router.get_local_leaf_status(decode_destination(destination))
            except NotSupported:
                self._count("not-supported")
            except (RouterError, trio.TooSlowError) as error:
                self._count("error")
                self._farm.log.warning("router-silent", cause=str(error) or "no answer in time")
        return DestinationStatus(destination=destination)

    def _count(self, outcome: str) -> None:
        self._farm.metrics.count_router_request(str(self._section.router.get("plugin", "")), outcome)
