"""Proposals: entries and changes of the members, from here to the log, and the outcome of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import trio

from garlicfarm.application import Application, Origin
from garlicfarm.config.model import HEADERS_BYTES
from garlicfarm.errors import (
    AuthError,
    Compacted,
    EntryRefused,
    NoQuorum,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    TransportError,
)
from garlicfarm.metrics import FarmMetrics
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.disk_watch import DiskWatch
from garlicfarm.node.peers import Peers
from garlicfarm.node.space_watch import SpaceWatch
from garlicfarm.raft import LogPosition, Storage
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType

REDIRECT_PAUSE_S = 0.05
MAX_PENDING_POSTS = 4096
PAGE_BYTES = 1 << 20


def origin_now(member: int, user: str = "") -> Origin:
    """The origin of an entry that is posted now, by this node's wall clock."""
    return Origin(member, user, time.time_ns() // 1_000_000)


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
    """The proposals of this member, made here or through the leader."""

    def __init__(
        self,
        core: CoreInbox,
        peers: Peers,
        disk: DiskWatch,
        store: Storage,
        application: Application,
        metrics: FarmMetrics,
        space: SpaceWatch,
    ) -> None:
        self._core = core
        self._peers = peers
        self._disk = disk
        self._store = store
        self._application = application
        self._metrics = metrics
        self._space = space
        self._proposals: dict[int, Proposal] = {}
        self._forwarded: dict[trio.CancelScope, int] = {}  # to which member

    def on_leader(self, leader: int) -> None:
        """Another member leads. Requests to the former leader now have the deadline of any request, no longer
        that of a commit. 0: no leader is known."""
        deadline = trio.current_time() + self._core.raft.rpc_timeout_s
        for scope, member in self._forwarded.items():
            if leader not in (0, member):
                scope.deadline = min(scope.deadline, deadline)

    def on_outcome(self, token: int, result: LogPosition | Refusal | None) -> None:
        """The core knows the outcome of a proposal."""
        proposal = self._proposals.pop(token)
        if isinstance(result, Refusal):
            proposal.dropped = ProposalDropped(result)
        elif result is not None:
            proposal.outcome = (result.index, result.term)
        proposal.done.set()
        if proposal.outcome is not None:
            self._metrics.raft_commit_seconds.observe(trio.current_time() - proposal.since)

    def append(self, entry: bytes) -> bool:
        """In a turn: have the core append an entry of this node's own, without waiting for its outcome;
        whether it did."""
        proposal = Proposal()
        self._start(partial(self._core.raw.propose, [entry]), self._core.next_token(), proposal)
        return proposal.dropped is None

    def propose(self, start: Callable[[int], None]) -> Proposal:
        """Have the core do ``start(token)``, which may raise `ProposalDropped`."""
        proposal = Proposal()
        self._core.put(self._start, start, self._core.next_token(), proposal)
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
        if proposal.dropped is not None:
            self._metrics.count_proposals("dropped")
            raise proposal.dropped
        if proposal.outcome is None:
            self._metrics.count_proposals("unknown")
            raise OutcomeUnknown("leadership was lost before the commit")
        self._metrics.count_proposals("committed")
        return proposal.outcome

    def check(self, entry: bytes, origin: Origin) -> None:
        """Raise `EntryRefused` for an entry that this member does not let pass (the caller's fault)."""
        self._application.check(entry, origin)
        if len(entry) > self._core.raft.max_entry_bytes:
            raise EntryRefused("", f"larger than {self._core.raft.max_entry_bytes} bytes")

    async def post(self, entry: bytes, origin: Origin) -> tuple[int, int]:
        """Append one application entry, here or through the leader; (index, term) after its commit.

        Raises what `check` and `post_checked` raise.
        """
        self.check(entry, origin)
        return await self.post_checked((entry,))

    async def post_checked(self, entries: Sequence[bytes]) -> tuple[int, int]:
        """Append entries that `check` lets pass, all or none, one after another; (index, term) of the last
        one after its commit.

        Raises `EntryRefused` (several are too large for one message), `ProposalDropped` (`DiskHangs` among
        them), `NoQuorum` (certainly not appended), `OutcomeUnknown`. Cancelled, they may or may not be
        appended.
        """
        core = self._core
        if len(entries) > 1 and sum(map(len, entries)) + len(entries) * HEADERS_BYTES > (
            most := core.raft.max_entry_bytes
        ):
            raise EntryRefused("", f"together larger than {most} bytes: post fewer at a time")
        if len(self._proposals) >= MAX_PENDING_POSTS:
            raise ProposalDropped(Refusal.TOO_MANY_POSTS)
        sent = False
        with trio.move_on_after(core.answer_timeout_s):
            while True:
                if not core.leader_id:
                    await core.wait_leader_change()
                    continue
                sent = True
                if core.is_leader:
                    posted = await self._append(entries)
                else:
                    posted = await self._forward(core.leader_id, entries)
                if posted is not None:
                    return posted
                sent = False
                await trio.sleep(REDIRECT_PAUSE_S)
        if sent:
            raise OutcomeUnknown(f"not committed within {core.answer_timeout_s:g} s")
        self._disk.must_answer()
        raise NoQuorum(f"no leader within {core.answer_timeout_s:g} s")

    async def _append(self, entries: Sequence[bytes]) -> tuple[int, int] | None:
        """Append them here; None if this member does not lead or hands over, and has certainly not appended
        them."""
        if not (self._space.has_room or all(map(self._application.is_needed, entries))):
            self._metrics.count_proposals("dropped")
            raise ProposalDropped(Refusal.DISK_FULL)
        try:
            return await self.outcome(self.propose(partial(self._core.raw.propose, entries)))
        except ProposalDropped as dropped:
            if dropped.reason not in (Refusal.NOT_LEADER, Refusal.LEADERSHIP_IN_TRANSFER):
                raise
            return None

    async def _forward(self, leader: int, entries: Sequence[bytes]) -> tuple[int, int] | None:
        """Through the leader's ClientRequest connection; None if they were certainly not appended and
        another leader may take them."""
        node_id = self._core.node_id
        values = tuple([LogEntry(0, ValueType.APPLICATION, entry) for entry in entries])
        request = Request(MessageType.CLIENT_REQUEST, node_id, leader, entries=values)
        scope, since = trio.CancelScope(), self._core.applied_index
        self._forwarded[scope] = leader
        try:
            with scope:
                response = await self._peers.call(leader, request)
        except (TransportError, AuthError, RemoteProtocolError):
            return None  # certainly not sent
        finally:
            del self._forwarded[scope]
        if scope.cancelled_caught:
            raise OutcomeUnknown(f"member {leader} did not answer, and leads no more")
        if response is None:
            return None
        if response.accepted and not self._peers.has_handshake(leader):
            return await self._applied_from_jraft(entries, since, response)
        if response.accepted and response.next_index <= len(entries):
            raise OutcomeUnknown(f"member {leader} names an index that no entry of ours can have")
        if response.accepted:
            return response.next_index - 1, response.term
        if response.destination == leader and response.next_index:
            reason = Refusal.of_client_request(response.next_index)
            if reason in (Refusal.ENTRY_TOO_LARGE, Refusal.ENTRY_REFUSED):
                raise EntryRefused("", f"the leader refuses an entry that this member ({node_id}) accepts")
            if reason is not Refusal.LEADERSHIP_IN_TRANSFER:
                raise ProposalDropped(reason)
        return None

    async def _applied_from_jraft(
        self, entries: Sequence[bytes], since: int, response: Response
    ) -> tuple[int, int]:
        """(index, term) of the last of the entries once it is applied here. A JRaft leader answers when it
        has appended them, and later leaders may delete them. Its answer names the end of its log, where other
        clients' entries may lie behind ours. If the entry there is committed in the same term, so is all that
        was before it in that leader's log (Raft §5.3). ``since``: what was applied when they were posted.

        Raises `OutcomeUnknown`: another entry is there, or they cannot be found.
        """
        last = response.next_index - 1
        await self._core.wait_applied(last - 1)
        try:
            if last > since and self._store.term(last) == response.term:
                index = self._find(entries, since + 1, last)
                if index:
                    return index, response.term
        except Compacted:
            pass
        raise OutcomeUnknown("a JRaft leader took the entries, and another leader may have deleted them")

    def _find(self, entries: Sequence[bytes], first: int, last: int) -> int:
        """The index of the last of these entries, which lie one behind the other, at ``last`` or as near to
        it as possible; 0: they are not there."""
        found, run = 0, 0
        while first <= last:
            for entry in self._store.entries(first, last + 1, PAGE_BYTES):
                run = run + 1 if entry.value == entries[run] else int(entry.value == entries[0])
                if run == len(entries):
                    found, run = entry.index, 0
                first = entry.index + 1
        return found
