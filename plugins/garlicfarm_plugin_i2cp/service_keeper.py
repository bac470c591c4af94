"""Keeps a session of a service open at a router's I2CP, and orders it to publish, or to stop.

Theory of operation
===================

One task, `ServiceKeeper.run`, opens one session after another and holds each with two tasks: one receives,
the other sends, watches the time, and carries out orders. `ServiceSession` knows what to say. `publish`,
`standby` and `retire` set the order and wait until the router has read what follows from it.

Where clients may encrypt with ML-KEM, it is tried beside the first session whether the router can. The next
session offers it, and replaces one on standby, which no client knows, at once.

There is one session at a time. A retired one is kept until no client uses it any more, and is ready to
publish again until then; afterwards a new one is opened, with a new encryption key.

Java I2P delivers what its own clients send to a destination of its own without tunnels. So clients at the
router of a member on standby reach the session there, and are served as by the publisher: they have no other
way. No other client knows a LeaseSet of that session.

New keys that a file holds are not used while clients know those in use: i2pd checks the answer to a SYN with
the key of the LeaseSet that it has. So `is_ready` is False while an order stands: another member is named.
The new keys are used once no client can know the old ones, and with the next order at the latest. They need
no new session: only the long-term key signs its configuration.

A session that is refused or dies is opened again after 1, 2, 4 … 30 s, on standby; an order that still stands
makes it active once it has tunnels.

A process that was stopped finds all its timers over when it goes on, and another member may publish since
long. So the task that sends waits then, until the node has looked whether it still has the role: what it
published would be the newest, and its session ends.

Peers' messages pass in both directions beside that. What is to be sent is queued, up to a number of messages;
the streams keep the rest until there is room. What comes while there is no session is dropped and counted:
streaming sends it again.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol

import trio
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from garlicfarm.errors import PublisherError, first_error
from garlicfarm.i2p.i2cp import MessagePayload, SetDate, encode_send_message
from garlicfarm.i2p.lease_set import ML_KEM_768, X25519
from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.i2p.session_options import Purpose
from garlicfarm.publisher import ClockReading, Published, PublishOrder
from garlicfarm.service_keys import ServiceKeys
from garlicfarm_plugin_i2cp.connection import (
    Connection,
    RouterAddress,
    may_have_ml_kem,
    open_connection,
    takes_contrary,
)
from garlicfarm_plugin_i2cp.rate import ByteRate
from garlicfarm_plugin_i2cp.service_session import LeasePlan, ServiceSession, SessionStart
from garlicfarm_plugin_i2cp.session import (
    CLOSE_TIMEOUT_S,
    PATIENCE_S,
    BackOff,
    create_session,
    destroy_session,
)
from garlicfarm_plugin_i2cp.streaming.stream import Keys

MAX_QUEUED = 128
"""Messages. A long queue makes acknowledgements late, and with them every round trip."""
BATCH_BYTES = 1 << 16
FIRST_PROBE_PAUSE_S, LAST_PROBE_PAUSE_S = 60.0, 3600.0
"""How long after a router has not shown that it has ML-KEM it is tried again, at first and at last."""
LATE_S = 1.0
"""The task that sends is never so late unless its process was stopped, or the machine is overloaded."""
LAST_WORDS_S = 3.0
"""A session lasts so much longer than its clients' streams: a router that is told to end it may drop what it
has not sent yet, and clients that miss a packet ask for it."""


class Clients(Protocol):
    """What becomes of the clients' messages: `StreamServer` has this form. Nothing of it may block."""

    def on_payload(self, payload: bytes) -> None:
        """A message of a peer, as gzip."""

    def use_keys(self, keys: Keys) -> None:
        """These sign for the streams that begin from now on."""

    def on_room(self) -> None:
        """`ServiceKeeper.send` takes more."""

    def address_peers(self) -> None:
        """The router was given a successor's LeaseSet, which it sends along with the next message to each
        client."""

    def hand_over(self) -> None:
        """The clients are being handed over to a successor."""

    def take_back(self) -> None:
        """They are served here again, or will be."""

    def reset_all(self) -> None:
        """No session serves the clients any more, and no order lets another one follow: one has died, or a
        retired one is over, and it may `send` a last time."""


class ServiceKeeper:
    """See the module. ``configuration``: a signed session configuration from its purpose, the wall clock, ms
    since 1970, which ``now_ms`` reads, and the kind of the router. ``carries_ml_kem``: whether the router has
    just shown that it has ML-KEM; clients of later sessions may encrypt with it then. None: clients never do.

    ``session``: the one that is open. ``router_date``: the newest date that the router has told, None while
    it cannot be reached, as ``router_kind``. ``published_ms``: the date of the newest LeaseSet that the
    router has read to publish, in any session, ms since 1970. ``dropped``: messages to peers, by cause.
    ``received`` and ``sent``: bytes of peers' messages, and of those to them.
    """

    def __init__(
        self,
        router: RouterAddress,
        keys: ServiceKeys,
        plan: LeasePlan,
        clients: Clients,
        *,
        configuration: Callable[[Purpose, int, RouterKind], bytes],
        now_ms: Callable[[], int],
        carries_ml_kem: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.session: ServiceSession | None = None
        self.router_date: ClockReading | None = None
        self.router_kind: RouterKind | None = None
        self.published_ms: int | None = None
        self._problem = ""
        self.dropped: Counter[str] = Counter()
        self.received, self.sent = ByteRate(), ByteRate()
        self._router = router
        self._keys = keys
        self._plan = plan
        self._carries_ml_kem = carries_ml_kem
        self._has_ml_kem = False  # the router that is connected, or was until the last session ended in order
        self._clients = clients
        self._configuration = configuration
        self._now_ms = now_ms
        self._order: PublishOrder | None = None
        self._has_clients = False  # or may have
        self._failures = 0  # of all time
        self._renewal_end_s = -math.inf
        self._holding = trio.CancelScope()
        self._queue: deque[bytes] = deque()
        self._wake = trio.Event()  # of the task that sends
        self._changed = trio.Event()

    # ------------------------------------------------------------------ what the publisher asks for

    async def standby(self) -> None:
        """Stop publishing; returns when a session is ready to publish, which a retired one may be.

        Raises `PublisherError`: the keys have expired, the next attempt fails, or it takes more than 25 s.
        """
        await self._stop()
        self._keys.check_expiry(self._now_ms())
        await self._wait(lambda: self.is_ready)

    async def publish(self, order: PublishOrder) -> Published:
        """Let ``order`` stand; returns when the router has read a LeaseSet that was composed for it.

        Raises as `standby` does. The order stands then all the same, and when cancelled.
        """
        if self._order is None:
            self._take_keys()
        self._keys.check_expiry(self._now_ms())
        if self._order is None or _key(self._order) != _key(order):
            self._order, self._has_clients = order, True
            self._clients.take_back()
            self._wake.set()
        order = self._order
        await self._wait(lambda: self._published(order) is not None)
        published = self._published(order)
        assert published is not None
        return published

    async def retire(self, successor: bytes | None) -> None:
        """Stop publishing; returns when the router has read that, or its connection is closed. A retired
        session passes ``successor`` on, if it is what floodfills take, and newer than its own."""
        await self._stop()
        session = self.session
        if successor is None or session is None:
            return
        try:
            if session.pass_on(successor, trio.current_time()):
                self._clients.hand_over()
        except ValueError as error:
            self._problem = f"the successor's LeaseSet is not passed on to clients: {error}"
        self._wake.set()

    @property
    def is_ready(self) -> bool:
        """Whether it could publish at once, or a retired session has been followed by one that builds
        tunnels, which takes seconds: the router is well."""
        return self._is_well and (self._order is None or not self._keys.has_new)

    @property
    def _is_well(self) -> bool:
        session, now_s = self.session, trio.current_time()
        return (session is not None and session.is_warm(now_s)) or now_s < self._renewal_end_s

    @property
    def problem(self) -> str:
        """What is wrong, "" if nothing is."""
        if self._problem or self.session is None or self._is_well:
            return self._problem
        return f"the router at {self._router.text} has no tunnels for the service"

    def on_keys(self) -> None:
        """The file of the keys has changed."""
        if self._order is None and (self.session is None or self.session.phase == "standby"):
            self._take_keys()
        self._notify()

    async def wait_changed(self) -> None:
        """Return when a session has begun, ended, or done what it was ordered to do."""
        await self._changed.wait()

    @property
    def room(self) -> int:
        """How many messages `send` takes now."""
        return MAX_QUEUED - len(self._queue)

    def send(self, peer: bytes, payload: bytes) -> None:
        """Queue ``payload``, gzip, for a peer's binary destination, or drop it. A session on standby sends
        nothing at i2pd, which would send its LeaseSet along, and the peer would leave the publisher for it.
        At Java I2P only clients of the same router reach it."""
        if self.session is None:
            self.dropped["no session"] += 1
        elif self.session.phase == "standby" and self.router_kind != "java":
            self.dropped["on standby"] += 1
        elif not self.room:
            self.dropped["queue full"] += 1
        else:
            self._queue.append(encode_send_message(self.session.id, peer, payload))
            self.sent.add(len(payload), trio.current_time())
            self._wake.set()

    # ------------------------------------------------------------------ one session after another

    async def run(self) -> NoReturn:
        """Keep a session, until cancelled; then end it."""
        back_off = BackOff()
        while True:
            failure = ""
            try:
                self.on_keys()
                self._keys.check_expiry(self._now_ms())
                with trio.CancelScope() as self._holding:
                    await self._hold_session()
            except PublisherError as error:
                failure = str(error)
            finally:
                had_tunnels = self.session is not None and self.session.has_asked
                self._on_session_ended(failure)
            if had_tunnels:
                back_off.reset()
            if failure:
                await back_off.pause()

    async def _hold_session(self) -> None:
        async with open_connection(self._router, self._now_ms) as connection:
            date_ms = await connection.greet()
            self.router_date, self.router_kind = connection.date, connection.kind
            self._keys.check_expiry(date_ms, by_router=True)
            now_ms, kind = self._now_ms(), connection.kind
            configurations = (
                self._configuration("standby", now_ms, kind),
                self._configuration("active", now_ms, kind),
            )
            if takes_contrary(kind, connection.version):  # they differ in nothing else, also of a bundle
                configurations = configurations[::-1]
            id_ = await create_session(connection, configurations[0])
            types = (ML_KEM_768, X25519) if self._has_ml_kem else (X25519,)
            self.session = session = ServiceSession(
                SessionStart(
                    id=id_,
                    configurations=configurations,
                    private_keys={type_: X25519PrivateKey.generate() for type_ in types},
                    date_ms=date_ms,
                    now_s=trio.current_time(),
                ),
                connection,
                self._keys,
                self._plan,
                on_changed=self._on_session_changed,
                on_passed_on=self._clients.address_peers,
            )
            self._problem = (
                f"the router at {self._router.text} has not asked for a LeaseSet yet; it is building tunnels"
            )
            self._notify()
            does_router_answer = True
            try:
                await self._use(connection, session)
            except PublisherError:
                does_router_answer = False
                raise
            finally:
                if does_router_answer and not self._holding.cancel_called:
                    await destroy_session(connection, id_, *self._queue)

    async def _use(self, connection: Connection, session: ServiceSession) -> None:
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive, connection, session)
                nursery.start_soon(self._find_ml_kem, connection, session)
                await self._serve(connection, session)
                nursery.cancel_scope.cancel()
        except* PublisherError as group:
            failure = first_error(group)
        if failure is not None:
            raise failure

    async def _receive(self, connection: Connection, session: ServiceSession) -> NoReturn:
        while True:
            message = await connection.receive()
            now_s = trio.current_time()
            if isinstance(message, MessagePayload):
                session.on_heard(now_s)
                self.received.add(len(message.payload), now_s)
                self._clients.on_payload(message.payload)
                continue
            if isinstance(message, SetDate):
                self.router_date = connection.date
                connection.check_clock(message)
            session.receive(message, now_s)
            self._wake.set()

    async def _find_ml_kem(self, connection: Connection, session: ServiceSession) -> None:
        """Look whether the router has it, until it has shown that, and have a session that clients do not
        know yet followed by one that offers it."""
        if self._carries_ml_kem is None or self._has_ml_kem or not may_have_ml_kem(connection.version):
            return
        pause_s = FIRST_PROBE_PAUSE_S
        while not await self._carries_ml_kem():
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PROBE_PAUSE_S)
        self._has_ml_kem = True
        if self._order is None and session.end(trio.current_time()):
            self._wake.set()

    async def _serve(self, connection: Connection, session: ServiceSession) -> None:
        """Return when the session is of no more use."""
        await self._send(connection, session)
        if self._order is None and self._has_clients:
            self._abandon_clients()
            session.drained_s = trio.current_time() + LAST_WORDS_S
            await self._send(connection, session)
        self._renewal_end_s = trio.current_time() + PATIENCE_S

    async def _send(self, connection: Connection, session: ServiceSession) -> None:
        wake_s = math.inf
        while trio.current_time() < session.drained_s:
            await trio.lowlevel.checkpoint_if_cancelled()  # before it takes what would be lost then
            if trio.current_time() > wake_s + LATE_S:
                await trio.sleep(LATE_S)
            self._wake = trio.Event()
            if self._order is not None:
                session.publish(self._order, trio.current_time())
            session.advance(trio.current_time())
            wake_s = min(session.wake_s, session.drained_s)
            if messages := session.take_messages() or self._take_batch():
                await connection.send(*messages)
                continue
            with trio.move_on_at(wake_s):
                await self._wake.wait()

    def _take_batch(self) -> list[bytes]:
        batch: list[bytes] = []
        size = 0
        while self._queue and size < BATCH_BYTES:
            batch.append(self._queue.popleft())
            size += len(batch[-1])
        if batch:
            self._clients.on_room()
        return batch

    # ------------------------------------------------------------------ inside

    def _take_keys(self) -> None:
        if self._keys.take_new():
            self._clients.use_keys(self._keys.keys)

    async def _stop(self) -> None:
        self._order = None
        session = self.session
        if session is None:
            self._abandon_clients()
            return
        session.retire(trio.current_time())
        self._wake.set()
        with trio.move_on_after(CLOSE_TIMEOUT_S):
            while self._is_stopping(session):
                await self._changed.wait()
            return
        self._holding.cancel()
        while self.session is session:
            await self._changed.wait()

    def _is_stopping(self, session: ServiceSession) -> bool:
        is_retiring = session.phase == "retired" and not session.is_retirement_read
        return self.session is session and is_retiring

    def _published(self, order: PublishOrder) -> Published | None:
        return None if self.session is None else self.session.published(order)

    async def _wait(self, is_done: Callable[[], bool]) -> None:
        failures = self._failures
        with trio.move_on_after(PATIENCE_S):
            while not is_done():
                if self._failures != failures:
                    raise PublisherError(self.problem)
                await self._changed.wait()
            return
        late = f"the router at {self._router.text} has not taken the LeaseSet within {PATIENCE_S:.0f} s"
        raise PublisherError(self.problem or late)

    def _on_session_ended(self, failure: str) -> None:
        self.session, self._problem = None, failure
        if failure:
            self.router_date = self.router_kind = None
            self._renewal_end_s = -math.inf
            self._has_ml_kem = False  # another one may be started in its place
        self._failures += bool(failure)
        self._queue.clear()
        if self._order is None:
            self._abandon_clients()
        self._clients.on_room()
        self._notify()

    def _abandon_clients(self) -> None:
        if self._has_clients:
            self._has_clients = False
            self._clients.reset_all()

    def _on_session_changed(self) -> None:
        if self.session is not None and self.session.published_ms is not None:
            self.published_ms = max(self.published_ms or 0, self.session.published_ms)
        if self.session is not None and self.session.has_asked and self.session.phase != "retired":
            self._problem = ""  # a retired one keeps what kept it from handing its clients over
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _key(order: PublishOrder) -> tuple[int, int]:
    return order.due_index, order.published_ms
