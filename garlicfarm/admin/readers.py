"""``/v1/farms/{farm}/readers``: queries that read this farm's log, as they report it.

A report is for people only. It is kept in memory, expires, and holds nothing back: the retention of the log
does not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import trio
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from garlicfarm.admin.contract import FarmView
from garlicfarm.admin.problems import Problem
from garlicfarm.admin.rankings import MAX_NUMBER, checked_name
from garlicfarm.admin.requests import number
from garlicfarm.admin.responses import json_answer

EXPIRY_S = 600.0
MAX_READERS, MAX_OF_USER = 64, 16
"""of a farm; of one user there"""


class _Reader(msgspec.Struct):
    """``since_ms``: by this node's wall clock; ``at_s``: of the newest report, on Trio's clock."""

    index: int
    since_ms: int
    at_s: float


class Readers:
    """The reports, and their endpoints. A user replaces its own, and sees those of all.

    :param find_farm: the farm that a request names.
    """

    def __init__(self, find_farm: Callable[[HTTPConnection], FarmView]) -> None:
        self._find_farm = find_farm
        self._readers: dict[str, dict[tuple[str, str], _Reader]] = {}  # farm → (query, user) → its report

    async def put(self, request: Request, user: str) -> Response:
        """Report that the query of this user has read the log up to ``index``."""
        farm = self._find_farm(request)
        query = checked_name("the query's name", request.path_params["query"])
        index = int(number(request, "index", -1, MAX_NUMBER))
        if index < 0:
            raise Problem(
                400, "bad-query", "index is missing", "Name the last index that the query has read."
            )
        readers = self._current(farm)
        known = readers.get((query, user))
        own = sum(each == user for _, each in readers)
        if known is None and (len(readers) >= MAX_READERS or own >= MAX_OF_USER):
            raise Problem(
                503,
                "too-many-readers",
                f"{len(readers)} queries already report what they have read of this farm, {own} of this user",
                f"Reading works without. A report expires after {EXPIRY_S / 60:.0f} min.",
            )
        since_ms = time.time_ns() // 1_000_000 if known is None else known.since_ms
        readers[query, user] = _Reader(index, since_ms, trio.current_time())
        return json_answer({"query": query, "index": index, "lag": _lag(farm, index)}, farm)

    async def get(self, request: Request, user: str) -> Response:
        farm = self._find_farm(request)
        head = {"schema": "garlicfarm.readers/1", "farm": farm.farm, "index": farm.commit_index}
        return json_answer({**head, "readers": self.rows(farm)}, farm)

    def rows(self, farm: FarmView) -> list[dict[str, Any]]:
        """A row for each current report, by name."""
        now_s = trio.current_time()
        return [
            {
                "query": query,
                "user": user,
                "index": reader.index,
                "lag": _lag(farm, reader.index),
                "since_ms": reader.since_ms,
                "age_s": round(now_s - reader.at_s, 1),
            }
            for (query, user), reader in sorted(self._current(farm).items())
        ]

    def _current(self, farm: FarmView) -> dict[tuple[str, str], _Reader]:
        """The reports about a farm that have not expired."""
        oldest_s = trio.current_time() - EXPIRY_S
        known = self._readers.get(farm.farm, {})
        self._readers[farm.farm] = {key: reader for key, reader in known.items() if reader.at_s > oldest_s}
        return self._readers[farm.farm]


def _lag(farm: FarmView, index: int) -> int:
    return max(0, farm.commit_index - index)
