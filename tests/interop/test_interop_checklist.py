"""What was learnt by watching JRaft: docs/reference/jraft-interop.md has a test for each line of it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import trio
import trio.testing

from garlicfarm.cli.node_join_jraft import TIMES
from garlicfarm.config.model import PRESETS
from garlicfarm.raft import HardState, Role
from garlicfarm.wire import Limits, RequestDecoder, encode_response
from garlicfarm.wire.messages import MessageType, Request, Response
from tests.interop.captured import exchanges, log_up_to
from tests.interop.member import NOBODY, running
from tests.interop.test_interop_leader import Others, asked_by_clients, leading

Clock = trio.testing.MockClock
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "jraft-interop.md"
T = MessageType
JRAFT_ELECTION_TIMEOUT_MIN_S = 3.0


def test_every_line_names_a_test_that_exists() -> None:
    lines = re.findall(r"^\| (?:follower|leader|candidate|any) \|.*\|$", PAGE.read_text(), re.MULTILINE)
    assert len(lines) > 30
    for line in lines:
        named = re.search(r"`(tests/[\w/]+\.py)::(\w+)` \|$", line)
        assert named is not None, line
        tree = ast.parse((ROOT / named[1]).read_text())
        tops = {node.name for node in tree.body if hasattr(node, "name")} | {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        assert named[2] in tops, line


async def test_joiner_stands_for_no_election_before_it_is_a_member(autojump_clock: Clock) -> None:
    asked = exchanges(3, 4)
    (change,) = [each for each in asked if each.request.last_log_index == 25]
    async with running(4, genesis=NOBODY, election_s=(3.0, 5.0)) as (node, opened):
        wire = node.connect()
        for exchange in asked[: asked.index(change)]:
            assert await wire.ask(exchange.asked.data)
        await trio.sleep(3600)
        status = node.farm.raw.status()
        assert (status.role, status.term) == (Role.FOLLOWER, 1)
        streams = [opened.receive_nowait()[1] for _ in range(opened.statistics().current_buffer_used)]
        assert not any([await says_something(stream) for stream in streams])
        for exchange in asked[asked.index(change) :][:2]:
            assert await wire.ask(exchange.asked.data)
        await node.farm.wait_applied(26)
        assert 4 in [server.id for server in node.farm.configuration.servers]
        await trio.sleep(10)
        assert any([await says_something(stream) for stream in streams])


async def says_something(stream: trio.abc.Stream) -> bool:
    with trio.move_on_after(0.01):
        return bool(await stream.receive_some())
    return False


def has_entries(message: Request | Response) -> bool:
    return isinstance(message, Request) and bool(message.entries)


async def test_commit_is_told_at_once(autojump_clock: Clock) -> None:
    async with leading() as (_, others, client):
        asked, _ = next(each for each in asked_by_clients(2) if has_entries(each[0].content))
        others.asked.clear()
        assert await client.ask(asked.data)
        await trio.sleep(0.1)  # the heartbeat is every 1.5 s
        told = {r.destination for r in others.of(T.APPEND_ENTRIES_REQUEST) if r.commit_index == 2}
        assert told == {1, 3}


def test_heartbeat_of_the_preset_is_below_jrafts_election_timeout() -> None:
    assert PRESETS["clearnet"]["heartbeat_s"] < TIMES["heartbeat_s"] < JRAFT_ELECTION_TIMEOUT_MIN_S


@pytest.mark.parametrize("last", [20, 24, 40])
async def test_peer_with_a_shortened_log_is_never_asked_about_what_is_below(last, autojump_clock):
    """A JRaft server closes the connection instead of refusing. It has a snapshot of index 20, and behind it
    entries of a leader whose term was given up; like JRaft, it says in every refusal where its log ends."""

    class Shortened(Others):
        def answer(self, member: int, request: Request) -> Response:
            if request.type is not T.APPEND_ENTRIES_REQUEST or member != 3:
                return super().answer(member, request)
            previous = request.last_log_index
            assert previous >= 20, "JRaft would close the connection"
            ends = self.ends.setdefault(3, last)
            fits = previous <= ends and (previous == 20 or 3 in self.agreed)
            if fits:
                self.agreed.add(3)
                self.ends[3] = ends = previous + len(request.entries)
            return Response(T.APPEND_ENTRIES_RESPONSE, 3, 2, request.term, ends + 1, fits)

        agreed: set[int]

    others = Shortened()
    others.agreed, others.ends = set(), {1: 26}
    state = HardState(1, 0, 20)
    async with (
        running(2, log_up_to(26), hard_state=state, election_s=(3.0, 5.0)) as (node, opened),
        trio.open_nursery() as nursery,
    ):

        async def serve(member: int, stream: trio.abc.Stream) -> None:
            decoder = RequestDecoder(Limits())
            while data := await stream.receive_some():
                decoder.receive_data(data)
                while (request := decoder.next_message()) is not None:
                    await stream.send_all(encode_response(others.answer(member, request)))

        async def accept() -> None:
            async for member, stream in opened:
                nursery.start_soon(serve, member, stream)

        nursery.start_soon(accept)
        await trio.sleep(120)
        assert node.farm.is_leader
        assert others.ends[3] == 27
        nursery.cancel_scope.cancel()
