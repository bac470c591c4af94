"""Rankings that queries store at this node, and how they compare with the node's own.

A query lags, and the node cannot go back to the index that a ranking is of. So it remembers what it ranked
itself: a summary at each of the newest `REMEMBERED` indexes that it stood at, while a query stores rankings.
Entries that are applied in one turn leave one summary. An index that the node never stood at, or no longer
remembers, is not compared. A ranking of an index that the node has not reached waits until it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any, NoReturn, TypeVar

import msgspec
import trio

from garlicfarm.errors import LocalProtocolError, RankingNotStored
from garlicfarm.logs import EventLogger
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.storage import RankingStore

T = TypeVar("T")

REMEMBERED = 1024
WATCHED_S = 600.0
"""How long after a ranking was stored the node still remembers its own."""
MAX_DIFFERENCE = 200  # characters
REST = 9
"""How many times as long as a summary took this rests after it, so that it takes a tenth of the time at
most."""


class _Member(msgspec.Struct, frozen=True):
    id: int
    score: int | None = None


class _Ranking(msgspec.Struct, frozen=True):
    """As much of a ranking as a difference is explained by."""

    index: int
    publisher: int | None
    members: list[_Member]
    algorithm: int | None = None


class _Summary(msgspec.Struct, frozen=True):
    sha256: str
    ranking: _Ranking


class Comparison(msgspec.Struct, frozen=True):
    """A stored ranking beside the node's own at the same index. ``difference``: a sentence, "" if the two are
    equal, byte for byte."""

    batch: int
    asof: int
    equal: bool
    difference: str


class StoredRankings:
    """Implements `garlicfarm.admin.contract.RankingsView`.

    :param ranking: this node's own now, with the ``index`` that it is of.
    """

    def __init__(
        self, store: RankingStore, ranking: Callable[[], dict[str, Any]], core: CoreInbox, log: EventLogger
    ) -> None:
        self._store = store
        self._ranking = ranking
        self._core = core
        self._log = log
        # Every call of the store takes its turn here, one whose request has been cancelled too.
        self._turn = trio.CapacityLimiter(1)
        self._is_loaded = False
        self._own: dict[int, _Summary] = {}
        self._compared: dict[str, Comparison] = {}
        self._awaited: dict[str, tuple[int, _Summary]] = {}  # query → batch, of an index not yet reached
        self._watched_until = -1.0
        self._stored = trio.Event()

    # ------------------------------------------------------------------ for the admin API

    async def put(self, query: str, batch: int, body: bytes, *, asof: int, run: str, user: str) -> bool:
        summary = await trio.to_thread.run_sync(_summary, body)
        if summary.ranking.index != asof:
            raise LocalProtocolError(f"the ranking is of index {summary.ranking.index}, not {asof}")
        store = partial(self._store.put, query, batch, body, asof=asof, run=run, user=user, now_ms=_now_ms())
        is_new = await self._call(store)
        self._remember()
        self._watched_until = trio.current_time() + WATCHED_S
        self._stored.set()
        self._stored = trio.Event()
        if asof > self._core.applied_index:
            self._awaited.setdefault(query, (batch, summary))  # a node that lags compares one after the other
        else:
            self._compare(query, batch, summary)
        return is_new

    @property
    def unusable(self) -> int:
        return len(self._store.unusable)

    def queries(self) -> list[dict[str, Any]]:
        rows = []
        for query, newest in sorted(self._store.queries.items()):
            compared = self._compared.get(query)
            comparison = None if compared is None else msgspec.to_builtins(compared)
            rows.append({"query": query, **msgspec.to_builtins(newest), "comparison": comparison})
        return rows

    async def body(self, query: str) -> bytes | None:
        return await self._call(partial(self._store.body, query))

    async def delete(self, query: str) -> bool:
        was_there = await self._call(partial(self._store.delete, query))
        self._compared.pop(query, None)
        self._awaited.pop(query, None)
        return was_there

    def equality(self) -> dict[str, bool]:
        """Of each query that was compared: whether its newest compared ranking equals the node's own."""
        return {query: compared.equal for query, compared in self._compared.items()}

    async def _call(self, function: Callable[[], T]) -> T:
        """Call the store in a thread. Cancelled, the thread goes on, and the next call waits for it."""

        def call() -> T:
            if not self._is_loaded:  # what is stored was not readable when the farm started
                self._store.load()
                self._is_loaded = True
            return function()

        answer = await trio.to_thread.run_sync(call, limiter=self._turn, abandon_on_cancel=True)
        if self._store.problems:
            first, *others = self._store.problems
            self._store.problems = []
            more = f"; and {len(others)} more" if others else ""
            self._log.warning("ranking-unusable", cause=f"{first}{more}")
        return answer

    # ------------------------------------------------------------------ comparing

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Read what is stored; then remember this node's own rankings while queries store theirs, until
        cancelled. A file that cannot be read is logged, and stops nothing else."""
        try:
            await self._call(lambda: None)
        except RankingNotStored as error:
            self._log.warning("ranking-unusable", cause=str(error))
        task_status.started()
        while True:
            if trio.current_time() >= self._watched_until:
                self._own.clear()
                await self._stored.wait()
            began, index = trio.current_time(), self._remember()
            await trio.sleep(REST * (trio.current_time() - began))
            await self._core.wait_applied(index)

    def _remember(self) -> int:
        """Summarize the node's own ranking now, and compare what waited for it; the index that it is of."""
        index = self._core.applied_index
        if index not in self._own:
            ranking = self._ranking()
            body = msgspec.json.encode(ranking)
            self._own[index] = _Summary(sha256(body).hexdigest(), msgspec.convert(ranking, _Ranking))
            if len(self._own) > REMEMBERED:
                del self._own[next(iter(self._own))]
        for query, (batch, summary) in list(self._awaited.items()):
            if summary.ranking.index <= index:
                del self._awaited[query]
                self._compare(query, batch, summary)
        return index

    def _compare(self, query: str, batch: int, summary: _Summary) -> None:
        asof = summary.ranking.index
        own = self._own.get(asof)
        if own is None:
            return
        before = self._compared.get(query)
        equal = summary.sha256 == own.sha256
        difference = "" if equal else _difference(summary.ranking, own.ranking)[:MAX_DIFFERENCE]
        self._compared[query] = Comparison(batch, asof, equal, difference)
        if not equal and (before is None or before.equal):
            self._log.warning("ranking-differs", query=query, index=asof, cause=difference)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _summary(body: bytes) -> _Summary:
    try:
        return _Summary(sha256(body).hexdigest(), msgspec.json.decode(body, type=_Ranking))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LocalProtocolError(f"the body is not a ranking: {error}") from error


def _difference(stored: _Ranking, own: _Ranking) -> str:
    """What distinguishes a ranking from the node's own, most important first."""
    if stored.algorithm != own.algorithm:
        return f"ranked by algorithm {stored.algorithm}, here by {own.algorithm}: run the same version"
    if stored.publisher != own.publisher:
        return f"publisher {stored.publisher or 'none'}, here {own.publisher or 'none'}"
    if [row.id for row in stored.members] != [row.id for row in own.members]:
        return f"order {_ids(stored)}, here {_ids(own)}"
    for row, mine in zip(stored.members, own.members, strict=True):
        if row.score != mine.score:
            return f"score {row.score} of member {row.id}, here {mine.score}"
    return "same publisher, order and scores; other details differ"


def _ids(ranking: _Ranking) -> str:
    return ", ".join(str(row.id) for row in ranking.members) or "of no members"
