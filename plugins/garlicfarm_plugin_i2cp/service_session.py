"""One session of a service at a router: sans-I/O, messages in and messages out.

Theory of operation
===================

A session is on *standby* at first: the router has tunnels for it, and publishes nothing. Each of its requests
for a LeaseSet is answered at once, since i2pd waits 10 s. An order makes it *active*: the session is
reconfigured and given a LeaseSet to publish, and another one at each interval. `retire` ends that: it is
*retired*, still serves the clients that know it, and composes nothing more. Its router would send clients a
LeaseSet of its own tunnels, and they would go to and fro between two publishers. A request for a LeaseSet is
answered with the one that it was given last. Once it may be told its successor's, which the router passes on
to each client beside its next message. Until that expires, the router is given it again and again: i2pd marks
only the clients that it knows at that moment, and forgets to pass it on where an earlier LeaseSet is
acknowledged after it. Beside a SYN answer it would come too early: i2pd checks the signature with the key of
the LeaseSet that it has just stored. So clients that were heard of lately are sent something else at once.

A retired session becomes active again when an order comes, at once if another member has published since: it
has tunnels, and its clients' ratchets with its key are alive. Its LeaseSet is dated after the other member's,
who hands the clients back. Floodfills get it up to 20 s later: i2pd publishes no sooner after the last time.

Clients of i2pd ask for a LeaseSet anew only when no lease lasts longer than 51 s, and routers give tunnels of
ten minutes. So leases are shortened here. They are dated by the router's clock, as far as its answers tell
it, and never before the order's date or an earlier LeaseSet's, or floodfills would ignore them.

Each session has encryption keys of its own, and keeps them. With shared ones, clients would keep encrypting
for a router that has died.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from garlicfarm.i2p.i2cp import (
    LEASE_SET_2,
    SESSION_CREATED,
    SESSION_UPDATED,
    Message,
    RequestLeaseSet,
    SessionStatus,
    SetDate,
    TunnelLease,
    encode_create_lease_set2,
    encode_reconfigure_session,
)
from garlicfarm.i2p.lease_set import (
    EncryptionKey,
    Lease,
    LeaseSet,
    encode_lease_set,
    verify_lease_set,
)
from garlicfarm.publisher import Published, PublishOrder
from garlicfarm.service_keys import ServiceKeys
from garlicfarm_plugin_i2cp.connection import GET_DATE, Connection
from garlicfarm_plugin_i2cp.session import MIN_INTERVAL_S, Heartbeat, refusal
from garlicfarm_plugin_i2cp.streaming.limits import RateLimit
from garlicfarm_plugin_i2cp.streaming.stream import Keys

HEARTBEAT_S = 5.0
DRAIN_S = 60.0
"""Java I2P sends to a lease for so long after its end."""
PASS_ON_S = 5.0
"""Between two times that the router is given the successor's LeaseSet."""
ANSWERS_PER_S = 5
"""At most, to the router's requests for a LeaseSet: each costs a signature."""
LATELY_S = 60.0
"""A router replaces its tunnels one at a time: one that is missing for less than this is not missed."""
MAX_REQUESTS = 64
MAX_OWN_LEASES = 10
"""So many fit into a status, which has room for a LeaseSet of 1024 bytes."""

Phase: TypeAlias = Literal["standby", "active", "retired"]


class LeasePlan(msgspec.Struct, frozen=True):
    """How long a lease lasts at most, how long the LeaseSet does, and when it is published again; s."""

    lease_s: int
    header_s: int
    republish_s: int


DEFAULT = LeasePlan(90, 90, 25)
FAST = LeasePlan(50, 90, 30)
FAREWELL = LeasePlan(50, 10, 0)
"""Of the last LeaseSet of a session at Java I2P, never published."""


class _Given(msgspec.Struct, frozen=True):
    """A LeaseSet of our own that the router was given, signed by ``keys``. ``until_ms``: the end of its last
    lease."""

    order: PublishOrder
    keys: Keys
    data: bytes
    published_s: int
    until_ms: int


class SessionStart(msgspec.Struct, frozen=True, kw_only=True):
    """A session as the router has created it. ``id``: the router's. ``configurations``: signed, for standby
    and active. ``private_keys``: by encryption type, the preferred one first; its clients encrypt for them.
    ``date_ms``: the router's clock at ``now_s``."""

    id: int
    configurations: tuple[bytes, bytes]
    private_keys: Mapping[int, X25519PrivateKey]
    date_ms: int
    now_s: float


class ServiceSession:
    """See the module. Times in s are of one monotonic clock, those in ms of the router's.

    ``on_changed`` is called when a property of it has changed, ``on_passed_on`` each time that the router is
    given the successor's LeaseSet. The methods raise `PublisherError`: the router has ended the session, or
    does not answer, or the keys have expired.
    """

    def __init__(
        self,
        start: SessionStart,
        connection: Connection,
        keys: ServiceKeys,
        plan: LeasePlan,
        *,
        on_changed: Callable[[], None],
        on_passed_on: Callable[[], None],
    ) -> None:
        self.id = start.id
        self.phase: Phase = "standby"
        self.has_asked = False
        """The router has asked for a LeaseSet, and was given one."""
        self.is_retirement_read = False
        """The router has read that it must publish nothing more."""
        self.tunnels: tuple[TunnelLease, ...] = ()
        self.limits = connection.limits
        self._requests: deque[tuple[float, tuple[TunnelLease, ...]]] = deque(maxlen=MAX_REQUESTS)
        self.began_s = start.now_s
        self.since_ms: int | None = None
        self.drained_s = math.inf
        """When no client of a retired session uses it any more."""
        self._on_changed = on_changed
        self._on_passed_on = on_passed_on
        self._connection = connection
        self._kind = connection.kind
        self._keys = keys
        self._plan = plan
        self._private_keys = [
            EncryptionKey(type_, key.private_bytes_raw()) for type_, key in start.private_keys.items()
        ]
        self._public_keys = tuple(
            EncryptionKey(type_, key.public_key().public_bytes_raw())
            for type_, key in start.private_keys.items()
        )
        self._standby, self._active = start.configurations
        self._clock = (start.date_ms, start.now_s)
        self._heartbeat = Heartbeat(HEARTBEAT_S, HEARTBEAT_S, start.now_s)
        # i2pd 2.58.0 takes "do not publish" for its contrary when a session is created, and only then.
        self._messages = [encode_reconfigure_session(self.id, self._standby)]
        self._order: PublishOrder | None = None
        self._given: _Given | None = None  # when it was active last
        self._taken: _Given | None = None  # the newest that the router has read
        self._last = b""  # the newest LeaseSet that the router was given, whosever it is
        self._has_successor = False
        self._successor_until_ms = 0
        self._published_s = -math.inf
        self._next_s = math.inf
        self._is_asked = False  # for a LeaseSet
        self._answers = RateLimit(ANSWERS_PER_S)
        self._answer_s = -math.inf  # when the next one may be given

    # ------------------------------------------------------------------ what the router sends and gets

    def receive(self, message: Message, now_s: float) -> None:
        """A message of the router's came; `advance` comes next."""
        self._heartbeat.on_heard(now_s)
        match message:
            case RequestLeaseSet(session=self.id):
                self.tunnels = message.leases
                self._requests.append((now_s, message.leases))
                self._is_asked = True
            case SetDate():
                self._clock = (message.date_ms, now_s)
                self._heartbeat.on_answered()
            case SessionStatus(status=status) if status not in (SESSION_CREATED, SESSION_UPDATED):
                raise refusal(self._connection, status)

    def advance(self, now_s: float) -> None:
        """Do what is due now: answer the router, see whether it still answers, publish again."""
        if now_s >= self._heartbeat.deadline_s:
            raise self._connection.silence(HEARTBEAT_S)
        if now_s >= self._heartbeat.due_s:
            self._get_date(now_s)
        if self._is_asked and now_s >= self._answer_s:
            if not self._answers.admit(now_s):
                self._answer_s = math.floor(now_s) + 1
                return
            self._is_asked, self.has_asked = False, True
            self._answer(now_s)
            self._on_changed()
        elif now_s >= self._next_s:
            if self._has_successor:
                self._pass_on(now_s)
            else:
                self._publish(now_s)

    def take_messages(self) -> list[bytes]:
        """What is to be sent now, each once."""
        messages, self._messages = self._messages, []
        return messages

    @property
    def wake_s(self) -> float:
        """When `advance` has something to do."""
        answer_s = self._answer_s if self._is_asked else math.inf
        return min(self._heartbeat.due_s, self._heartbeat.deadline_s, self._next_s, answer_s)

    # ------------------------------------------------------------------ what it is ordered to do

    def publish(self, order: PublishOrder, now_s: float) -> None:
        """Let ``order`` stand: `advance` publishes as soon as there are tunnels, and again at each interval.
        One that renews another is carried out 20 s after the last publication at the earliest; one that gives
        the role back, at once: clients wait for it."""
        if order is self._order:
            return
        is_renewal = (
            self._given is not None
            and self._given.order.due_index == order.due_index
            and self._given.keys is self._keys.keys  # streams that begin now are signed with these
        )
        if not is_renewal:
            self.since_ms = None
        self._order, self.drained_s, self._has_successor = order, math.inf, False
        if self.has_asked:
            self._next_s = max(now_s, self._published_s + MIN_INTERVAL_S) if is_renewal else now_s

    def retire(self, now_s: float) -> None:
        """Publish nothing more, and compose nothing more. A session that never was active stays on standby,
        and one that passes its successor on goes on with that."""
        self._order = None
        if self._has_successor:
            return
        self._next_s = math.inf
        if self._given is None:
            return
        if self.phase == "active":
            self.phase = "retired"
            self._messages.append(encode_reconfigure_session(self.id, self._standby))
            if self._kind == "java" and self._leases(now_s, FAREWELL):
                self._take_leave(now_s)
            self._get_date(now_s, self._on_retirement_read)
        left_s = (self._given.until_ms - self.router_ms(now_s)) / 1000
        self.drained_s = now_s + left_s + DRAIN_S

    def pass_on(self, successor: bytes, now_s: float) -> bool:
        """Give the clients of this retired session the LeaseSet of its successor, until it expires; once.
        Returns whether it begins with that now.

        Raises `ValueError`: floodfills would not take it, it belongs to another destination, or it is not
        newer than what was published here.
        """
        if self.phase != "retired" or self._has_successor:
            return False
        lease_set = verify_lease_set(successor, self.router_ms(now_s) // 1000)
        if lease_set.destination != self._keys.keys.destination:
            raise ValueError("it belongs to another destination")
        assert self._given is not None, "a retired session was active"
        if lease_set.published_s <= self._given.published_s:
            raise ValueError("it is older than what was published here")
        self._has_successor = True
        if self._kind == "java":
            return True
        self._last = successor
        self._successor_until_ms = (lease_set.published_s + lease_set.expires_s) * 1000
        self._pass_on(now_s)
        return True

    # ------------------------------------------------------------------ what is known

    def published(self, order: PublishOrder) -> Published | None:
        """The newest LeaseSet that the router has read, if it was composed for ``order``."""
        taken = self._taken
        if taken is None or taken.order is not order:
            return None
        return Published(published_ms=taken.published_s * 1000, lease_set=taken.data)

    def lease_ends(self, now_s: float) -> tuple[int, ...]:
        """When the tunnels end that last, ascending, ms since 1970."""
        now_ms = self.router_ms(now_s)
        return tuple(sorted(each.end_ms for each in self.tunnels if each.end_ms > now_ms))

    def tunnels_lately(self, now_s: float) -> int:
        """How many tunnels last, by the best of the router's requests that stood within the last minute; 0 if
        none of the newest lasts."""
        if not self.lease_ends(now_s):
            return 0
        while len(self._requests) > 1 and self._requests[1][0] <= now_s - LATELY_S:
            self._requests.popleft()
        now_ms = self.router_ms(now_s)
        return max(sum(each.end_ms > now_ms for each in tunnels) for _, tunnels in self._requests)

    def is_warm(self, now_s: float) -> bool:
        """Whether the router has tunnels that last."""
        return self.has_asked and bool(self.lease_ends(now_s))

    def is_publishing(self, now_s: float) -> bool:
        """Whether what the router publishes lasts."""
        until_ms = self.until_ms
        return self.phase == "active" and until_ms is not None and self.router_ms(now_s) < until_ms

    @property
    def until_ms(self) -> int | None:
        """The end of the last lease that was published here, ms since 1970."""
        return None if self._taken is None else self._taken.until_ms

    @property
    def published_ms(self) -> int | None:
        """The date of the newest LeaseSet of this session that the router has read to publish, ms."""
        return None if self._taken is None else self._taken.published_s * 1000

    def router_ms(self, now_s: float) -> int:
        """The router's clock."""
        date_ms, at_s = self._clock
        return date_ms + round((now_s - at_s) * 1000)

    # ------------------------------------------------------------------ inside

    def _answer(self, now_s: float) -> None:
        """The router has asked for a LeaseSet."""
        if self._order is not None:
            self._publish(now_s)
        elif self.phase == "standby":
            self._check_expiry(now_s)
            self._give(self._compose(now_s, self._plan, self._date_s(now_s)))
        elif self._kind == "java":  # which refuses the last one once its leases have ended
            assert self._given is not None, "a retired session was active"
            self._give(self._compose(now_s, FAREWELL, self._given.published_s))
        else:
            self._give(self._last)

    def _pass_on(self, now_s: float) -> None:
        if self.router_ms(now_s) >= self._successor_until_ms:
            self._next_s = math.inf
            return
        self._give(self._last)
        self._next_s = now_s + PASS_ON_S
        self._on_passed_on()

    def _take_leave(self, now_s: float) -> None:
        assert self._given is not None
        published_s = self._date_s(now_s)
        data = self._compose(now_s, FAREWELL, published_s)
        self._given = msgspec.structs.replace(self._given, data=data, published_s=published_s)
        self._give(data)
        self._on_passed_on()

    def _publish(self, now_s: float) -> None:
        assert self._order is not None
        leases = self._leases(now_s, self._plan)
        if not leases:  # a LeaseSet without any would end the service
            self._next_s = math.inf
            return
        self._check_expiry(now_s)
        published_s = self._date_s(now_s)
        data = self._compose(now_s, self._plan, published_s)
        until_ms = max(lease.end_s * 1000 for lease in leases)
        if self.phase != "active":
            self.phase, self.is_retirement_read = "active", False
            self._messages.append(encode_reconfigure_session(self.id, self._active))
        self._given = _Given(self._order, self._keys.keys, data, published_s, until_ms)
        self._give(data)
        self._get_date(now_s, partial(self._on_taken, self._given))
        self._published_s = now_s
        self._next_s = now_s + self._plan.republish_s

    def _give(self, data: bytes) -> None:
        self._last = data
        self._messages.append(encode_create_lease_set2(self.id, LEASE_SET_2, data, self._private_keys))

    def _get_date(self, now_s: float, on_read: Callable[[], None] = lambda: None) -> None:
        self._heartbeat.on_asked(now_s, on_read)
        self._messages.append(GET_DATE)

    def _on_taken(self, given: _Given) -> None:
        self._taken = given
        if self.since_ms is None:
            self.since_ms = given.published_s * 1000
        self._on_changed()

    def _on_retirement_read(self) -> None:
        self.is_retirement_read, self._taken = True, self._given
        self._on_changed()

    def _check_expiry(self, now_s: float) -> None:
        self._keys.check_expiry(self.router_ms(now_s), by_router=True)

    def _date_s(self, now_s: float) -> int:
        """Of the next LeaseSet. Ahead of the clock only where it must be: a successor's has to be newer, and
        may follow at once."""
        date_s = self.router_ms(now_s) // 1000
        if self._order is not None:
            date_s = max(date_s, -(-self._order.published_ms // 1000))
        if self._given is not None:
            date_s = max(date_s, self._given.published_s + 1)
        return date_s

    def _compose(self, now_s: float, plan: LeasePlan, published_s: int) -> bytes:
        """A LeaseSet of the tunnels."""
        keys = self._keys.keys
        lease_set = LeaseSet(
            destination=keys.destination,
            published_s=published_s,
            expires_s=plan.header_s,
            encryption_keys=self._public_keys,
            leases=self._leases(now_s, plan),
            offline=keys.offline,
        )
        return encode_lease_set(lease_set, keys.sign)

    def _leases(self, now_s: float, plan: LeasePlan) -> tuple[Lease, ...]:
        """The tunnels that last longest, shortened."""
        now_ms = self.router_ms(now_s)
        limit_ms = now_ms + plan.lease_s * 1000
        tunnels = sorted(self.tunnels, key=lambda each: each.end_ms, reverse=True)[:MAX_OWN_LEASES]
        return tuple(
            Lease(each.gateway, each.tunnel, min(each.end_ms, limit_ms) // 1000)
            for each in tunnels
            if each.end_ms > now_ms
        )
