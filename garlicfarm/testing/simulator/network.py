"""A world with one clock and one source of randomness, and a network in it that breaks as real ones do.

Bytes of one connection arrive in order, in pieces, late or never; across connections there is no
order. Everything goes through the real codec.
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

__all__ = ["CLIENT", "SERVER", "Connection", "Network", "Weather", "World"]

CLIENT, SERVER = 0, 1
LAST_EVENTS = 50
_REPEATED = object()


class World:
    """Events in order of (time in ms, when they were arranged). ``digest`` is a hash over all that
    happened, ``trace`` holds the last events for people."""

    def __init__(self, seed: int) -> None:
        self.now = 0
        self.events = 0
        self.rng = random.Random(seed)
        self.digest = blake2b(digest_size=16)
        self.trace: deque[tuple[Any, ...]] = deque(maxlen=LAST_EVENTS)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._arranged = 0

    def at(self, time_ms: int, function: Callable[..., None], *arguments: Any) -> None:
        """Arrange an event."""
        self._arranged += 1
        heappush(self._heap, (time_ms, self._arranged, function, arguments))

    def around(self, mean_ms: float) -> int:
        """A time from now on, mostly near, sometimes far."""
        return self.now + int(self.rng.expovariate(1 / mean_ms))

    def chance(self, probability: float) -> bool:
        """Whether something of this probability happens now."""
        return probability > 0 and self.rng.random() < probability

    def next_event(self) -> None:
        """Let the next event happen."""
        self.now, _, function, arguments = heappop(self._heap)
        self.events += 1
        self.trace.append((self.now, function.__name__.strip("_"), *arguments))
        self.digest.update(b"%d %s " % (self.now, function.__name__.encode()))
        function(*arguments)

    def story(self) -> str:
        """The last events, one a line."""
        return "\n".join(
            f"{at:7} ms  " + " ".join(f"{len(x)} bytes" if isinstance(x, bytes) else str(x) for x in rest)
            for at, *rest in self.trace
        )


class Weather(NamedTuple):
    """``delay_ms``: mean time on the way; ``reset``: chance per message that its connection breaks;
    ``split``: that it comes in two pieces; ``repeat``: that a request comes once more, later, on a
    connection of its own, whose answer nobody reads."""

    delay_ms: float
    reset: float
    split: float
    repeat: float = 0


class Connection:
    """From ``client`` (side 0) to ``server`` (side 1), both of them ids.

    Bytes towards a side wait in ``stalled[side]`` while they cannot get there. A side that is
    ``closed`` reads and sends nothing more. What is sent on a ``broken`` connection is lost, though
    the sides learn of it only later, each by itself, and go on reading until then.
    """

    def __init__(self, number: int, client: int, server: int, timeout_ms: int) -> None:
        self.number = number
        self.client = client
        self.server = server
        self.timeout_ms = timeout_ms
        self.outstanding: deque[tuple[Any, int]] = deque()  # (tag, sent at) of unanswered requests
        self.slots: deque[list[Response | bool | None]] = deque()  # places of answers: False, or it
        self.closed = [False, False]
        self.broken = False
        self.arrival_ms = [0, 0]
        self.stalled: list[list[bytes]] = [[], []]
        self.watched = False
        self.heard_ms = 0  # when the last answer came
        self.requests = RequestDecoder(Limits())
        self.responses = ResponseDecoder()

    def __str__(self) -> str:
        return f"{self.client}→{self.server}#{self.number}"

    def end(self, side: int) -> int:
        """Who is at that side."""
        return self.server if side else self.client


class Network:
    """All connections. ``serve(connection)`` is told of bytes at the server's side,
    ``take_answers(connection)`` of those at the client's, ``failed(connection, tags)`` of requests that
    get no answer; ``paused(id)`` says who does not read at the moment, ``listens(id)`` whose process runs.
    ``blocked`` holds (from, to)."""

    def __init__(
        self,
        world: World,
        serve: Callable[[Connection], None],
        take_answers: Callable[[Connection], None],
        failed: Callable[[Connection, list[Any]], None],
        paused: Callable[[int], bool],
        listens: Callable[[int], bool],
    ) -> None:
        self._world = world
        self._listens = listens
        self._serve = serve
        self._take_answers = take_answers
        self._failed = failed
        self._paused = paused
        self._connections: dict[int, Connection] = {}
        self._next_number = 0
        self.blocked: set[tuple[int, int]] = set()
        self.weather = Weather(1, 0, 0)
        self.cut_messages = 0
        self.repeated_requests = 0

    def connect(self, client: int, server: int, timeout_ms: int) -> Connection:
        """A new connection, whose requests have to be answered within ``timeout_ms``."""
        self._next_number += 1
        connection = Connection(self._next_number, client, server, timeout_ms)
        self._connections[connection.number] = connection
        return connection

    def of(self, member: int) -> list[Connection]:
        """The connections that end at ``member``."""
        return [c for c in self._connections.values() if member in (c.client, c.server)]

    def send(self, connection: Connection, tag: object, request: Request) -> None:
        """Send a request; its fate is told by ``take_answers`` or ``failed``."""
        connection.outstanding.append((tag, self._world.now))
        if not connection.watched:
            connection.watched = True
            self._world.at(self._world.now + connection.timeout_ms, self._watch, connection)
        self._transmit(connection, SERVER, encode_request(request))
        if tag is not _REPEATED and self._world.chance(self.weather.repeat):
            later = self._world.around(10 * self.weather.delay_ms)
            self._world.at(later, self._repeat, connection, request)

    def _repeat(self, connection: Connection, request: Request) -> None:
        if (connection.client, connection.server) not in self.blocked and self._listens(connection.server):
            self.repeated_requests += 1
            again = self.connect(connection.client, connection.server, connection.timeout_ms)
            self.send(again, _REPEATED, request)

    def take(self, connection: Connection) -> tuple[Any, Response] | None:
        """The next answer that came, and the tag of its request."""
        while not connection.closed[CLIENT] and (answer := connection.responses.next_message()) is not None:
            tag, _ = connection.outstanding.popleft()
            connection.heard_ms = self._world.now
            if tag is not _REPEATED:
                return tag, answer
            self.sever(connection)
            self.lose(connection, CLIENT)
        return None

    def answer(self, connection: Connection) -> None:
        """Send the answers that are due: in the order of their requests. None ends the connection (D8)."""
        while connection.slots and connection.slots[0][0] is not False and not connection.closed[SERVER]:
            response = connection.slots.popleft()[0]
            if isinstance(response, Response):
                self._transmit(connection, CLIENT, encode_response(response))
            else:
                connection.broken = True
                self.lose(connection, SERVER)
                self._world.at(connection.arrival_ms[CLIENT] + 1, self.lose, connection, CLIENT)

    def sever(self, connection: Connection) -> None:
        """Break it: nothing sent from now on arrives, and each side learns of it some time."""
        if not connection.broken:
            connection.broken = True
            self.cut_messages += connection.requests.partial + connection.responses.partial
            for side in (CLIENT, SERVER):
                self._world.at(self._world.around(50), self.lose, connection, side)

    def lose(self, connection: Connection, side: int) -> None:
        """A side closes its end, or learns that the connection is gone."""
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
        """What could not get to a side before may do so now."""
        for connection in self._connections.values():
            for side in (CLIENT, SERVER):
                if connection.stalled[side]:
                    at = self._world.around(self.weather.delay_ms)
                    self._world.at(at, self._drain, connection, side)

    def _watch(self, connection: Connection) -> None:
        """Every request has a deadline (S5), which begins with the answer to the one before; the side that
        asked keeps it."""
        connection.watched = False
        if connection.closed[CLIENT] or not connection.outstanding:
            return
        since = max(connection.outstanding[0][1], connection.heard_ms)
        deadline = since + connection.timeout_ms
        if deadline <= self._world.now:
            self.sever(connection)
            self.lose(connection, CLIENT)
        else:
            connection.watched = True
            self._world.at(deadline, self._watch, connection)

    def _transmit(self, connection: Connection, side: int, data: bytes) -> None:
        """Send bytes towards a side; perhaps they are the last ones, and not all of them."""
        if connection.broken:
            return
        world = self._world
        breaks = world.chance(self.weather.reset)
        if breaks:
            data = data[: world.rng.randint(0, len(data))]
        middle = world.rng.randint(0, len(data)) if world.chance(self.weather.split) else 0
        for chunk in (data[:middle], data[middle:]):
            if chunk:
                at = max(connection.arrival_ms[side], world.around(self.weather.delay_ms))
                connection.arrival_ms[side] = at
                world.at(at, self._deliver, connection, side, chunk)
        if breaks:
            self.sever(connection)

    def _deliver(self, connection: Connection, side: int, data: bytes) -> None:
        self._world.digest.update(data)
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
        return (connection.end(1 - side), receiver) in self.blocked or self._paused(receiver)

    def _drain(self, connection: Connection, side: int) -> None:
        if connection.stalled[side] and not self._is_stalled(connection, side):
            data = b"".join(connection.stalled[side])
            connection.stalled[side].clear()
            self._deliver(connection, side, data)
