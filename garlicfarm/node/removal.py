"""Removal of this member itself: the check before it, and its detection.

Source: docs/reference/protocol.md, "What JRaft's bytes settle"; D6 (permissions of removed members).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from garlicfarm.errors import (
    ProposalDropped,
    Removed,
)
from garlicfarm.logs import EventLogger
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.peers import Peers
from garlicfarm.refusals import Refusal

__all__ = ["Removal"]


class Removal:
    """Detects the removal of this member."""

    def __init__(
        self,
        core: CoreInbox,
        peers: Peers,
        note_leave_order: Callable[[int | None], None] | None,
        log: EventLogger,
    ) -> None:
        self._core = core
        self._peers = peers
        self._note_leave_order = note_leave_order
        self._log = log
        self.is_over = trio.Event()
        """This member leaves now."""
        self._ordered = trio.Event()  # the leader says that this member is removed
        self._is_kept = False
        self._applied = trio.Event()  # the applied Configuration says so

    @property
    def is_applied(self) -> bool:
        """Whether a Configuration without this member was applied here."""
        return self._applied.is_set()

    def on_order(self, *, is_kept: bool) -> None:
        """The leader says that this member is removed. ``is_kept``: for the next start, too."""
        self._is_kept = is_kept
        self._ordered.set()

    def on_applied(self) -> None:
        """A Configuration without this member is applied here."""
        self._applied.set()

    async def watch(self) -> NoReturn:
        """Raises `Removed` once this member is removed.

        A member that is ordered to leave waits for the Configuration without it, as JRaft's members do. One
        that sees the Configuration first waits for the leader's order. Neither waits for ever. Until then it
        votes for members that have not heard of the commit. Appends of a later leader cancel the order. It is
        kept for the next start: a member that is removed would depose the leaders of those that stay.
        """
        wait_s = 2 * self._core.raft.election_timeout_max_s
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._leave_once_applied, wait_s, nursery.cancel_scope)
            nursery.start_soon(self._leave_once_ordered, wait_s, nursery.cancel_scope)
        if self._is_kept or self._applied.is_set():
            await self._note(self._core.raw.term)
        self.is_over.set()
        raise Removed(self._core.farm)

    async def _note(self, term: int | None) -> None:
        if self._note_leave_order is not None:
            await trio.to_thread.run_sync(self._note_leave_order, term)

    async def _leave_once_applied(self, wait_s: float, scope: trio.CancelScope) -> None:
        await self._applied.wait()
        with trio.move_on_after(wait_s):
            await self._ordered.wait()
        scope.cancel()

    async def _leave_once_ordered(self, wait_s: float, scope: trio.CancelScope) -> None:
        while True:
            await self._ordered.wait()
            if self._is_kept:
                await self._note(self._core.raw.term)
            with trio.move_on_after(wait_s):
                await self._applied.wait()
            if self._applied.is_set() or self._core.raw.is_leaving:
                scope.cancel()
                return
            self._ordered = trio.Event()
            await self._note(None)

    def check(self, force: bool) -> None:
        """Raises `ProposalDropped` if a new leader would refuse to remove this member. Called before this
        member, the leader, hands over in order to be removed."""
        members = self._core.applied.configuration.servers
        others = [server.id for server in members if server.id != self._core.node_id]
        if not others:
            raise ProposalDropped(Refusal.THE_LAST_MEMBER)
        longest_s = self._core.raft.election_timeout_max_s
        ages = [self._peers.contact_age_s(member) for member in others]
        heard = sum(age is not None and age <= longest_s for age in ages)
        if not force and heard < len(others) // 2 + 1:
            raise ProposalDropped(Refusal.TOO_FEW_MEMBERS_HEARD)
