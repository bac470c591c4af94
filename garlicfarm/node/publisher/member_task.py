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
from garlicfarm.credentials.watched_keys import WATCH_S, WatchedKeys
from garlicfarm.i2p.lease_set import MetaLeaseSet, encode_meta_lease_set
from garlicfarm.node.publisher import clocks
from garlicfarm.node.publisher.hosted_publisher import HostedPublisher, traits_of
from garlicfarm.node.publisher.own_look_up import OwnLookUps
from garlicfarm.node.publisher.published_record import PublishedRecord
from garlicfarm.node.publisher.status_reporter import StatusReporter
from garlicfarm.publisher import KeyReport, Published, Publisher, PublishOrder
from garlicfarm.publishing.clients import NOBODY
from garlicfarm.publishing.documents import DestinationStatus
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.member_core import MemberCore
from garlicfarm.publishing.member_standing import MemberSetup
from garlicfarm.publishing.publisher_core import Call, PublisherCore
from garlicfarm.wire.messages import Grant


class MemberTask:
    """``core``: of this process. ``master``: the keys of the master destination."""

    def __init__(
        self,
        context: ApplicationContext,
        fold: PublisherFold,
        master: WatchedKeys | None,
        publishers: Sequence[Publisher],
        record: PublishedRecord,
        boot: int,
    ) -> None:
        self._context = context
        self._fold = fold
        self._master = master
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
            signs_for=None if master is None else master.keys.destination,
            master_key=_report(master),
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
        self._clients, self._is_restricted = NOBODY, False
        self._bans_end_ms: int | None = None
        self.core = MemberCore(fold, setup, traits, self._reporter, clocks.now())
        self._reporter.serve(self.core, self._on_stepped)
        self._publishers = [
            HostedPublisher(plugin, section, self.core, own, sign=self._sign, on_stepped=self._on_stepped)
            for (plugin, section), own in zip(tables, self.core.publishers, strict=True)
        ]
        self._look_ups = OwnLookUps(context, fold, self._publishers, setup.signs_for)

    async def run(self) -> NoReturn:
        """Run until cancelled; then the publishers stop."""
        self._restrict_clients()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_clients)
            for publisher in self._publishers:
                nursery.start_soon(publisher.run)
            nursery.start_soon(self._reporter.run)
            nursery.start_soon(self._look_ups.run)
            nursery.start_soon(self._watch_time)
            nursery.start_soon(self._keep_record)
            if self._master is not None:
                nursery.start_soon(self._watch_master, self._master)
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

    async def _watch_clients(self) -> NoReturn:
        """Tell the publishers of each order for clients, and of each ban that is over by this node's
        clock."""
        while True:
            applied, wait_ms = self._context.applied_index, math.inf
            if self._bans_end_ms is not None:
                wait_ms = self._bans_end_ms - clocks.now().wall_ms
            with trio.move_on_after(max(0, wait_ms) / 1000):
                await self._context.wait_applied(applied)
            is_over = self._bans_end_ms is not None and self._bans_end_ms <= clocks.now().wall_ms
            if is_over or self._fold.clients is not self._clients:
                self._restrict_clients()

    def _restrict_clients(self) -> None:
        self._clients = self._fold.clients
        lasting = self._clients.lasting(clocks.now().wall_ms)
        self._bans_end_ms = lasting.next_end_ms()
        self._is_restricted = bool(lasting)
        for publisher in self._publishers:
            publisher.restrict_clients(lasting.rules())

    async def _keep_record(self) -> NoReturn:
        while True:
            published = self.core.last_published
            if published is not None and published != self._recorded:
                self._recorded = published
                await self._write(published)
            else:
                await self._stepped.wait()

    async def _watch_master(self, master: WatchedKeys) -> NoReturn:
        """Nothing that clients know of keeps it from using new keys at once."""
        while True:
            await trio.sleep(WATCH_S)
            await trio.to_thread.run_sync(master.look, abandon_on_cancel=True)
            if master.take_new():
                self.core.master_key = _report(master)
                self.core.step(clocks.now())
                self._on_stepped()

    async def _write(self, published: Published) -> None:
        try:
            await trio.to_thread.run_sync(self._record.write, published, abandon_on_cancel=True)
        except OSError as error:  # it is published all the same
            self._context.log.warning("publication-not-recorded", cause=str(error))

    def _sign(self, call: Call) -> PublishOrder:
        order = call.order
        assert order is not None
        if self._master is None or not call.leases:
            return order
        keys = self._master.keys
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
        own += [self._master.problem] if self._master is not None and self._master.problem else []
        return [
            {
                "plugin": publisher.traits.name,
                "required": publisher.traits.is_required,
                "state": publisher.row.shown,
                "since_ms": publisher.status.since_ms,
                "until_ms": publisher.status.until_ms,
                "problems": [
                    *own,
                    *publisher.problems(),
                    *self._withdrawal_problem(publisher),
                    *self._clients_problem(hosted),
                ],
                "streams": _streams(publisher.status.leaf),
                "encryption": publisher.status.encryption,
                "refused": publisher.status.refused,
                "router": publisher.status.router_kind,
                "targets": hosted.targets_up,
                "seen": self._look_ups.seen(publisher),
            }
            for hosted in self._publishers
            for publisher in [hosted.own]
        ]

    def _clients_problem(self, hosted: HostedPublisher) -> list[str]:
        traits = hosted.own.traits
        if hosted.restricts_clients or not (self._is_restricted and traits.is_required):
            return []
        return [f'bans are not enforced by {traits.name}: `i2cp` with mode = "service" does that']

    def problems(self) -> list[str]:
        """What is wrong with what is seen of its publishers, for the farm's list."""
        return [
            f"member {self._context.node_id}, publisher {publisher.traits.name}: {problem}"
            for publisher in self.core.publishers
            if (problem := self._look_ups.problem(publisher))
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


def _report(master: WatchedKeys | None) -> KeyReport | None:
    keys = None if master is None else master.keys
    if keys is None or keys.transient is None or keys.expires_ms is None:
        return None
    return KeyReport(transient=keys.transient, expires_ms=keys.expires_ms)
