"""What is pushed to watchers of a farm: committed entries, and how things stand now.

Each event is an object of JSON with its ``kind``. Its ``index`` is where to resume: a watcher that asks any
member for the events after that index misses no entry. Entries come once each, in order. The other events say
how things stand at the node that sends them: first when a watcher comes, then at each change. Of several
changes at a time a watcher may be told the last one only; but it is told of each change of the publisher.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.feed.lines import EntryLine, entry_line
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

__all__ = [
    "KINDS",
    "EntryEvent",
    "Event",
    "HealthEvent",
    "LeaderEvent",
    "MemberAddress",
    "MembersEvent",
    "PositionEvent",
    "PublisherEvent",
    "decode_events",
    "encode_entries",
    "encode_event",
]


class EntryEvent(EntryLine, frozen=True, tag_field="kind", tag="entry"):
    """A committed entry, as a line of the log has it."""

    @property
    def entry(self) -> Entry:
        """The entry itself. Raises `RemoteProtocolError`: the event has no value."""
        kind = ValueType.APPLICATION if self.type == "application" else ValueType.CONFIGURATION
        try:
            value = base64.b64decode(self.value_base64 or "", validate=True)
        except ValueError as error:
            raise RemoteProtocolError("not base64", f"entry {self.index}") from error
        return Entry(self.index, self.term, kind, value if self.value is None else self.value.encode())


class LeaderEvent(msgspec.Struct, frozen=True, tag_field="kind", tag="leader"):
    """The leader that the node knows (None: none), and the node's term."""

    index: int
    leader: int | None
    term: int


class PublisherEvent(msgspec.Struct, frozen=True, tag_field="kind", tag="publisher"):
    """The named publisher, None for none.

    ``since``: the index of the entry that made the farm name it instead of ``previous``, and ``because`` why;
    None, and no word, where the node no longer holds that.
    """

    index: int
    publisher: int | None
    previous: int | None = None
    because: str = ""
    since: int | None = None


class MemberAddress(msgspec.Struct, frozen=True):
    """A member of the Configuration in force."""

    id: int
    endpoint: str


class MembersEvent(msgspec.Struct, frozen=True, tag_field="kind", tag="members"):
    """The members of the Configuration in force."""

    index: int
    members: tuple[MemberAddress, ...]


class HealthEvent(msgspec.Struct, frozen=True, tag_field="kind", tag="health"):
    """The farm's health as the node sees it, and the members that it cannot reach.

    ``disk_hangs``: the node's own disk does not answer.
    """

    index: int
    health: Literal["healthy", "degraded", "no-quorum"]
    fault_tolerance: int
    unreachable: tuple[int, ...]
    disk_hangs: bool


class PositionEvent(msgspec.Struct, frozen=True, tag_field="kind", tag="position"):
    """All entries up to ``index`` are committed here, and those that were asked for were sent."""

    index: int


Event: TypeAlias = EntryEvent | LeaderEvent | PublisherEvent | MembersEvent | HealthEvent | PositionEvent
KINDS = ("entry", "leader", "publisher", "members", "health", "position")
"""The kinds of events that a watcher may choose from."""

encode_event = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode_lines


def encode_entries(entries: Sequence[Entry]) -> list[bytes]:
    """The events of these entries."""
    return [encode_event(entry_line(entry, EntryEvent)) for entry in entries]


def decode_events(text: str | bytes) -> list[Event]:
    """Events from their lines. Raises `RemoteProtocolError`: they are not."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError("not events", "lines of JSON") from error
