"""The admin listener: accepts connections, for an ASGI application that is served over HTTP.

Theory of operation. `garlicfarm.admin.http11` speaks HTTP; accepting, TLS and the limits are here.

* HTTP and the application are imported for the first connection: they are half of all that a node imports,
  and it serves its farms without them. A thread imports them, so that the farms are served meanwhile.
* `Admission` limits connections that are not logged in: a new one always gets a slot, and an older one is
  cut for it. A quarter is reserved for loopback. Logged-in connections are limited per user.
* Every connection has an error boundary: a fault of a client ends only its connection.
* Every connection has a watchdog: no byte either way for `IDLE_S`, or a write not taken within
  `SEND_S`, ends it. A request's header must be complete within `HEADER_S`.
* When a user is removed or gets a new password, its connections end within `CHECK_S`.
* At shutdown no more connections are accepted, requests have `GRACE_S` to end, then sockets are closed.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import trio

from garlicfarm import descriptors
from garlicfarm.credentials.users import Login
from garlicfarm.errors import ConfigError, TransportError, first_error
from garlicfarm.logs import EventLogger, place_of
from garlicfarm.net.admission import Admission
from garlicfarm.net.tcp import WrappedStream, serve_listeners, server_tls
from garlicfarm.regular_files import check_regular
from garlicfarm.transport import AdmissionSlot, Peer, network_of

if TYPE_CHECKING:
    from garlicfarm.admin.http11 import AsgiApp, HttpServer

MAX_CONNECTIONS = 128  # that are not logged in
PER_ADDRESS = 64
PER_USER = 64
CHECK_S = 1.0
HANDSHAKE_S = 10.0
HEADER_S = 10.0
IDLE_S = 90.0
SEND_S = 30.0
GRACE_S = 3.0
MAX_READ_BYTES = 32 << 10

logger = logging.getLogger("garlicfarm.admin")


async def serve(
    make_app: Callable[[], Awaitable[AsgiApp]],
    *,
    bind: str,
    certificate: Path,
    private_key: Path,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an application over TLS 1.3 until ``shutdown`` is set; then end open requests within `GRACE_S`.

    :param make_app: called once, for the first connection.
    :param bind: ``https://host:port``; port 0 takes a free one.
    :param task_status: gets the bound URL once connections are accepted.
    :raises ConfigError: not such a URL, or no usable certificate (the configuration's fault).
    :raises TransportError: the address cannot be bound.

    Cancelled: closes every connection at once; the outcome of entries being posted is then unknown.
    """
    url = urlsplit(bind)
    if url.scheme != "https" or not url.hostname or url.port is None:
        raise ConfigError([f"admin.url {bind!r} is not https://host:port"])
    context = _tls(certificate, private_key)
    try:
        listeners = await trio.open_tcp_listeners(url.port, host=url.hostname)
    except OSError as error:
        raise TransportError(
            f"cannot listen on {bind}: {error.strerror or error}",
            "set admin.url (`node join`: --admin-url) to a free address",
        ) from error
    if url.port == 0:
        # A name with several addresses would get a port for each.
        for surplus in listeners[1:]:
            await surplus.aclose()
        del listeners[1:]
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    bound = f"https://{host}:{listeners[0].socket.getsockname()[1]}"

    connections = _Connections(make_app, context)
    async with trio.open_nursery() as outer:
        outer.start_soon(connections.cut)
        outer.start_soon(connections.watch_logins)
        async with trio.open_nursery() as open_connections:
            async with trio.open_nursery() as accepting:
                await accepting.start(
                    partial(
                        serve_listeners,
                        connections.handle,
                        listeners,
                        handler_nursery=open_connections,
                    )
                )
                task_status.started(bound)
                await shutdown.wait()
                accepting.cancel_scope.cancel()
            await connections.finish()
            outer.cancel_scope.deadline = trio.current_time() + GRACE_S
        outer.cancel_scope.cancel()


def _tls(certificate: Path, private_key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    try:
        for file in (certificate, private_key):
            check_regular(file)
        context.load_cert_chain(certificate, private_key)
    except ssl.SSLError as error:
        raise ConfigError([f"cannot use {certificate} with {private_key}: {error}"]) from error
    except OSError as error:
        which = error.filename or f"{certificate}, {private_key}"
        raise ConfigError([f"{which}: {error.strerror}"]) from error
    return context


def _import_http_server() -> type[HttpServer]:
    # Not at the top: see above, "imported for the first connection".
    from garlicfarm.admin.http11 import HttpServer

    return HttpServer


class _Connections:
    """All open connections, and their shared state."""

    def __init__(self, make_app: Callable[[], Awaitable[AsgiApp]], tls: ssl.SSLContext) -> None:
        self._make_app = make_app
        self._tls = tls
        self._http: HttpServer | None = None
        self._making = trio.Lock()
        self._admission = Admission(
            per_address=PER_ADDRESS, total=descriptors.share(MAX_CONNECTIONS), named=lambda: _LOOPBACK
        )
        self._open: set[_Connection] = set()
        self._of_user: dict[str, deque[_Connection]] = {}
        self._events = EventLogger(logger, clock=trio.current_time)

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one client to its end; neither a client's fault nor a defect escapes."""
        try:
            client, server = stream.socket.getpeername()[:2], stream.socket.getsockname()[:2]
        except OSError:
            return  # it left while it was queued
        peer = Peer(client[0], True, None)
        cut = self._admission.admit(peer, on_cut=lambda peer: connection.end())
        with cut as slot, self._connection(stream, slot) as connection:
            try:
                with trio.fail_after(HANDSHAKE_S):
                    await trio.lowlevel.wait_readable(stream.socket)
            except trio.TooSlowError:
                return
            if not slot.begin():
                return
            try:
                http = await self._http_server()
                with server_tls(connection, self._tls) as secured:
                    try:
                        with trio.fail_after(HANDSHAKE_S):
                            await secured.do_handshake()
                    except (trio.BrokenResourceError, trio.TooSlowError):
                        return
                    on_login = partial(self._logged_in, connection)
                    await http.run(secured, slot, on_login, client=client, server=server)
            except Exception as error:  # noqa: BLE001
                # Log where, not what: errors quote the client.
                self._events.error("connection-failed", **_slot(error))

    async def _http_server(self) -> HttpServer:
        async with self._making:
            if self._http is None:
                http_server = await trio.to_thread.run_sync(_import_http_server)
                self._http = http_server(await self._make_app(), logger, header_s=HEADER_S)
            return self._http

    def _logged_in(self, connection: _Connection, login: Login) -> None:
        """A request on it was authenticated: it gives up its slot and counts as a connection of the user."""
        connection.slot.leave()
        known = connection.logins.get(login.name)
        connection.logins[login.name] = login
        if known is None:
            own = self._of_user.setdefault(login.name, deque())
            own.append(connection)
            if len(own) > PER_USER:
                own[0].end()  # the oldest is most likely to be half open

    async def watch_logins(self) -> None:
        """Cut the connections whose login is no longer valid."""
        while True:
            await trio.sleep(CHECK_S)
            for connection in tuple(self._open):
                if any(login.role is None for login in connection.logins.values()):
                    connection.end()

    async def finish(self) -> None:
        """Let each connection end after its current request."""
        async with self._making:
            if self._http is not None:
                self._http.finish()

    async def cut(self) -> None:
        """Cancelled, close all sockets: writes that have begun are shielded from being cancelled."""
        try:
            await trio.sleep_forever()
        finally:
            for connection in self._open:
                connection.socket.close()

    @contextmanager
    def _connection(self, stream: trio.SocketStream, slot: AdmissionSlot) -> Iterator[_Connection]:
        with trio.CancelScope() as scope:
            connection = _Connection(stream, scope, slot)
            self._open.add(connection)
            try:
                yield connection
            finally:
                self._open.discard(connection)
                for name in connection.logins:
                    self._of_user[name].remove(connection)
                    if not self._of_user[name]:
                        del self._of_user[name]


def _slot(error: BaseException) -> dict[str, str]:
    error = first_error(error)
    return {"error": type(error).__name__, "where": place_of(error)}


_LOOPBACK = frozenset(map(network_of, ("127.0.0.1", "::1")))


class _Connection(WrappedStream):
    """A socket that ends its connection when nothing moves; ``scope`` is that of the whole connection.

    ``logins``: the logins of the requests on it."""

    def __init__(self, stream: trio.SocketStream, scope: trio.CancelScope, slot: AdmissionSlot) -> None:
        super().__init__(stream)
        self._scope = scope
        self.slot = slot
        self.logins: dict[str, Login] = {}
        self.socket = stream.socket
        self._sending = trio.CancelScope()
        self._moved()

    def end(self) -> None:
        self._scope.cancel()
        self._sending.cancel()  # a write is shielded from the connection's scope

    def _moved(self) -> None:
        self._scope.deadline = trio.current_time() + IDLE_S

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with trio.move_on_after(SEND_S) as self._sending:
            await self._stream.send_all(data)
            self._moved()
            return
        self._scope.cancel()
        raise trio.BrokenResourceError("the client does not read")

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        # TLS would ask for more and more of a client that sends faster than it is read.
        data = await self._stream.receive_some(min(max_bytes or MAX_READ_BYTES, MAX_READ_BYTES))
        self._moved()
        return data
