"""A real node behind the transport ``jraft``, and testers that play all others over sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import trio

from garlicfarm.net.handshake import without_handshake
from garlicfarm.transport import Endpoint
from garlicfarm.wire import Limits, RequestDecoder, encode_response
from garlicfarm.wire.messages import LogEntry, MessageType, Request, Response
from tests.node.support.cluster import Cluster, Wire, cluster, member, next_message

PATIENT = {
    "election_timeout_min_s": 600.0,
    "election_timeout_max_s": 900.0,
    "heartbeat_s": 10.0,
    "rpc_timeout_s": 3.0,
}
"""``[farm.raft]`` of a node that waits for what the tester does, however long a busy machine takes for it."""

HASTY = {
    "election_timeout_min_s": 3.0,
    "election_timeout_max_s": 3.2,
    "heartbeat_s": 0.05,
    "rpc_timeout_s": 3.0,
}
"""The same, of one that stands for election where nobody leads. Its followers are tasks of the same process:
where that stands still for a moment, none answers, and the leader must not be gone for it."""


def wire(stream: trio.abc.Stream) -> Wire:
    """The connection to the node, which has no handshake."""
    return Wire(without_handshake(stream, "farm"))


class Heard:
    """A connection that the node opened to the member ``to`` that a tester plays."""

    def __init__(self, to: int, stream: trio.SocketStream) -> None:
        self.to = to
        self.stream = stream
        self._decoder = RequestDecoder(Limits())

    async def receive(self) -> Any:
        """The next `Request`; None: the node closed the connection."""
        return await next_message(self.stream, self._decoder)

    async def answer(
        self, request: Request, next_index: int = 0, accepted: bool = True, **other: Any
    ) -> None:
        fields = {
            "type": MessageType(request.type + 1),
            "source": self.to,
            "destination": request.source,
            "term": request.term,
            "next_index": next_index,
            "accepted": accepted,
        }
        await self.stream.send_all(encode_response(Response(**(fields | other))))


class Play:
    """Plays the members 2 … of a cluster whose member 1 is the real node."""

    def __init__(self, nodes: Cluster, arrivals: trio.MemoryReceiveChannel[Heard]) -> None:
        self.nodes = nodes
        self._arrivals = arrivals

    async def dial(self) -> Wire:
        endpoint = self.nodes.endpoint()
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        self.nodes.opened.append(stream)
        return wire(stream)

    async def accept(self) -> Heard:
        """The next connection that the node opens to one of us."""
        with trio.fail_after(240):
            return await self._arrivals.receive()

    async def accept_all(self, serve: Callable[[Heard], Awaitable[None]]) -> NoReturn:
        """Serve every connection that the node opens, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(serve, await self._arrivals.receive())
        raise AssertionError

    def refused(self, reason: str) -> float:
        registry = self.nodes.node().metrics.registry
        labels = {"farm": "farm", "reason": reason}
        return registry.get_sample_value("garlicfarm_raft_refused_total", labels) or 0.0

    @property
    def picture(self) -> tuple[object, ...]:
        """All of the node's state that a message could change."""
        status = self.nodes.replica().raw.status()
        hidden = (status.role, status.term, status.vote, status.leader, status.commit, status.applied)
        return (*hidden, status.first_index, status.last_index, status.configuration)


@asynccontextmanager
async def played(
    directory: Path, others: Sequence[int] = (2, 3), *, start: bool = True, **plan: Any
) -> AsyncIterator[Play]:
    """The real node 1 of a cluster with these others, on ports of ours that take what it opens."""
    members = {node_id: member("jraft") for node_id in (1, *others)}
    send, receive = trio.open_memory_channel[Heard](100)
    options: dict[str, Any] = {"raft": PATIENT, "start": False} | plan
    async with trio.open_nursery() as nursery:

        def serve(node_id: int) -> Any:
            async def heard(stream: trio.SocketStream) -> None:
                await send.send(Heard(node_id, stream))
                await trio.sleep_forever()

            return heard

        for node_id in others:
            port = Endpoint.parse(members[node_id].endpoint).port
            await nursery.start(trio.serve_tcp, serve(node_id), port)
        async with cluster(directory, members=members, **options) as nodes:
            if start:
                await nodes.start(1)
            yield Play(nodes, receive)
        nursery.cancel_scope.cancel()


def request(kind: MessageType, term: int, *entries: LogEntry, source: int = 2, **fields: int) -> Request:
    values = {"destination": 1, **fields}
    return Request(kind, source, term=term, entries=entries, **values)
