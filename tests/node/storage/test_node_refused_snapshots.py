"""A JRaft leader sends a refused snapshot again as soon as it is answered: the answer sets the pace."""

from __future__ import annotations

import trio
import trio.testing
from trio.testing import MockClock

from garlicfarm.node.session import Principal
from garlicfarm.testing.memory_cluster import cluster
from garlicfarm.wire import ResponseDecoder, encode_request, encode_snapshot_sync_request
from garlicfarm.wire.messages import (
    Configuration,
    LogEntry,
    MessageType,
    Request,
    SnapshotSyncRequest,
    ValueType,
)
from tests.running import background

TERM = 5


def piece(configuration: Configuration, data: bytes, *, done: bool) -> Request:
    value = encode_snapshot_sync_request(SnapshotSyncRequest(40, TERM, configuration, 0, data, done))
    entry = LogEntry(TERM, ValueType.SNAPSHOT_SYNC_REQUEST, value)
    return Request(MessageType.INSTALL_SNAPSHOT_REQUEST, 2, 1, TERM, TERM, 40, 0, (entry,))


async def test_refused_snapshot_of_a_jraft_leader_is_answered_late_yet_before_an_election(
    autojump_clock: MockClock,
) -> None:
    async with cluster(3) as nodes:
        for member in (2, 3):
            await nodes.kill(member)
        farm = nodes.replica(1)
        raft = farm.section.raft
        ours, theirs = trio.testing.memory_stream_pair()
        decoder, principal = ResponseDecoder(), Principal("a JRaft peer", 0, True, is_jraft=True)
        async with background(lambda: farm.serve(theirs, principal)):

            async def ask(data: bytes, *, done: bool) -> tuple[bool, int, float]:
                """As JRaft does: the next piece once this one is answered."""
                begun = trio.current_time()
                await ours.send_all(encode_request(piece(farm.configuration, data, done=done)))
                while (answer := decoder.next_message()) is None:
                    decoder.receive_data(bytes(await ours.receive_some(1000)))
                return answer.accepted, answer.next_index, trio.current_time() - begun

            accepted, held, waited_s = await ask(b"some", done=False)
            assert (accepted, held, waited_s < 0.1) == (True, 4, True), "what is taken is answered at once"
            begun = trio.current_time()
            for _ in range(30):
                accepted, held, waited_s = await ask(b"no state that has this sum", done=True)
                assert (accepted, held) == (True, 0)
                assert waited_s < raft.rpc_timeout_s
                assert farm.leader_id == 2, "and nobody stands for election meanwhile"
            assert trio.current_time() - begun > 5 * raft.election_timeout_max_s
