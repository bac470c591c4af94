"""Publisher plugin ``sam``: publishes the service itself, through the SAM of an I2P router.

While it publishes it holds one SAM session with the service's destination, and the router forwards each
stream to ``target``. Every member has the same destination, so that only the elected one may do this. The
session ends with the process.

A publication counts as such when the router has answered SESSION CREATE, and a second session of its own,
with a destination made for that moment, has found a LeaseSet of the service and begun a stream to it. (The
router's NAMING LOOKUP cannot show that: i2pd keeps in its address book what it has ever found.) For some ten
minutes after the role has changed that may be the predecessor's LeaseSet. Java I2P looks for a destination
only once in its life, and begins the stream inside the router. A test by another member tells more:
docs/howto/publish.md.

On standby it keeps a connection to SAM open, so that it notices at once when the router is gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import trio

from garlicfarm.credentials.router_login import read_login
from garlicfarm.errors import (
    ConfigError,
    PublisherError,
    RemoteProtocolError,
    TransportError,
    UnreachableError,
    first_error,
)
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.i2p.session_options import tunnel_options
from garlicfarm.net.sam import NOT_FOUND, NOT_READY, SamRefused, SamSession, open_sam, sam_endpoint
from garlicfarm.plugin_settings import Hops, Quantity, Settings, collect_problems, setting
from garlicfarm.publisher import KeyReport, Published, Publisher, PublisherSite, PublisherStatus, PublishOrder
from garlicfarm.router import DestinationStatus, Tunnels
from garlicfarm.service_keys import ServiceKeys, check_targets, parse_target

ANSWER_TIMEOUT_S = 5.0
WATCH_INTERVAL_S = 5.0
LOOKUP_INTERVAL_S = 2.0
REOPEN_AFTER_S = 30.0
"""How long i2pd may keep the destination of a session that has ended: 5 s, and since 2.57 while there are
streams that clients have begun meanwhile. If it is opened again before, i2pd may crash, or not serve it."""

_HINTS = {
    "DUPLICATED_DEST": "end the tunnel or the program that uses the same keys at this router",
    "INVALID_KEY": "are the keys complete, and a bundle not expired by the router's clock?",
}
_DUPLICATE = "duplicate destination"
"""What Java I2P says in place of DUPLICATED_DEST."""


class SamConfig(Settings, frozen=True, kw_only=True):
    """``[[farm.publisher]]`` with ``plugin = "sam"``.

    ``target`` has the host of ``address``, since routers forward to the address that SAM's client has.
    """

    address: Annotated[str, setting("The router's SAM, HOST:PORT on loopback.")] = "127.0.0.1:7656"
    target: Annotated[
        str, setting("The service that gets the streams: HOST:PORT, with the host of address.")
    ] = "127.0.0.1:8080"
    keys: Annotated[
        str, setting("File (mode 0600) of the service's destination: a private key or this node's bundle.")
    ]
    user: Annotated[str, setting("Name for a router that asks for one (Java I2P); none by default.")] = ""
    password_file: Annotated[str, setting("File (mode 0600) with its password on the first line.")] = ""
    hops: Annotated[Hops, setting("Length of its tunnels.")] = 3
    quantity: Annotated[Quantity, setting("Tunnels in each direction.")] = 3


class _Service:
    """The session of the service. ``ready``: the router has made it. ``problem``: why it has ended."""

    def __init__(self, session: SamSession) -> None:
        self.session = session
        self.scope = trio.CancelScope()
        self.asking = trio.CancelScope()  # of the client that looks for it
        self.ready = trio.Event()
        self.watched = trio.Event()  # its task has ended
        self.ready_at: float | None = None
        self.confirmed_ms: int | None = None
        self.problem = ""


class SamPublisher(Publisher):
    """See the module."""

    Config = SamConfig
    config: SamConfig

    def __init__(self, config: SamConfig, base_dir: Path, site: PublisherSite) -> None:
        """Raises `ConfigError` with every problem of the configuration and of the keys."""
        super().__init__(config, base_dir, site)
        problems: list[str] = []
        with collect_problems(problems, "publisher sam"):
            self._address = sam_endpoint(config.address)
        with collect_problems(problems, "publisher sam"):
            self._target = parse_target(config.target)
        if not problems and self._target.host != self._address.host:
            problems.append(
                f"publisher sam: target {config.target!r} must be a port of {self._address.host}, because "
                "the router forwards streams to the address that this node connects from; put a relay there "
                "if the service runs elsewhere"
            )
        with collect_problems(problems, "publisher sam"):
            self._login = read_login(config.user, config.password_file, base_dir)
        with collect_problems(problems, "publisher sam"):
            self._keys = ServiceKeys(base_dir / config.keys, site)
        if problems:
            raise ConfigError(problems)
        self._service: _Service | None = None
        self._problem = ""
        self._is_router_gone = False
        self._standing_by = trio.CancelScope()
        self._changed = trio.Event()
        self._reopenable_at: float | None = None
        self._nursery: trio.Nursery | None = None
        self._manager: Any = None

    @property
    def destination(self) -> bytes:
        return self._keys.keys.destination

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.config.target,)

    @property
    def key(self) -> KeyReport | None:
        return self._keys.report

    async def __aenter__(self) -> Self:
        self._reopenable_at = None  # an earlier process, or this one, may have left a session
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._keys.watch, self._notify)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        try:
            await self._manager.__aexit__(None, None, None)  # or it would wrap the caller's error
        finally:
            if self._service is not None:
                self._service.session.close()
                self._service = None

    async def standby(self) -> None:
        """See `Publisher.standby`. It takes `REOPEN_AFTER_S` at first, and after a session."""
        self._standing_by.cancel()
        await self._close()
        self._keys.take_new()
        self._keys.check_expiry(_now_ms())
        await self._check_router()
        await check_targets([self._target])
        await self._wait_reopenable()
        self._problem = ""
        self._is_router_gone = False
        self._standing_by = trio.CancelScope()
        assert self._nursery is not None, "not entered"
        self._nursery.start_soon(self._watch_standby, self._standing_by)

    async def publish(self, order: PublishOrder) -> Published:
        """See `Publisher.publish`. While the session is open, a further order changes nothing: the router
        republishes by itself. Cancelled, it keeps what it has begun, and continues when called again."""
        if self._service is None:
            self._keys.take_new()
        try:
            self._keys.check_expiry(_now_ms())
        except PublisherError:
            await self._close()
            raise
        if self._service is None:
            await self._wait_reopenable()
            self._service = await self._open()
            self._standing_by.cancel()  # the session has a watch of its own
        service = self._service
        if service.confirmed_ms is None:
            with _told():
                await self._confirm(service)
        assert service.confirmed_ms is not None
        self._problem = ""
        return Published(published_ms=service.confirmed_ms)

    async def retire(self, successor: bytes | None) -> None:
        await self._close()

    async def status(self) -> PublisherStatus:
        """Figures of the session are those that SAM's client knows: its age, and the tunnels asked for. New
        keys need another session, so it is not ready then until it has retired."""
        service = self._service
        leaf = DestinationStatus(destination=encode(self.destination))
        if service is not None and service.ready_at is not None:
            tunnels = Tunnels(in_=self.config.quantity, out=self.config.quantity)
            uptime = round((trio.current_time() - service.ready_at) * 1000)
            leaf = msgspec.structs.replace(leaf, uptime=uptime, configured_tunnels=tunnels)
        since_ms = None if service is None else service.confirmed_ms
        return PublisherStatus(
            is_publishing=since_ms is not None,
            is_ready=not (self._is_router_gone or (service is not None and self._keys.has_new)),
            since_ms=since_ms,
            leaf=leaf,
            problems=tuple(filter(None, [self._problem, *self._keys.problems])),
        )

    async def wait_changed(self) -> None:
        await self._changed.wait()

    async def _open(self) -> _Service:
        assert self._nursery is not None, "not entered"
        private_key = self._keys.keys.sam_private_key()
        service = _Service(SamSession(self._address, private_key, self._options(), self._login))
        self._reopenable_at = None  # even if this fails, it may have begun
        with _told(), self._answering():
            await service.session.open()
        self._nursery.start_soon(self._watch, service)
        return service

    def _options(self, quantity: int | None = None) -> dict[str, str]:
        options = tunnel_options(self.config.hops, quantity or self.config.quantity)
        return options | {"i2cp.leaseSetEncType": "4"}

    async def _watch(self, service: _Service) -> None:
        """The life of a session: until it is refused, it ends, or the router stops answering."""
        try:
            with service.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_router)
                    await self._get_ready(service.session)
                    service.ready_at = trio.current_time()
                    service.ready.set()
                    await service.session.wait_ended()
        except* (TransportError, RemoteProtocolError, PublisherError) as group:
            found = first_error(group)
            if not isinstance(found, RemoteProtocolError):  # it has refused nothing
                self._is_router_gone = True
            self._lose(service, _sentence(found))
        finally:
            service.watched.set()

    async def _get_ready(self, session: SamSession) -> None:
        is_forwarding = True
        try:
            await self._forward(session)  # i2pd takes it at once, so that no stream is lost
        except SamRefused as refused:
            if refused.result not in NOT_READY:
                raise
            is_forwarding = False
        await session.wait_ready()
        if not is_forwarding:
            await self._forward(session)

    async def _forward(self, session: SamSession) -> None:
        with self._answering():
            await session.forward(self._target.port)

    async def _watch_standby(self, scope: trio.CancelScope) -> None:
        """Until the router is gone, or another watch begins."""
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_router)
                    while True:
                        # A router may close what is idle, so the end of a connection is no proof.
                        with suppress(UnreachableError):
                            async with open_sam(self._address, self._login) as connection:
                                await connection.wait_closed()
                        await self._check_router()
                        await trio.sleep(WATCH_INTERVAL_S)
        except* (TransportError, RemoteProtocolError, PublisherError) as group:
            self._is_router_gone = True
            self._problem = _sentence(first_error(group))
            self._notify()

    async def _watch_router(self) -> None:
        """Raises when the router no longer answers: not every router that hangs closes its connections."""
        while True:
            await trio.sleep(WATCH_INTERVAL_S)
            await self._check_router()

    async def _check_router(self) -> None:
        with _told(), self._answering():
            async with open_sam(self._address, self._login):
                pass

    async def _confirm(self, service: _Service) -> None:
        """Return when the service can be found by a client of this router."""
        with trio.CancelScope() as service.asking:
            await self._find(service)
            service.confirmed_ms = _now_ms()
        if service.problem:
            raise PublisherError(service.problem)

    async def _find(self, service: _Service) -> None:
        async with SamSession(self._address, None, self._options(quantity=1), self._login) as client:
            await service.ready.wait()
            await client.wait_ready()
            while True:
                try:
                    async with client.connect(b32_address(self.destination)):
                        return
                except SamRefused as refused:
                    if refused.result not in NOT_FOUND:
                        raise
                    self._problem = (
                        "the session is open, but the service cannot be found from this router yet"
                    )
                    await trio.sleep(LOOKUP_INTERVAL_S)

    def _lose(self, service: _Service, problem: str) -> None:
        service.session.close()
        service.problem = self._problem = problem
        service.asking.cancel()
        if self._service is service:
            self._service = None
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _close(self) -> None:
        """End the session, if there is one."""
        service = self._service
        if service is None:
            return
        service.scope.cancel()
        try:
            await service.watched.wait()
            await service.session.aclose()
        finally:
            service.session.close()
            self._service = None

    async def _wait_reopenable(self) -> None:
        """Counted from when the router answers: one that hung learns only then of the end of a session."""
        if self._reopenable_at is None:
            await self._check_router()
            self._reopenable_at = trio.current_time() + REOPEN_AFTER_S
        await trio.sleep_until(self._reopenable_at)

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                yield
        except trio.TooSlowError:
            raise PublisherError(
                f"{self._address.authority} accepts connections and does not answer within "
                f"{ANSWER_TIMEOUT_S:g} s: does the router hang, or is that not its SAM port?"
            ) from None


@contextmanager
def _told() -> Iterator[None]:
    """Errors of SAM as the publisher's."""
    try:
        yield
    except (UnreachableError, RemoteProtocolError) as error:
        raise PublisherError(_sentence(error)) from None


def _sentence(error: BaseException) -> str:
    if not isinstance(error, SamRefused):
        return str(error)
    hint = _HINTS.get("DUPLICATED_DEST" if _DUPLICATE in str(error) else error.result, "")
    return f"{error}; {hint}" if hint else str(error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
