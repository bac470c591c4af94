"""Reads the requests of one client for the service, in time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import trio

from garlicfarm_plugin_i2cp.streaming.http_requests import (
    TOO_SLOW,
    HttpRules,
    RequestFilter,
    RequestRefused,
)

HEAD_TIMEOUT_S = 30.0
"""As long as a head may take from its first byte on; the first one from the beginning of its stream."""


class HttpInlet:
    """``read``: gives what has come of the client, b"" at its EOF; it may be cancelled. ``client``: its
    binary destination."""

    def __init__(self, read: Callable[[], Awaitable[bytes]], rules: HttpRules, client: bytes) -> None:
        self._read = read
        self._filter = RequestFilter(rules, client)
        self._answered = trio.Event()
        self._due_s = trio.current_time() + HEAD_TIMEOUT_S

    async def read(self) -> bytes:
        """What comes next for the service; b"": the client has ended. Raises `RequestRefused`."""
        requests = self._filter
        while requests.refused is None:
            if requests.awaits_answer:
                await self._answered.wait()
                data = b""
            elif not (data := await self._read_in_time()):
                requests.receive_end()
                break
            heads = requests.heads
            piece = requests.receive(data, trio.current_time())
            if not requests.is_within_head:
                self._due_s = math.inf
            elif self._due_s == math.inf or requests.heads > heads:
                self._due_s = trio.current_time() + HEAD_TIMEOUT_S
            if piece:
                return piece
        if requests.refused is not None:
            raise requests.refused
        return b""

    async def _read_in_time(self) -> bytes:
        with trio.move_on_at(self._due_s):
            return await self._read()
        raise RequestRefused(TOO_SLOW, HTTPStatus.REQUEST_TIMEOUT)

    def on_answer(self, data: bytes) -> None:
        """What the service has sent to the client; b"": it sends nothing more."""
        if self._filter.awaits_answer:
            self._filter.receive_answer(data)
            if not self._filter.awaits_answer:
                self._answered.set()
