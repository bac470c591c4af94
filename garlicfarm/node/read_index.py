"""Linearizable reads: confirmed by a majority, then applied here (Raft §8, thesis 6.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from garlicfarm.errors import NoQuorum, ProposalDropped

if TYPE_CHECKING:
    from garlicfarm.node.replica import Replica

__all__ = ["ReadIndexRequests"]

MAX_PENDING_READS = 4096


class _Read:
    """``done`` is set once ``index`` is confirmed, or cannot be (None)."""

    __slots__ = ("done", "index")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.index: int | None = None


class ReadIndexRequests:
    """Those that wait for the core, which leads, or asks its leader (D5)."""

    def __init__(self, farm: Replica) -> None:
        self._farm = farm
        self._asked: dict[int, _Read] = {}  # also those whose callers have gone: the core holds them

    async def index(self) -> int:
        """An index that is applied here, not below any that was acknowledged before the call.

        Raises `NotLeader`: this member does not lead, or ceased to, and its leader gave no index, or one that
        is not applied here in time; `NoQuorum`: it leads, and no majority has confirmed that in time, or the
        index is not applied in time; `DiskHangs`: it cannot be applied here now; `ProposalDropped`: too many
        wait already. Cancelled: it had no effect.
        """
        farm = self._farm
        farm.disk.must_answer()
        if len(self._asked) >= MAX_PENDING_READS:
            raise ProposalDropped("too-many-reads")
        token, read = farm.next_token(), _Read()
        self._asked[token] = read
        farm.put(self._ask, token)
        with trio.move_on_after(farm.answer_timeout_s):
            await read.done.wait()
            if read.index is not None:
                while farm.applied_index < read.index:
                    farm.disk.must_answer()
                    await farm.wait_progress()
                return read.index
        farm.disk.must_answer()
        farm.membership.must_lead()
        if read.index is not None:
            raise NoQuorum(f"index {read.index} is not applied here in time; is the disk slow?")
        raise NoQuorum("no majority confirmed in time that this member still leads")

    def _ask(self, token: int) -> None:
        try:
            self._farm.raw.read_index(token)
        except ProposalDropped:  # it does not lead, and has no leader to ask
            self.settle(token, None)

    def settle(self, token: int, index: int | None) -> None:
        """The core tells what became of a read."""
        read = self._asked.pop(token)
        read.index = index
        read.done.set()
