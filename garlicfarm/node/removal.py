"""Removal of this member itself: the check before it, and its detection.

Source: docs/reference/protocol.md, "What JRaft's bytes settle"; D6 (permissions of removed members).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import trio

from garlicfarm.errors import ProposalDropped, Removed
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.peers import Peers
from garlicfarm.refusals import Refusal


class Removal:
    """Detects the removal of this member."""

    def __init__(
        self,
        core: CoreInbox,
        peers: Peers,
        note_leave_order: Callable[[int | None], None] | None,
    ) -> None:
        self._core = core
        self._peers = peers
        self._note_leave_order = note_leave_order
        self.is_over = False
        """Whether this member leaves now."""
        self.is_applied = False
        """Whether a Configuration without this member was applied here."""
        self._is_ordered = False
        self._changed = trio.Event()

    def on_order(self) -> None:
        """The leader says that this member is removed."""
        self._is_ordered = True
        self._changed.set()

    def on_applied(self) -> None:
        """A Configuration without this member is applied here."""
        self.is_applied = True
        self._changed.set()

    async def watch(self) -> NoReturn:
        """Raises `Removed` once this member is removed.

        A member that is ordered to leave waits for the Configuration without it, as JRaft's members do. One
        that sees the Configuration first waits for the leader's order. Neither waits for ever. Until then it
        votes for members that have not heard of the commit. Appends of a later leader cancel the order. It is
        kept for the next start: a member that is removed would depose the leaders of those that stay.
        """
        core, is_leaving = self._core, False
        while not is_leaving:
            while not self.is_applied and not self._is_ordered:
                await self._wait_change()
            if self._is_ordered:
                await self._note(core.raw.term)
            with trio.move_on_after(2 * core.raft.election_timeout_max_s):
                while not self.is_applied or not self._is_ordered:
                    await self._wait_change()
            is_leaving = self.is_applied or core.raw.is_leaving
            if not is_leaving:
                self._is_ordered = False
                await self._note(None)
        await self._note(core.raw.term)
        self.is_over = True
        core.wake_waiting()
        raise Removed(core.farm)

    async def _wait_change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    async def _note(self, term: int | None) -> None:
        if self._note_leave_order is not None:
            await trio.to_thread.run_sync(self._note_leave_order, term)

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
