"""What a follower does with an AppendEntriesRequest before it changes anything (Raft §5.3)."""

from __future__ import annotations

from collections.abc import Sequence

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.raft.log import RaftLog
from garlicfarm.raft.types import Entry
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration, Request, ValueType

__all__ = ["checked_entries", "conflict_hint", "new_entries"]


def checked_entries(request: Request) -> tuple[list[Entry], list[tuple[int, Configuration]]]:
    """The entries at their places, and the Configurations among them by index.

    Raises `RemoteProtocolError`: no leader's log holds such entries.
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
                raise RemoteProtocolError("a Configuration that names nobody", where)
            configurations.append((index, configuration))
        elif entry.value_type is not ValueType.APPLICATION:
            raise RemoteProtocolError("a value that never lies in a log", where)
        entries.append(Entry(index, entry.term, entry.value_type, entry.value))
    return entries, configurations


def conflict_hint(log: RaftLog, commit: int, request: Request) -> int:
    """The next_index that gets both logs to meet in a round per term, not per entry.

    Entries of a later term than the leader's at ``last_log_index`` cannot match; of an earlier term, the
    leader may hold none: then that term is passed over as a whole.
    """
    index = request.last_log_index
    conflicting = log.term(index)
    later = conflicting > request.last_log_term
    while index > commit and (
        log.term(index) > request.last_log_term if later else log.term(index) == conflicting
    ):
        index -= 1
    return index + 1


def new_entries(log: RaftLog, commit: int, entries: Sequence[Entry]) -> Sequence[Entry]:
    """From the first one on that the log does not hold. An old message has none: nothing is taken away."""
    for position, entry in enumerate(entries):
        if entry.index > commit and (entry.index > log.last_index or log.term(entry.index) != entry.term):
            return entries[position:]
    return ()
