"""Sends on a connection: at once if the stream can, else by a task.

A task that is woken for each answer costs more than the answer. So `Sender.flush` tries the stream first;
what the stream does not take at once, `Sender.run` sends.

| state   | `flush`                        | `wake` | `run`                             |
|---------|--------------------------------|--------|-----------------------------------|
| IDLE    | sends: IDLE, or DUE if it must | DUE    | waits                             |
| DUE     |                                |        | takes what is next, sends: SENDING |
| SENDING | AGAIN                          | AGAIN  | has sent: IDLE                    |
| AGAIN   |                                |        | has sent: DUE                     |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import NoReturn

import trio

SEND_NOW_BYTES = 1 << 15
"""More than that is sent by the task, which waits until the peer has room for it."""


class _State(Enum):
    IDLE = auto()
    DUE = auto()
    SENDING = auto()
    AGAIN = auto()


class Sender:
    """Sends on ``stream`` what ``take()`` returns: all that may be sent now, perhaps nothing.

    It sends at once on a stream with a method ``send_now`` (`garlicfarm.net.tls_stream.TlsStream.send_now`).
    """

    def __init__(self, stream: trio.abc.Stream, take: Callable[[], bytes]) -> None:
        self._stream = stream
        self._take = take
        self._send_now: Callable[[bytes], bool] | None = getattr(stream, "send_now", None)
        self._state = _State.IDLE
        self._due = trio.Event()
        self._unsent = b""  # taken, and left to the task

    def wake(self) -> None:
        """Have `run`'s task send."""
        if self._state is _State.IDLE:
            self._state = _State.DUE
            self._due.set()
        elif self._state is _State.SENDING:
            self._state = _State.AGAIN

    def flush(self) -> None:
        """Send at once, or have `run`'s task send. No checkpoint. Raises what ``take`` raises; the fault of a
        stream is raised by `run`."""
        if self._state is _State.IDLE and self._send_now is not None:
            data = self._take()
            if len(data) > SEND_NOW_BYTES:
                self._unsent = data
            else:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    if not data or self._send_now(data):
                        return
        self.wake()

    async def run(self, timeout_s: float = math.inf) -> NoReturn:
        """Send what `flush` leaves over, until cancelled. Raises what ``take`` and the stream raise;
        `trio.TooSlowError`: the peer has not taken what was sent within ``timeout_s``."""
        while True:
            await self._due.wait()
            self._due = trio.Event()
            while self._state is _State.DUE:
                self._state = _State.SENDING
                data, self._unsent = self._unsent, b""
                try:
                    data += self._take()
                finally:  # what was taken before goes out even if no more can be taken
                    if data or self._send_now is not None:  # the stream may hold a rest
                        with trio.fail_after(timeout_s):
                            await self._stream.send_all(data)
                self._state = _State.DUE if self._state is _State.AGAIN else _State.IDLE
