"""Publishes the Meta LeaseSet while this node is the publisher, within its lease.

Source: docs/reference/protocol.md, "The common algorithm", point 6.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from hashlib import sha256
from typing import NoReturn

import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import NotSupported, RouterError
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.publishing.lease import Lease, lease_ms
from garlicfarm.publishing.meta_leaseset import MetaLease, encode_contents
from garlicfarm.router import Router

__all__ = ["PublishingTask", "boot_ms"]

ROUTER_TIMEOUT_S = 30.0
REPUBLISH_S = 60.0
RETRY_S = 5.0
WATCH_S = 1.0  # timers stop while the machine is suspended, the lease does not


def boot_ms() -> int:
    """Milliseconds of a clock that counts the time while the machine is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class PublishingTask:
    """Starts and stops publishing through the router.

    ``lease`` is this process's, kept by the status reporter. ``is_publishing``: whether the router
    accepted the last contents; None if it cannot publish. ``last_published_ms``: the ``published``
    date last given to the router, 0 = never by this process. ``cleared``: the router has confirmed that it
    publishes nothing of an earlier process.
    """

    def __init__(
        self,
        context: ApplicationContext,
        fold: PublisherApplication,
        router: Router,
        master: bytes,
        lease: Lease,
    ) -> None:
        self._context = context
        self._fold = fold
        self._router = router
        self._master_hash = sha256(master).digest()
        self._lease = lease
        self._published: list[tuple[bytes, int]] = []  # hash and cost of each published leaf
        self._published_at = -REPUBLISH_S
        self._half_life_s = 0.0
        self._may_be_published = False  # the router may have accepted it despite its answer
        self._silent_since_ms: int | None = None  # since when it does not confirm that it stopped
        self.is_publishing: bool | None = None
        self.last_published_ms = 0
        self.cleared = trio.Event()

    @property
    def publishing_to_report(self) -> bool | None:
        """The value of ``meta.publishing`` in the status. After this node has lost the role, the next
        publisher starts once this one reports false. So it reports true until its router has confirmed
        that it stopped. It waits for a silent router as long as the farm waits for a dead node: a lease."""
        named = self._fold.publisher == self._context.node_id
        if self.is_publishing is None or named or not self._may_be_published:
            return self.is_publishing
        wait_ms = lease_ms(self._fold.interval_ms, self._fold.R)
        return self._silent_since_ms is None or boot_ms() < self._silent_since_ms + wait_ms

    async def run(self) -> NoReturn:
        """Publish whenever it is this node's turn, until cancelled; then stop."""
        # Withdraw the publication of an earlier process, and find out whether the router can publish at all.
        # It may still be starting.
        while not await self._withdraw():  # noqa: ASYNC110 - a router does not say when it is up
            await trio.sleep(RETRY_S)
        self.cleared.set()
        try:
            while True:
                pause_s = RETRY_S
                if self.is_publishing is not None:
                    pause_s = await self._follow()
                with trio.move_on_after(pause_s):
                    await self._context.wait_applied(self._context.applied_index)
        finally:
            if self._may_be_published:
                with trio.move_on_after(1, shield=True):
                    await self._withdraw()

    async def _follow(self) -> float:
        """Start or stop publishing if due; the seconds until the next look, at most."""
        now_ms, expires_ms = boot_ms(), self._lease.expires_ms
        if expires_ms is None or not self._fold.may_publish(self._context.node_id, now_ms, expires_ms):
            if self._may_be_published:
                await self._withdraw()
            return RETRY_S
        left_s = (expires_ms - now_ms) / 1000
        leases = self._fold.leases()
        listed = [(lease.hash, lease.cost) for lease in leases]
        age_s = trio.current_time() - self._published_at
        is_due = age_s >= (REPUBLISH_S if listed != self._published else max(self._half_life_s, REPUBLISH_S))
        if leases and is_due:
            # The router must not start late, when the lease no longer covers it.
            with trio.move_on_after(min(left_s, ROUTER_TIMEOUT_S)) as scope:
                await self._publish(leases)
            if scope.cancelled_caught:
                self._on_failure("no answer in time")
        return max(0.0, min((expires_ms - boot_ms()) / 1000, WATCH_S if self.is_publishing else RETRY_S))

    async def _publish(self, leases: Sequence[MetaLease]) -> None:
        now_ms = time.time_ns() // 1_000_000
        published_ms = self._fold.published_ms(now_ms)
        self._may_be_published, self._silent_since_ms = True, None
        try:
            await self._router.publish_meta_ls(self._master_hash, encode_contents(leases))
        except NotSupported:
            self.is_publishing = None
            return
        except RouterError as error:
            self._on_failure(str(error))
            return
        if not self.is_publishing:
            self._context.log.info("publishing", leases=len(leases))
        self.is_publishing = True
        self.last_published_ms = published_ms
        self._published_at = trio.current_time()
        self._half_life_s = (min(lease.end_date for lease in leases) - now_ms / 1000) / 2
        self._published = [(lease.hash, lease.cost) for lease in leases]

    def _on_failure(self, cause: str) -> None:
        self._context.log.warning("publish-failed", cause=cause)
        self.is_publishing = False

    async def _withdraw(self) -> bool:
        """Stop publishing; False: the router did not confirm it."""
        try:
            with trio.fail_after(ROUTER_TIMEOUT_S):
                await self._router.stop_publishing_meta_ls(self._master_hash)
        except NotSupported:
            self.is_publishing = None
            return True
        except (RouterError, trio.TooSlowError) as error:
            self._context.log.warning("withdraw-failed", cause=str(error) or "no answer in time")
            self._silent_since_ms = boot_ms() if self._silent_since_ms is None else self._silent_since_ms
            return False
        if self.is_publishing:
            self._context.log.info("not-publishing")
        self.is_publishing = self._may_be_published = False
        self._silent_since_ms = None
        self._published = []
        self._published_at = -REPUBLISH_S
        return True
