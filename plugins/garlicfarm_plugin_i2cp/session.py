"""What sessions of all kinds have in common: how they begin, are kept alive, end, and are begun again."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio

from garlicfarm.errors import PublisherError
from garlicfarm.i2p.i2cp import (
    SESSION_CREATED,
    SESSION_DESTROYED,
    SESSION_INVALID,
    SessionStatus,
    encode_create_session,
    encode_destroy_session,
)
from garlicfarm_plugin_i2cp.connection import ANSWER_TIMEOUT_S, Connection

MIN_INTERVAL_S = 20.0
"""i2pd's PUBLISH_MIN_INTERVAL."""
PATIENCE_S = 25.0
"""How long a call waits for a router that builds tunnels, or for the next attempt."""
CLOSE_TIMEOUT_S = 2.0
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0


class BackOff:
    """How long to wait before the next attempt: 1, 2, 4 … 30 s."""

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def reset(self) -> None:
        """The last attempt was good for something."""
        self._next_s = FIRST_PAUSE_S

    async def pause(self) -> None:
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, MAX_PAUSE_S)
        await trio.sleep(pause_s)


class Heartbeat:
    """Which GetDate has no answer yet, and when another one is due. Sans-I/O; times in s of one clock.

    A router answers GetDate with SetDate, in the order of what it was sent, and does not answer a LeaseSet at
    all: so SetDate shows that it has read what came before. ``interval_s``: of silence, until another GetDate
    is due; ``patience_s``: of silence after one, until the router counts as gone.
    """

    def __init__(self, interval_s: float, patience_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._heard_s = now_s
        self._asked: deque[tuple[float, Callable[[], None]]] = deque()

    @property
    def due_s(self) -> float:
        """When to send GetDate; never while one has no answer."""
        return math.inf if self._asked else self._heard_s + self._interval_s

    @property
    def deadline_s(self) -> float:
        """By when the router has to be heard."""
        return max(self._heard_s, self._asked[0][0]) + self._patience_s if self._asked else math.inf

    def on_asked(self, now_s: float, on_read: Callable[[], None] = lambda: None) -> None:
        """GetDate is sent. ``on_read`` is called when it is answered."""
        self._asked.append((now_s, on_read))

    def on_heard(self, now_s: float) -> None:
        """Any message came."""
        self._heard_s = now_s

    def on_answered(self) -> None:
        """SetDate came."""
        if self._asked:
            _, on_read = self._asked.popleft()
            on_read()


async def create_session(connection: Connection, configuration: bytes) -> int:
    """A new session's id. ``configuration``: signed. Raises `PublisherError`: refused, or no answer."""
    await connection.send(encode_create_session(configuration))
    with trio.move_on_after(ANSWER_TIMEOUT_S):
        while not isinstance(message := await connection.receive(), SessionStatus):
            pass
        if message.status != SESSION_CREATED:
            raise refusal(connection, message.status)
        return message.session
    raise connection.silence()


async def destroy_session(connection: Connection, session: int, *before: bytes) -> None:
    """End a session, even when cancelled, after messages that go out ``before``; at most 2 s."""
    with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True), suppress(PublisherError):
        await connection.send(*before, encode_destroy_session(session))
        while not isinstance(await connection.receive(), SessionStatus):
            pass


def refusal(connection: Connection, status: int) -> PublisherError:
    """What a SessionStatus says that is neither "created" nor "updated"."""
    if status == SESSION_DESTROYED:
        return PublisherError(f"the router at {connection.router} has ended the session")
    reason = "invalid" if status == SESSION_INVALID else "refused"
    return PublisherError(
        f"the router at {connection.router} refuses the session ({reason}, status {status}): either another "
        "client has a session with the same destination there, or its signature is wrong"
    )
