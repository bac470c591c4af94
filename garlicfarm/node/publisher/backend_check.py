"""Tests whether the service behind a publisher answers: a node whose service is down must not publish it."""

from __future__ import annotations

from typing import NoReturn

import h11
import trio

from garlicfarm._version import __version__
from garlicfarm.config import PublisherSection
from garlicfarm.errors import ConfigError, cause_of

__all__ = ["BackendCheck", "make_check"]

MAX_ANSWER_BYTES = 16384
"""Of an HTTP answer up to the end of its headers; nothing after them is read."""


class BackendCheck:
    """Tests the service at ``url`` every ``interval_s``, which is also the deadline of each test.

    ``tcp://HOST:PORT`` answers if it accepts a connection, an ``http://`` URL if the status of a GET is below
    500; redirects are not followed. `is_up`: True until ``threshold`` tests in a row failed; then False until
    one succeeds. `problem`: a sentence about the last test, None if it succeeded. The constructor raises
    `ConfigError` for a malformed URL.
    """

    def __init__(self, url: str, interval_s: float, threshold: int) -> None:
        # Not at the top: it takes as long as Trio to import, and few publishers have a check.
        import httpx

        try:
            self._url = httpx.URL(url)
            self._host, self._port = self._url.host, self._url.port or 80
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ConfigError([f"check: {url!r} is not a URL: {error}"]) from error
        self._interval_s = interval_s
        self._threshold = threshold
        self._failures = 0
        self.is_up = True
        self.problem: str | None = None

    async def run(self) -> NoReturn:
        """Test until cancelled."""
        while True:
            due = trio.current_time() + self._interval_s
            await self.test()
            await trio.sleep_until(due)

    async def test(self) -> None:
        """Test once. Cancelled, it changes nothing."""
        cause = "no answer in time"
        with trio.move_on_after(self._interval_s):
            cause = await self._failure()
        self._failures = self._failures + 1 if cause else 0
        self.problem = f"the service at {self._url} does not answer: {cause}" if cause else None
        if not cause:
            self.is_up = True
        elif self._failures >= self._threshold:
            self.is_up = False

    async def _failure(self) -> str:
        """Why the service does not answer, "" if it does."""
        try:
            stream = await trio.open_tcp_stream(self._host, self._port)
        except OSError as error:
            return cause_of(error)
        except UnicodeError:
            return f"{self._host!r} is not a host name"
        async with stream:
            if self._url.scheme == "tcp":
                return ""
            try:
                status = await self._status(stream)
            except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
                return f"no HTTP answer: {error}"
        return f"HTTP status {status}" if status >= 500 else ""

    async def _status(self, stream: trio.SocketStream) -> int:
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER_BYTES)
        request = h11.Request(
            method="GET",
            target=self._url.raw_path,
            headers=[
                ("Host", self._url.netloc.decode()),
                ("User-Agent", f"garlicfarm/{__version__}"),
                ("Connection", "close"),
            ],
        )
        await stream.send_all(
            (connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b"")
        )
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(MAX_ANSWER_BYTES))
            elif isinstance(event, h11.Response):
                return event.status_code


def make_check(section: PublisherSection) -> BackendCheck | None:
    """The check of ``[[farm.publisher]]``, None without one. Raises `ConfigError`."""
    if not section.check:
        return None
    return BackendCheck(section.check, section.check_interval_s, section.check_threshold)
