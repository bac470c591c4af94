"""One incoming, authenticated connection: requests in, answers out in the same order.

Reader and writer are tasks of their own, so that requests go on being read while answers wait for the
disk or for a commit: that is what lets one fsync serve many messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import msgspec
import trio

from garlicfarm.config.model import HEADERS_BYTES
from garlicfarm.errors import AuthError, EntryRefused, OutcomeUnknown, RemoteProtocolError
from garlicfarm.extensions import LEADER_HINT
from garlicfarm.net.link import RECEIVE_BYTES
from garlicfarm.node.proposals import check_entry, check_user
from garlicfarm.raft import Refusal
from garlicfarm.wire import RequestDecoder, decode_cluster_server, encode_response
from garlicfarm.wire.messages import EXTENSION_OF, ClusterServer, MessageType, Request, Response

if TYPE_CHECKING:
    from garlicfarm.credentials.users import Login
    from garlicfarm.node.replica import Replica

__all__ = ["PendingResponse", "Principal", "Session"]

MAX_UNANSWERED = 4096
MAX_UNANSWERED_BYTES = 8 << 20
ENTRY_OVERHEAD_BYTES = 128  # what an entry costs in memory beside its value
PARTIAL_MESSAGE_TIMEOUT_S = 30.0
CLIENT_IDLE_S = 3600.0
LOGIN_CHECK_S = 1.0  # how long an idle connection outlives its user

# What a member may ask for, and the extension that has to be in force for it (D5, D6).
_CHANGES = {MessageType.ADD_SERVER_REQUEST, MessageType.REMOVE_SERVER_REQUEST}
_MEMBER_REQUESTS = {
    MessageType.REQUEST_VOTE_REQUEST: "",
    MessageType.APPEND_ENTRIES_REQUEST: "",
    MessageType.INSTALL_SNAPSHOT_REQUEST: "",
    MessageType.JOIN_CLUSTER_REQUEST: "",
    MessageType.SYNC_LOG_REQUEST: "",
    MessageType.LEAVE_CLUSTER_REQUEST: "",
    **EXTENSION_OF,
}


class Principal:
    """Who is at the other end (D6): a member by its id, or a client (id 0) with the role that the user of
    ``login`` has when it asks; ``extensions`` are in force on this connection. ``trusted``: there was no
    handshake, who speaks is what each request says."""

    __slots__ = ("_may_post", "extensions", "login", "member_id", "name", "trusted")

    def __init__(
        self,
        name: str,
        member_id: int,
        may_post: bool,
        extensions: frozenset[str] = frozenset(),
        *,
        login: Login | None = None,
        trusted: bool = False,
    ) -> None:
        self.name = name
        self.member_id = member_id
        self._may_post = may_post
        self.extensions = extensions
        self.login = login
        self.trusted = trusted

    @property
    def may_post(self) -> bool:
        return self._may_post if self.login is None else self.login.has_role("writer")

    @property
    def is_admin(self) -> bool:
        """Whether it may change any member."""
        return self.trusted if self.login is None else self.login.has_role("admin")

    @property
    def counts(self) -> bool:
        """False once its user was removed, or has another password."""
        return self.login is None or self.login.role is not None


class PendingResponse:
    """The place of one answer in a session's order."""

    __slots__ = ("done", "hinted", "response", "session", "since", "size", "token")

    def __init__(self, session: Session, size: int, *, hinted: bool) -> None:
        self.session = session
        self.size = size
        self.hinted = hinted  # a refusal is followed by a hint
        self.since = trio.current_time()
        self.token = 0  # the core's, where it was asked
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
        self,
        farm: Replica,
        stream: trio.abc.Stream,
        caller: Principal,
        leftover: bytes,
        answer_timeout_s: float,
    ) -> None:
        self._farm = farm
        self._stream = stream
        self._caller = caller
        limits = farm.limits if caller.member_id or caller.trusted else farm.client_limits
        if not caller.may_post:  # it needs no room for more than one entry, to be told why that is refused
            most = min(limits.max_message_bytes, limits.max_entry_bytes + HEADERS_BYTES)
            limits = msgspec.structs.replace(limits, max_message_bytes=most)
        self._decoder = RequestDecoder(limits)
        self._decoder.receive_data(leftover)
        self._answer_timeout_s = answer_timeout_s
        self._slots: deque[PendingResponse] = deque()
        self._unanswered_bytes = 0
        self._ready = trio.Event()
        self._room = trio.Event()
        self._wait_scope = trio.CancelScope()
        self._fault: RemoteProtocolError | None = None

    @property
    def plain(self) -> bool:
        """Whether there was no handshake."""
        return self._caller.trusted

    async def run(self) -> None:
        """Read and answer until the peer closes. Raises what ended the connection otherwise."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                if self._caller.login is not None:
                    nursery.start_soon(self._watch_login)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self._farm.forget(self._slots)

    def wake(self) -> None:
        """An answer is there."""
        self._ready.set()

    def fail(self, fault: RemoteProtocolError) -> None:
        """The core found a fault in one of this peer's requests."""
        self._fault = fault
        self._ready.set()

    async def _watch_login(self) -> NoReturn:
        while self._caller.counts:  # noqa: ASYNC110 - another process writes the users file
            await trio.sleep(LOGIN_CHECK_S)
        raise AuthError(f"{self._caller.name} is a user no longer")

    # ------------------------------------------------------------------ in

    async def _read(self) -> None:
        while True:
            while (request := self._next_message()) is not None:
                self._admit(request)
                while len(self._slots) >= MAX_UNANSWERED or self._unanswered_bytes >= MAX_UNANSWERED_BYTES:
                    self._room = trio.Event()
                    await self._room.wait()
            if self._decoder.partial:
                timeout = PARTIAL_MESSAGE_TIMEOUT_S
            else:
                lasting = self._caller.member_id or self._caller.trusted
                timeout = float("inf") if lasting else CLIENT_IDLE_S
            with trio.fail_after(timeout):
                data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                self._decoder.receive_eof()
                return
            self._decoder.receive_data(data)

    def _next_message(self) -> Request | None:
        try:
            return self._decoder.next_message()
        except RemoteProtocolError:
            self._farm.metrics.count_refused("malformed")
            raise

    def _refused(self, reason: str, what: str, request: Request) -> RemoteProtocolError:
        self._farm.metrics.count_refused(reason)
        return RemoteProtocolError(what, request.type.name)

    def _admit(self, request: Request) -> None:
        """Hold the request against what this connection may say (D6), and pass it on."""
        self._check(request)
        self._farm.heard_from(request.source, request)
        size = sum(len(entry.value) + ENTRY_OVERHEAD_BYTES for entry in request.entries)
        asked = request.type is MessageType.CLIENT_REQUEST
        slot = PendingResponse(self, size, hinted=asked and LEADER_HINT in self._caller.extensions)
        if not self._slots:
            self._wait_scope.deadline = slot.since + self._answer_timeout_s
        self._slots.append(slot)
        self._unanswered_bytes += slot.size
        if request.type in _CHANGES:
            self._farm.membership.serve(request, self._server(request), slot)
        else:
            self._farm.step(request, slot)

    def _server(self, request: Request) -> ClusterServer:
        """The server that an AddServerRequest or RemoveServerRequest is about. An admin may name any, and so
        may a member, for an admin of its own; a server that is no member names only itself."""
        remove = request.type is MessageType.REMOVE_SERVER_REQUEST
        try:
            server = decode_cluster_server(request.entries[0].value, id_only=remove)
        except RemoteProtocolError:
            self._farm.metrics.count_refused("malformed")
            raise
        caller = self._caller
        may_name_any = caller.is_admin or self._farm.membership.is_member(caller.member_id)
        if not may_name_any and server.id != caller.member_id:
            raise self._refused("role", f"{caller.name} may not change {server.id}", request)
        return server

    def _check(self, request: Request) -> None:
        caller, us = self._caller, self._farm.node_id
        if not caller.counts:
            raise self._refused("user", f"{caller.name} is a user no longer", request)
        forged = request.source != caller.member_id and not caller.trusted
        if forged or request.source == us:
            raise self._refused("source", f"{caller.name} speaks as {request.source} to {us}", request)
        for_anybody = request.type is MessageType.CLIENT_REQUEST or request.type in _CHANGES
        if request.destination != us and not (for_anybody and request.destination == 0):
            wrong = f"a request for {request.destination} sent to {us}"
            raise self._refused("destination", wrong, request)
        extension = "" if for_anybody else _MEMBER_REQUESTS.get(request.type)
        if extension not in ("", *caller.extensions) or not (request.source or for_anybody):
            what = "a request that this server does not serve to this caller"
            raise self._refused("not-served", what, request)

    def refusals(self, request: Request) -> Iterator[int]:
        """Why the leader refuses each of the entries of a ClientRequest (D8), 0 where it does not."""
        if not self._caller.may_post:
            yield Refusal.ROLE
        for entry in request.entries:
            if len(entry.value) > self._farm.limits.max_entry_bytes:
                yield Refusal.TOO_LARGE
            try:
                check_entry(self._farm, entry.value, request.source)
                if self._caller.login is not None:
                    check_user(self._farm, entry.value, self._caller.login.name)
            except EntryRefused:
                yield Refusal.APPLICATION
            yield 0

    # ------------------------------------------------------------------ out

    def _with_hint(self, slot: PendingResponse, response: Response) -> Response:
        """A ClientRequest that is refused is told where the members are (D5)."""
        if response.accepted or not slot.hinted:
            return response
        return msgspec.structs.replace(response, hint=self._farm.configuration)

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
                    answers.append(encode_response(self._with_hint(slot, slot.response)))
            self._room.set()
            if answers:
                with trio.fail_after(self._answer_timeout_s):
                    await self._stream.send_all(b"".join(answers))
            if unknown:
                raise OutcomeUnknown("leadership was lost before the outcome was known")
