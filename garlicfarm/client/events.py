"""Live events of a farm (``GET …/events``), over a WebSocket to one node after the other.

Theory of operation. A task of its own connects to a node, hands on what comes, and keeps the index of the
last event that was taken. When the connection is lost it asks the next node for the events after that index.
So every entry comes once, in order, whatever becomes of nodes and connections.

trio-websocket has one task that reads, into a queue of one message: a program that takes no events holds up
that task, then the socket, then the node, which disconnects it. Four things we do ourselves:

* The socket is ours, and closed here: trio-websocket leaves it open where the peer closed the WebSocket or
  refused it, says nothing about a certificate that was refused, and waits for a handshake after the peer has
  closed. So `open_websocket_url` is not used.
* A ping that is not answered waits for ever. Ours has a deadline, which counts only while the reading task is
  not held up: behind a program that takes nothing the answer cannot be read. Where there are other nodes it
  is sent as soon as nothing comes for a moment, and a node that is silent is left
  (`garlicfarm.client.silence`) long before that.
* Closing waits for the peer for ever. Ours has a deadline.
* A node that is cut off from the other members is connected, and has nothing to say. If it says that there is
  no quorum, or that its disk hangs, for a while, the next node is asked.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Self
from urllib.parse import urlencode

import msgspec
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection, wrap_client_stream

from garlicfarm.client.answers import Answer, certificate_error, failure
from garlicfarm.client.https import HttpsClient
from garlicfarm.client.silence import NodeSilent, SilenceWatch
from garlicfarm.errors import (
    Compacted,
    ConfigError,
    GarlicFarmError,
    LocalProtocolError,
    NoQuorum,
    NotLeader,
    RemoteProtocolError,
    UnreachableError,
    cause_of,
    first_error,
)
from garlicfarm.feed.binary_format import MEDIA_TYPE
from garlicfarm.feed.events import (
    KINDS,
    EntryEvent,
    Event,
    HealthEvent,
    LeaderEvent,
    PositionEvent,
    PublisherEvent,
    decode_entries,
    decode_events,
    kind_of,
)
from garlicfarm.net.link import Backoff
from garlicfarm.net.tcp import WrappedStream
from garlicfarm.wire import Limits

CONNECT_S = 5.0
PING_S = 20.0
PONG_S = 10.0
CLOSE_S = 1.0
STRANDED_S = 5.0
"""How long a node may say that it is cut off before another one is asked."""
RECEIVE_BYTES = 1 << 16
MAX_MESSAGE_BYTES = Limits().max_message_bytes + (1 << 20)

_FINAL = (ConfigError, LocalProtocolError)
_REFUSALS = (*_FINAL, Compacted, NoQuorum, NotLeader, UnreachableError)
"""Why a node does not push events where another one may; those of all nodes are final."""
_BACKOFF = Backoff(random.random, first_s=0.05, longest_s=2.0)


class EventStream:
    """Iterates over the events of a farm; `AdminClient.events` makes it. An async context manager.

    Iterating raises what `AdminClient.events` says, then always the same. Cancelled: no event is lost.
    """

    def __init__(
        self,
        nodes: Iterable[tuple[str, HttpsClient]],
        silence: SilenceWatch,
        path: str,
        after: int | None,
        kinds: Collection[str],
        patience_s: float,
    ) -> None:
        self._nodes = deque(nodes)
        self._silence = silence
        self._heard = -math.inf  # when something came on the connection last
        self._path = path
        self._position = after
        self._kinds = kinds
        self._patience_s = patience_s
        self._tasks: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._error: Exception | None = None
        self._taken: deque[Event] = deque()
        self._send, self._receive = trio.open_memory_channel[Sequence[Event]](0)
        self._is_held_up = False
        self._farm_id = ""
        self._standing = _Standing()

    async def __aenter__(self) -> Self:
        self._tasks = trio.open_nursery()
        self._nursery = await self._tasks.__aenter__()
        self._nursery.start_soon(self._run)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._tasks is not None
        self._nursery.cancel_scope.cancel()
        # Its task raises nothing; and what the block has raised leaves it as it is, in no group.
        await self._tasks.__aexit__(None, None, None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._tasks is None:
            raise LocalProtocolError("events come inside a block: async with client.events(…) as events")
        while True:
            while self._taken:
                event = self._taken.popleft()
                if kind_of(event) in self._kinds and self._standing.is_news(event):
                    return event
            try:
                self._taken.extend(await self._receive.receive())
            except trio.EndOfChannel:
                if self._error is not None:
                    raise self._error from None
                raise StopAsyncIteration from None

    async def _run(self) -> None:
        with self._send:
            try:
                await self._follow()
            except Exception as error:  # noqa: BLE001 - raised where the events are taken
                self._error = error

    async def _follow(self) -> None:
        """Connect to one node after the other, until none can be reached."""
        was_connected, failures = False, 0
        lost_s = trio.current_time()
        while True:
            refused: list[GarlicFarmError] = []
            for _ in range(len(self._nodes)):
                url, node = self._nodes[0]
                before = self._position
                try:
                    await self._watch(url, node)
                except _REFUSALS as error:
                    refused.append(error)
                else:
                    was_connected, lost_s = True, trio.current_time()
                    failures = 0 if self._position != before else failures
                self._nodes.rotate(-1)
            is_over = trio.current_time() - lost_s >= self._patience_s or not was_connected
            if len(refused) == len(self._nodes) and (is_over or not _may_pass(refused)):
                raise _summary(refused)
            failures += 1
            await trio.sleep(_BACKOFF.wait_s(failures))

    async def _watch(self, url: str, node: HttpsClient) -> None:
        """Hand on the events of one node. Returns when the connection is lost.

        Raises the reason if it was not accepted, and `RemoteProtocolError`: what came are no events that may
        follow those before.
        """
        target = self._target()
        rejected = await self._connected(url, node, target)
        if rejected is not None and rejected.status_code == 401:
            offered = (value for name, value in rejected.headers if name == b"www-authenticate")
            node.learn([value.decode("latin-1") for value in offered])
            rejected = await self._connected(url, node, target)
        if rejected is not None:
            raise _refusal(rejected, url)

    async def _connected(self, url: str, node: HttpsClient, target: str) -> ConnectionRejected | None:
        """Hand on the events of one connection; not None: the node refused it."""
        try:
            with trio.fail_after(CONNECT_S):
                stream = await self._silence.unless_silent(node, node.open_stream)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, NodeSilent) as error:
            untrusted = certificate_error(error, url)
            if untrusted is not None:
                raise untrusted from error
            raise UnreachableError(f"{url}: {cause_of(error) or 'no connection in time'}") from error
        try:
            async with trio.open_nursery() as nursery:
                authorization = node.authorization("GET", target)
                headers = [(b"Accept", MEDIA_TYPE.encode())]
                if authorization is not None:
                    headers.append((b"Authorization", authorization.encode()))
                with trio.move_on_after(CONNECT_S) as handshake:
                    web = await wrap_client_stream(
                        nursery,
                        _UntilEnd(stream, self._hear, handshake.cancel),  # type: ignore[arg-type]  # it takes any stream
                        node.authority,
                        target,
                        extra_headers=headers,
                        max_message_size=MAX_MESSAGE_BYTES,
                        receive_buffer_size=RECEIVE_BYTES,
                    )
                if handshake.cancelled_caught:
                    raise UnreachableError(f"{url} does not open a WebSocket")
                self._check_farm(web, url)
                nursery.start_soon(self._ping, web, node, nursery.cancel_scope)
                await self._hand_on(web, nursery.cancel_scope)
                with trio.move_on_after(CLOSE_S):
                    await web.aclose()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            known, others = group.split((ConnectionRejected, GarlicFarmError))
            if others is not None or known is None:
                raise
            reason = first_error(known)
            if isinstance(reason, ConnectionRejected):
                return reason
            raise reason from None
        finally:
            await trio.aclose_forcefully(stream)
        return None

    def _target(self) -> str:
        kinds = {*self._kinds, "health"}  # to know when the node is cut off
        query = {"kinds": ",".join(kind for kind in KINDS if kind in kinds)}
        if self._position is not None:
            query["after"] = str(self._position)
        return f"{self._path}?{urlencode(query)}"

    def _check_farm(self, web: WebSocketConnection, url: str) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in web.handshake_headers}
        farm_id = headers.get("garlic-farm-id", "")
        if self._farm_id not in ("", farm_id):
            meaning = "it was recovered, and indexes mean other entries"
            raise RemoteProtocolError(f"the farm has another id than before: {meaning}", url)
        self._farm_id = farm_id
        if self._position is None:
            try:
                self._position = int(headers["garlic-farm-next-after"])
            except (KeyError, ValueError) as error:
                raise RemoteProtocolError("no number in Garlic-Farm-Next-After", url) from error

    async def _hand_on(self, web: WebSocketConnection, scope: trio.CancelScope) -> None:
        """Until the WebSocket is closed."""
        while True:
            try:
                message = await web.get_message()
            except ConnectionClosed:
                return
            events: Sequence[Event]
            if isinstance(message, bytes):
                events = decode_entries(message, self._position or 0)
            else:
                events = decode_events(message)
            self._check_order(events)
            for event in events:
                if isinstance(event, HealthEvent) and len(self._nodes) > 1:
                    is_cut_off = event.health == "no-quorum" or event.disk_hangs
                    if not is_cut_off:
                        scope.deadline = math.inf
                    elif scope.deadline == math.inf:
                        scope.deadline = trio.current_time() + STRANDED_S
            if events:
                self._is_held_up = True
                try:
                    await self._send.send(events)
                finally:
                    self._is_held_up = False
                self._position = events[-1].index

    def _check_order(self, events: Sequence[Event]) -> None:
        position = self._position or 0
        for event in events:
            if event.index < position:
                raise RemoteProtocolError("an event came out of order", f"index {event.index}")
            position = event.index

    def _hear(self) -> None:
        self._heard = trio.current_time()

    async def _ping(self, web: WebSocketConnection, node: HttpsClient, scope: trio.CancelScope) -> None:
        """End a connection whose peer is silent."""
        while True:
            every_s = PING_S if len(self._nodes) == 1 else min(PING_S, 2 * node.patience_s)
            if trio.current_time() < (due := self._heard + every_s):
                await trio.sleep_until(due)
                continue
            was_held_up = self._is_held_up
            with trio.move_on_after(PONG_S) as deadline:
                try:
                    await self._silence.unless_silent(node, web.ping)
                except ConnectionClosed:
                    return
                except NodeSilent:
                    scope.cancel()
            if deadline.cancelled_caught and not was_held_up and not self._is_held_up:
                scope.cancel()
            await trio.sleep(every_s)


class _UntilEnd(WrappedStream):
    """A stream that tells when something comes, and when it has ended."""

    def __init__(
        self, stream: trio.abc.Stream, on_data: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        super().__init__(stream)
        self._on_data = on_data
        self._on_end = on_end

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError:
            self._on_end()
            raise
        self._on_data() if data else self._on_end()
        return data


class _Standing:
    """What was handed on last, of each kind that says how things stand."""

    def __init__(self) -> None:
        self._last: dict[str, Event] = {}
        self._term = 0
        self._publisher_since = 0

    def is_news(self, event: Event) -> bool:
        """Whether it is not what is known already: another node says again how things stand."""
        if isinstance(event, EntryEvent | PositionEvent):
            return True
        known: Event = msgspec.structs.replace(event, index=0)
        if isinstance(event, LeaderEvent):
            if event.term < self._term:  # of a node that lags
                return False
            self._term = event.term
        elif isinstance(event, PublisherEvent):
            known = PublisherEvent(0, event.publisher)
            if event.since is not None:
                if event.since <= self._publisher_since:
                    return False
                self._publisher_since = event.since
                self._last.pop("publisher", None)  # a change is news though its publisher is known
        is_same = self._last.get(kind_of(event)) == known
        self._last[kind_of(event)] = known
        return not is_same


def _refusal(rejected: ConnectionRejected, url: str) -> GarlicFarmError:
    headers: Mapping[str, str] = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in rejected.headers
    }
    answer = Answer(rejected.status_code, headers, rejected.body or b"", url)
    return failure(answer, url) or RemoteProtocolError(
        f"status {rejected.status_code} instead of a WebSocket", url
    )


def _may_pass(refused: Sequence[GarlicFarmError]) -> bool:
    """Whether a node that refused may yet accept."""
    return not any(isinstance(error, Compacted) for error in refused) and not all(
        isinstance(error, _FINAL) for error in refused
    )


def _summary(refused: Sequence[GarlicFarmError]) -> GarlicFarmError:
    """What to raise where no node accepts."""
    gone = [error for error in refused if isinstance(error, Compacted)]
    if gone:
        return min(gone, key=lambda error: error.first_index)
    if len(refused) == 1:
        return refused[0]
    return UnreachableError("; ".join(map(str, refused)), "is a node running, and are the URLs right?")
