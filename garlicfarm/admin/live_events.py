"""The live events of one farm, for all its watchers (`garlicfarm.feed.events`).

Theory of operation. What is committed is read from the store once, in pieces, and encoded once; how the farm
stands is looked at once. All watchers are given the same. One of them pumps, that is, does this work for all;
when it leaves, the next one takes over. Without watchers nothing is done.

Nothing grows with a watcher that is slow. The newest pieces, up to `HELD_BYTES`, are held for all. A watcher
takes one at a time when it has sent the last one. One that has fallen behind what is held reads the store for
itself, and goes on among the others once it has caught up. One that has fallen behind what the log retains
ends with an error.

Each message of each watcher takes CPU time that the farm needs, too. So the pump rests between two turns,
longer with more watchers: all together are sent a limited number of messages in a second, with more in each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import trio

from garlicfarm.admin.contract import FarmView
from garlicfarm.admin.health import judge
from garlicfarm.errors import Compacted, FellBehind
from garlicfarm.feed.events import (
    Event,
    HealthEvent,
    LeaderEvent,
    MemberAddress,
    MembersEvent,
    PositionEvent,
    PublisherEvent,
    encode_entries,
    encode_event,
)

__all__ = ["Form", "LiveEvents", "Watcher", "json_line", "server_sent_event"]

PIECE_BYTES = 256 << 10
HELD_BYTES = 4 << 20
LOOK_S = 1.0
"""How often the pump looks how the farm stands while nothing is committed: no event says that a member fell
silent."""
REST_S = 0.02
REST_PER_WATCHER_S = 0.004
QUIET_S = 15.0
"""After so long without an event a watcher is told its position, so that both sides know of each other."""

Form = Callable[[str, int, bytes], bytes]
"""Makes the bytes to send of an event: of its kind, its index, and its object."""


def json_line(kind: str, index: int, event: bytes) -> bytes:
    """An event as a line."""
    return event + b"\n"


def server_sent_event(kind: str, index: int, event: bytes) -> bytes:
    """An event as browsers know them."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (index, kind.encode(), event)


class _Piece:
    """Entries with indexes > ``after``, up to ``upto``, encoded."""

    def __init__(self, after: int, indexes: Sequence[int], entries: Sequence[bytes]) -> None:
        self.after = after
        self.upto = indexes[-1]
        self.size_bytes = sum(map(len, entries))
        self._indexes = indexes
        self._entries = entries
        self._texts: dict[Form, str] = {}

    def text(self, form: Form, after: int) -> tuple[str, int]:
        """What to send to a watcher at ``after``, and how many entries that are."""
        skipped = bisect_right(self._indexes, after)
        if not skipped and form in self._texts:
            return self._texts[form], len(self._entries)
        chosen = zip(self._indexes[skipped:], self._entries[skipped:], strict=True)
        text = b"".join(form("entry", index, entry) for index, entry in chosen).decode()
        if not skipped:
            self._texts[form] = text
        return text, len(self._entries) - skipped


class _Standing:
    """How a farm stands: its leader, members and health by their kinds, its publisher, and the newest changes
    of publisher, oldest first."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        rows = status["members"]
        silent = tuple(row["id"] for row in rows if row["role"] == "unreachable")
        self.publisher: int | None = status["publisher"]
        self.changes = [_publisher_change(event) for event in status["events"] if event.get("because")]
        self.events: dict[str, Event] = {
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
        self._changed = trio.Event()
        self._watchers: set[Watcher] = set()
        self._pieces: deque[_Piece] = deque()
        self._held_bytes = 0
        self._end = 0
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
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.remove(watcher)

    # ------------------------------------------------------------------ the pump

    async def pump(self) -> None:
        """Pump for all watchers, as soon as no other one does. Returns when the farm is not served any more.

        Raises `StorageError`: the store cannot be read. Cancelled: another watcher pumps.
        """
        async with self._pumping:
            while self._is_served():
                # There is no checkpoint between looking and waiting: no change is missed.
                is_news = self._look()
                if self._end < self.farm.commit_index:
                    is_news = True
                    await self._read(self.farm.commit_index)
                if is_news:
                    changed, self._changed = self._changed, trio.Event()
                    changed.set()
                    await trio.sleep(max(REST_S, REST_PER_WATCHER_S * len(self._watchers)))
                else:
                    with trio.move_on_after(LOOK_S):
                        await self.farm.wait_change()

    def _look(self) -> bool:
        """Whether the farm stands otherwise than before."""
        standing = _Standing(self.farm.status())
        if standing.is_same(self.standing):
            return False
        self.standing = standing
        return True

    async def _read(self, upto: int) -> None:
        """Read and hold the entries up to ``upto``, if any watcher takes them."""
        while self._end < upto:
            if not any(watcher.takes_entries for watcher in self._watchers):
                self._end = upto
                return
            after = self._end
            try:
                entries = await anext(self.farm.entries(after, PIECE_BYTES, upto=upto))
            except (Compacted, FellBehind):  # as after a snapshot of the leader: each watcher meets it itself
                self._restart()
                return
            piece = _Piece(after, [entry.index for entry in entries], encode_entries(entries))
            self._pieces.append(piece)
            self._end = piece.upto
            self._held_bytes += piece.size_bytes
            while self._held_bytes > HELD_BYTES and len(self._pieces) > 1:
                self._held_bytes -= self._pieces.popleft().size_bytes

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
            return _Piece(after, [entry.index for entry in entries], encode_entries(entries))
        return next((piece for piece in self._pieces if piece.upto > after), None)

    async def wait_change(self) -> None:
        """Return when the pump has news."""
        await self._changed.wait()


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
        self._told: dict[str, Event] = {}
        self._publisher: tuple[int | None] | None = None
        self._publisher_since = after

    async def next(self) -> str:
        """The next events, as soon as there are some: at least one.

        Raises `Compacted` or `FellBehind`: the next entries are gone; `StorageError`. Cancelled: it may be
        called again.
        """
        with trio.move_on_after(QUIET_S):
            while True:
                piece = await self._live.piece(self.position) if self.takes_entries else None
                events = self._standing()
                if piece is not None:
                    text, entries = piece.text(self._form, self.position)
                    self.position = piece.upto
                    self._on_entries(entries)
                    return self._encoded(events) + text
                if events:
                    return self._encoded(events)
                await self._live.wait_change()
        return self._encoded([PositionEvent(self.position)])

    def _standing(self) -> list[Event]:
        """What has changed since this was called last."""
        standing, index = self._live.standing, self.position
        if not self.takes_entries:
            index = max(index, self._live.farm.commit_index)
        events: list[Event] = []
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

    def _encoded(self, events: Sequence[Event]) -> str:
        form = self._form
        return b"".join(form(_kind(each), each.index, encode_event(each)) for each in events).decode()


def _kind(event: Event) -> str:
    return str(event.__struct_config__.tag)
