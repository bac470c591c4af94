"""What is pushed to watchers of a farm: committed entries, and how things stand now.

Each event has an ``index``, which is where to resume: a watcher that asks any member for the events after it
misses no entry. Entries come once each, in order. The other events say how things stand at the node that
sends them: first when a watcher comes, then at each change. Of several changes at once a watcher may hear
of the last one only; but it hears of each change of the publisher.

An event is an object of JSON with its ``kind``; programs get entries as records (`binary_format`) instead, at
less than half of the CPU time.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.feed.binary_format import RecordDecoder
from garlicfarm.feed.lines import EntryLine, entry_line
from garlicfarm.raft.types import Entry


class _EntryObject(EntryLine, frozen=True, tag_field="kind", tag="entry"):
    """A committed entry, as a line of the log has it."""


class EntryEvent(msgspec.Struct, frozen=True, tag_field="kind", tag="entry"):
    """A committed entry, application or Configuration. ``index`` is its own."""

    index: int
    entry: Entry


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


StandingEvent: TypeAlias = LeaderEvent | PublisherEvent | MembersEvent | HealthEvent | PositionEvent
Event: TypeAlias = EntryEvent | StandingEvent
KINDS = ("entry", "leader", "publisher", "members", "health", "position")
"""The kinds of events that a watcher may choose from."""

encode_event = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StandingEvent).decode_lines


def encode_entry(entry: Entry) -> bytes:
    """The object of an entry."""
    return encode_event(entry_line(entry, _EntryObject))


def kind_of(event: Event) -> str:
    """Its word in `KINDS`."""
    return str(event.__struct_config__.tag)


def decode_events(text: str) -> list[StandingEvent]:
    """Events but for entries, from their lines. Raises `RemoteProtocolError`: they are not."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError("not events", "lines of JSON") from error


def decode_entries(records: bytes, after: int) -> list[EntryEvent]:
    """Entries with indexes > ``after`` from their records. Raises `RemoteProtocolError`: they are not."""
    decoder = RecordDecoder(after)
    entries = decoder.receive_data(records)
    decoder.receive_eof()
    return [EntryEvent(entry.index, entry) for entry in entries]
