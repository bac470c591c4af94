"""Tests whether the service behind a publisher answers: a node whose service is down must not publish it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import trio

from garlicfarm._version import __version__
from garlicfarm.config import PublisherSection
from garlicfarm.errors import ConfigError, cause_of

BAD_STATUS_OF_TARGETS = 400
"""From which on the status of a page says that a target is down, which was made to say so."""


class BackendCheck:
    """Tests the service at ``url`` every ``interval_s``, which is also the deadline of each test.

    ``tcp://HOST:PORT`` answers if it accepts a connection, an ``http://`` URL if the status of a GET is below
    ``bad_status``; redirects are not followed, and no body is read. `is_up`: True until ``threshold`` tests
    in a row failed; then False until one succeeds. `problem`: a sentence about the last test, None if it
    succeeded. The constructor raises `ConfigError` for a malformed URL.
    """

    def __init__(self, url: str, interval_s: float, threshold: int, bad_status: int = 500) -> None:
        # Not at the top: it takes as long as Trio to import, and few publishers have a check.
        import httpx

        try:
            self._url = httpx.URL(url)
            self._host, self._port = self._url.host, self._url.port or 80  # the host is decoded here
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ConfigError([f"check: {url!r} is not a URL: {error}"]) from error
        self._interval_s = interval_s
        self._threshold = threshold
        self._bad_status = bad_status
        self._failures = 0
        self.is_up = True
        self.problem: str | None = None

    async def run(self, on_tested: Callable[[], None]) -> NoReturn:
        """Test until cancelled; call ``on_tested`` after each test."""
        while True:
            due = trio.current_time() + self._interval_s
            await self.test()
            on_tested()
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
        import httpx

        try:
            if self._url.scheme == "tcp":
                await trio.aclose_forcefully(await trio.open_tcp_stream(self._host, self._port))
                return ""
            headers = {"User-Agent": f"garlicfarm/{__version__}", "Connection": "close"}
            request = httpx.Request("GET", self._url, headers=headers)
            # A transport: a client would follow the proxies of the environment, and add headers of its own.
            async with httpx.AsyncHTTPTransport(verify=False) as transport:
                status = (await transport.handle_async_request(request)).status_code
        except (OSError, httpx.ConnectError) as error:
            return cause_of(error)
        except UnicodeError:
            return f"{self._host!r} is not a host name"
        except httpx.TransportError as error:
            return f"no HTTP answer: {cause_of(error)}"
        return f"HTTP status {status}" if status >= self._bad_status else ""


class BackendChecks:
    """The tests of a publisher's services, by URL: those at ``targets``, see `Publisher.targets`, or that
    which the table names. The constructor raises `ConfigError`, as `BackendCheck`."""

    def __init__(self, section: PublisherSection, targets: Sequence[str]) -> None:
        interval_s, threshold = section.check_interval_s, section.check_threshold
        self._targets = {
            target: target if "://" in target else f"tcp://{target}"
            for target in (targets if section.check == "auto" else ())
        }
        self._checks = {
            url: BackendCheck(url, interval_s, threshold, BAD_STATUS_OF_TARGETS)
            for url in self._targets.values()
        }
        if section.check not in ("auto", ""):
            self._checks[section.check] = BackendCheck(section.check, interval_s, threshold)

    @property
    def is_up(self) -> bool:
        """Whether one of the services is up; True where nothing is tested."""
        return not self._checks or any(check.is_up for check in self._checks.values())

    @property
    def up(self) -> dict[str, bool]:
        """Whether the service at each URL is up."""
        return {url: check.is_up for url, check in self._checks.items()}

    @property
    def down(self) -> frozenset[str]:
        """Which of ``targets`` are down."""
        return frozenset(target for target, url in self._targets.items() if not self._checks[url].is_up)

    @property
    def problem(self) -> str | None:
        """Which services did not answer last, None if all did."""
        return "; ".join(check.problem for check in self._checks.values() if check.problem) or None

    async def run(self, on_tested: Callable[[], None]) -> None:
        """Test until cancelled; call ``on_tested`` after each test."""
        async with trio.open_nursery() as nursery:
            for check in self._checks.values():
                nursery.start_soon(check.run, on_tested)
