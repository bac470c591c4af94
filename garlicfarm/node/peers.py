"""The connections to the other members: one for Raft requests, and, while needed, one for requests that wait
for a majority: client requests, which are answered after the commit (D8), and ReadIndexRequests."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec
import trio

from garlicfarm.errors import NotListening
from garlicfarm.net.handshake import Established
from garlicfarm.net.link import Backoff, Link, LinkConfig, RpcClient
from garlicfarm.wire import RequestEncoder
from garlicfarm.wire.messages import ClusterServer, MessageType, Request, Response

SAMPLES = 100
LIMIT_SHARE = 0.25
SLOW_AGAIN_S = 3600.0


class _RoundTrips:
    """The last `SAMPLES` round trips to one member, at most one in ``every_s``.

    Every answered Raft request counts, with entries or without: a vote or a heartbeat would have waited for
    the same fsync or batch. Requests that were late together, behind one delay of a busy link, are one
    sample. A request that was never answered is none: it ended its connection, which is reported as such.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._next_s = -math.inf

    def add(self, rtt_s: float, now: float) -> float | None:
        """The 99th percentile (all but the slowest were that fast), if this is a sample and there are
        enough samples."""
        if now < self._next_s:
            return None
        self._next_s = now + self._every_s
        self._samples.append(rtt_s)
        return sorted(self._samples)[-2] if len(self._samples) == SAMPLES else None


@dataclass(slots=True)
class _Peer:
    endpoint: str
    link: Link
    rpc_client: RpcClient
    round_trips: _RoundTrips
    slow_again_s: float = -math.inf  # not reported again before this time
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    last_contact_s: float | None = None
    error: str | None = ""
    was_connected: bool = False  # the connection was up, and the member began no session since it broke
    is_refused: bool = False  # no process listened there at the last attempt


class PeerTimings(msgspec.Struct, frozen=True, kw_only=True):
    """``rpc_timeout_s``: for a connection, and for the answer to a Raft request; ``call_timeout_s``: for the
    answer to a request that waits for a majority; ``heartbeat_s``: the longest time between two answers."""

    rpc_timeout_s: float
    call_timeout_s: float
    heartbeat_s: float
    election_timeout_min_s: float


class PeerEvents(Protocol):
    """Receives the events of the connections."""

    def on_response(self, seq: int, response: Response) -> None:
        """The answer to the request ``seq`` of `Peers.send`; `on_received` follows."""

    def on_received(self) -> None:
        """All answers that one receive brought were reported."""

    def on_unreachable(self, peer: int, seq: int) -> None:
        """The request ``seq`` of `Peers.send` will get no answer."""

    def on_connected(self, peer: int, extensions: frozenset[str]) -> None:
        """The connection for Raft requests came up, with these extensions in force."""

    def on_connection_change(self, peer: int, error: Exception | None) -> None:
        """The connection came up (None), or broke with another error than the last time."""

    def on_slow_peer(self, peer: int, p99_s: float, limit_s: float) -> None:
        """The 99th percentile of the round trips is above a quarter of the lower election timeout, so that
        heartbeats and votes may come too late for it. At most once an hour and peer."""

    def on_process_gone(self, peer: int) -> None:
        """The member's process ended: two signs agree. All connections with it ended, in both directions, and
        its machine refuses a new one (`garlicfarm.errors.NotListening`). Repeated with each attempt."""


class Peers:
    """Follows the Configuration in force: a pair of connections to every other member, and to no one else.

    ``dial(id, endpoint)`` opens an authenticated stream.
    """

    def __init__(
        self,
        node_id: int,
        dial: Callable[[int, str], Awaitable[Established]],
        timings: PeerTimings,
        backoff: Backoff,
        events: PeerEvents,
    ) -> None:
        self._node_id = node_id
        self._dial = dial
        self._timings = timings
        self._backoff = backoff
        self._events = events
        self._sample_s = timings.heartbeat_s / 2  # heartbeats that come a little early count too
        self._answer_timeout_s = timings.rpc_timeout_s
        self._limit_s = timings.election_timeout_min_s * LIMIT_SHARE
        self._peers: dict[int, _Peer] = {}
        self._leaving: dict[int, _Peer] = {}  # removed, and sent what the core still has for them
        self._sessions: Counter[int] = Counter()  # that each member has here
        self._encoder = RequestEncoder()
        self._servers: Sequence[ClusterServer] = ()
        self._reconfigured = trio.Event()

    def follow(self, servers: Sequence[ClusterServer]) -> None:
        """From now on connect to these servers; this one may be among them."""
        self._servers = servers
        self._reconfigured.set()

    async def run(self) -> None:
        """Keep the connections up until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._reconcile(nursery)
                await self._reconfigured.wait()
                self._reconfigured = trio.Event()

    def _reconcile(self, nursery: trio.Nursery) -> None:
        wanted = {s.id: s.endpoint for s in self._servers if s.id != self._node_id}
        for member, peer in list(self._peers.items()):
            if member not in wanted:  # it may still have to learn of its removal
                peer.scope.deadline = trio.current_time() + self._timings.rpc_timeout_s
                self._leaving[member] = peer
            elif wanted[member] != peer.endpoint:
                peer.scope.cancel()
            else:
                continue
            del self._peers[member]
        for member, endpoint in wanted.items():
            if member not in self._peers:
                peer = self._peers[member] = self._make(member, endpoint)
                nursery.start_soon(self._run_peer, member, peer)

    def _make(self, member: int, endpoint: str) -> _Peer:
        config = LinkConfig(
            connect=partial(self._dial, member, endpoint),
            server_id=member,
            timeout_s=self._timings.rpc_timeout_s,
            backoff=self._backoff,
        )
        link = Link(
            config,
            on_answer=partial(self._on_answer, member),
            on_failure=lambda seq, sent: self._events.on_unreachable(member, seq),
            on_change=partial(self._on_change, member),
            on_received=self._events.on_received,
            encode=self._encoder.encode,
        )
        link.answer_timeout_s = self._answer_timeout_s
        waiting = msgspec.structs.replace(
            config, timeout_s=self._timings.call_timeout_s, connect_timeout_s=config.timeout_s, lazy=True
        )
        return _Peer(endpoint, link, RpcClient(waiting), _RoundTrips(self._sample_s))

    async def _run_peer(self, member: int, peer: _Peer) -> None:
        with peer.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.link.run)
                nursery.start_soon(peer.rpc_client.run)
        if self._leaving.get(member) is peer:
            del self._leaving[member]

    def _on_answer(self, member: int, seq: int, response: Response) -> None:
        self.on_contact(member)
        if peer := self._peers.get(member):
            self._note_round_trip(member, peer)
        self._events.on_response(seq, response)

    def _note_round_trip(self, member: int, peer: _Peer) -> None:
        rtt_s, now = peer.link.rtt_s, trio.current_time()
        assert rtt_s is not None  # it was set by the answer at hand
        p99_s = peer.round_trips.add(rtt_s, now)
        if p99_s is not None and p99_s > self._limit_s and now >= peer.slow_again_s:
            peer.slow_again_s = now + SLOW_AGAIN_S
            self._events.on_slow_peer(member, p99_s, self._limit_s)

    def _on_change(self, member: int, error: Exception | None) -> None:
        peer = self._peers.get(member)
        if peer is None:
            return  # it was removed
        peer.is_refused = isinstance(error, NotListening)
        if error is None:
            peer.was_connected = True
            self._events.on_connected(member, peer.link.extensions)
        self._check_gone(member, peer)
        text = None if error is None else str(error) or type(error).__name__
        if text == peer.error:
            return  # an absent peer is reported once
        peer.error = text
        self._events.on_connection_change(member, error)

    def _check_gone(self, member: int, peer: _Peer) -> None:
        has_connection = peer.link.connected or peer.rpc_client.connected or self._sessions[member] > 0
        if peer.is_refused and peer.was_connected and not has_connection:
            self._events.on_process_gone(member)

    # ------------------------------------------------------------------ for the replica

    def set_answer_timeout(self, timeout_s: float) -> None:
        """How long to wait for the answer to a Raft request, while answers come (`Link.answer_timeout_s`)."""
        self._answer_timeout_s = timeout_s
        for peer in self._peers.values():
            peer.link.answer_timeout_s = timeout_s

    def send(self, member: int, seq: int, request: Request) -> None:
        """Send a Raft request with the next `flush`; `PeerEvents` gets the response, or the failure."""
        peer = self._peers.get(member) or self._leaving.get(member)
        if peer is None:
            self._events.on_unreachable(member, seq)
        elif request.type is MessageType.READ_INDEX_REQUEST:
            peer.rpc_client.start(request, partial(self._read_answered, member, seq))
        else:
            peer.link.add(seq, request)

    def flush(self) -> None:
        """Send what `send` was given, to each member in one piece."""
        for peer in (*self._peers.values(), *self._leaving.values()):
            peer.link.flush()
        self._encoder.forget()

    def _read_answered(self, member: int, seq: int, response: Response | None, sent: bool) -> None:
        if response is not None:
            self._events.on_response(seq, response)
            self._events.on_received()
        else:
            self._events.on_unreachable(member, seq)

    def extensions(self, member: int) -> frozenset[str]:
        """The extensions in force on the connection for Raft requests, or on the last one; none with a JRaft
        server."""
        peer = self._peers.get(member)
        return peer.link.extensions if peer else frozenset()

    def has_handshake(self, member: int) -> bool:
        """Whether the last connection for client requests had a handshake. A JRaft server's has none."""
        peer = self._peers.get(member)
        return peer is not None and peer.rpc_client.has_handshake

    async def call(self, member: int, request: Request) -> Response | None:
        """Send a client's request on the member's other connection; None if it is not a peer.
        Errors as `garlicfarm.net.link.RpcClient.call`."""
        peer = self._peers.get(member)
        return await peer.rpc_client.call(request) if peer else None

    def on_contact(self, member: int) -> None:
        """The member showed a sign of life: a link that waits to reconnect tries at once."""
        if peer := self._peers.get(member):
            peer.last_contact_s = trio.current_time()
            if not peer.link.connected:
                peer.link.poke()

    def on_session_begun(self, member: int) -> None:
        """The member, or a client (0), logged in here. If it refuses us nevertheless, that means nothing."""
        self._sessions[member] += 1
        if (peer := self._peers.get(member)) and not peer.link.connected:
            peer.was_connected = False

    def on_session_ended(self, member: int) -> None:
        """A session of `on_session_begun` ended, and everything that came in it was passed on."""
        self._sessions[member] -= 1
        if peer := self._peers.get(member):
            self._check_gone(member, peer)

    def is_connected(self, member: int) -> bool:
        """Whether the connection for Raft requests is up."""
        peer = self._peers.get(member)
        return peer is not None and peer.link.connected

    def contact_age_s(self, member: int) -> float | None:
        """Seconds since the last sign of life, None if there was none."""
        peer = self._peers.get(member)
        if peer is None or peer.last_contact_s is None:
            return None
        return trio.current_time() - peer.last_contact_s

    def rtt_s(self, member: int, most_age_s: float) -> float | None:
        """The last round trip; None if it ended more than ``most_age_s`` ago, or its connection has ended
        since."""
        peer = self._peers.get(member)
        if peer is None or not peer.link.connected:
            return None
        return peer.link.rtt_s if trio.current_time() - peer.link.heard <= most_age_s else None

    def handshake(self, member: int) -> tuple[float, bool] | None:
        """How long the last attempt to connect and to log in took, in seconds, and whether it succeeded;
        None before the first one has ended."""
        peer = self._peers.get(member)
        return peer.link.handshake if peer else None

    def told(self, member: int) -> tuple[int, int, int] | None:
        """What it told as the time when it let this node log in last: see `Established`."""
        peer = self._peers.get(member)
        return peer.link.told if peer else None

    async def try_handshakes(self, members: Collection[int]) -> None:
        """Connect again, so that `handshake` is up to date: a connection that is up may be idle, and its path
        broken."""
        async with trio.open_nursery() as nursery:
            for member in members:
                if peer := self._peers.get(member):
                    nursery.start_soon(peer.link.try_handshake)

    def error(self, member: int) -> str | None:
        """Why the connection is down, None if it is up or was never tried."""
        peer = self._peers.get(member)
        return peer.error or None if peer and not peer.link.connected else None
