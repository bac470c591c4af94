"""What a follower checks in an AppendEntriesRequest before it changes anything (Raft §5.3)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.levels import beyond
from garlicfarm.raft.log import RaftLog
from garlicfarm.raft.types import Entry
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration, Request, ValueType


class CheckedEntries(msgspec.Struct, frozen=True, gc=False):
    """The entries of a request with their indexes, and the Configurations among them by index."""

    entries: Sequence[Entry]
    configurations: Sequence[tuple[int, Configuration]]


def check_entries(request: Request, commit_index: int, level: int) -> CheckedEntries:
    """Check the entries of a request. ``level``: of the Configuration in force here, at ``commit_index``.

    Raises `RemoteProtocolError`: no leader's log holds such entries, or this program cannot follow them.
    """
    entries: list[Entry] = []
    configurations: list[tuple[int, Configuration]] = []
    previous_term = request.last_log_term
    for index, entry in enumerate(request.entries, request.last_log_index + 1):
        where = f"AppendEntriesRequest, index {index}"
        if not previous_term <= entry.term <= request.term:
            raise RemoteProtocolError("the terms of a log never fall", where)
        previous_term = entry.term
        if entry.value_type is ValueType.CONFIGURATION:
            configuration = decode_configuration(entry.value)
            if not configuration.servers:
                raise RemoteProtocolError("a Configuration without members", where)
            if configuration.log_index > index:  # none would be appended before that index is applied
                raise RemoteProtocolError("a Configuration that names a later index than its own", where)
            if text := beyond(configuration.level):
                raise RemoteProtocolError(text, where)
            if configuration.level < level and index > commit_index:
                raise RemoteProtocolError("a Configuration of a lower level than the one in force", where)
            configurations.append((index, configuration))
        elif entry.value_type is not ValueType.APPLICATION:
            raise RemoteProtocolError("a value that never lies in a log", where)
        entries.append(Entry(index, entry.term, entry.value_type, entry.value))
    return CheckedEntries(entries, configurations)


def conflict_hint(log: RaftLog, commit_index: int, request: Request) -> int:
    """The next_index with which both logs meet in one round per term, not per entry.

    Entries of a later term than the leader's at ``last_log_index`` cannot match. Of an earlier term the
    leader may hold no entry, so that term is skipped as a whole."""
    index = request.last_log_index
    conflicting_term = log.term(index)
    is_later = conflicting_term > request.last_log_term
    while index > commit_index and (
        log.term(index) > request.last_log_term if is_later else log.term(index) == conflicting_term
    ):
        index -= 1
    return index + 1


def new_entries(log: RaftLog, commit_index: int, entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries from the first one on that the log does not hold. A delayed message has none, so it deletes
    nothing."""
    for position, entry in enumerate(entries):
        if entry.index > commit_index and (
            entry.index > log.last_index or log.term(entry.index) != entry.term
        ):
            return entries[position:]
    return ()
