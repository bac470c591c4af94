"""The admin API's endpoints. Plain ASGI (Starlette): nothing here knows which server runs it.

Everything is bounded: an answer from the log by 20,000 indexes, with at most 256 KiB (or one entry) of it in
memory; a write to a client by 256 KiB, a posted entry or batch by 1 MiB, a long poll by 30 s; live events
by the number of watchers, and by what is held for all of them (`garlicfarm.admin.live_events`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
import trio
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from garlicfarm.admin.access import Authenticator
from garlicfarm.admin.contract import FarmView, NodeView
from garlicfarm.admin.dashboard import Dashboard
from garlicfarm.admin.problems import Problem, problem_of
from garlicfarm.admin.rankings import Rankings
from garlicfarm.admin.readers import Readers
from garlicfarm.admin.requests import MAX_ENTRY_BYTES, drain, flag, number, read_body, read_json
from garlicfarm.admin.responses import (
    MAX_WRITE_BYTES,
    Pieces,
    Streamed,
    commit_deadline,
    farm_headers,
    json_answer,
    wait_for_disconnect,
)
from garlicfarm.admin.watch import Watch
from garlicfarm.application import AdminEndpoint, AdminRequest
from garlicfarm.config.validators import is_dial_url
from garlicfarm.credentials.member_credentials import MAX_MEMBER_ID
from garlicfarm.credentials.roles import UserRole
from garlicfarm.errors import (
    Compacted,
    EntryRefused,
    FellBehind,
    GarlicFarmError,
    NotLeader,
    RemoteProtocolError,
    StorageError,
)
from garlicfarm.feed import binary_format, lines
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ClusterServer, ValueType

MAX_LIMIT = 20_000
DEFAULT_LIMIT = 1000
MAX_WAIT_S = 30.0
MAX_BATCH = 1024
EXTENT_DEADLINE_S = 10.0  # shorter than clients wait

T = TypeVar("T")
Endpoint = Callable[[Request, str], Awaitable[Response]]
"""It gets the request, and the name of the user."""
_Encode = Callable[[Iterable[Entry]], bytes]
_LINES: tuple[str, _Encode] = (lines.MEDIA_TYPE, lines.encode_lines)
_FORMS: dict[str, tuple[str, _Encode]] = {
    binary_format.MEDIA_TYPE: (binary_format.MEDIA_TYPE, binary_format.encode_records),
    **dict.fromkeys((lines.MEDIA_TYPE, "application/*", "*/*"), _LINES),
}
_FARM = "garlicfarm.farm_view"  # in a request's scope: the `FarmView` that it names


def create_app(node: NodeView, *, shutdown: trio.Event, metrics_token: str = "") -> Starlette:
    """The ASGI application for ``node``.

    :param shutdown: set when the node shuts down; long polls are then answered at once.
    :param metrics_token: required by ``/metrics`` and the health endpoints except over loopback.
    """
    api = _Api(node, Authenticator(node, metrics_token), shutdown)
    rankings, readers = Rankings(api.farm), Readers(api.farm)
    dashboard = Dashboard(node, readers)
    watch = Watch(node, api.read, shutdown)

    def of_farm(method: str, path: str, role: UserRole, endpoint: Endpoint) -> Route:
        return Route(f"/v1/farms/{{farm}}/{path}", api.guarded(role, endpoint), methods=[method])

    return Starlette(
        routes=[
            Route("/", api.guarded("reader", dashboard.page), methods=["GET"]),
            Route("/", api.guarded("admin", dashboard.act), methods=["POST"]),
            Route("/static/{name}", api.guarded("reader", dashboard.static)),
            Route("/v1/node", api.guarded("reader", api.node)),
            Route("/v1/node/drain", api.guarded("reader", api.draining), methods=["GET"]),
            Route("/v1/node/drain", api.guarded("admin", api.drain), methods=["POST"]),
            Route("/v1/node/undrain", api.guarded("admin", api.undrain), methods=["POST"]),
            Route("/v1/farms", api.guarded("reader", api.farms)),
            of_farm("GET", "status", "reader", api.status),
            of_farm("GET", "log", "reader", api.log),
            of_farm("POST", "log", "writer", api.post),
            of_farm("POST", "log/batch", "writer", api.post_batch),
            of_farm("GET", "log/extent", "reader", api.extent),
            of_farm("GET", "events", "reader", watch.server_sent),
            WebSocketRoute("/v1/farms/{farm}/events", api.guarded_websocket("reader", watch.websocket)),
            of_farm("GET", "state", "reader", api.state),
            of_farm("GET", "state/oldest", "reader", api.oldest_state),
            of_farm("GET", "snapshot", "admin", api.snapshot),
            of_farm("GET", "ranking", "reader", api.ranking),
            of_farm("GET", "rankings", "reader", rankings.queries),
            of_farm("GET", "rankings/{query}", "reader", rankings.body),
            of_farm("DELETE", "rankings/{query}", "admin", rankings.delete),
            of_farm("PUT", "rankings/{query}/{batch}", "writer", rankings.put),
            of_farm("GET", "readers", "reader", readers.get),
            of_farm("PUT", "readers/{query}", "reader", readers.put),
            of_farm("GET", "policy", "admin", api.policy),
            of_farm("POST", "policy", "admin", api.administer),
            of_farm("GET", "members", "admin", api.members),
            of_farm("POST", "members", "admin", api.add_member),
            of_farm("PATCH", "members/{id}", "admin", api.set_member),
            of_farm("DELETE", "members/{id}", "admin", api.remove_member),
            of_farm("POST", "level", "admin", api.raise_level),
            of_farm("POST", "leader/stepdown", "admin", api.step_down),
            of_farm("POST", "repair", "admin", api.repair),
            *api.application_routes(),
            Route("/metrics", api.metrics),
            Route("/healthz", api.healthz),
            Route("/readyz", api.readyz),
        ],
        exception_handlers={
            Problem: _answer_problem,
            GarlicFarmError: _answer_error,
            HTTPException: _answer_http,
            Exception: _answer_defect,
        },
    )


class _Api:
    def __init__(self, node: NodeView, authenticator: Authenticator, shutdown: trio.Event) -> None:
        self._node = node
        self._authenticator = authenticator
        self._shutdown = shutdown
        self._snapshot_turn = trio.Semaphore(1)

    def guarded(self, role: UserRole, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            try:
                user = await self._authenticator.user(request, role)
            except Problem:
                await drain(request)
                raise
            return await endpoint(request, user)

        return handle

    def guarded_websocket(
        self, role: UserRole, endpoint: Callable[[WebSocket, str], Awaitable[None]]
    ) -> Callable[[WebSocket], Awaitable[None]]:
        """As `guarded`; a client that is refused gets the answer instead of the WebSocket."""

        async def handle(socket: WebSocket) -> None:
            try:
                await endpoint(socket, await self._authenticator.user(socket, role))
            except (Problem, GarlicFarmError) as error:
                answer = _answer_problem if isinstance(error, Problem) else _answer_error
                await socket.send_denial_response(answer(socket, error))

        return handle

    async def node(self, request: Request, user: str) -> Response:
        node = self._node
        return json_answer(
            {
                "schema": "garlicfarm.node/1",
                "id": node.node_id,
                "version": node.version,
                "uptime_s": round(trio.current_time() - node.started_monotonic, 3),
                "transports": list(node.transports),
                "farms": list(node.farms),
            }
        )

    async def draining(self, request: Request, user: str) -> Response:
        return json_answer({"schema": "garlicfarm.node-drain/1", **self._node.draining.report()})

    async def drain(self, request: Request, user: str) -> Response:
        await self._node.draining.set(True)
        return await self.draining(request, user)

    async def undrain(self, request: Request, user: str) -> Response:
        await self._node.draining.set(False)
        return await self.draining(request, user)

    async def farms(self, request: Request, user: str) -> Response:
        rows = [
            {
                "name": farm.farm,
                "application": farm.application,
                "farm_id": farm.farm_id.hex(),
                "first_index": farm.first_index,
                "commit_index": farm.commit_index,
                "leader": None if (leader := farm.leader()) is None else leader[0],
                "disk_hangs_s": farm.disk_hangs_s,
            }
            for farm in self._node.farms.values()
        ]
        return json_answer({"schema": "garlicfarm.farms/1", "farms": rows})

    async def status(self, request: Request, user: str) -> Response:
        farm = await self.read(request)
        return json_answer(farm.status(), farm)

    async def ranking(self, request: Request, user: str) -> Response:
        farm = await self.read(request)
        return json_answer(farm.ranking(statuses=flag(request, "statuses")), farm)

    async def state(self, request: Request, user: str) -> Response:
        farm = await self.read(request)
        return _state(farm, *farm.state())

    async def oldest_state(self, request: Request, user: str) -> Response:
        farm = await self.read(request)
        return _state(farm, *await farm.oldest_state())

    async def snapshot(self, request: Request, user: str) -> Response:
        """A saved snapshot. One at a time is in memory until its client has it."""
        farm = await self.read(request)
        try:
            self._snapshot_turn.acquire_nowait()
        except trio.WouldBlock:
            raise Problem(
                503,
                "busy",
                "this node is sending another snapshot",
                "Try again when that has ended, or ask another node.",
                headers=[("Retry-After", "5")],
            ) from None
        try:
            parts = await farm.saved_snapshot()
        except BaseException as error:
            self._snapshot_turn.release()
            if isinstance(error, StorageError):
                raise Problem(507, "too-large", str(error), "Read the log instead.") from error
            raise

        async def body() -> AsyncGenerator[bytes]:
            for part in parts:
                yield part

        return Streamed(
            request,
            body,
            headers=farm_headers(farm),
            media_type="application/octet-stream",
            on_end=self._snapshot_turn.release,
        )

    async def log(self, request: Request, user: str) -> Response:
        farm = await self.read(request)
        media_type, encode = _form(request)
        after = int(number(request, "after", 0, 2**63 - 1))
        limit = int(number(request, "limit", DEFAULT_LIMIT, MAX_LIMIT, least=1))
        wait_s = number(request, "wait_s", 0, MAX_WAIT_S)
        types = request.query_params.get("types", "application")
        if types not in ("application", "all"):
            raise Problem(400, "bad-query", "types is neither application nor all", "Correct the query.")
        readers = self._node.metrics.feed_readers.labels(farm.farm)
        with readers.track_inprogress():
            deadline = trio.current_time() + wait_s
            while True:
                # Committed entries never change, so the end of this answer is known now.
                upto = max(after, min(after + limit, farm.commit_index))
                wanted = _Wanted(farm.entries(after, MAX_WRITE_BYTES, upto=upto), types == "all")
                first = await wanted.piece()
                if first or not wait_s or not await self._wait_for_commit(request, farm, upto, deadline):
                    break
                after = upto

        async def body() -> AsyncGenerator[bytes]:
            piece = first
            with readers.track_inprogress():
                while piece:
                    self._node.metrics.feed_entries.labels(farm.farm).inc(len(piece))
                    yield encode(piece)
                    piece = await wanted.piece()

        headers = farm_headers(farm, next_after=upto)
        return Streamed(request, body, headers=headers, media_type=media_type)

    async def extent(self, request: Request, user: str) -> Response:
        """How far an answer with at most so many bytes of values would reach: for readers that plan batches
        before they read them."""
        farm = await self.read(request)
        after = int(number(request, "after", 0, 2**63 - 1))
        limit = int(number(request, "limit", DEFAULT_LIMIT, MAX_LIMIT, least=1))
        most = int(number(request, "max_bytes", MAX_ENTRY_BYTES, 2**63 - 1, least=1))
        last, size = after, 0
        upto = max(after, min(after + limit, farm.commit_index))
        # What is gone is 410 for the next request; what takes too long is left to it.
        with suppress(FellBehind), trio.move_on_after(EXTENT_DEADLINE_S):
            async for entries in farm.entries(after, MAX_WRITE_BYTES, upto=upto):
                for entry in entries:
                    if last > after and size + len(entry.value) > most:
                        return json_answer({"upto": last, "bytes": size}, farm)
                    last, size = entry.index, size + len(entry.value)
        return json_answer({"upto": last, "bytes": size}, farm)

    async def post(self, request: Request, user: str) -> Response:
        entry = await read_body(request)
        farm = self.farm(request)
        return await _committed(farm, farm.post(entry, user))

    async def post_batch(self, request: Request, user: str) -> Response:
        entries = _entries(await read_body(request))
        farm = self.farm(request)
        with commit_deadline():
            outcomes = [_outcome(outcome) for outcome in await farm.post_batch(entries, user)]
        return json_answer({"outcomes": outcomes}, farm)

    async def administer(self, request: Request, user: str) -> Response:
        wanted = await read_json(request, _Policy, '{"action": …, "args": {…}}')
        farm = self.farm(request)
        if does := _DOES.get(wanted.action):  # the entry alone does nothing
            raise Problem(400, "bad-body", "this is not a policy", does.format(farm=farm.farm))
        return await _committed(farm, farm.administer(wanted.action, wanted.args, user))

    async def policy(self, request: Request, user: str) -> Response:
        farm = await self.read(request)
        return json_answer(farm.policy(), farm)

    async def members(self, request: Request, user: str) -> Response:
        farm = await self.read(request)
        return json_answer(farm.members(), farm)

    async def add_member(self, request: Request, user: str) -> Response:
        wanted = await read_json(request, ClusterServer, '{"id": …, "endpoint": …}')
        return await self._change(request, "add", wanted.id, wanted.endpoint, user)

    async def set_member(self, request: Request, user: str) -> Response:
        wanted = await read_json(request, _Endpoint, '{"endpoint": …}')
        return await self._change(request, "set", _member(request), wanted.endpoint, user, status=200)

    async def remove_member(self, request: Request, user: str) -> Response:
        force = flag(request, "force")
        return await self._change(request, "remove", _member(request), "", user, force=force, status=200)

    async def _change(
        self,
        request: Request,
        change: str,
        member: int,
        endpoint: str,
        user: str,
        *,
        force: bool = False,
        status: int = 201,
    ) -> Response:
        farm = self.farm(request)
        if not 1 <= member <= MAX_MEMBER_ID or not (change == "remove" or is_dial_url(endpoint)):
            wanted = f"an id from 1 to {MAX_MEMBER_ID}, and an endpoint as ssl://a.example:27150?pin=sha256-…"
            raise Problem(400, "bad-body", f"this takes {wanted}", "Correct it.")
        outcome = farm.change_member(change, member, endpoint, force, user)
        return await _committed(farm, outcome, status=status)

    async def raise_level(self, request: Request, user: str) -> Response:
        wanted = await read_json(request, _Level, '{"level": …}')
        farm = self.farm(request)
        return await _committed(farm, farm.raise_level(wanted.level, user), status=200)

    async def step_down(self, request: Request, user: str) -> Response:
        wanted = await read_json(request, _StepDown, '{"to": …}')
        farm = self.farm(request)
        with commit_deadline("no member is known to have taken over"):
            leader = await farm.step_down(wanted.to, user)
        return json_answer({"leader": leader}, farm)

    async def repair(self, request: Request, user: str) -> Response:
        await read_json(request, _Repair, "{}")
        farm = self.farm(request)
        with commit_deadline("the leader is not known to have sent what it holds"):
            index = await farm.repair(user)
        return json_answer({"index": index}, farm)

    def application_routes(self) -> Iterator[Route]:
        """The endpoints of the applications; the farms of a node do not change while it runs."""
        for name, farm in self._node.farms.items():
            for endpoint in farm.endpoints:
                path = f"/v1/farms/{name}/{endpoint.path}"
                handle = self.guarded(endpoint.role, partial(self._application, name, endpoint))
                yield Route(path, handle, methods=[endpoint.method])

    async def _application(self, name: str, endpoint: AdminEndpoint, request: Request, user: str) -> Response:
        request.path_params["farm"] = name
        farm = await self.read(request)
        body = await read_body(request) if endpoint.method == "POST" else b""
        query = dict(request.query_params)
        with commit_deadline("no answer of the application"):
            answer = await endpoint.handle(AdminRequest(user, query, body))
        return json_answer(answer, farm)

    async def metrics(self, request: Request) -> Response:
        self._authenticator.scraper(request)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        self._node.collect()
        return Response(encode(self._node.metrics.registry), headers={"Content-Type": content_type})

    async def healthz(self, request: Request) -> Response:
        self._authenticator.scraper(request)
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        self._authenticator.scraper(request)
        if self._node.ready():
            return PlainTextResponse("ready\n")
        detail = "a farm knows no leader, or its disk does not answer"
        raise Problem(503, "not-ready", detail, "See `garlicfarm status`.")

    def farm(self, request: HTTPConnection) -> FarmView:
        """The farm that a request names."""
        name = request.path_params["farm"]
        farm = self._node.farms.get(name)
        if farm is None:
            names = ", ".join(self._node.farms)
            raise Problem(
                404, "no-such-farm", "this node has no farm of that name", f"Its farms are: {names}."
            )
        request.scope[_FARM] = farm
        return farm

    async def read(self, request: HTTPConnection) -> FarmView:
        """The farm to read from; for a linearizable read, once a majority has confirmed it."""
        farm = self.farm(request)
        if flag(request, "linearizable"):
            await farm.read_index()
        return farm

    async def _wait_for_commit(self, request: Request, farm: FarmView, beyond: int, deadline: float) -> bool:
        """Whether an entry was committed before the deadline, and before the client disconnected or the node
        shut down."""
        committed = False

        async def commit() -> None:
            nonlocal committed
            await farm.wait_commit(beyond)
            committed = True
            nursery.cancel_scope.cancel()

        async def end(of: Callable[[], Awaitable[object]]) -> None:
            await of()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = deadline
            nursery.start_soon(commit)
            nursery.start_soon(end, self._shutdown.wait)
            nursery.start_soon(end, lambda: wait_for_disconnect(request))
        return committed


_DOES = {"remove": "DELETE /v1/farms/{farm}/members/ID.", "level": "POST /v1/farms/{farm}/level."}
"""Actions whose entries only record what was done, and the request that does it."""


class _Policy(msgspec.Struct):
    action: str
    args: dict[str, Any] = {}


class _Endpoint(msgspec.Struct):
    endpoint: str


class _Repair(msgspec.Struct):
    pass


class _StepDown(msgspec.Struct):
    to: int = 0


class _Level(msgspec.Struct):
    level: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


def _member(request: Request) -> int:
    text = request.path_params["id"]
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else 0


async def _committed(farm: FarmView, outcome: Awaitable[tuple[int, int]], *, status: int = 201) -> Response:
    with commit_deadline():
        index, term = await outcome
    return json_answer({"index": index, "term": term}, farm, status=status)


def _state(farm: FarmView, index: int, state: bytes) -> Response:
    return Pieces(state, headers=farm_headers(farm, next_after=index), media_type="application/octet-stream")


class _Wanted:
    """The entries of ``pieces`` with the wanted types."""

    def __init__(self, pieces: AsyncIterator[Sequence[Entry]], all_types: bool) -> None:
        self._pieces = pieces
        self._all_types = all_types

    async def piece(self) -> Sequence[Entry]:
        """The next entries; none at the end."""
        async for entries in self._pieces:
            wanted = [e for e in entries if self._all_types or e.value_type is ValueType.APPLICATION]
            if wanted:
                return wanted
        return ()


def _form(request: Request) -> tuple[str, _Encode]:
    """The media type of the entries, and its encoder: the first known one in Accept."""
    for part in request.headers.get("accept", "*/*").split(","):
        form = _FORMS.get(part.partition(";")[0].strip().lower())
        if form is not None:
            return form
    known = f"{lines.MEDIA_TYPE} and {binary_format.MEDIA_TYPE}"
    raise Problem(406, "not-acceptable", f"entries come as {known}", "Send one of them as `Accept`.")


def _entries(body: bytes) -> list[bytes]:
    """The values of the records of a batch."""
    decoder = binary_format.RecordDecoder()
    try:
        entries = decoder.receive_data(body)
        decoder.receive_eof()
    except RemoteProtocolError as error:
        raise Problem(400, "bad-body", str(error), f"Send {binary_format.MEDIA_TYPE}.") from error
    if not 1 <= len(entries) <= MAX_BATCH or any(e.value_type is not ValueType.APPLICATION for e in entries):
        detail = f"a batch has 1 to {MAX_BATCH} entries of the type application"
        raise Problem(400, "bad-body", detail, "Split it.")
    return [entry.value for entry in entries]


def _outcome(outcome: tuple[int, int] | EntryRefused) -> dict[str, object]:
    if isinstance(outcome, EntryRefused):
        problem = problem_of(outcome)
        assert problem is not None
        return problem.body()
    index, term = outcome
    return {"index": index, "term": term}


def _answer_problem(request: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _response(request, error)


def _answer_error(request: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, GarlicFarmError)
    problem = problem_of(error)
    if problem is None:
        raise error
    farm: FarmView | None = request.scope.get(_FARM)
    url = farm.leader_url() if isinstance(error, NotLeader) and farm is not None else None
    if url is not None and url.isascii() and url.isprintable():  # a header can carry it
        problem.headers = [*problem.headers, ("Garlic-Farm-Leader-Url", url)]
    return _response(request, problem, error.first_index - 1 if isinstance(error, Compacted) else None)


def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = list((error.headers or {}).items())
    return _response(
        request,
        Problem(
            error.status_code, "no-such-endpoint", error.detail, "See the list of endpoints.", headers=headers
        ),
    )


def _answer_defect(request: Request, error: Exception) -> Response:
    return _response(request, Problem(500, "defect", "a defect of this program", "See the node's log."))


def _response(request: HTTPConnection, problem: Problem, next_after: int | None = None) -> Response:
    response = problem.response()
    farm: FarmView | None = request.scope.get(_FARM)
    if farm is not None:
        response.headers.update(farm_headers(farm, next_after=next_after))
    return response
