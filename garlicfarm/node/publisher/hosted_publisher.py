"""Runs one publisher plugin: has it publish while this node has the role, and stop in time.

A plugin that fails never hurts another one or the node: its errors are logged, and it is tried again. One
that does not stop in time is left, which ends what it has opened. One that has stopped may still serve its
clients; it is told who publishes next once that is known (`HostedPublisher.announce`).

Source: docs/reference/protocol.md, D19 and "The common algorithm", point 6.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Literal, NoReturn, Protocol

import msgspec
import trio

from garlicfarm.config import PublisherSection
from garlicfarm.errors import PublisherError, first_error
from garlicfarm.logs import EventLogger
from garlicfarm.node.publisher import boot_clock
from garlicfarm.node.publisher.backend_check import make_check
from garlicfarm.node.publisher.plugin_answers import checked_key, checked_published, checked_status
from garlicfarm.publisher import Published, Publisher, PublisherStatus, PublishOrder

State = Literal["not ready", "standby", "starting", "publishing", "retiring"]

STANDBY_TIMEOUT_S = 60.0
CHECK_S = 30.0  # between two checks whether it is still ready
PUBLISH_TIMEOUT_S = 120.0  # sessions of routers were seen to become reachable after 75 s
REPUBLISH_S = 60.0
FORCED_S = 20.0  # between two publications that administrators ordered, as routers limit them
RETRY_S = 5.0
WATCH_S = 1.0  # timers stop while the machine is suspended, the lease does not
MIN_WATCH_S = 0.02  # between two answers of a plugin that says all the time that it has changed
STATUS_TIMEOUT_S = 10.0  # a plugin answers at once


class PublisherRole(Protocol):
    """What a publisher needs to know of the role that the farm has given to this node."""

    @property
    def is_due(self) -> bool:
        """Whether this node is named, and the only holder."""
        ...

    @property
    def lease_ms(self) -> int:
        """How long a lease lasts from its beginning."""
        ...

    @property
    def lease_left_ms(self) -> int:
        """How long the lease of this process lasts; 0: it has none, or it is over."""
        ...

    @property
    def listed(self) -> Hashable:
        """What the Meta LeaseSet lists: another value when it has to be published anew."""
        ...

    @property
    def forced_index(self) -> int:
        """The index of the newest order of an administrator to publish now, 0: none."""
        ...

    def order(self) -> PublishOrder:
        """The order to carry out now. Raises `PublisherError`: nothing can be published."""
        ...

    async def on_published(self, published: Published) -> None:
        """A router has taken it. Of the bytes only those of a Meta LeaseSet are given."""

    async def wait_changed(self) -> None:
        """Return when some of this may have changed."""
        ...

    def on_changed(self) -> None:
        """What the publisher says of itself may have changed."""
        ...


class HostedPublisher:
    """``plugin``, and what is known of its work.

    ``is_ready``: it is on standby, or publishes. ``is_publishing``: a router has taken its last order, and
    the publication stands as far as the plugin knows. ``is_starting``: its first attempt is under way.
    ``published``: what the router has taken; after it has stopped in order, what it took last, until its
    clients know of a successor. ``confirmed``: that nothing of an earlier process is published. ``problem``:
    why it does not publish, "" if nothing is wrong. ``status`` and ``key``: the plugin's newest.
    ``destination``: as the plugin's.
    """

    def __init__(
        self,
        plugin: Publisher,
        section: PublisherSection,
        role: PublisherRole,
        log: EventLogger,
        *,
        is_required: bool,
    ) -> None:
        self.plugin = plugin
        self.name = section.plugin
        self.is_required = is_required
        self.check = make_check(section)
        self._retire_timeout_s = section.retire_timeout_s
        self._role = role
        self._log = log
        self.is_ready = self.is_publishing = self.is_starting = False
        self.published: Published | None = None
        self.confirmed = trio.Event()
        self.problem = ""
        self.status = PublisherStatus(is_publishing=False)
        self.destination = plugin.destination
        self.key = checked_key(plugin.key)
        self._may_be_published = False  # a router may publish it, whatever it answered
        self._is_ordered = False  # since it was entered, and it has not stopped since
        self._unconfirmed_since_ms: int | None = None  # since when it does not confirm that it stopped
        self._is_retired = False  # and `standby` has not ended since
        self._successor: bytes | None = None  # to be announced
        self._attempt: trio.CancelScope | None = None
        self._standing_by = trio.CancelScope()
        self._inside = trio.CancelScope()
        self._check_at = self._retry_at = self._published_at = -math.inf
        self._half_life_s = 0.0
        self._listed: Hashable = None
        self._forced_index = 0
        self._changed = trio.Event()

    @property
    def state(self) -> State:
        """What it does."""
        if self.is_publishing:
            return "publishing" if self._may_publish() else "retiring"
        if not self.is_ready:
            return "not ready"
        return "starting" if self._may_publish() else "standby"

    def problems(self) -> list[str]:
        """Why it does not do its work, one sentence each."""
        found = [self.problem, *self.status.problems, "" if self.check is None else self.check.problem]
        return list(dict.fromkeys(filter(None, found)))

    def may_be_published(self, lease_ms: int) -> bool:
        """Whether others have to wait: a router may still publish for this node. A plugin that does not
        confirm its end is waited for as long as the farm waits for a dead node: ``lease_ms``."""
        since_ms = self._unconfirmed_since_ms
        return self._may_be_published and (since_ms is None or boot_clock.boot_ms() < since_ms + lease_ms)

    def announce(self, successor: bytes) -> None:
        """Have the plugin tell its clients of ``successor``, a LeaseSet of its destination that another
        member has published; unless this one is published again, or still."""
        if self._may_be_published:
            return
        self._successor = successor
        if self._is_retired:
            self._standing_by.cancel()  # that may take long
        self._changed.set()

    async def run(self) -> NoReturn:
        """Run the plugin until cancelled; then have it stop."""
        async with trio.open_nursery() as nursery:
            if self.check is not None:
                nursery.start_soon(self.check.run)
            while True:
                try:
                    with trio.CancelScope() as self._inside:
                        await self._enter()
                except* Exception as group:  # noqa: BLE001 - a plugin's defect is not the node's
                    found = first_error(group)
                    self._note("publisher-failed", f"{type(found).__name__}: {found}")
                self._role.on_changed()
                await trio.sleep(RETRY_S if self.problem else 0)
        raise AssertionError("unreachable: it runs until cancelled")

    async def _enter(self) -> None:
        async with self.plugin as plugin:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_role)
                    nursery.start_soon(self._watch_lease)
                    nursery.start_soon(self._watch_plugin, plugin)
                    await self._work_or_stop(plugin)
            finally:
                self._on_leaving()  # which may take any time

    async def _work_or_stop(self, plugin: Publisher) -> None:
        try:
            await self._work(plugin)
        except BaseException as error:
            node_ends = isinstance(first_error(error), trio.Cancelled) and not self._inside.cancel_called
            if node_ends and self._may_be_published:
                left_s = self._role.lease_left_ms / 1000
                with trio.move_on_after(min(self._retire_s(), left_s), shield=True):
                    await self._retire(plugin)
            raise

    def _on_leaving(self) -> None:
        self._check_at = -math.inf
        self._attempt = None
        self.is_ready = self.is_publishing = self.is_starting = self._is_ordered = False
        if self._may_be_published and self._unconfirmed_since_ms is None:
            self._unconfirmed_since_ms = boot_clock.boot_ms()
        self._is_retired, self._successor, self.published = False, None, None
        self.status = PublisherStatus(is_publishing=False)

    async def _work(self, plugin: Publisher) -> NoReturn:
        while True:
            self._role.on_changed()
            if self.is_ready and self._may_publish():
                if self._is_due():
                    await self._publish(plugin)
                    continue
            elif self._may_be_published:
                await self._stop(plugin)
                continue
            elif self._successor is not None:
                await self._announce(plugin, self._successor)
                continue
            elif trio.current_time() >= self._check_at:
                await self._stand_by(plugin)
                continue
            await self._pause()

    async def _stand_by(self, plugin: Publisher) -> None:
        """Get ready, or see whether it still is: a node whose router has died must not be named."""
        cause = "not ready in time"
        with trio.CancelScope() as self._standing_by, trio.move_on_after(STANDBY_TIMEOUT_S):
            try:
                await plugin.standby()
            except PublisherError as error:
                cause = str(error)
            else:
                cause = ""
        if self._standing_by.cancelled_caught:
            return
        self.is_ready, self._is_retired = not cause, False
        self._check_at = trio.current_time() + (RETRY_S if cause else CHECK_S)
        if cause:
            self._note("publisher-not-ready", cause)
        else:
            self.problem = ""
            self._on_stopped()
            self.confirmed.set()

    async def _pause(self) -> None:
        """Until the role has changed, or the plugin's work; not for long, since time passes, too."""
        with trio.move_on_after(RETRY_S):
            await self._changed.wait()
        self._changed = trio.Event()
        await trio.lowlevel.checkpoint_if_cancelled()  # the end of the lease wakes and cancels at once

    async def _watch_role(self) -> NoReturn:
        """At all times: a role that changed just before a pause would be noticed only after it."""
        while True:
            await self._role.wait_changed()
            self._changed.set()

    async def _watch_lease(self) -> NoReturn:
        """Stop what must not go on: an attempt without the role, anything at all after the lease."""
        while True:
            if not self._may_publish():
                if self._attempt is not None:
                    self._attempt.cancel()
                if self._may_be_published:
                    self._changed.set()
            left_s = self._role.lease_left_ms / 1000
            if self._is_ordered and not left_s:
                self._leave("the lease is over")
            await trio.sleep(min([WATCH_S, *(s for s in (left_s, left_s - self._retire_s()) if s > 0)]))

    async def _watch_plugin(self, plugin: Publisher) -> NoReturn:
        while True:
            with trio.move_on_after(STATUS_TIMEOUT_S) as waiting:
                self.status = checked_status(await plugin.status(), self.destination)
                self.key = checked_key(plugin.key)
            if waiting.cancelled_caught:
                self._leave(f"it has given no status within {STATUS_TIMEOUT_S:g} s")
            else:
                self._on_status()
            asked_at = trio.current_time()
            with trio.move_on_after(WATCH_S):
                await plugin.wait_changed()
            await trio.sleep_until(asked_at + MIN_WATCH_S)

    def _on_status(self) -> None:
        """Notice what it has lost. That it is not ready between `retire` and `standby` is no loss."""
        status = self.status
        cause = "; ".join(status.problems) or "for no known reason"
        if self.is_publishing and not (status.is_publishing and status.is_ready):
            self._note("publication-lost", cause)
        elif self.is_ready and not status.is_ready and not self._is_retired:
            self._note("standby-lost", cause)
        else:
            return
        self.is_publishing = self.is_ready = False
        self.published = None
        self._check_at = -math.inf
        self._role.on_changed()
        self._changed.set()

    def _may_publish(self) -> bool:
        return self._role.is_due and self._role.lease_left_ms > self._retire_s() * 1000

    def _retire_s(self) -> float:
        """How long it may take to stop: at most a quarter of a lease, which may be short."""
        return min(self._retire_timeout_s, self._role.lease_ms / 4000)

    def _is_due(self) -> bool:
        """Whether to publish now: at first and after a failure; then at half the lifetime and when the list
        has changed, at most once a minute; and once after each order of an administrator."""
        age_s = trio.current_time() - self._published_at
        if not self.is_publishing:
            return trio.current_time() >= self._retry_at
        if self._role.forced_index > self._forced_index and age_s >= FORCED_S:
            return True
        lasts_s = self._half_life_s if self._role.listed == self._listed else 0.0
        return age_s >= max(lasts_s, REPUBLISH_S)

    async def _publish(self, plugin: Publisher) -> None:
        role = self._role
        listed, forced_index = role.listed, role.forced_index
        try:
            order = role.order()
        except PublisherError as error:
            self._on_publish_failed(str(error))
            return
        self.is_starting = not (self._may_be_published or self.problem)
        self._may_be_published, self._unconfirmed_since_ms = True, None
        self._is_ordered = True
        cause = "not published in time"
        with trio.move_on_after(PUBLISH_TIMEOUT_S) as attempt:
            self._attempt = attempt
            try:
                published = checked_published(await plugin.publish(order))
            except PublisherError as error:
                cause = str(error)
            else:
                cause = ""
        self._attempt, self.is_starting = None, False
        if cause:
            if not self._on_publish_failed(cause):
                return
            if attempt.cancelled_caught:
                await self._stop(plugin)
            return
        self.published, self._successor = published, None
        if not self.is_publishing:
            self._log.info("publishing", publisher=self.name, due_index=order.due_index)
        self.is_publishing, self.problem = True, ""
        self._listed, self._forced_index = listed, forced_index
        self._published_at = trio.current_time()
        self._half_life_s = (order.expires_ms - order.published_ms) / 2000
        with trio.CancelScope() as self._attempt:  # a disk that hangs does not keep it from stopping
            is_meta = published.lease_set == order.lease_set
            await role.on_published(
                published if is_meta else msgspec.structs.replace(published, lease_set=None)
            )
        self._attempt = None

    def _on_publish_failed(self, cause: str) -> bool:
        """Have it tried again later. Returns whether this node still has the role."""
        self.is_publishing = False
        self._retry_at = trio.current_time() + RETRY_S
        if not self._may_publish():
            self._changed.set()  # it has to retire
            return False
        self._note("publish-failed", cause)
        return True

    async def _stop(self, plugin: Publisher) -> None:
        """Have it retire, in time, or leave it."""
        with trio.move_on_after(self._retire_s()):
            await self._retire(plugin)
        if self._may_be_published:
            self._leave("it did not stop in time")
            await trio.lowlevel.checkpoint()

    async def _retire(self, plugin: Publisher) -> None:
        try:
            await plugin.retire(None)
        except PublisherError as error:
            self._note("retire-failed", str(error))
        else:
            if self.is_publishing:
                self._log.info("not-publishing", publisher=self.name)
            self._on_stopped()
            self._is_retired, self._check_at = True, -math.inf

    async def _announce(self, plugin: Publisher, successor: bytes) -> None:
        self._successor = self.published = None
        cause = "not in time"
        with trio.move_on_after(self._retire_s()):
            try:
                await plugin.retire(successor)
            except PublisherError as error:
                cause = str(error)
            else:
                cause = ""
        if cause:
            self._note("successor-not-announced", cause)
            self._check_at = -math.inf
        else:
            self._log.info("successor-announced", publisher=self.name)

    def _on_stopped(self) -> None:
        """Nothing is published for this node any more, and that is certain."""
        self.is_publishing = self._may_be_published = self._is_ordered = False
        self._unconfirmed_since_ms = None
        self._retry_at = -math.inf

    def _leave(self, cause: str) -> None:
        self._note("publisher-left", cause)
        self._on_leaving()
        self._role.on_changed()
        self._inside.cancel()

    def _note(self, event: str, cause: str) -> None:
        self.problem = cause
        self._log.warning(event, publisher=self.name, cause=cause)
