"""Runs a member's core: it carries out what that decides, and tells it what has happened.

Nothing is decided here: see `garlicfarm.publishing.member_core`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.i2p.keys import DestinationKeys
from garlicfarm.i2p.lease_set import MetaLeaseSet, encode_meta_lease_set
from garlicfarm.node.publisher import clocks
from garlicfarm.node.publisher.hosted_publisher import HostedPublisher, traits_of
from garlicfarm.node.publisher.published_record import PublishedRecord
from garlicfarm.node.publisher.status_reporter import StatusReporter
from garlicfarm.publisher import KeyReport, Published, Publisher, PublishOrder
from garlicfarm.publishing.documents import DestinationStatus
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.member_core import MemberCore, MemberSetup
from garlicfarm.publishing.publisher_core import Call, PublisherCore
from garlicfarm.wire.messages import Grant


class MemberTask:
    """``core``: of this process. ``keys``: of the master destination."""

    def __init__(
        self,
        context: ApplicationContext,
        fold: PublisherFold,
        keys: DestinationKeys | None,
        publishers: Sequence[Publisher],
        record: PublishedRecord,
        boot: int,
    ) -> None:
        self._context = context
        self._fold = fold
        self._keys = keys
        self._record = record
        self._recorded = record.read()
        self._stepped = trio.Event()
        self._over = trio.Event()
        self._reporter = StatusReporter(context, fold)
        meta = context.section.meta
        setup = MemberSetup(
            node_id=context.node_id,
            boot=boot,
            master=meta.destination or "",
            signs_for=None if keys is None else keys.destination,
            master_key=_report(keys),
            publish_config=meta.publish,
            last_published=self._recorded,
            max_clock_offset_ms=round(1000 * meta.max_clock_offset_s),
        )
        are_all_auxiliary = all(plugin.is_auxiliary for plugin in publishers)
        tables = list(zip(publishers, context.section.publisher, strict=True))
        traits = [
            traits_of(
                plugin,
                section,
                is_required=section.required
                if section.required != "auto"
                else are_all_auxiliary or not plugin.is_auxiliary,
            )
            for plugin, section in tables
        ]
        self.core = MemberCore(fold, setup, traits, self._reporter, clocks.now())
        self._reporter.serve(self.core, self._on_stepped)
        self._publishers = [
            HostedPublisher(plugin, section, self.core, own, sign=self._sign, on_stepped=self._on_stepped)
            for (plugin, section), own in zip(tables, self.core.publishers, strict=True)
        ]

    async def run(self) -> NoReturn:
        """Run until cancelled; then the publishers stop."""
        async with trio.open_nursery() as nursery:
            for publisher in self._publishers:
                nursery.start_soon(publisher.run)
            nursery.start_soon(self._reporter.run)
            nursery.start_soon(self._watch_time)
            nursery.start_soon(self._keep_record)
            while True:
                applied = self._context.applied_index
                self.core.step(clocks.now(), applied)
                self._on_stepped()
                await self._context.wait_applied(applied)
        raise AssertionError("unreachable: it runs until cancelled")

    def on_grant(self, grant: Grant) -> None:
        """See `MemberCore.on_grant`."""
        if self.core.on_grant(grant, clocks.now()):
            self._on_stepped()

    def on_own_lease(self, index: int, end_ms: int) -> None:
        """See `MemberCore.on_own_lease`."""
        if self.core.on_own_lease(index, end_ms, clocks.now()):
            self._on_stepped()

    def drain(self, drained: bool) -> None:
        """See `MemberCore.drain`."""
        if drained != (self.core.ending.state == "drained"):
            self.core.drain(drained, clocks.now())
            self._on_stepped()

    async def stop(self, bound_s: float) -> None:
        """Let go of this member's part, within ``bound_s``."""
        self.core.stop(clocks.now(), round(1000 * bound_s))
        self._on_stepped()
        await self._over.wait()

    def _on_stepped(self) -> None:
        """The core has been told something, and may want something else now."""
        for name, note in self.core.take_notes():
            log = self._context.log.warning if note.is_warning else self._context.log.info
            log(note.event, **({"publisher": name} if name else {}), **note.fields)
        for publisher in self._publishers:
            publisher.obey()
        self._reporter.obey()
        if self.core.ending.state == "over":
            self._over.set()
        self._stepped.set()
        self._stepped = trio.Event()

    async def _watch_time(self) -> NoReturn:
        while True:
            left_s = max(0, self.core.wake_ms() - clocks.now().boot_ms) / 1000
            with trio.move_on_after(left_s):
                await self._stepped.wait()
                continue
            self.core.step(clocks.now())
            self._on_stepped()

    async def _keep_record(self) -> NoReturn:
        while True:
            published = self.core.last_published
            if published is not None and published != self._recorded:
                self._recorded = published
                await self._write(published)
            else:
                await self._stepped.wait()

    async def _write(self, published: Published) -> None:
        try:
            await trio.to_thread.run_sync(self._record.write, published, abandon_on_cancel=True)
        except OSError as error:  # it is published all the same
            self._context.log.warning("publication-not-recorded", cause=str(error))

    def _sign(self, call: Call) -> PublishOrder:
        order, keys = call.order, self._keys
        assert order is not None
        if keys is None or not call.leases:
            return order
        meta = MetaLeaseSet(
            destination=keys.destination,
            published_s=order.published_ms // 1000,
            expires_s=(order.expires_ms - order.published_ms) // 1000,
            leases=call.leases,
            offline=keys.offline,
        )
        return msgspec.structs.replace(order, lease_set=encode_meta_lease_set(meta, keys.sign))

    def describe(self) -> list[dict[str, Any]]:
        """Each publisher, for the farm's status: ready for JSON. ``state``: `publisher_core.Row.shown`."""
        clock = self.core.clock_problem
        own = [f"this node's clock {clock}"] if clock else []
        return [
            {
                "plugin": publisher.traits.name,
                "required": publisher.traits.is_required,
                "state": publisher.row.shown,
                "since_ms": publisher.status.since_ms,
                "until_ms": publisher.status.until_ms,
                "streams": _streams(publisher.status.leaf),
                "refused": publisher.status.refused,
                "targets": hosted.targets_up,
                "problems": [*own, *publisher.problems(), *self._withdrawal_problem(publisher)],
            }
            for publisher, hosted in zip(self.core.publishers, self._publishers, strict=True)
        ]

    def _withdrawal_problem(self, publisher: PublisherCore) -> list[str]:
        """Why a publisher that is ready is not offered to the farm."""
        core = self.core
        if not (core.offer.is_withdrawn and core.can_publish and publisher.traits.is_required):
            return []
        left_s = math.ceil(core.offer.left_ms(clocks.now().boot_ms, core.pause_ms) / 1000)
        return [f"it could not publish recently, so this node offers itself again in {left_s} s"]


def _streams(leaf: DestinationStatus | None) -> dict[str, int | None] | None:
    """Of a leaf whose publisher has streams of its own."""
    if leaf is None or leaf.streams is None:
        return None
    figures: dict[str, int | None] = msgspec.structs.asdict(leaf.streams)
    return {"open": leaf.current_connections, "most": leaf.configured_connections, **figures}


def _report(keys: DestinationKeys | None) -> KeyReport | None:
    if keys is None or keys.transient is None or keys.expires_ms is None:
        return None
    return KeyReport(transient=keys.transient, expires_ms=keys.expires_ms)
