"""Our node in the place of a JRaft follower, or of a server that joins, in the captured conversations.

It gets the bytes that the JRaft node got, at the times that it got them, and has to answer what that one
answered, but for `EXCEPTIONS` (docs/reference/jraft-interop.md says why)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import trio
import trio.testing

from garlicfarm.raft import HardState
from garlicfarm.wire import decode_snapshot_sync_request
from garlicfarm.wire.messages import MessageType, Response, ValueType
from tests.interop.captured import Exchange, exchanges, log_up_to
from tests.interop.member import FIRST, NOBODY, Member, Wire, running

Clock = trio.testing.MockClock


class Start(NamedTuple):
    """What a node's disk held when the conversation began."""

    log: int
    term: int
    vote: int = 0
    member: bool = True


FOLLOWERS = {
    (1, 1): Start(0, 1, vote=1),  # it had just voted for itself
    (1, 3): Start(0, 0),
    (2, 1): Start(1, 1),
    (2, 3): Start(1, 1),
    (3, 1): Start(26, 1),
    (3, 3): Start(26, 1),
    (3, 4): Start(0, 0, member=False),
    (4, 1): Start(28, 1),
    (4, 3): Start(28, 1),
    (4, 4): Start(28, 1),
    (5, 1): Start(30, 1),
    (5, 2): Start(30, 1),
    (5, 3): Start(30, 1),
    (6, 2): Start(181, 2),
    (6, 3): Start(181, 2),
    (6, 5): Start(0, 0, member=False),
    (7, 2): Start(182, 2),
    (7, 3): Start(342, 2),
    (7, 5): Start(342, 2),
}
"""(conversation, node): in each conversation all nodes but the leader, and who joins in 3 and 6."""

EXCEPTIONS = {238: ("next_index", 2, 1, "joiner"), 415: ("next_index", 2, 1, "joiner")}
"""Captured response → (field, what JRaft said, what we say, the row of the table)."""


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps when nothing is left to do does not wait for threads."""

    async def here(function: Callable[..., object], *arguments: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", here)


async def replay(node: Member, asked: list[Exchange]) -> list[tuple[Exchange, Response | None]]:
    """Ask everything at its time; each connection of the capture is one of ours."""
    wires: dict[int, Wire] = {}
    found = []
    start = trio.current_time() - asked[0].asked.t
    for exchange in asked:
        await trio.sleep_until(start + exchange.asked.t)
        if exchange.asked.conn not in wires:
            wires[exchange.asked.conn] = node.connect()
        found.append((exchange, await wires[exchange.asked.conn].ask(exchange.asked.data)))
    return found


@pytest.mark.parametrize(("number", "member"), FOLLOWERS)
async def test_node_answers_what_a_jraft_follower_answered(number, member, autojump_clock):
    start = FOLLOWERS[number, member]
    log, asked = log_up_to(start.log), exchanges(number, member)
    # What the leader said last is committed, but not in the capture.
    state = HardState(start.term, start.vote, max(0, start.log - 1))
    async with running(member, log, hard_state=state, genesis=FIRST if start.member else NOBODY) as (node, _):
        if (number, member) == (5, 1):
            asked = [each for each in asked if each.request.source == 2]  # then it leads
        for exchange, response in await replay(node, asked):
            if exchange.answered is None:
                continue
            assert response is not None, exchange
            expected = exchange.response
            if exchange.answered.seq in EXCEPTIONS:
                field, theirs, ours, _ = EXCEPTIONS[exchange.answered.seq]
                assert (getattr(expected, field), getattr(response, field)) == (theirs, ours)
                fields = {name: getattr(expected, name) for name in expected.__struct_fields__}
                expected = Response(**(fields | {field: ours}))
            assert response == expected, exchange.asked
        status = node.farm.raw.status()
        last = max(e.request.last_log_index + len(e.request.entries) for e in asked if appends(e))
        assert status.last_index == last
        commits = [e.request.commit_index for e in asked if appends(e)]
        assert status.commit == min(commits[-1], last)
        await node.farm.wait_applied(status.commit - 1)


def appends(exchange: Exchange) -> bool:
    return exchange.request.type is MessageType.APPEND_ENTRIES_REQUEST


def test_every_follower_of_the_captures_is_replayed() -> None:
    leaders = {1: 2, 2: 2, 3: 2, 4: 2, 5: 1, 6: 1, 7: 1}
    asked = {
        (number, member)
        for number in leaders
        for member in range(1, 6)
        if exchanges(number, member) and (member != leaders[number])
    }
    assert asked - FOLLOWERS.keys() == set()
    assert set(EXCEPTIONS) == {238, 415}


@pytest.mark.parametrize(("number", "member"), [(6, 5), (7, 2)])
async def test_snapshot_of_jraft_reaches_the_application_byte_for_byte(number, member, autojump_clock):
    start, asked = FOLLOWERS[number, member], exchanges(number, member)
    pieces = [
        decode_snapshot_sync_request(exchange.request.entries[0].value)
        for exchange in asked
        if exchange.request.type is MessageType.INSTALL_SNAPSHOT_REQUEST
    ]
    sent = b"".join(piece.data for piece in pieces)
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    state = HardState(start.term, 0, start.log)
    genesis = FIRST if start.member else NOBODY
    async with running(member, log_up_to(start.log), hard_state=state, genesis=genesis) as (node, _):
        await replay(node, asked)
        await node.farm.wait_applied(asked[-1].request.commit_index - 1)
        assert node.application.restored == [sent]
        assert sent.endswith(b"\n")
        text = node.application.snapshot()
        assert text.startswith(sent)
        known = [e.value for e in log_up_to(400) if e.index > pieces[0].last_log_index]
        assert node.application.applied[0] == known[0]
        assert ValueType.CONFIGURATION not in node.application.applied
        assert node.farm.configuration.servers[-1].id in (4, 5)
