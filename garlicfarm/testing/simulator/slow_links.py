"""Connections as through I2P: slow, and sometimes dead without notice.

A message takes 0.5 s plus an exponentially distributed time, 1.7 s on average. Three of a hundred are lost.
There are two variants:

* ``resent``, as the streams of I2P do: after 9 s (i2pd's first timeout of retransmission), then 18 s, …;
  later bytes wait for it.
* not: the connection delivers nothing after it. That is harder. Answers are matched by their order, so no
  single message may be missing.

A dead connection accepts bytes and returns nothing: only the deadline of a request reveals it. So does a
connection through a restarted router, as long as it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from garlicfarm.http.digest import NONCE_LIFETIME_S
from garlicfarm.net.link import ATTEMPTS, Backoff
from garlicfarm.testing.simulator.network import Connection, Network, Scheduler
from garlicfarm.wire.messages import Request

RESENT_MS = 9_000
NONCE_LIFETIME_MS = round(1000 * NONCE_LIFETIME_S)
AGAIN_MS = 5_000


class Path(NamedTuple):
    """The path of each message: ``fastest_ms`` plus exponentially distributed time, ``mean_ms`` on average;
    ``loss``, a probability; ``resent``: see the module. And how long a connection lasts on average."""

    fastest_ms: int = 500
    mean_ms: int = 1_700
    loss: float = 0.03
    resent: bool = True
    life_ms: int = 1_800_000


class SlowNetwork(Network):
    """All of its connections lead over a ``path``. Made like `Network`."""

    path = Path()

    def arrival(self, sent_ms: int) -> int | None:
        """When a message that is sent at ``sent_ms`` arrives, None: never."""
        scheduler, path = self._scheduler, self.path
        more_ms = path.mean_ms - path.fastest_ms
        at = sent_ms + path.fastest_ms + (int(scheduler.rng.expovariate(1 / more_ms)) if more_ms else 0)
        wait = RESENT_MS
        while scheduler.chance(path.loss):
            if not path.resent:
                return None
            at += wait
            wait *= 2
        return at

    def opened(self, round_trips: int) -> int | None:
        """When a connection begun now is established, None: never."""
        at: int | None = self._scheduler.now
        for _ in range(2 * round_trips):
            at = self.arrival(at) if at is not None else None
        return at

    def drop_silently(self, connection: Connection) -> None:
        """Accept bytes from now on without delivering any or reporting it: a black hole."""
        connection.is_broken = True

    def sever(self, connection: Connection) -> None:
        """A side gives up the connection. The other one learns of it as late as a message would arrive."""
        connection.is_broken = True
        for side in (0, 1):
            now = self._scheduler.now
            self._scheduler.at(self.arrival(now) or now, self._lose_later, connection, side)

    def _lose_later(self, connection: Connection, side: int) -> None:
        if (connection.end(1 - side), connection.end(side)) in self.blocked:
            self._scheduler.at(self._scheduler.now + AGAIN_MS, self._lose_later, connection, side)
        else:
            self.lose(connection, side)

    def _transmit(self, connection: Connection, side: int, data: bytes) -> None:
        if connection.is_broken:
            return
        at = self.arrival(self._scheduler.now)
        if at is None:
            self.drop_silently(connection)
            return
        at = connection.arrival_ms[side] = max(connection.arrival_ms[side], at)
        self._scheduler.at(at, self._deliver, connection, side, data)


class SimulatedLink:
    """`garlicfarm.net.link.Link` under a `Scheduler`: it keeps itself connected, with the same deadlines and
    back-off. ``ends``: client and server. ``on_up(*ends)``: connected; ``on_failure(*ends, seq)``: a request
    gets no answer."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: SlowNetwork,
        ends: tuple[int, int],
        timeout_ms: int,
        backoff: Backoff,
        on_up: Callable[[int, int], None],
        on_failure: Callable[[int, int, int], None],
    ) -> None:
        self._scheduler = scheduler
        self._network = network
        self._ends = ends
        self._timeout_ms = self._answer_timeout_ms = timeout_ms
        self._backoff = backoff
        self._on_up = on_up
        self._on_failure = on_failure
        self._connection: Connection | None = None
        self._queue: list[tuple[int, Request]] = []
        self._waiting = False
        self._dialling = False
        self._stale_ms = 0  # until then a cached challenge saves a round trip
        self._attempts = 0
        self._failures = 0

    def send(self, seq: int, request: Request) -> None:
        """As `Link.send`; an immediate failure is a separate event."""
        if self._waiting:
            self._scheduler.at(self._scheduler.now, self._fail, seq)
        elif self._connection is None:
            self._queue.append((seq, request))
        else:
            self._network.send(self._connection, seq, request)

    def dial(self) -> None:
        """Begin a connection, and another one beside it each third of the deadline, until one is up or all
        have failed."""
        self._waiting, self._dialling = False, True
        self._attempts += 1
        for attempt in range(ATTEMPTS):
            begin_ms = self._scheduler.now + attempt * self._timeout_ms // ATTEMPTS
            self._scheduler.at(begin_ms, self._begin, self._attempts)
        self._scheduler.at(self._scheduler.now + self._timeout_ms, self._give_up, self._attempts)

    def _begin(self, attempts: int) -> None:
        if self._is_dialling(attempts) and not self._is_cut():
            at = self._network.opened(1 if self._scheduler.now < self._stale_ms else 2)
            if at is not None:
                self._scheduler.at(at, self._open, attempts)

    def _give_up(self, attempts: int) -> None:
        if self._is_dialling(attempts):
            self.on_lost([])

    def _is_dialling(self, attempts: int) -> bool:
        return self._dialling and attempts == self._attempts

    def poke(self) -> None:
        """The other end showed a sign of life."""
        if self._waiting:
            self.dial()

    def on_answer(self) -> None:
        """The other end answers: the next failure is the first one."""
        self._failures = 0
        self._set_deadline()

    def set_answer_timeout(self, timeout_ms: int) -> None:
        """As `Link.answer_timeout_s`."""
        self._answer_timeout_ms = timeout_ms
        self._set_deadline()

    def _set_deadline(self) -> None:
        if self._connection is not None:
            self._connection.timeout_ms = self._timeout_ms if self._failures else self._answer_timeout_ms

    def on_lost(self, seqs: list[Any]) -> None:
        """The connection is gone, or did not come about; these got no answer."""
        self._connection, self._waiting, self._dialling = None, True, False
        self._failures += 1
        wait_ms = round(1000 * self._backoff.wait_s(self._failures))
        self._scheduler.at(self._scheduler.now + wait_ms, self._again, self._attempts)
        failed, self._queue = [*seqs, *(seq for seq, _ in self._queue)], []
        for seq in failed:
            self._fail(seq)

    def _open(self, attempts: int) -> None:
        if not self._is_dialling(attempts) or self._is_cut():
            return
        self._dialling = False
        if self._scheduler.now >= self._stale_ms:
            self._stale_ms = self._scheduler.now + NONCE_LIFETIME_MS
        connection = self._connection = self._network.connect(*self._ends, self._timeout_ms)
        self._set_deadline()
        end_ms = self._scheduler.around(self._network.path.life_ms)
        self._scheduler.at(end_ms, self._network.drop_silently, connection)
        waiting, self._queue = self._queue, []
        self._on_up(*self._ends)
        for seq, request in waiting:
            self.send(seq, request)

    def _fail(self, seq: int) -> None:
        self._on_failure(*self._ends, seq)

    def _again(self, attempts: int) -> None:
        if attempts == self._attempts:
            self.dial()

    def _is_cut(self) -> bool:
        return bool({self._ends, self._ends[::-1]} & self._network.blocked)
