"""A leader that cannot reach a member lets one lead that can.

Two members may be cut off from each other while all others reach both: by a firewall, or because the sessions
of two I2P routers are dead. If one of the two leads, the other one hears no leader, posts no status, and is
elected by nobody, since the others do hear one. The farm commits, but as if that member were dead.

Members know whom they reach from their handshakes, and their statuses tell (``connectTest``, D9). The leader
hands over to a member whose last R statuses say that it reaches every member that the leader does, and one
more. It looks at those that were begun after the member that it misses was found to be silent: of that one,
they tell handshakes made since. Nobody reaches a dead member, so one costs no leader.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

import msgspec
import trio

from garlicfarm.errors import NoQuorum, NotLeader, ProposalDropped
from garlicfarm.node.replica import Replica
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.publishing.documents import NodeReport

__all__ = ["HandOver", "better_placed"]

PAUSE_S = 3600.0


class HandOver:
    """What a member does about it while it leads: at most once an hour, and not while the members change."""

    def __init__(self, farm: Replica, application: PublisherApplication) -> None:
        self._farm = farm
        self._application = application
        self._missing: dict[int, int] = {}
        self._claims: dict[int, frozenset[int]] = {}  # who reaches more, by which statuses in a row
        self._next_s = -math.inf

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        farm, application = self._farm, self._application
        while True:
            await farm.wait_applied(farm.applied_index)
            self._missing = {
                member: self._missing.get(member, farm.applied_index)
                for member in application.members
                if farm.is_leader and self._is_missing(member)
            }
            able = better_placed(application, farm.node_id, self._missing)
            self._claims = {to: self._claims.get(to, frozenset()) | {index} for to, index in able.items()}
            ready = [to for to in able if len(self._claims[to]) >= application.R and farm.peers.connected(to)]
            if ready and trio.current_time() >= self._next_s and not farm.membership.changing:
                await self._hand_over(ready[0])

    def _is_missing(self, member: int) -> bool:
        """It has been silent for so long that it is not recent, and this node cannot connect to it."""
        test = self._farm.peers.handshake(member)
        return test is not None and not test[1] and not self._application.is_recent(member)

    async def _hand_over(self, to: int) -> None:
        farm = self._farm
        self._next_s = trio.current_time() + PAUSE_S
        farm.log.warning("handing-over", peer=to, unreachable=",".join(map(str, self._missing)))
        try:
            await farm.membership.step_down(to)
        except (NotLeader, ProposalDropped, NoQuorum) as error:
            farm.log.warning("not-handed-over", peer=to, cause=str(error))


def better_placed(
    application: PublisherApplication, leader: int, missing: Mapping[int, int]
) -> dict[int, int]:
    """Members that reach all but those who are ``missing`` to the leader, and one of these at least: those
    that reach most of them first, then by id; with the index of the status that says so.

    ``missing``: id → the index that has to be applied where a status is begun that counts.
    """
    if not missing:
        return {}
    kept = set(application.members) - missing.keys()
    able: list[tuple[int, int, int]] = []
    for member in sorted(kept - {leader}):
        newest = application.newest(member)
        if newest is None or not application.is_recent(member):
            continue
        index, document = newest
        node = msgspec.convert((document.config or {}).get("node") or {}, NodeReport)
        tests = {one.member: one.connect_test for one in document.remote_routers or ()}
        reached = {member, *(other for other, test in tests.items() if test is not None and test.ok)}
        gained = sum(other in reached and (node.applied or 0) >= since for other, since in missing.items())
        if gained and kept <= reached:
            able.append((-gained, member, index))
    return {member: index for _, member, index in sorted(able)}
