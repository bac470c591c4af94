"""Linearizable reads: confirmed by a majority, then applied here (Raft §8, thesis 6.4)."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from garlicfarm.errors import NoQuorum, ProposalDropped
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.disk_watch import DiskWatch
from garlicfarm.refusals import Refusal

MAX_PENDING_READS = 4096


@dataclass(slots=True)
class _ReadIndexRequest:
    """``done`` is set once ``index`` is confirmed, or failed (None)."""

    done: trio.Event = field(default_factory=trio.Event)
    index: int | None = None


class ReadIndexRequests:
    """Reads that wait for the core, which leads or asks its leader (D5: with the extension for reads)."""

    def __init__(self, core: CoreInbox, disk: DiskWatch) -> None:
        self._core = core
        self._disk = disk
        self._asked: dict[int, _ReadIndexRequest] = {}  # cancelled ones too: the core holds them

    @property
    def waiting(self) -> int:
        """How many reads wait for their index, cancelled ones too."""
        return len(self._asked)

    async def read_index(self) -> int:
        """An index that is applied here, not below any that was acknowledged before the call.

        Raises `NotLeader`: this member does not lead, or no longer, and its leader gave no index, or one that
        was not applied here in time; `NoQuorum`: it leads, and no majority confirmed that in time, or the
        index was not applied in time; `DiskHangs`: entries cannot be applied here now; `ProposalDropped`: too
        many reads wait already. Cancelled: no effect.
        """
        core, disk = self._core, self._disk
        disk.must_answer()
        if len(self._asked) >= MAX_PENDING_READS:
            raise ProposalDropped(Refusal.TOO_MANY_READS)
        token, read = core.next_token(), _ReadIndexRequest()
        self._asked[token] = read
        core.put(self._ask, token)
        with trio.move_on_after(core.answer_timeout_s):
            await read.done.wait()
            if read.index is not None:
                while core.applied_index < read.index:
                    disk.must_answer()
                    await core.wait_progress()
                return read.index
        disk.must_answer()
        core.must_lead()
        if read.index is not None:
            raise NoQuorum(f"index {read.index} is not applied here in time; is the disk slow?")
        raise NoQuorum("no majority confirmed in time that this member still leads")

    def _ask(self, token: int) -> None:
        try:
            self._core.raw.read_index(token)
        except ProposalDropped:  # it does not lead, and has no leader to ask
            self.on_index(token, None)

    def on_index(self, token: int, index: int | None) -> None:
        """The core knows the index of a read; None: it cannot be confirmed."""
        read = self._asked.pop(token)
        read.index = index
        read.done.set()
