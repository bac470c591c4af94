"""Our node in the place of the JRaft leader, in conversations 1 to 4: elected, written to by a client, told
to add node 4 (3) and to remove it (4). The client's bytes are the captured ones; the others, which we play,
answer as JRaft's answered. What has to agree with the capture is named in each test."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
import trio.testing

from garlicfarm.raft import joiner
from garlicfarm.refusals import Refusal
from garlicfarm.wire import Limits, RequestDecoder, decode_log_pack, encode_request, encode_response
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response, ValueType
from tests.interop.captured import Message, conversation, exchanges, known_entries
from tests.interop.member import Member, Wire, running

Clock = trio.testing.MockClock
T = MessageType
MIB = 1 << 20
LEADER = 2
REFUSED = {205: (27, Refusal.ID_USED_BEFORE.number), 209: (27, Refusal.NO_SUCH_MEMBER.number)}
"""Captured request → next_index of JRaft's refusal, and of ours: the reason (D8)."""

REMOVE_LEADER = 213
"""Captured request which a leader of JRaft's refuses, and for which ours would hand over: not replayed."""


class Others:
    """The JRaft nodes: what our node asked them, in order, and their logs' ends."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.ends: dict[int, int] = {}

    def answer(self, member: int, request: Request) -> Response:
        self.asked.append(request)
        kind, end = MessageType(request.type + 1), self.ends.get(member, 0)
        if request.type is T.REQUEST_VOTE_REQUEST:
            next_index = 0
        elif request.type is T.JOIN_CLUSTER_REQUEST:
            next_index = 2
        elif request.type is T.LEAVE_CLUSTER_REQUEST:
            next_index = end + 1
        else:
            entries = request.entries
            if request.type is T.SYNC_LOG_REQUEST:
                entries = decode_log_pack(entries[0].value, MIB, MIB).entries
            assert request.last_log_index <= end, "JRaft closes over a gap"
            end = request.last_log_index + len(entries)
            self.ends[member] = max(end, self.ends.get(member, 0))
            next_index = end + 1
        return Response(kind, member, request.source, request.term, next_index, True)

    def of(self, kind: MessageType, member: int = 0) -> list[Request]:
        return [r for r in self.asked if r.type is kind and member in (0, r.destination)]

    def entry(self, member: int, index: int) -> LogEntry:
        """What our leader sent ``member`` for this index."""
        found = [
            r.entries[index - r.last_log_index - 1]
            for r in self.of(T.APPEND_ENTRIES_REQUEST, member)
            if r.last_log_index < index <= r.last_log_index + len(r.entries)
        ]
        assert found
        assert all(entry == found[0] for entry in found)
        return found[0]


@asynccontextmanager
async def leading() -> AsyncIterator[tuple[Member, Others, Wire]]:
    """Our node 2 leads 1 and 3 in term 1; a client of it."""
    others = Others()
    async with running(LEADER, election_s=(3.0, 5.0)) as (node, opened), trio.open_nursery() as nursery:

        async def serve(member: int, stream: trio.abc.Stream) -> None:
            decoder = RequestDecoder(Limits())
            while data := await stream.receive_some():
                decoder.receive_data(data)
                while (request := decoder.next_message()) is not None:
                    assert decoder.partial is False, "one request at a time"
                    await stream.send_all(encode_response(others.answer(member, request)))

        async def accept() -> None:
            async for member, stream in opened:
                nursery.start_soon(serve, member, stream)

        nursery.start_soon(accept)
        while not node.farm.is_leader:
            await node.farm.core.wait_leader_change()
        await node.farm.wait_applied(0)
        yield node, others, node.connect()
        nursery.cancel_scope.cancel()


def asked_by_clients(number: int) -> list[tuple[Message, Response]]:
    """What clients asked the leader in a conversation, and what it answered."""
    return [
        (each.asked, each.response)
        for each in exchanges(number, LEADER)
        if each.request.source == 0 and each.response is not None
    ]


def sent_by_leader(number: int, kind: MessageType) -> list[Request]:
    return [
        m.content
        for m in conversation(number)
        if isinstance(m.content, Request) and m.content.type is kind and m.source == LEADER
    ]


async def write_the_log(client: Wire) -> None:
    """Conversation 2: entries 2 to 26, each answered as it was."""
    for asked, expected in asked_by_clients(2):
        if asked.seq == REMOVE_LEADER:
            assert not expected.accepted
            continue
        response = await client.ask(asked.data)
        if asked.seq in REFUSED:
            theirs, ours = REFUSED[asked.seq]
            assert (expected.accepted, expected.next_index, response.next_index) == (False, theirs, ours)
            response = msgspec.structs.replace(response, next_index=theirs)
        assert response == expected, asked


async def test_first_entry_and_a_vote_refused_agree_with_conversation_1(autojump_clock: Clock) -> None:
    async with leading() as (node, others, _):
        (first, *_) = sent_by_leader(1, T.APPEND_ENTRIES_REQUEST)
        assert others.entry(1, 1) == first.entries[0] == others.entry(3, 1)
        ours = next(r for r in others.of(T.APPEND_ENTRIES_REQUEST, 1) if r.entries)
        assert encode_request(ours) == encode_request(first)
        (vote,) = [each for each in exchanges(1, LEADER) if each.request.type is T.REQUEST_VOTE_REQUEST]
        assert await node.connect().ask(vote.asked.data) == vote.response
        theirs = sent_by_leader(1, T.REQUEST_VOTE_REQUEST)
        asked = sorted(others.of(T.REQUEST_VOTE_REQUEST), key=lambda request: request.destination)
        assert asked == theirs
        assert {r.term for r in others.asked} == {1}


async def test_log_that_clients_write_agrees_with_conversation_2(autojump_clock: Clock) -> None:
    async with leading() as (node, others, client):
        await write_the_log(client)
        await trio.sleep(2)
        for index in range(1, 27):
            assert others.entry(1, index) == others.entry(3, index) == known_entries()[index]
        assert others.ends == {1: 26, 3: 26}
        assert node.farm.raw.status().commit == 26
        heartbeat = others.of(T.APPEND_ENTRIES_REQUEST, 3)[-1]
        theirs = sent_by_leader(3, T.APPEND_ENTRIES_REQUEST)[0]
        assert encode_request(heartbeat) == encode_request(theirs)


@pytest.mark.parametrize("gap", [5, 100])
async def test_server_that_joins_is_brought_in_as_in_conversation_3(gap, autojump_clock, monkeypatch):
    """5 is the gap of the captured nodes, 100 is JRaft's and our default, with which there is no SyncLog."""
    monkeypatch.setattr(joiner, "SYNC_GAP", gap)
    async with leading() as (node, others, client):
        await write_the_log(client)
        await join(node, others, client)
        (theirs,) = sent_by_leader(3, T.JOIN_CLUSTER_REQUEST)
        (ours,) = others.of(T.JOIN_CLUSTER_REQUEST)
        assert encode_request(ours) == encode_request(theirs)
        check_packs(others.of(T.SYNC_LOG_REQUEST), sent_by_leader(3, T.SYNC_LOG_REQUEST), gap)
        for member in (1, 3, 4):
            assert others.entry(member, 27) == known_entries()[27]
        assert others.ends == {1: 28, 3: 28, 4: 28}
        assert {s.id for s in node.farm.configuration.servers} == {1, 2, 3, 4}
        # Node 4 hears of an entry only after it has taken all before: whatever way it went.
        assert others.of(T.APPEND_ENTRIES_REQUEST, 4)[0].last_log_index == (26 if gap == 5 else 0)


async def join(node: Member, others: Others, client: Wire) -> None:
    """Conversation 3: AddServer, and the entry that the client wrote after it."""
    (add, answered), (write, written) = asked_by_clients(3)
    assert await client.ask(add.data) == answered
    await node.farm.wait_applied(26)
    assert await client.ask(write.data) == written
    await trio.sleep(2)


def check_packs(ours: list[Request], theirs: list[Request], gap: int) -> None:
    if gap == 100:
        assert ours == []
        return
    contents = [decode_log_pack(r.entries[0].value, MIB, MIB) for r in ours]
    expected = [decode_log_pack(r.entries[0].value, MIB, MIB) for r in theirs]
    entries = [entry for pack in contents for entry in pack.entries]
    assert entries[:25] == [entry for pack in expected for entry in pack.entries]
    offsets = [offset for pack in contents for offset in pack.offsets]
    assert offsets[:25] == [offset for pack in expected for offset in pack.offsets]
    for request in (ours[0], theirs[0]):
        assert (request.source, request.destination, request.term) == (2, 4, 1)
        assert (request.last_log_term, request.last_log_index, request.commit_index) == (0, 0, 26)
        assert [(e.term, e.value_type) for e in request.entries] == [(1, ValueType.LOG_PACK)]
        assert gzip.decompress(request.entries[0].value)[:4] != b"\0\0\0\0"


async def test_server_that_leaves_is_let_go_as_in_conversation_4(autojump_clock: Clock) -> None:
    async with leading() as (node, others, client):
        await write_the_log(client)
        await join(node, others, client)
        (remove, answered), (write, written) = asked_by_clients(4)
        response = await client.ask(remove.data)
        # Ours has appended the Configuration already when it answers.
        assert response == msgspec.structs.replace(answered, next_index=30)
        assert answered.next_index == 29
        await node.farm.wait_applied(28)
        assert await client.ask(write.data) == written
        await trio.sleep(5)
        for member in (1, 3):
            assert others.entry(member, 29) == known_entries()[29]
            assert others.entry(member, 30) == known_entries()[30]
        assert others.entry(4, 29) == known_entries()[29]
        (theirs,) = sent_by_leader(4, T.LEAVE_CLUSTER_REQUEST)
        (ours,) = others.of(T.LEAVE_CLUSTER_REQUEST)
        assert (ours.source, ours.destination, ours.term, ours.entries) == (2, 4, 1, ())
        assert (ours.last_log_term, ours.last_log_term) == (theirs.last_log_term, 0)
        # JRaft tells it before it appends the Configuration, we once the others have heard of its commit.
        assert theirs.last_log_index == 28
        assert ours.commit_index >= 29
        assert others.ends == {1: 30, 3: 30, 4: 29}
        last = others.of(T.APPEND_ENTRIES_REQUEST, 4)[-1]
        assert (last.entries, last.commit_index) == ((), 29), "it hears that it is removed"
