"""A scheduler with one clock and one source of randomness, and a network that fails as real ones do.

Bytes of one connection arrive in order, in pieces, late or never; connections are not ordered against each
other. Everything goes through the real codec.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, NamedTuple

from garlicfarm.wire import Limits, RequestDecoder, ResponseDecoder, encode_request, encode_response
from garlicfarm.wire.messages import Request, Response

CLIENT, SERVER = 0, 1
LAST_EVENTS = 50
_REPEATED = object()


class Scheduler:
    """Runs events by time (ms), those of one time in the order in which they were scheduled. ``digest`` is a
    hash over all events, ``trace`` holds the last ones for people."""

    def __init__(self, seed: int) -> None:
        self.now = 0
        self.events = 0
        self.rng = random.Random(seed)
        self.digest = blake2b(digest_size=16)
        self.trace: deque[tuple[Any, ...]] = deque(maxlen=LAST_EVENTS)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0

    def at(self, time_ms: int, function: Callable[..., None], *arguments: Any) -> None:
        """Schedule an event."""
        assert time_ms >= self.now
        self._scheduled += 1
        heappush(self._heap, (time_ms, self._scheduled, function, arguments))

    def around(self, mean_ms: float) -> int:
        """A time from now on, exponentially distributed."""
        return self.now + int(self.rng.expovariate(1 / mean_ms))

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return probability > 0 and self.rng.random() < probability

    def next_event(self) -> None:
        """Run the next event."""
        self.now, _, function, arguments = heappop(self._heap)
        self.events += 1
        self.trace.append((self.now, function.__name__.strip("_"), *arguments))
        self.digest.update(b"%d %s " % (self.now, function.__name__.encode()))
        function(*arguments)

    def trace_text(self) -> str:
        """The last events, one per line."""
        return "\n".join(
            f"{at:7} ms  " + " ".join(f"{len(x)} bytes" if isinstance(x, bytes) else str(x) for x in rest)
            for at, *rest in self.trace
        )


class NetworkFaults(NamedTuple):
    """``delay_ms`` is the mean delay. The others are probabilities per message: ``reset``, its connection
    breaks; ``split``, it arrives in two pieces; ``repeat``, a request arrives again later, on a connection of
    its own, and the second answer is ignored."""

    delay_ms: float
    reset: float
    split: float
    repeat: float = 0


class Connection:
    """From ``client`` (side 0) to ``server`` (side 1), both of them ids.

    Bytes towards a side that cannot receive now wait in ``stalled[side]``. A ``closed`` side neither reads
    nor sends any more. Bytes sent on a broken connection are lost. Each side learns later that it broke, and
    reads until then.
    """

    def __init__(self, number: int, client: int, server: int, timeout_ms: int) -> None:
        self.number = number
        self.client = client
        self.server = server
        self.timeout_ms = timeout_ms
        self.outstanding: deque[tuple[Any, int]] = deque()  # (tag, sent at) of unanswered requests
        self.pending: deque[list[Response | bool | None]] = deque()  # places of answers: False until answered
        self.closed = [False, False]
        self.is_broken = False
        self.arrival_ms = [0, 0]
        self.stalled: list[list[bytes]] = [[], []]
        self.is_watched = False
        self.last_answer_ms = 0  # when the last answer came
        self.requests = RequestDecoder(Limits())
        self.responses = ResponseDecoder()

    def __str__(self) -> str:
        return f"{self.client}→{self.server}#{self.number}"

    def end(self, side: int) -> int:
        """The id at that side."""
        return self.server if side else self.client


class Network:
    """All connections. ``serve(connection)`` is called for bytes that arrive at the server's side,
    ``take_answers(connection)`` for those at the client's, ``failed(connection, tags)`` for requests that get
    no answer. ``is_paused(id)``: that end reads nothing now; ``is_listening(id)``: its process runs.
    ``blocked`` holds (from, to)."""

    def __init__(
        self,
        scheduler: Scheduler,
        serve: Callable[[Connection], None],
        take_answers: Callable[[Connection], None],
        failed: Callable[[Connection, list[Any]], None],
        is_paused: Callable[[int], bool],
        is_listening: Callable[[int], bool],
    ) -> None:
        self._scheduler = scheduler
        self._is_listening = is_listening
        self._serve = serve
        self._take_answers = take_answers
        self._failed = failed
        self._is_paused = is_paused
        self._connections: dict[int, Connection] = {}
        self._next_number = 0
        self.blocked: set[tuple[int, int]] = set()
        self.faults = NetworkFaults(1, 0, 0)
        self.cut_messages = 0
        self.repeated_requests = 0

    def connect(self, client: int, server: int, timeout_ms: int) -> Connection:
        """A new connection. Its requests must be answered within ``timeout_ms``."""
        self._next_number += 1
        connection = Connection(self._next_number, client, server, timeout_ms)
        self._connections[connection.number] = connection
        return connection

    def of(self, member: int) -> list[Connection]:
        """The connections that end at ``member``."""
        return [c for c in self._connections.values() if member in (c.client, c.server)]

    def send(self, connection: Connection, tag: object, request: Request) -> None:
        """Send a request; ``take_answers`` or ``failed`` reports its outcome."""
        connection.outstanding.append((tag, self._scheduler.now))
        if not connection.is_watched:
            connection.is_watched = True
            self._scheduler.at(self._scheduler.now + connection.timeout_ms, self._watch, connection)
        self._transmit(connection, SERVER, encode_request(request))
        if tag is not _REPEATED and self._scheduler.chance(self.faults.repeat):
            later = self._scheduler.around(10 * self.faults.delay_ms)
            self._scheduler.at(later, self._repeat, connection, request)

    def _repeat(self, connection: Connection, request: Request) -> None:
        client, server = connection.client, connection.server
        if (client, server) not in self.blocked and self._is_listening(server):
            self.repeated_requests += 1
            again = self.connect(client, server, connection.timeout_ms)
            self.send(again, _REPEATED, request)

    def take(self, connection: Connection) -> tuple[Any, Response] | None:
        """The next answer that arrived, with the tag of its request."""
        while not connection.closed[CLIENT] and (answer := connection.responses.next_message()) is not None:
            tag, _ = connection.outstanding.popleft()
            connection.last_answer_ms = self._scheduler.now
            if tag is not _REPEATED:
                return tag, answer
            self.sever(connection)
            self.lose(connection, CLIENT)
        return None

    def answer(self, connection: Connection) -> None:
        """Send the ready answers, in the order of their requests. None closes the connection: the outcome is
        unknown (D8)."""
        while connection.pending and connection.pending[0][0] is not False and not connection.closed[SERVER]:
            response = connection.pending.popleft()[0]
            if isinstance(response, Response):
                self._transmit(connection, CLIENT, encode_response(response))
            else:
                connection.is_broken = True
                self.lose(connection, SERVER)
                last_ms = max(connection.arrival_ms[CLIENT], self._scheduler.now)
                self._scheduler.at(last_ms + 1, self.lose, connection, CLIENT)

    def sever(self, connection: Connection) -> None:
        """Break a connection: nothing sent from now on arrives. Each side learns of it later."""
        if not connection.is_broken:
            connection.is_broken = True
            self.cut_messages += connection.requests.partial + connection.responses.partial
            for side in (CLIENT, SERVER):
                self._scheduler.at(self._scheduler.around(50), self.lose, connection, side)

    def lose(self, connection: Connection, side: int) -> None:
        """A side closes its end, or learns that the connection broke."""
        if connection.closed[side]:
            return
        connection.closed[side] = True
        if all(connection.closed):
            del self._connections[connection.number]
        if side == CLIENT:
            tags = [tag for tag, _ in connection.outstanding if tag is not _REPEATED]
            repeated = len(tags) < len(connection.outstanding)
            connection.outstanding.clear()
            if not repeated:
                self._failed(connection, tags)

    def drain_all(self) -> None:
        """Deliver stalled bytes where they can arrive now."""
        for connection in self._connections.values():
            for side in (CLIENT, SERVER):
                if connection.stalled[side]:
                    at = self._scheduler.around(self.faults.delay_ms)
                    self._scheduler.at(at, self._drain, connection, side)

    def _watch(self, connection: Connection) -> None:
        """Enforce the deadline of a request. It begins with the answer to the request before it."""
        connection.is_watched = False
        if connection.closed[CLIENT] or not connection.outstanding:
            return
        since = max(connection.outstanding[0][1], connection.last_answer_ms)
        deadline = since + connection.timeout_ms
        if deadline <= self._scheduler.now:
            self.sever(connection)
            self.lose(connection, CLIENT)
        else:
            connection.is_watched = True
            self._scheduler.at(deadline, self._watch, connection)

    def _transmit(self, connection: Connection, side: int, data: bytes) -> None:
        """Send bytes towards a side. The connection may break on the way, and then only some arrive."""
        if connection.is_broken:
            return
        scheduler = self._scheduler
        breaks = scheduler.chance(self.faults.reset)
        if breaks:
            data = data[: scheduler.rng.randint(0, len(data))]
        middle = scheduler.rng.randint(0, len(data)) if scheduler.chance(self.faults.split) else 0
        for chunk in (data[:middle], data[middle:]):
            if chunk:
                at = max(connection.arrival_ms[side], scheduler.around(self.faults.delay_ms))
                connection.arrival_ms[side] = at
                scheduler.at(at, self._deliver, connection, side, chunk)
        if breaks:
            self.sever(connection)

    def _deliver(self, connection: Connection, side: int, data: bytes) -> None:
        self._scheduler.digest.update(data)
        if connection.stalled[side] or self._is_stalled(connection, side):
            connection.stalled[side].append(data)
        elif connection.closed[side]:
            pass
        elif side == SERVER:
            connection.requests.receive_data(data)
            self._serve(connection)
        else:
            connection.responses.receive_data(data)
            self._take_answers(connection)

    def _is_stalled(self, connection: Connection, side: int) -> bool:
        receiver = connection.end(side)
        return (connection.end(1 - side), receiver) in self.blocked or self._is_paused(receiver)

    def _drain(self, connection: Connection, side: int) -> None:
        if connection.stalled[side] and not self._is_stalled(connection, side):
            data = b"".join(connection.stalled[side])
            connection.stalled[side].clear()
            self._deliver(connection, side, data)
