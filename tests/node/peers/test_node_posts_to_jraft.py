"""A JRaft leader answers a post when it has appended it; this node, when it has applied it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from garlicfarm.errors import OutcomeUnknown
from garlicfarm.wire.messages import LogEntry, MessageType, ValueType
from tests.node.support.cluster import Wire
from tests.node.support.jraft_peer import Heard, Play, played, request

APPEND = MessageType.APPEND_ENTRIES_REQUEST


def entry(term: int, value: bytes) -> LogEntry:
    return LogEntry(term, ValueType.APPLICATION, value)


class Posted:
    """A post through the node: its outcome, once there is one."""

    def __init__(self) -> None:
        self.at: tuple[int, int] | None = None
        self.unknown = ""
        self.done = trio.Event()

    async def run(self, plays: Play, value: bytes) -> None:
        try:
            self.at = await plays.nodes.replica().post(value)
        except OutcomeUnknown as error:
            self.unknown = str(error)
        self.done.set()

    async def wait(self) -> None:
        with trio.fail_after(240):
            await self.done.wait()


async def answer_post(plays: Play, next_index: int) -> None:
    """As the leader, member 2, which appends the post and answers at once."""
    async with trio.open_nursery() as nursery:

        async def listen(heard: Heard) -> None:
            while (asked := await heard.receive()) is not None:
                if asked.type is MessageType.CLIENT_REQUEST:
                    kind = MessageType.APPEND_ENTRIES_RESPONSE
                    await heard.answer(asked, next_index, type=kind, term=1, destination=1)
                    nursery.cancel_scope.cancel()

        while True:
            nursery.start_soon(listen, await plays.accept())


async def lead(wire: Wire, term: int, *entries: LogEntry, source: int = 2, **fields: int) -> None:
    answer = await wire.ask(request(APPEND, term, *entries, source=source, **fields))
    assert answer.accepted


async def test_post_is_committed_when_it_is_applied_here(tmp_path: Path) -> None:
    async with played(tmp_path) as plays, trio.open_nursery() as nursery:
        wire, posted = await plays.dial(), Posted()
        await lead(wire, 1, entry(1, b"first"), commit_index=1)
        nursery.start_soon(posted.run, plays, b"ours")
        await answer_post(plays, 5)
        assert not posted.done.is_set()
        before = {"last_log_index": 1, "last_log_term": 1}
        log = (entry(1, b"other"), entry(1, b"ours"), entry(1, b"third"))
        await lead(wire, 1, *log, commit_index=3, **before)
        assert not posted.done.is_set(), "what lies behind it may yet be replaced, and ours with it"
        await lead(wire, 1, commit_index=4, last_log_index=4, last_log_term=1)
        await posted.wait()
        assert posted.at == (3, 1), "the index of ours, and not of what other clients posted meanwhile"


async def test_post_that_a_later_leader_replaced_is_not_acknowledged(tmp_path: Path) -> None:
    async with played(tmp_path) as plays, trio.open_nursery() as nursery:
        wire, posted = await plays.dial(), Posted()
        await lead(wire, 1, entry(1, b"first"), commit_index=1)
        nursery.start_soon(posted.run, plays, b"ours")
        await answer_post(plays, 3)
        before = {"last_log_index": 1, "last_log_term": 1}
        await lead(wire, 2, entry(2, b"theirs"), source=3, commit_index=2, **before)
        await posted.wait()
        assert posted.at is None
        assert "another leader may have deleted" in posted.unknown


@pytest.mark.parametrize("next_index", [0, 1])
async def test_answer_with_an_impossible_index_acknowledges_nothing(tmp_path: Path, next_index: int) -> None:
    async with played(tmp_path) as plays, trio.open_nursery() as nursery:
        wire, posted = await plays.dial(), Posted()
        await lead(wire, 1, entry(1, b"first"), commit_index=1)
        nursery.start_soon(posted.run, plays, b"ours")
        await answer_post(plays, next_index)
        await posted.wait()
        assert posted.at is None
        assert posted.unknown
