"""The Configuration in force, and those in the log that are not committed yet."""

from __future__ import annotations

from collections import deque

from garlicfarm.raft.log import RaftLog
from garlicfarm.wire import decode_configuration
from garlicfarm.wire.messages import Configuration, ValueType

_PAGE_BYTES = 1 << 20


class ConfigurationTracker:
    """A Configuration takes force when it is committed, as in JRaft (D7)."""

    def __init__(self, in_force: Configuration, log: RaftLog, commit: int) -> None:
        self.in_force = in_force
        # In the log and not committed yet: (index, Configuration).
        self._pending: deque[tuple[int, Configuration]] = deque()
        index = commit + 1
        while index <= log.last_index:
            page = log.entries(index, log.last_index + 1, _PAGE_BYTES)
            for entry in page:
                if entry.value_type is ValueType.CONFIGURATION:
                    self.append(entry.index, decode_configuration(entry.value))
            index = page[-1].index + 1

    @property
    def newest(self) -> Configuration:
        """The last Configuration in the log, committed or not."""
        return self._pending[-1][1] if self._pending else self.in_force

    @property
    def quorum(self) -> int:
        """The number of members that make a majority."""
        return len(self.in_force.servers) // 2 + 1

    def others(self, member: int) -> list[int]:
        """The ids of all members but this one."""
        return [server.id for server in self.in_force.servers if server.id != member]

    def is_quorum(self, members: set[int]) -> bool:
        """Whether the members in this set are a majority."""
        return sum(server.id in members for server in self.in_force.servers) >= self.quorum

    def __contains__(self, member: int) -> bool:
        return any(server.id == member for server in self.in_force.servers)

    def append(self, index: int, configuration: Configuration) -> None:
        """A Configuration was appended to the log at ``index``."""
        self._pending.append((index, configuration))

    def truncate(self, index: int) -> None:
        """The log deleted its entries from ``index`` on."""
        while self._pending and self._pending[-1][0] >= index:
            self._pending.pop()

    @property
    def has_pending(self) -> bool:
        """Whether the log holds a Configuration that is not in force yet."""
        return bool(self._pending)

    def restore(self, in_force: Configuration, index: int) -> None:
        """A snapshot of ``index`` brought the Configuration in force; those in the log up to there are
        past."""
        while self._pending and self._pending[0][0] <= index:
            self._pending.popleft()
        self.in_force = in_force

    def commit(self, index: int) -> bool:
        """All entries up to ``index`` are committed. Returns whether another Configuration is in force
        now."""
        before = self.in_force
        while self._pending and self._pending[0][0] <= index:
            self.in_force = self._pending.popleft()[1]
        return self.in_force is not before
