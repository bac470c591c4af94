"""Keeps a session at a router's I2CP open while an order stands.

Theory of operation
===================

One task, `MetaKeeper.run`, owns the connection: it alone sends and receives. `publish` and `retire` change
``_order`` and wake it. While an order stands it connects, creates the session, and then

* answers every request for a LeaseSet with the order's, within the 10 s that i2pd allows;
* sends the LeaseSet of a new order unasked, at most one in 20 s, once the router has asked in this session:
  before that it has no tunnels to publish it with;
* follows each LeaseSet with GetDate. The router answers in order, and does not answer a LeaseSet at all, so
  SetDate shows that it has read it: the order is *taken*;
* sends GetDate when it has heard nothing for 20 s, so that it notices a router that hangs;
* ends the session when the order expires: what the router would publish now is void.

A session that is refused or dies is created again, after 1, 2, 4 … 30 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import trio

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.i2cp import (
    META_LEASE_SET,
    SESSION_UPDATED,
    Message,
    RequestLeaseSet,
    SessionStatus,
    SetDate,
    encode_create_lease_set2,
)
from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.publisher import ClockReading, PublisherStatus, PublishOrder
from garlicfarm_plugin_i2cp.connection import (
    ANSWER_TIMEOUT_S,
    GET_DATE,
    Connection,
    RouterAddress,
    open_connection,
)
from garlicfarm_plugin_i2cp.session import (
    MIN_INTERVAL_S,
    PATIENCE_S,
    BackOff,
    Heartbeat,
    create_session,
    destroy_session,
    refusal,
)

HEARTBEAT_S = 20.0


@dataclass(slots=True)
class _Session:
    """A session in the router. ``given``: the order that it was given last."""

    id: int
    heartbeat: Heartbeat
    has_asked: bool = False
    is_waiting: bool = False
    given: PublishOrder | None = None
    given_at: float = -math.inf


class MetaKeeper:
    """See the module. ``configuration``: a signed session configuration from the wall clock, ms since 1970,
    which ``now_ms`` reads, and the kind of the router."""

    def __init__(
        self,
        router: RouterAddress,
        *,
        configuration: Callable[[int, RouterKind], bytes],
        now_ms: Callable[[], int],
    ) -> None:
        self._router = router
        self._configuration = configuration
        self._now_ms = now_ms
        self._order: PublishOrder | None = None
        self._taken: PublishOrder | None = None  # in the session that is open
        self._since_ms: int | None = None
        self._until_ms: int | None = None
        self._problem = ""
        self._date: ClockReading | None = None
        self._kind: RouterKind | None = None
        self._failures = 0  # of all time
        self._is_busy = False  # with a connection, or with a pause before another
        self._holding = trio.CancelScope()
        self._pause = trio.CancelScope()
        self._changed = trio.Event()

    async def check(self) -> None:
        """Raises `PublisherError` unless the router speaks I2CP, and its clock agrees with this node's."""
        date = kind = None
        try:
            async with open_connection(self._router, self._now_ms) as connection:
                await connection.greet()
                date, kind = connection.date, connection.kind
        finally:
            self._date, self._kind = date, kind

    async def publish(self, order: PublishOrder) -> None:
        """Let ``order`` stand; returns when the router has taken it.

        Raises `PublisherError`: the next attempt fails, it takes more than 25 s, or the order expires. Unless
        it has expired, it still stands then, and when cancelled: building tunnels may take minutes, and
        begins anew with each session.
        """
        if self._order is None or _key(self._order) != _key(order):
            self._order = order
            self._pause.cancel()
            self._notify()
        order, failures = self._order, self._failures
        with trio.move_on_after(PATIENCE_S):
            while self._taken is not order:
                if self._order is not order or self._failures != failures:
                    raise PublisherError(self._problem)
                await self._changed.wait()
            return
        late = f"the router at {self._router.text} has not taken the Meta LeaseSet within {PATIENCE_S:.0f} s"
        raise PublisherError(self._problem or late)

    async def retire(self) -> None:
        """Let no order stand; returns when the session is ended. The router has confirmed that, or reads the
        end of the connection as soon as it reads anything."""
        self._order = None
        self._problem = ""
        self._holding.cancel()
        while self._is_busy:
            await self._changed.wait()

    def status(self) -> PublisherStatus:
        """``until_ms`` also after the session: the floodfills keep what they have."""
        now_ms = self._now_ms()
        is_publishing = self._taken is not None and now_ms < self._taken.expires_ms
        return PublisherStatus(
            is_publishing=is_publishing,
            since_ms=self._since_ms if is_publishing else None,
            until_ms=self._until_ms if self._until_ms is not None and now_ms < self._until_ms else None,
            router_date=self._date,
            router_kind=self._kind,
            problems=(self._problem,) if self._problem else (),
        )

    async def run(self) -> NoReturn:
        """Keep the session, until cancelled; then end it."""
        try:
            while True:
                while self._order is None:
                    await self._changed.wait()
                self._is_busy = True
                with trio.CancelScope() as self._holding:
                    await self._hold_sessions()
                self._is_busy = False
                self._notify()
        finally:
            self._order = None
            self._is_busy = False
            self._notify()

    async def _hold_sessions(self) -> None:
        """One session after another, while an order stands."""
        back_off = BackOff()
        while self._order is not None:
            was_taken = False
            try:
                async with open_connection(self._router, self._now_ms) as connection:
                    await connection.greet()
                    self._kind = connection.kind
                    configuration = self._configuration(self._now_ms(), connection.kind)
                    id_ = await create_session(connection, configuration)
                    heartbeat = Heartbeat(HEARTBEAT_S, ANSWER_TIMEOUT_S, trio.current_time())
                    try:
                        await self._hold(connection, _Session(id_, heartbeat))
                        await destroy_session(connection, id_)
                    except trio.Cancelled:
                        await destroy_session(connection, id_)
                        raise
                    finally:
                        was_taken = self._taken is not None
                        self._taken = self._since_ms = None
            except PublisherError as error:
                self._problem = str(error)
                self._date = self._kind = None
                self._failures += 1
                self._notify()
                if was_taken:
                    back_off.reset()
                await back_off.pause()

    async def _hold(self, connection: Connection, session: _Session) -> None:
        """Give the router what stands, until nothing stands."""
        while (order := self._order) is not None:
            now_s = trio.current_time()
            left_s = (order.expires_ms - self._now_ms()) / 1000
            if left_s <= 0:
                self._order = None
                self._problem = "the Meta LeaseSet has expired, and there is no newer one"
                self._notify()
                return
            if not session.has_asked:
                self._problem = (
                    f"the router at {self._router.text} has not asked for a LeaseSet yet; "
                    "it is building tunnels"
                )
            next_s = session.given_at + MIN_INTERVAL_S
            is_new = session.has_asked and order is not session.given
            if session.is_waiting or (is_new and now_s >= next_s):
                await self._give(connection, session, order)
                continue  # another order may have come while this one was sent
            heartbeat = session.heartbeat
            if now_s >= heartbeat.due_s:
                heartbeat.on_asked(now_s)
                await connection.send(GET_DATE)
                continue
            beat_s = min(heartbeat.due_s, heartbeat.deadline_s)
            wake_s = min(now_s + left_s, beat_s, next_s if is_new else math.inf)
            message = None
            with trio.CancelScope(deadline=wake_s) as self._pause:
                message = await connection.receive()
            if message is not None:
                self._on_message(connection, session, message)
            elif trio.current_time() >= heartbeat.deadline_s:
                raise connection.silence()

    async def _give(self, connection: Connection, session: _Session, order: PublishOrder) -> None:
        assert order.lease_set is not None
        session.is_waiting = False
        session.given, session.given_at = order, trio.current_time()
        lease_set = encode_create_lease_set2(session.id, META_LEASE_SET, order.lease_set)
        session.heartbeat.on_asked(session.given_at, partial(self._on_taken, order))
        await connection.send(lease_set, GET_DATE)

    def _on_message(self, connection: Connection, session: _Session, message: Message) -> None:
        session.heartbeat.on_heard(trio.current_time())
        match message:
            case RequestLeaseSet(session=session.id):
                session.has_asked = session.is_waiting = True
            case SetDate():
                self._date = connection.date
                session.heartbeat.on_answered()
            case SessionStatus(status=status) if status != SESSION_UPDATED:
                raise refusal(connection, status)

    def _on_taken(self, order: PublishOrder) -> None:
        self._problem = ""
        self._taken = order
        self._until_ms = order.expires_ms
        if self._since_ms is None:
            self._since_ms = self._now_ms()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _key(order: PublishOrder) -> tuple[int, int]:
    return order.due_index, order.published_ms
