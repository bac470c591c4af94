"""The leader removes members that stay silent, where an order of the log says so (D28).

`garlicfarm.publishing.forgetting` says which one, by the state that all members share. Here is what only the
leader knows: whether it hears that member.
"""

from __future__ import annotations

import math
from typing import NoReturn

import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import EntryRefused, NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped
from garlicfarm.publishing import forgetting
from garlicfarm.publishing.administration import FORGET_BY
from garlicfarm.publishing.fold import PublisherFold

UNHEARD_S = 60.0
UNHEARD_ELECTIONS = 10
"""For so long, or so many upper election timeouts if that is longer, the leader of a term hears nothing of a
member before it removes it."""
PAUSE_S = 60.0
"""After a removal that failed."""


class Forgetter:
    """Removes members while this member leads: one at a time, and not while the members change."""

    def __init__(self, context: ApplicationContext, fold: PublisherFold) -> None:
        self._context = context
        self._fold = fold
        self._term = 0  # that this member leads, 0: none
        self._leads_since_s = math.inf
        self._next_s = -math.inf

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        context = self._context
        while True:
            await context.wait_applied(context.applied_index)
            term = context.raft_status().term if context.is_leader else 0
            if term != self._term:
                self._term, self._leads_since_s = term, trio.current_time()
            if not term or context.is_changing_members or trio.current_time() < self._next_s:
                continue
            member = forgetting.to_remove(self._fold, context.node_id, self._unheard())
            if member is not None:
                await self._remove(member)

    def _unheard(self) -> list[int]:
        """The members that this leader has heard nothing of for long enough in its term."""
        peers, led_s = self._context.peers, trio.current_time() - self._leads_since_s
        raft = self._context.section.raft
        least_s = max(UNHEARD_S, UNHEARD_ELECTIONS * raft.election_timeout_max_s)
        ages = {member: peers.contact_age_s(member) for member in self._fold.members}
        return [
            member
            for member, age_s in ages.items()
            if not peers.is_connected(member) and min(led_s, math.inf if age_s is None else age_s) >= least_s
        ]

    async def _remove(self, member: int) -> None:
        log = self._context.log
        log.warning("removing-silent-member", peer=member)
        try:
            await self._context.remove_member(member, FORGET_BY)
        except (EntryRefused, NotLeader, ProposalDropped, NoQuorum, OutcomeUnknown) as error:
            self._next_s = trio.current_time() + PAUSE_S
            log.warning("silent-member-not-removed", peer=member, cause=str(error))
