"""The live events of one farm, for all its watchers (`garlicfarm.feed.events`).

Theory of operation. What is committed is read from the store once, in pieces, and encoded once; how the farm
stands is looked at once. All watchers are given the same. One of them pumps, that is, does this work for all;
when it leaves, the next one takes over. Without watchers nothing is done.

Nothing grows with a watcher that is slow. The newest pieces, up to `HELD_BYTES`, are held for all. A watcher
takes one at a time when it has sent the last one. One that has fallen behind what is held reads the store for
itself, and goes on among the others once it has caught up. One that has fallen behind what the log retains
ends with an error.

Each message to each watcher takes CPU time that the farm needs, too. So all watchers together get a limited
number of messages and bytes in a second (`_Pace`), and the farm never waits for more than one message. While
more is committed than they may get, they fall behind together, and they catch up when less is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import trio
from wsproto.frame_protocol import FrameProtocol

from garlicfarm.admin.contract import FarmView
from garlicfarm.admin.health import judge
from garlicfarm.errors import Compacted, FellBehind
from garlicfarm.feed.binary_format import HEAD_BYTES, encode_records
from garlicfarm.feed.events import (
    HealthEvent,
    LeaderEvent,
    MemberAddress,
    MembersEvent,
    PositionEvent,
    PublisherEvent,
    StandingEvent,
    encode_entry,
    encode_event,
    kind_of,
)
from garlicfarm.raft.types import Entry

PIECE_BYTES = 256 << 10
HELD_BYTES = 4 << 20
LOOK_S = 1.0
"""How often the pump looks at the farm's state while nothing is committed: no event says that a member fell
silent."""
REST_S = 0.02
REST_PER_MESSAGE_S = 0.004
BYTES_PER_S = 64e6
QUIET_S = 15.0
"""After so long without an event a watcher is told its position, so that both sides know of each other."""


class Form(Protocol):
    """How events are sent."""

    def entries(self, entries: Sequence[Entry]) -> bytes:
        """One entry or more."""

    def events(self, events: Sequence[StandingEvent]) -> bytes:
        """One event or more."""


class Lines:
    """Messages of a WebSocket, of text: a line for each event."""

    def entries(self, entries: Sequence[Entry]) -> bytes:
        return _message(b"".join([encode_entry(entry) + b"\n" for entry in entries]).decode())

    def events(self, events: Sequence[StandingEvent]) -> bytes:
        return _message(b"".join([encode_event(event) + b"\n" for event in events]).decode())


class Records(Lines):
    """The same, but for entries: binary messages with their records."""

    def entries(self, entries: Sequence[Entry]) -> bytes:
        return _message(encode_records(entries))


class ServerSentEvents:
    """Events as browsers know them."""

    def entries(self, entries: Sequence[Entry]) -> bytes:
        return b"".join([_server_sent(b"entry", entry.index, encode_entry(entry)) for entry in entries])

    def events(self, events: Sequence[StandingEvent]) -> bytes:
        return b"".join([_server_sent(kind_of(e).encode(), e.index, encode_event(e)) for e in events])


def _message(payload: str | bytes) -> bytes:
    """A message of a server as it is on the wire: one frame, which is the same for all clients."""
    return bytes(FrameProtocol(client=False, extensions=[]).send_data(payload, fin=True))


def _server_sent(kind: bytes, index: int, event: bytes) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (index, kind, event)


class _Piece:
    """Entries with indexes > ``after``, up to ``upto``, which are encoded once for many watchers."""

    def __init__(self, after: int, entries: Sequence[Entry]) -> None:
        self.after = after
        self.upto = entries[-1].index
        self.size_bytes = sum([len(entry.value) + HEAD_BYTES for entry in entries])
        self._entries = entries
        self._encoded: dict[Form, bytes] = {}

    def encoded(self, form: Form, after: int) -> tuple[bytes, int]:
        """What to send to a watcher at ``after``, and how many entries that are."""
        if after > self.after:
            chosen = [entry for entry in self._entries if entry.index > after]
            return form.entries(chosen), len(chosen)
        if form not in self._encoded:
            self._encoded[form] = form.entries(self._entries)
        return self._encoded[form], len(self._entries)


class _Pace:
    """Rests after each message, for `REST_PER_MESSAGE_S` and as long as its bytes take at `BYTES_PER_S`."""

    def __init__(self) -> None:
        self._free_s = 0.0

    async def rest(self, size_bytes: int) -> None:
        """Rest for one message, after the rests of all before."""
        rest_s = REST_PER_MESSAGE_S + size_bytes / BYTES_PER_S
        self._free_s = max(self._free_s, trio.current_time()) + rest_s
        await trio.sleep_until(self._free_s)


class _Standing:
    """How a farm stands: its leader, members and health by their kinds, its publisher, and the newest changes
    of publisher, oldest first."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        rows = status["members"]
        silent = tuple(row["id"] for row in rows if row["role"] == "unreachable")
        self.publisher: int | None = status["publisher"]
        self.changes = [_publisher_change(event) for event in status["events"] if event.get("because")]
        self.events: dict[str, StandingEvent] = {
            "leader": LeaderEvent(0, status["leader"], status["term"]),
            "members": MembersEvent(0, tuple(MemberAddress(row["id"], row["endpoint"]) for row in rows)),
            "health": HealthEvent(
                0, judge(status), status["fault_tolerance"], silent, status["disk_hangs_s"] is not None
            ),
        }

    def is_same(self, other: _Standing) -> bool:
        return (self.events, self.publisher, self.changes) == (other.events, other.publisher, other.changes)


def _publisher_change(event: Mapping[str, Any]) -> PublisherEvent:
    return PublisherEvent(0, event["publisher"], event["previous"], event["because"], event["index"])


class LiveEvents:
    """The events of ``farm``, for as long as ``is_served()``."""

    def __init__(self, farm: FarmView, is_served: Callable[[], bool]) -> None:
        self.farm = farm
        self._is_served = is_served
        self._pumping = trio.Lock()
        self._watchers: dict[Watcher, None] = {}
        self._pieces: deque[_Piece] = deque()
        self._held_bytes = 0
        self._end = 0
        self._pace, self._pace_behind = _Pace(), _Pace()
        self.standing = _Standing(farm.status())

    @contextmanager
    def watcher(
        self, after: int, kinds: Collection[str], form: Form, on_entries: Callable[[int], None]
    ) -> Iterator[Watcher]:
        """A watcher that has seen everything up to ``after``. ``on_entries`` is told how many it is sent."""
        watcher = Watcher(self, after, kinds, form, on_entries)
        if watcher.takes_entries and not any(each.takes_entries for each in self._watchers):
            self._restart()
        if not self._watchers:
            self._look()
        self._watchers[watcher] = None
        try:
            yield watcher
        finally:
            del self._watchers[watcher]

    # ------------------------------------------------------------------ the pump

    async def pump(self) -> None:
        """Pump for all watchers, as soon as no other one does. Returns when the farm is not served any more.

        Raises `StorageError`: the store cannot be read. Cancelled: another watcher pumps.
        """
        async with self._pumping:
            while self._is_served():
                # There is no checkpoint between looking and waiting: no change is missed.
                is_news, size_bytes = self._look(), 0
                if self._end < self.farm.commit_index:
                    is_news, size_bytes = True, await self._read(self.farm.commit_index)
                if not is_news:
                    with trio.move_on_after(LOOK_S):
                        await self.farm.wait_change()
                    continue
                begun_s = trio.current_time()
                for watcher in tuple(self._watchers):
                    watcher.tell()
                    await self._pace.rest(size_bytes if watcher.takes_entries else 0)
                if self._end >= self.farm.commit_index or not size_bytes:
                    await trio.sleep_until(begun_s + REST_S)

    def _look(self) -> bool:
        """Whether the farm's state has changed."""
        standing = _Standing(self.farm.status())
        if standing.is_same(self.standing):
            return False
        self.standing = standing
        return True

    async def _read(self, upto: int) -> int:
        """Read and hold the next entries up to ``upto``, if any watcher takes them; their size."""
        if not any(watcher.takes_entries for watcher in self._watchers):
            self._end = upto
            return 0
        after = self._end
        try:
            entries = await anext(self.farm.entries(after, PIECE_BYTES, upto=upto))
        except (Compacted, FellBehind):  # as after a snapshot of the leader: each watcher meets it itself
            self._restart()
            return 0
        piece = _Piece(after, entries)
        self._pieces.append(piece)
        self._end = piece.upto
        self._held_bytes += piece.size_bytes
        while self._held_bytes > HELD_BYTES and len(self._pieces) > 1:
            self._held_bytes -= self._pieces.popleft().size_bytes
        return piece.size_bytes

    def _restart(self) -> None:
        """Hold what is committed from now on."""
        self._pieces.clear()
        self._held_bytes = 0
        self._end = self.farm.commit_index

    # ------------------------------------------------------------------ for watchers

    async def piece(self, after: int) -> _Piece | None:
        """The piece with the first entries after that index; None: there is none yet.

        Raises `Compacted` or `FellBehind`: they are gone; `StorageError`.
        """
        start = self._pieces[0].after if self._pieces else self._end
        if after < start:
            entries = await anext(self.farm.entries(after, PIECE_BYTES, upto=start))
            piece = _Piece(after, entries)
            await self._pace_behind.rest(piece.size_bytes)
            return piece
        return next((piece for piece in self._pieces if piece.upto > after), None)


class Watcher:
    """What one watcher has been told so far: ``position`` is the index up to which it has the entries."""

    def __init__(
        self,
        live: LiveEvents,
        after: int,
        kinds: Collection[str],
        form: Form,
        on_entries: Callable[[int], None],
    ) -> None:
        self.position = after
        self.takes_entries = "entry" in kinds
        self._live = live
        self._kinds = kinds
        self._form = form
        self._on_entries = on_entries
        self._may_have_more = trio.Event()
        self._told: dict[str, StandingEvent] = {}
        self._publisher: tuple[int | None] | None = None
        self._publisher_since = after

    def tell(self) -> None:
        """There may be news."""
        self._may_have_more.set()

    async def next(self) -> bytes:
        """The next events, as soon as there are some: at least one, in its form.

        Raises `Compacted` or `FellBehind`: the next entries are gone; `StorageError`. Cancelled: it may be
        called again.
        """
        with trio.move_on_after(QUIET_S):
            while True:
                self._may_have_more = trio.Event()
                piece = await self._live.piece(self.position) if self.takes_entries else None
                events = self._standing()
                told = self._form.events(events) if events else b""
                if piece is not None:
                    encoded, entries = piece.encoded(self._form, self.position)
                    self.position = piece.upto
                    self._on_entries(entries)
                    return told + encoded if told else encoded
                if told:
                    return told
                await self._may_have_more.wait()
        return self._form.events([PositionEvent(self.position)])

    def _standing(self) -> list[StandingEvent]:
        """What has changed since this was called last."""
        standing, index = self._live.standing, self.position
        if not self.takes_entries:
            index = max(index, self._live.farm.commit_index)
        events: list[StandingEvent] = []
        for kind, event in standing.events.items():
            if kind in self._kinds and self._told.get(kind) != event:
                self._told[kind] = event
                events.append(event)
        if "publisher" in self._kinds:
            events += self._publishers(standing)
        events = [msgspec.structs.replace(event, index=index) for event in events]
        if index > self.position:
            self.position = index
            if "position" in self._kinds:
                events.append(PositionEvent(index))
        return events

    def _publishers(self, standing: _Standing) -> Iterator[PublisherEvent]:
        for change in standing.changes:
            if change.since is not None and change.since > self._publisher_since:
                self._publisher_since = change.since
                self._publisher = (change.publisher,)
                yield change
        if self._publisher != (standing.publisher,):
            self._publisher = (standing.publisher,)
            yield PublisherEvent(0, standing.publisher)
