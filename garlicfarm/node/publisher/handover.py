"""A leader that cannot reach a member hands over to one that can.

Two members may be cut off from each other while all others reach both: by a firewall, or because the sessions
of two I2P routers are dead. If one of the two leads, the other one hears no leader and posts no status. It
wins no election either, since the others do hear a leader. The farm commits as if that member were dead.

Members know from their handshakes which others they reach, and report it in their statuses
(`garlicfarm.publishing.documents.connect_tests`).
The leader hands over to a member whose last R statuses say that it reaches every member that the leader does,
and one more. Only statuses begun after the missing member fell silent count: they report handshakes made
since then. No member reaches a dead one, so a dead member causes no hand-over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

import trio

from garlicfarm.application import ApplicationContext
from garlicfarm.errors import NoQuorum, NotLeader, ProposalDropped
from garlicfarm.publishing.documents import connect_tests
from garlicfarm.publishing.fold import PublisherFold

PAUSE_S = 3600.0


class HandOver:
    """Hands over while this member leads: at most once an hour, and not while the members change."""

    def __init__(self, context: ApplicationContext, fold: PublisherFold) -> None:
        self._context = context
        self._fold = fold
        self._missing: dict[int, int] = {}
        self._claims: dict[int, frozenset[int]] = {}  # which members reach more, by which statuses
        self._next_s = -math.inf

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        context, fold = self._context, self._fold
        while True:
            await context.wait_applied(context.applied_index)
            self._missing = {
                member: self._missing.get(member, context.applied_index)
                for member in fold.members
                if context.is_leader and self._is_missing(member)
            }
            able = better_placed(fold, context.node_id, self._missing)
            self._claims = {to: self._claims.get(to, frozenset()) | {index} for to, index in able.items()}
            ready = [to for to in able if len(self._claims[to]) >= fold.R and context.peers.is_connected(to)]
            if ready and trio.current_time() >= self._next_s and not context.is_changing_members:
                await self._hand_over(ready[0])

    def _is_missing(self, member: int) -> bool:
        """Whether it is not recent and this node cannot connect to it."""
        test = self._context.peers.handshake(member)
        return test is not None and not test[1] and not self._fold.is_recent(member)

    async def _hand_over(self, to: int) -> None:
        context = self._context
        self._next_s = trio.current_time() + PAUSE_S
        context.log.warning("handing-over", peer=to, unreachable=",".join(map(str, self._missing)))
        try:
            await context.step_down(to)
        except (NotLeader, ProposalDropped, NoQuorum) as error:
            context.log.warning("not-handed-over", peer=to, cause=str(error))


def better_placed(fold: PublisherFold, leader: int, missing: Mapping[int, int]) -> dict[int, int]:
    """Members that reach every member that the leader reaches, and at least one that is ``missing``; each
    with the index of the status that says so. Those that reach most of the missing come first, then by id.

    ``missing``: id → the index that a member must have applied when it begins a status that counts.
    """
    if not missing:
        return {}
    kept = set(fold.members) - missing.keys()
    able: list[tuple[int, int, int]] = []
    for member in sorted(kept - {leader}):
        newest = fold.newest(member)
        if newest is None or not fold.is_recent(member):
            continue
        index, document = newest
        node = fold.report(member)
        reached = {member, *(other for other, ok in connect_tests(document, node) if ok)}
        gained = sum(other in reached and (node.applied or 0) >= since for other, since in missing.items())
        if gained and kept <= reached:
            able.append((-gained, member, index))
    return {member: index for _, member, index in sorted(able)}
