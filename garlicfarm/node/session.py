"""One incoming, authenticated connection: requests in, answers out in the same order.

Reader and writer are tasks of their own, so that requests go on being read while answers wait for the
disk or for a commit: that is what lets one fsync serve many messages.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NoReturn

import trio

from garlicfarm.errors import EntryRefused, OutcomeUnknown, RemoteProtocolError
from garlicfarm.link import RECEIVE_BYTES
from garlicfarm.raft import Refusal
from garlicfarm.wire import RequestDecoder, encode_response
from garlicfarm.wire.messages import MessageType, Request, Response

if TYPE_CHECKING:
    from garlicfarm.node.farm import Farm

__all__ = ["Caller", "Session", "Slot"]

MAX_UNANSWERED = 4096
MAX_UNANSWERED_BYTES = 8 << 20
ENTRY_OVERHEAD_BYTES = 128  # what an entry costs in memory beside its value
PARTIAL_MESSAGE_TIMEOUT_S = 30.0
CLIENT_IDLE_S = 3600.0

# What a member may ask for, and the extension that has to be in force for it (D5, D6).
_MEMBER_REQUESTS = {
    MessageType.REQUEST_VOTE_REQUEST: "",
    MessageType.APPEND_ENTRIES_REQUEST: "",
    MessageType.INSTALL_SNAPSHOT_REQUEST: "",
    MessageType.CLIENT_REQUEST: "",
    MessageType.PRE_VOTE_REQUEST: "pre-vote",
    MessageType.TIMEOUT_NOW_REQUEST: "timeout-now",
}


class Caller:
    """Who is at the other end (D6): a member by its id, or a client (id 0) with a user's role;
    ``extensions`` are in force on this connection."""

    __slots__ = ("extensions", "may_post", "member_id", "name")

    def __init__(
        self, name: str, member_id: int, may_post: bool, extensions: frozenset[str] = frozenset()
    ) -> None:
        self.name = name
        self.member_id = member_id
        self.may_post = may_post
        self.extensions = extensions


class Slot:
    """The place of one answer in a session's order."""

    __slots__ = ("done", "response", "session", "since", "size")

    def __init__(self, session: Session, size: int) -> None:
        self.session = session
        self.size = size
        self.since = trio.current_time()
        self.done = False
        self.response: Response | None = None

    def resolve(self, response: Response | None) -> None:
        """Give the answer; None closes the connection: the outcome is unknown."""
        self.response = response
        self.done = True
        self.session.wake()


class Session:
    """Serves one connection until it ends; any fault of the peer ends it with an exception.

    ``answer_timeout_s`` bounds how long the oldest request may wait for its answer, and how long the
    peer may take to read one.
    """

    def __init__(
        self, farm: Farm, stream: trio.abc.Stream, caller: Caller, leftover: bytes, answer_timeout_s: float
    ) -> None:
        self._farm = farm
        self._stream = stream
        self._caller = caller
        self._decoder = RequestDecoder(farm.limits)
        self._decoder.receive_data(leftover)
        self._answer_timeout_s = answer_timeout_s
        self._slots: deque[Slot] = deque()
        self._unanswered_bytes = 0
        self._ready = trio.Event()
        self._room = trio.Event()
        self._wait_scope = trio.CancelScope()
        self._fault: RemoteProtocolError | None = None

    async def run(self) -> None:
        """Read and answer until the peer closes. Raises what ended the connection otherwise."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            await self._read()
            nursery.cancel_scope.cancel()

    def wake(self) -> None:
        """An answer is there."""
        self._ready.set()

    def fail(self, fault: RemoteProtocolError) -> None:
        """The core found a fault in one of this peer's requests."""
        self._fault = fault
        self._ready.set()

    # ------------------------------------------------------------------ in

    async def _read(self) -> None:
        while True:
            while (request := self._decoder.next_message()) is not None:
                self._admit(request)
                while len(self._slots) >= MAX_UNANSWERED or self._unanswered_bytes >= MAX_UNANSWERED_BYTES:
                    self._room = trio.Event()
                    await self._room.wait()
            if self._decoder.partial:
                timeout = PARTIAL_MESSAGE_TIMEOUT_S
            else:
                timeout = float("inf") if self._caller.member_id else CLIENT_IDLE_S
            with trio.fail_after(timeout):
                data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                self._decoder.receive_eof()
                return
            self._decoder.receive_data(data)

    def _admit(self, request: Request) -> None:
        """Hold the request against what this connection may say (D6), and pass it on."""
        self._check(request)
        self._farm.heard_from(self._caller.member_id, request)
        slot = Slot(self, sum(len(entry.value) + ENTRY_OVERHEAD_BYTES for entry in request.entries))
        if not self._slots:
            self._wait_scope.deadline = slot.since + self._answer_timeout_s
        self._slots.append(slot)
        self._unanswered_bytes += slot.size
        self._farm.step(request, slot)

    def _check(self, request: Request) -> None:
        caller, us = self._caller, self._farm.node_id
        where = request.type.name
        if request.source != caller.member_id or request.source == us:
            raise RemoteProtocolError(f"{caller.name} speaks as {request.source} to {us}", where)
        for_anybody = request.type is MessageType.CLIENT_REQUEST
        if request.destination != us and not (for_anybody and request.destination == 0):
            raise RemoteProtocolError(f"a request for {request.destination} sent to {us}", where)
        extension = _MEMBER_REQUESTS.get(request.type)
        if extension not in ("", *caller.extensions) or not (caller.member_id or for_anybody):
            raise RemoteProtocolError("a request that this server does not serve to this caller", where)

    def refusal(self, request: Request) -> int:
        """Why the leader refuses the entries of a ClientRequest (D8), 0 if it does not."""
        if not self._caller.may_post:
            return Refusal.ROLE
        for entry in request.entries:
            try:
                self._farm.application.check(entry.value, self._caller.member_id)
            except EntryRefused:
                return Refusal.APPLICATION
        return 0

    # ------------------------------------------------------------------ out

    async def _write(self) -> NoReturn:
        while True:
            oldest = self._slots[0].since if self._slots else float("inf")
            with trio.CancelScope(deadline=oldest + self._answer_timeout_s) as self._wait_scope:
                await self._ready.wait()
            if self._wait_scope.cancelled_caught:
                raise OutcomeUnknown(f"no outcome within {self._answer_timeout_s:g} s")
            self._ready = trio.Event()
            if self._fault is not None:
                raise self._fault
            answers = []
            unknown = False
            while self._slots and self._slots[0].done and not unknown:
                slot = self._slots.popleft()
                self._unanswered_bytes -= slot.size
                if slot.response is None:
                    unknown = True
                else:
                    answers.append(encode_response(slot.response))
            self._room.set()
            if answers:
                with trio.fail_after(self._answer_timeout_s):
                    await self._stream.send_all(b"".join(answers))
            if unknown:
                raise OutcomeUnknown("leadership was lost before the outcome was known")
