"""How stored rankings compare with the node's own, which goes on meanwhile."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from garlicfarm.errors import LocalProtocolError, RankingConflict
from garlicfarm.logs import EventLogger
from garlicfarm.node.core_inbox import CoreInbox
from garlicfarm.node.stored_rankings import REMEMBERED, WATCHED_S, StoredRankings
from garlicfarm.storage import RankingStore


def ranking(index: int, **changes: Any) -> dict[str, Any]:
    members = [{"id": 2, "score": 600, "why": []}, {"id": 1, "score": 500, "why": []}]
    return {"index": index, "algorithm": 3, "publisher": 2, "members": members, "since": 4} | changes


def body(index: int, **changes: Any) -> bytes:
    return msgspec.json.encode(ranking(index, **changes))


class Node:
    """A node whose application has taken everything up to ``applied_index``."""

    def __init__(self, directory: Path) -> None:
        self.applied_index = 10
        self.summaries = 0
        self._applied = trio.Event()
        log = EventLogger(logging.getLogger("garlicfarm.raft"), clock=trio.current_time)
        self.rankings = StoredRankings(RankingStore(directory), self.own, cast(CoreInbox, self), log)

    def own(self) -> dict[str, Any]:
        self.summaries += 1
        return ranking(self.applied_index)

    async def apply(self, index: int) -> None:
        self.applied_index = index
        self._applied.set()
        self._applied = trio.Event()
        await trio.testing.wait_all_tasks_blocked()

    async def wait_applied(self, beyond: int) -> None:
        while self.applied_index <= beyond:
            await self._applied.wait()

    async def put(self, batch: int, data: bytes, asof: int, query: str = "q") -> bool:
        return await self.rankings.put(query, batch, data, asof=asof, run="r", user="paul")

    def compared(self) -> tuple[int, str] | None:
        """The index and the difference of the newest compared ranking of q."""
        (row,) = (row for row in self.rankings.queries() if row["query"] == "q")
        found = row["comparison"]
        assert found is None or found["equal"] == (found["difference"] == "")
        return None if found is None else (found["asof"], found["difference"])


@pytest.fixture
async def node(tmp_path: Path, nursery: trio.Nursery) -> Node:
    made = Node(tmp_path)
    await nursery.start(made.rankings.run)
    return made


async def test_ranking_that_lags_is_compared_with_what_the_node_ranked_then(
    autojump_clock: MockClock, node: Node
) -> None:
    assert await node.put(0, body(10), 10)
    assert node.compared() == (10, "")
    for index in (11, 13):
        await node.apply(index)
    await node.put(1, body(11), 11)
    assert node.compared() == (11, "")
    await node.put(2, body(12), 12)  # applied together with 13
    assert node.compared() == (11, "")
    assert node.rankings.queries()[0]["batch"] == 2
    assert node.rankings.equality() == {"q": True}


async def test_ranking_ahead_of_the_node_is_compared_when_it_gets_there(
    autojump_clock: MockClock, node: Node
) -> None:
    await node.put(0, body(12, publisher=1), 12)
    await node.put(0, body(13), 13, "skipped")
    assert node.compared() is None
    await node.apply(11)
    assert node.compared() is None
    await node.apply(12)
    assert node.compared() == (12, "publisher 1, here 2")
    await node.apply(14)
    assert node.rankings.equality() == {"q": False}


async def test_node_that_always_lags_compares_what_came_first(autojump_clock: MockClock, node: Node) -> None:
    for batch, index in enumerate((12, 13, 14)):
        await node.put(batch, body(index), index)
    await node.apply(12)
    assert node.compared() == (12, "")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"algorithm": 4}, "ranked by algorithm 4, here by 3: run the same version"),
        ({"publisher": None}, "publisher none, here 2"),
        ({"members": [{"id": 1, "score": 500}, {"id": 2, "score": 600}]}, "order 1, 2, here 2, 1"),
        ({"members": []}, "order of no members, here 2, 1"),
        (
            {"members": [{"id": 2, "score": 600}, {"id": 1, "score": None}]},
            "score None of member 1, here 500",
        ),
        ({"since": 5}, "same publisher, order and scores; other details differ"),
    ],
)
async def test_difference_names_what_matters_most(
    autojump_clock: MockClock, node: Node, changes: dict[str, Any], told: str
) -> None:
    await node.put(0, body(10, **changes), 10)
    assert node.compared() == (10, told)


async def test_difference_is_logged_when_it_begins_and_shown_until_a_ranking_is_equal(
    autojump_clock: MockClock, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for batch in range(2):
        await node.put(batch, body(10 + batch, publisher=1), 10 + batch)
        await node.apply(11 + batch)
        await trio.sleep(2)  # longer than the log holds repetitions back
    assert node.compared() == (11, "publisher 1, here 2")
    await node.put(2, body(12), 12)
    assert node.compared() == (12, "")
    fields = [getattr(record, "garlicfarm_fields", {}) for record in caplog.records]
    assert [each["cause"] for each in fields if each["event"] == "ranking-differs"] == ["publisher 1, here 2"]


async def test_node_summarizes_only_while_queries_store_and_forgets(
    autojump_clock: MockClock, node: Node
) -> None:
    await node.apply(11)
    assert node.summaries == 0
    await node.put(0, body(11), 11)
    for index in range(12, last := REMEMBERED + 20):
        await node.apply(index)
    oldest = last - REMEMBERED
    await node.put(1, body(oldest - 1), oldest - 1)  # forgotten
    assert node.compared() == (11, "")
    await node.put(2, body(oldest), oldest)
    assert node.compared() == (oldest, "")
    await trio.sleep(WATCHED_S + 1)
    await node.apply(3000)
    summaries = node.summaries
    await node.apply(3001)
    assert node.summaries == summaries
    await node.put(3, body(last - 1), last - 1)  # forgotten, too
    assert node.compared() == (oldest, "")


async def test_body_that_is_no_ranking_of_that_index_is_refused(
    autojump_clock: MockClock, node: Node
) -> None:
    for data, told in (
        (body(10), "the ranking is of index 10, not 11"),
        (b"{}", "the body is not a ranking: "),
        (b"[" * 100_000, "the body is not a ranking: "),
        (b"\xff", "the body is not a ranking: "),
    ):
        with pytest.raises(LocalProtocolError, match=told):
            await node.put(0, data, 11)
    assert node.rankings.queries() == []


async def test_rankings_are_there_after_a_restart_and_not_compared_before_the_next_one(
    autojump_clock: MockClock, node: Node, tmp_path: Path
) -> None:
    await node.put(0, body(10), 10)
    again = Node(tmp_path)
    async with trio.open_nursery() as nursery:
        await nursery.start(again.rankings.run)
        assert again.compared() is None
        assert await again.rankings.body("q") == body(10)
        assert not await again.put(0, body(10), 10)
        assert again.compared() == (10, "")
        with pytest.raises(RankingConflict):
            await again.put(0, body(10, publisher=1), 10)
        assert await again.rankings.delete("q")
        assert again.rankings.queries() == []
        assert again.rankings.equality() == {}
        nursery.cancel_scope.cancel()


async def test_directory_that_cannot_be_read_is_logged_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    store = tmp_path / "rankings"
    store.write_bytes(b"no directory")  # reading it is an error
    node = Node(store)
    await nursery.start(node.rankings.run)
    (told,) = [getattr(record, "garlicfarm_fields", {}) for record in caplog.records]
    assert told["event"] == "ranking-unusable"
    assert "cannot read" in told["cause"]
    store.unlink()
    assert await node.put(2, body(10), 10)  # it is mended
    nursery.cancel_scope.cancel()


async def test_files_that_cannot_be_read_are_one_line_in_the_log_and_the_others_are_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, node: Node
) -> None:
    await node.put(0, body(10), 10)
    (tmp_path / "r.ranking").mkdir()  # reading it is an error
    (tmp_path / "s.ranking").write_bytes(b"damaged")
    again = Node(tmp_path)
    assert await again.rankings.body("q") == body(10)
    assert again.rankings.unusable == 2
    (told,) = [getattr(record, "garlicfarm_fields", {}) for record in caplog.records]
    assert told["event"] == "ranking-unusable"
    assert told["cause"] == (
        f"{tmp_path}/r.ranking cannot be read (it is a directory, not a regular file): it is not shown; the"
        " query's next ranking replaces it; and 1 more"
    )
