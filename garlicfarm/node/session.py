"""One incoming, authenticated connection: requests in, answers out in the same order.

Reader and writer are separate tasks, so that requests are read while answers wait for the disk or for a
commit. So one fsync serves many messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

import msgspec
import trio

from garlicfarm.config.model import HEADERS_BYTES
from garlicfarm.credentials.roles import UserRole, includes
from garlicfarm.credentials.users import Login
from garlicfarm.errors import AuthError, OutcomeUnknown, RemoteProtocolError
from garlicfarm.extensions import LEADER_HINT
from garlicfarm.levels import LOWEST, SAYS_NOTHING, Program
from garlicfarm.metrics import FarmMetrics
from garlicfarm.net.sender import Sender
from garlicfarm.wire import Limits, RequestDecoder, decode_cluster_server, encode_response
from garlicfarm.wire.messages import (
    EXTENSION_OF,
    ClusterServer,
    Configuration,
    MessageType,
    Request,
    Response,
)

MAX_UNANSWERED = 4096
MAX_UNANSWERED_BYTES = 8 << 20
ENTRY_OVERHEAD_BYTES = 128  # memory of an entry beside its value
PARTIAL_MESSAGE_TIMEOUT_S = 30.0
CLIENT_IDLE_S = 3600.0
LOGIN_CHECK_S = 1.0  # how long an idle connection outlives its login

# Requests that a member may send (D6), each with the extension that must be in force (D5).
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
    """The identity at the other end, which decides what it may send (D6): a member by its id, or a client (id
    0) with the role that the user of ``login`` had at the last `refresh`. ``extensions`` are in force on this
    connection. ``program``: what a member runs. ``is_jraft``: there was no handshake; each request names its
    own source."""

    __slots__ = ("_may_post", "_role", "extensions", "is_jraft", "login", "member_id", "name", "program")

    def __init__(
        self,
        name: str,
        member_id: int,
        may_post: bool,
        extensions: frozenset[str] = frozenset(),
        *,
        login: Login | None = None,
        program: Program = SAYS_NOTHING,
        is_jraft: bool = False,
    ) -> None:
        self.name = name
        self.member_id = member_id
        self._may_post = may_post
        self.extensions = extensions
        self.login = login
        self.program = program
        self.is_jraft = is_jraft
        self._role: UserRole | None = None
        self.refresh()

    def refresh(self) -> None:
        """Look up the user's role. That reads the file system, so it is done for each batch of requests."""
        if self.login is not None:
            self._role = self.login.role

    @property
    def user(self) -> str:
        """The user's name, "" if it is not a user."""
        return self.login.name if self.login is not None else ""

    @property
    def may_post(self) -> bool:
        return self._may_post if self.login is None else includes(self._role, "writer")

    @property
    def is_admin(self) -> bool:
        """Whether it may change any member."""
        return self.is_jraft if self.login is None else includes(self._role, "admin")

    @property
    def is_valid(self) -> bool:
        """False once its user was removed or got another password."""
        return self.login is None or self._role is not None


class RequestReceiver(Protocol):
    """Receives the requests of a session (`garlicfarm.node.incoming_requests.IncomingRequests`).

    ``limits``: of a member's messages; ``client_limits``: of all others'.
    """

    @property
    def node_id(self) -> int: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def client_limits(self) -> Limits: ...
    @property
    def metrics(self) -> FarmMetrics: ...
    @property
    def configuration(self) -> Configuration:
        """The Configuration in force."""

    def on_request(self, request: Request) -> None:
        """A permitted request came in that is not for `step`."""

    def step(self, requests: Sequence[tuple[Request, PendingResponse]]) -> None:
        """Take the permitted requests of one receive, in order, each with the place of its answer."""

    def is_member(self, server: int) -> bool:
        """Whether the applied Configuration names this server."""
        ...

    def change_member(self, request: Request, server: ClusterServer, pending: PendingResponse) -> None:
        """Answer an AddServerRequest or RemoveServerRequest about ``server``."""

    def forget(self, pending: Iterable[PendingResponse]) -> None:
        """The connection is gone: nothing waits for these answers."""


class PendingResponse:
    """The place of a pending answer in the order of a session."""

    __slots__ = ("is_done", "is_hinted", "response", "session", "since", "size", "token")

    def __init__(self, session: Session, since: float, size: int, is_hinted: bool) -> None:
        self.session = session
        self.since = since
        self.size = size
        self.is_hinted = is_hinted  # a hint follows a refusal
        self.token = 0  # the core's, if it was asked
        self.is_done = False
        self.response: Response | None = None

    def resolve(self, response: Response | None) -> None:
        """Give the answer; None closes the connection: the outcome is unknown."""
        self.response = response
        self.is_done = True
        self.session.wake()


class Session:
    """Serves one connection until it ends; any fault of the peer ends it with an exception.

    ``answer_timeout_s`` bounds how long the oldest request may wait for its answer, and how long the
    peer may take to read one.
    """

    def __init__(
        self,
        receiver: RequestReceiver,
        stream: trio.abc.Stream,
        principal: Principal,
        leftover: bytes,
        answer_timeout_s: float,
    ) -> None:
        self._receiver = receiver
        self._stream = stream
        self.principal = principal
        limits = receiver.limits if principal.member_id or principal.is_jraft else receiver.client_limits
        if not principal.may_post:  # one entry is enough to learn why it is refused
            most = min(limits.max_message_bytes, limits.max_entry_bytes + HEADERS_BYTES)
            limits = msgspec.structs.replace(limits, max_message_bytes=most)
        self._decoder = RequestDecoder(limits)
        self._decoder.receive_data(leftover)
        self._answer_timeout_s = answer_timeout_s
        self._pending: deque[PendingResponse] = deque()
        self._unanswered_bytes = 0
        self._room = trio.Event()
        self._sender = Sender(stream, self._take_answers)
        self._fault: Exception | None = None

    async def run(self) -> None:
        """Read and answer until the peer closes. Raises any other end of the connection."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._sender.run, self._answer_timeout_s)
                nursery.start_soon(self._watch_answers)
                if self.principal.login is not None:
                    nursery.start_soon(self._watch_login)
                await self._read()
                nursery.cancel_scope.cancel()
        finally:
            self._receiver.forget(self._pending)

    def wake(self) -> None:
        """Have `run`'s task send the answers whose turn it is."""
        self._sender.wake()

    def flush(self) -> None:
        """Send the answers whose turn it is: at once if the stream can, else by `wake`. Never raises."""
        try:
            self._sender.flush()
        except Exception as error:  # noqa: BLE001 - `run` raises it: it ends this connection only
            self.fail(error)

    def fail(self, fault: Exception) -> None:
        """End the connection with an error: the core found a fault in one of this peer's requests."""
        self._fault = fault
        self._sender.wake()

    async def _watch_login(self) -> NoReturn:
        while self.principal.is_valid:
            await trio.sleep(LOGIN_CHECK_S)
            self.principal.refresh()
        raise AuthError(f"{self.principal.name} is no longer a user")

    # ------------------------------------------------------------------ in

    async def _read(self) -> None:
        with trio.CancelScope() as scope:
            while True:
                if not self._take_requests():
                    if not self._has_room:
                        scope.deadline = float("inf")
                        self._room = trio.Event()
                        await self._room.wait()
                    continue
                if self._decoder.partial:
                    scope.deadline = trio.current_time() + PARTIAL_MESSAGE_TIMEOUT_S
                elif not (self.principal.member_id or self.principal.is_jraft):
                    scope.deadline = trio.current_time() + CLIENT_IDLE_S
                elif scope.deadline != float("inf"):
                    scope.deadline = float("inf")
                data = await self._stream.receive_some(self._decoder.receive_bytes)
                if not data:
                    self._decoder.receive_eof()
                    return
                self._decoder.receive_data(data)
                self.principal.refresh()
        raise trio.TooSlowError

    @property
    def _has_room(self) -> bool:
        return len(self._pending) < MAX_UNANSWERED and self._unanswered_bytes < MAX_UNANSWERED_BYTES

    def _take_requests(self) -> bool:
        """Check the requests received so far, as many as there is room for, and pass them on together. Those
        before a fault are passed on too. Returns whether that was all: some may be answered before this
        returns, so that there is room for more."""
        requests: list[tuple[Request, PendingResponse]] = []
        now, has_hints = trio.current_time(), LEADER_HINT in self.principal.extensions
        try:
            while self._has_room:
                if (request := self._next_message()) is None:
                    return True
                self._check(request)
                size = 0
                for entry in request.entries:
                    size += len(entry.value) + ENTRY_OVERHEAD_BYTES
                is_hinted = has_hints and request.type is MessageType.CLIENT_REQUEST
                pending = PendingResponse(self, now, size, is_hinted)
                self._pending.append(pending)
                self._unanswered_bytes += size
                if request.type in _CHANGES:
                    self._receiver.on_request(request)
                    self._receiver.change_member(request, self._server(request), pending)
                else:
                    requests.append((request, pending))
            return False
        finally:
            if requests:
                self._receiver.step(requests)

    def _next_message(self) -> Request | None:
        try:
            return self._decoder.next_message()
        except RemoteProtocolError:
            self._receiver.metrics.count_refused("malformed")
            raise

    def _refused(self, reason: str, what: str, request: Request) -> RemoteProtocolError:
        self._receiver.metrics.count_refused(reason)
        return RemoteProtocolError(what, request.type.name)

    def _server(self, request: Request) -> ClusterServer:
        """The server in an AddServerRequest or RemoveServerRequest. An admin may name any, and so may a
        member, on behalf of an admin there; a server that is not a member names only itself."""
        remove = request.type is MessageType.REMOVE_SERVER_REQUEST
        try:
            server = decode_cluster_server(request.entries[0].value, id_only=remove)
        except RemoteProtocolError:
            self._receiver.metrics.count_refused("malformed")
            raise
        principal = self.principal
        may_name_any = principal.is_admin or self._receiver.is_member(principal.member_id)
        if not may_name_any and server.id != principal.member_id:
            raise self._refused("role", f"{principal.name} may not change {server.id}", request)
        return server

    def _check(self, request: Request) -> None:
        principal, us = self.principal, self._receiver.node_id
        if not principal.is_valid:
            raise self._refused("user", f"{principal.name} is no longer a user", request)
        forged = request.source != principal.member_id and not principal.is_jraft
        if forged or request.source == us:
            raise self._refused("source", f"{principal.name} speaks as {request.source} to {us}", request)
        for_any_member = request.type is MessageType.CLIENT_REQUEST or request.type in _CHANGES
        if request.destination != us and not (for_any_member and request.destination == 0):
            wrong = f"a request for {request.destination} sent to {us}"
            raise self._refused("destination", wrong, request)
        extension = "" if for_any_member else _MEMBER_REQUESTS.get(request.type)
        if extension not in ("", *principal.extensions) or not (request.source or for_any_member):
            what = "a request that this server does not serve to this caller"
            raise self._refused("not-served", what, request)

    # ------------------------------------------------------------------ out

    async def _watch_answers(self) -> NoReturn:
        """End the connection when the oldest request without an answer has waited too long."""
        while True:
            now = trio.current_time()
            since = next((each.since for each in self._pending if not each.is_done), now)
            if now >= since + self._answer_timeout_s:
                raise OutcomeUnknown(f"no outcome within {self._answer_timeout_s:g} s")
            await trio.sleep_until(since + self._answer_timeout_s)

    def _take_answers(self) -> bytes:
        """The bytes of all answers whose turn it is. After one without an outcome there are no others: the
        next call raises."""
        if self._fault is not None:
            raise self._fault
        answers = []
        while self._pending and self._pending[0].is_done and self._fault is None:
            pending = self._pending.popleft()
            self._unanswered_bytes -= pending.size
            response = pending.response
            if response is None:
                self.fail(OutcomeUnknown("leadership was lost before the outcome was known"))
            else:
                if not response.accepted and pending.is_hinted:
                    response = self._with_hint(response)
                answers.append(encode_response(response))
        self._room.set()
        return b"".join(answers)

    def _with_hint(self, response: Response) -> Response:
        """Add the hint to the answer of a refused ClientRequest: where the members are (D5, leader-hint).
        Without the level, which older clients could not read."""
        members = msgspec.structs.replace(self._receiver.configuration, level=LOWEST)
        return msgspec.structs.replace(response, hint=members)
