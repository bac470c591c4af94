"""Transfer of the leadership to another member (thesis 3.10)."""

from __future__ import annotations

import math

import trio

from garlicfarm.errors import NoQuorum, ProposalDropped
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.refusals import Refusal

__all__ = ["step_down"]


async def step_down(core: CoreInbox, to: int = 0, deadline: float = math.inf) -> int:
    """Transfer the leadership to the member ``to`` (0: the one best placed); the new leader's id.
    ``deadline``: on Trio's clock.

    Raises `NotLeader`, `ProposalDropped` (no such member, or one that cannot take over now; another one took
    over, since ``to`` is a JRaft server, which cannot be told to campaign), `NoQuorum`: no member took over
    within two election timeouts, or before the deadline.
    """
    begun = trio.Event()
    refused: list[ProposalDropped] = []

    def begin() -> None:
        try:
            core.raw.transfer_leadership(to)
        except ProposalDropped as dropped:
            refused.append(dropped)
        begun.set()

    core.must_lead()
    core.put(begin)
    await begun.wait()
    if refused:
        raise refused[0]
    longest = trio.current_time() + 2 * core.raft.election_timeout_max_s
    with trio.move_on_at(min(deadline, longest)):
        while core.is_leader or not core.leader_id:
            await core.wait_leader_change()
        if to in (0, core.leader_id):
            return core.leader_id
        took_over = f"member {core.leader_id} leads now, and not {to}"
        raise ProposalDropped(Refusal.ANOTHER_TOOK_OVER, took_over)
    raise NoQuorum("no member took over the leadership in time")
