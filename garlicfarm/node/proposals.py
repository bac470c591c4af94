"""Entries and changes on their way into the log, and what became of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from garlicfarm.errors import (
    AuthError,
    EntryRefused,
    NoQuorum,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    TransportError,
)
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.raft import LogPosition, Refusal
from garlicfarm.wire.messages import LogEntry, MessageType, Request, ValueType

if TYPE_CHECKING:
    from garlicfarm.node.replica import Replica

__all__ = ["Proposal", "Proposals", "check_entry", "check_user"]

REDIRECT_PAUSE_S = 0.05
MAX_PENDING_POSTS = 4096
_REASONS = {
    Refusal.UNCOMMITTED: "too-much-uncommitted",
    Refusal.TRANSFER: "leadership-in-transfer",
    Refusal.ROLE: "role-missing",
}


class Proposal:
    """Something proposed to the core. ``begun`` is set once the core took or dropped it, ``done`` once
    its outcome is known."""

    __slots__ = ("begun", "done", "dropped", "outcome", "since")

    def __init__(self) -> None:
        self.begun = trio.Event()
        self.done = trio.Event()
        self.since = trio.current_time()
        self.outcome: tuple[int, int] | None = None
        self.dropped: ProposalDropped | None = None


class Proposals:
    """What this member proposes, here or through the leader."""

    def __init__(self, farm: Replica) -> None:
        self._farm = farm
        self._proposals: dict[int, Proposal] = {}
        self._forwarded: dict[trio.CancelScope, int] = {}  # to whom

    def leader_changed(self, leader: int) -> None:
        """Another member leads: who led before has as long to answer as anybody, no longer as a commit may
        take. 0: nobody is known to lead."""
        deadline = trio.current_time() + self._farm.section.raft.rpc_timeout_s
        for scope, member in self._forwarded.items():
            if leader not in (0, member):
                scope.deadline = min(scope.deadline, deadline)

    def settle(self, token: int, result: LogPosition | str | None) -> None:
        """The core tells what became of a proposal."""
        proposal = self._proposals.pop(token)
        if isinstance(result, str):
            proposal.dropped = ProposalDropped(result)
        elif result is not None:
            proposal.outcome = (result.index, result.term)
        proposal.done.set()
        if proposal.outcome is not None:
            self._farm.metrics.raft_commit_seconds.observe(trio.current_time() - proposal.since)

    def propose(self, start: Callable[[int], None]) -> Proposal:
        """Have the core do ``start(token)``, which may raise `ProposalDropped`."""
        proposal = Proposal()
        self._farm.put(self._start, start, self._farm.next_token(), proposal)
        return proposal

    def _start(self, start: Callable[[int], None], token: int, proposal: Proposal) -> None:
        try:
            start(token)
        except ProposalDropped as dropped:
            proposal.dropped = dropped
            proposal.done.set()
        else:
            self._proposals[token] = proposal
        proposal.begun.set()

    async def outcome(self, proposal: Proposal) -> tuple[int, int]:
        """(index, term) after the commit. Raises `ProposalDropped`, `OutcomeUnknown`."""
        await proposal.done.wait()
        metrics = self._farm.metrics
        if proposal.dropped is not None:
            metrics.count_proposals("dropped")
            raise proposal.dropped
        if proposal.outcome is None:
            metrics.count_proposals("unknown")
            raise OutcomeUnknown("leadership was lost before the commit")
        metrics.count_proposals("committed")
        return proposal.outcome

    async def post(self, entry: bytes, author: int) -> tuple[int, int]:
        """Append one application entry, here or through the leader; (index, term) after its commit.

        ``author``: the member it is from, 0 for users. Raises `EntryRefused` (the caller's fault),
        `ProposalDropped` (`DiskHangs` among them), `NoQuorum` (certainly not appended), `OutcomeUnknown`.
        Cancelled, it may or may not be appended.
        """
        farm, propose = self._farm, self._farm.raw.propose
        check_entry(farm, entry, author)
        if len(entry) > farm.limits.max_entry_bytes:
            raise EntryRefused("", f"larger than {farm.limits.max_entry_bytes} bytes")
        if len(self._proposals) >= MAX_PENDING_POSTS:
            raise ProposalDropped("too-many-posts")
        sent = False
        with trio.move_on_after(farm.answer_timeout_s):
            while True:
                if not farm.leader_id:
                    await farm.wait_leader_change()
                elif farm.is_leader:
                    sent = True
                    try:
                        return await self.outcome(self.propose(partial(propose, (entry,))))
                    except ProposalDropped as dropped:
                        if dropped.reason != "not-leader":
                            raise
                    sent = False
                    await trio.sleep(REDIRECT_PAUSE_S)
                else:
                    sent = True
                    posted = await self._forward(farm.leader_id, entry)
                    if posted is not None:
                        return posted
                    sent = False
                    await trio.sleep(REDIRECT_PAUSE_S)
        if sent:
            raise OutcomeUnknown(f"not committed within {farm.answer_timeout_s:g} s")
        farm.disk.must_answer()
        raise NoQuorum(f"no leader within {farm.answer_timeout_s:g} s")

    async def _forward(self, leader: int, entry: bytes) -> tuple[int, int] | None:
        """Through the leader's ClientRequest connection; None if it was certainly not appended and
        another leader may take it."""
        value = LogEntry(0, ValueType.APPLICATION, entry)
        request = Request(MessageType.CLIENT_REQUEST, self._farm.node_id, leader, entries=(value,))
        scope = trio.CancelScope()
        self._forwarded[scope] = leader
        try:
            with scope:
                response = await self._farm.peers.call(leader, request)
        except (TransportError, AuthError, RemoteProtocolError):
            return None  # certainly not sent, whatever is wrong with the connection
        finally:
            del self._forwarded[scope]
        if scope.cancelled_caught:
            raise OutcomeUnknown(f"member {leader} did not answer, and leads no more")
        if response is None:
            return None
        if response.accepted:
            return response.next_index - 1, response.term
        if response.destination == leader and response.next_index:
            if response.next_index in (Refusal.TOO_LARGE, Refusal.APPLICATION):
                raise EntryRefused(
                    "", f"the leader refuses what this member ({self._farm.node_id}) lets pass"
                )
            raise ProposalDropped(_REASONS.get(response.next_index, "refused"))
        return None


def check_entry(farm: Replica, entry: bytes, author: int) -> None:
    """Judge an entry of ``author`` where it is posted. Raises `EntryRefused`."""
    if isinstance(farm.application, PublisherApplication):
        farm.application.check_posted(entry, author, time.time_ns() // 1_000_000)
    else:
        farm.application.check(entry, author)


class _Config(msgspec.Struct):
    by: str | None = None


class _Note(msgspec.Struct):
    config: _Config | None = None


def check_user(farm: Replica, entry: bytes, user: str) -> None:
    """A note names the user who posts it (D18). Raises `EntryRefused`."""
    if not isinstance(farm.application, PublisherApplication):
        return
    try:
        note = msgspec.json.decode(entry, type=_Note)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # the application's check says what is wrong with it
    if note.config is not None and note.config.by not in (None, user):
        raise EntryRefused("config.by", f"not {user}, who posts it")
