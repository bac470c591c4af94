"""Carries out what the member's core orders one publisher plugin to do, and tells it the answers.

A plugin that fails never hurts another one or the node: whatever it raises goes to the core, which decides.

Source: `garlicfarm.publishing.publisher_core`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from garlicfarm.config import PublisherSection
from garlicfarm.errors import PublisherError, first_error
from garlicfarm.node.publisher import clocks
from garlicfarm.node.publisher.backend_check import BackendChecks
from garlicfarm.node.publisher.plugin_answers import checked_key, checked_published, checked_status
from garlicfarm.publisher import ClientRules, Publisher, PublishOrder
from garlicfarm.publishing.member_core import MemberCore
from garlicfarm.publishing.publisher_core import Call, PublisherCore, Traits

WATCH_S = 1.0
MIN_WATCH_S = 0.02  # between two answers of a plugin that says all the time that it has changed
STATUS_TIMEOUT_S = 10.0  # a plugin answers at once

Sign = Callable[[Call], PublishOrder]
"""The order of a ``publish`` call, with its Meta LeaseSet, if it is to have one."""


def traits_of(plugin: Publisher, section: PublisherSection, *, is_required: bool) -> Traits:
    """What the core knows of a plugin. Raises `TypeError` or `ValueError`: its ``key`` is none (a defect)."""
    return Traits(
        name=section.plugin,
        is_required=is_required,
        retire_timeout_ms=round(1000 * section.retire_timeout_s),
        destination=plugin.destination,
        key=checked_key(plugin.key),
    )


class HostedPublisher:
    """``core`` decides, ``own`` is its part for ``plugin``. ``on_stepped`` is called after each answer.
    ``restricts_clients``: what the plugin answered to the last rules."""

    def __init__(
        self,
        plugin: Publisher,
        section: PublisherSection,
        core: MemberCore,
        own: PublisherCore,
        *,
        sign: Sign,
        on_stepped: Callable[[], None],
    ) -> None:
        self.own = own
        self.restricts_clients = False
        self._plugin = plugin
        self._checks = BackendChecks(section, plugin.targets)
        self._down: frozenset[str] = frozenset()  # what the plugin was told last
        self._core = core
        self._sign = sign
        self._on_stepped = on_stepped
        self._inside = trio.CancelScope()
        self._carrying_out = trio.CancelScope()
        self._pausing = trio.CancelScope()  # between two questions for the plugin's status
        self._number = 0  # of the call that is carried out
        self._ordered = trio.Event()

    @property
    def targets_up(self) -> dict[str, bool]:
        """Whether each service behind it that is tested is up, by URL."""
        return self._checks.up

    def obey(self) -> None:
        """Stop what the core no longer wants, and have what it wants now begun."""
        call = self.own.call
        if self.own.state == "leaving":
            self._inside.cancel()
        elif call is None or call.number != self._number:
            self._carrying_out.cancel()
        self._ordered.set()

    def restrict_clients(self, rules: ClientRules) -> None:
        """Tell the plugin which clients it may serve from now on."""
        self.restricts_clients = False
        try:
            self.restricts_clients = self._plugin.restrict_clients(rules) is True
        except Exception as error:  # noqa: BLE001 - a plugin's defect is not the node's
            self._on_defect(error)

    def has_met(self, client: bytes) -> bool | None:
        """See `Publisher.has_met`; None where the plugin fails, too."""
        try:
            return self._plugin.has_met(client)
        except Exception as error:  # noqa: BLE001 - a plugin's defect is not the node's
            self._on_defect(error)
            return None

    async def run(self) -> NoReturn:
        """Run the plugin until cancelled; then have it stop."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._checks.run, self._on_tested)
            while True:
                call = await self._next_call()
                try:
                    with trio.CancelScope() as self._inside:
                        if call.task == "enter":  # not too late: this process may have been asleep
                            await self._enter(call)
                except* Exception as group:  # noqa: BLE001 - a plugin's defect is not the node's
                    self._on_defect(group)
                self._core.on_left(self.own, clocks.now())
                self._on_stepped()
        raise AssertionError("unreachable: it runs until cancelled")

    async def _enter(self, call: Call) -> None:
        async with self._plugin as plugin:
            self._core.on_done(self.own, call.number, clocks.now())
            self._on_stepped()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_plugin, plugin)
                try:
                    while True:
                        await self._carry_out(plugin, await self._next_call())
                except trio.Cancelled:
                    if not self._inside.cancel_called:
                        await self._retire_at_once(plugin)
                    raise

    async def _next_call(self) -> Call:
        while self.own.call is None or self.own.call.number == self._number:
            self._ordered = trio.Event()
            await self._ordered.wait()
        self._number = self.own.call.number
        return self.own.call

    async def _carry_out(self, plugin: Publisher, call: Call) -> None:
        published = meta = None
        with trio.CancelScope() as self._carrying_out:
            try:
                match call.task:
                    case "standby":
                        await plugin.standby()
                    case "publish":
                        order = self._sign(call)
                        published, meta = checked_published(await plugin.publish(order)), order.lease_set
                    case "retire" | "announce":
                        await plugin.retire(call.successor)
            except PublisherError as error:
                self._core.on_refused(self.own, call.number, clocks.now(), str(error))
            except Exception as error:  # noqa: BLE001 - a plugin's defect is not the node's
                self._on_defect(error)
            else:
                self._core.on_done(self.own, call.number, clocks.now(), published, meta)
            self._pausing.cancel()
            self._on_stepped()

    async def _retire_at_once(self, plugin: Publisher) -> None:
        """The node ends, and does not wait."""
        self._core.on_node_ends(self.own, clocks.now())
        call = self.own.call
        if call is not None and call.task == "retire" and call.deadline_ms is not None:
            left_s = (call.deadline_ms - clocks.now().boot_ms) / 1000
            with trio.move_on_after(left_s, shield=True):
                await self._carry_out(plugin, call)

    async def _watch_plugin(self, plugin: Publisher) -> NoReturn:
        while True:
            asked_at, changes = trio.current_time(), self.own.changes
            try:
                with trio.move_on_after(STATUS_TIMEOUT_S) as waiting:
                    status = checked_status(await plugin.status(), self.own.traits.destination)
                    self._core.on_status(self.own, changes, status, checked_key(plugin.key), clocks.now())
                if waiting.cancelled_caught:
                    self._core.on_defect(
                        self.own, clocks.now(), f"it has given no status within {STATUS_TIMEOUT_S:g} s"
                    )
                self._on_stepped()
                with trio.move_on_after(WATCH_S) as self._pausing:
                    await plugin.wait_changed()
            except Exception as error:  # noqa: BLE001 - a plugin's defect is not the node's
                self._on_defect(error)
            await trio.sleep_until(asked_at + MIN_WATCH_S)

    def _on_tested(self) -> None:
        checks = self._checks
        if checks.down != self._down:
            self._down = checks.down
            try:
                self._plugin.leave_out(self._down)
            except Exception as error:  # noqa: BLE001 - a plugin's defect is not the node's
                self._on_defect(error)
        self._core.on_check(self.own, clocks.now(), is_up=checks.is_up, problem=checks.problem)
        self._on_stepped()

    def _on_defect(self, error: BaseException) -> None:
        found = first_error(error)
        self._core.on_defect(self.own, clocks.now(), f"{type(found).__name__}: {found}")
        self._on_stepped()
