"""The log, durable and not, against a list: whatever is appended, deleted, written or replaced by a snapshot,
in any order, and wherever it is cut off by a crash."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from garlicfarm.raft import Entry, HardState, Persist, SnapshotMeta
from garlicfarm.raft.log import RaftLog
from garlicfarm.testing.memory_storage import UnsyncedStorage, encode_snapshot
from garlicfarm.wire.messages import SnapshotSyncRequest, ValueType
from tests.raft.playbook import configuration
from tests.raft.playbook import log as log_of


class Log(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = UnsyncedStorage(configuration())
        self.log = RaftLog(self.disk)
        self.entries: list[Entry] = []  # what the log should hold behind `base`
        self.base = (0, 0)  # index and term of the snapshot that it begins behind
        self.token = self.made = 0
        self.term = 1
        self.snapshot: SnapshotMeta | None = None  # to be in the next write

    @property
    def last(self) -> int:
        return self.base[0] + len(self.entries)

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        self.made += 1
        value = b"%d" % self.made
        new = [Entry(self.last + i, self.term, ValueType.APPLICATION, value) for i in range(1, count + 1)]
        self.log.append(new)
        self.entries += new

    @precondition(lambda self: self.entries)
    @rule(count=st.integers(1, 4), new=st.integers(0, 4))
    def truncate(self, count: int, new: int) -> None:
        """The last ones give way to those of a later leader, if it has any."""
        index = max(self.base[0], self.last - count) + 1
        self.log.truncate(index)
        del self.entries[index - self.base[0] - 1 :]
        self.term += 1
        if new:
            self.append(new)

    @precondition(lambda self: self.entries)
    @rule(ahead=st.integers(1, 3), meets=st.sampled_from((True, True, False)))
    def restore(self, ahead: int, meets: bool) -> None:
        """A snapshot of an entry that it holds, or of one that it does not."""
        index = self.base[0] + ahead
        meets = meets and index <= self.last
        term = self.entries[ahead - 1].term if meets else self.term + 1
        self.term = max(self.term, term)
        self.snapshot = SnapshotMeta(index, term, configuration())
        data = encode_snapshot(b"")
        self.disk.store_chunk(SnapshotSyncRequest(index, term, configuration(), 0, data, True))
        assert self.log.restore(index, term) is meets
        self.entries = self.entries[ahead:] if meets else []
        self.base = index, term

    @precondition(lambda self: self.log.has_unwritten or self.snapshot)
    @rule()
    def write(self) -> None:
        self.token += 1
        taken = self.log.take_unwritten(self.token)
        assert taken[0] is None or taken[0] > self.base[0]
        self.disk.submit(Persist(self.token, HardState(self.term, 0, self.base[0]), *taken, self.snapshot))
        self.snapshot = None
        assert not self.log.has_unwritten

    @precondition(lambda self: self.disk.pending)
    @rule(steps=st.integers(1, 3))
    def sync(self, steps: int) -> None:
        """One report may stand for several writes."""
        done = [self.disk.sync() for _ in range(min(steps, len(self.disk.pending)))]
        self.log.on_persisted(done[-1].token)

    @precondition(lambda self: len(self.disk.pending) > 1)
    @rule(reported=st.booleans())
    def crash(self, reported: bool) -> None:
        """Of the writes that are on their way one more may be done, of which nobody was told."""
        if self.disk.pending and not reported:
            self.disk.sync()
        stable = self.log.stable
        self.disk.crash()
        self.log = RaftLog(self.disk)
        boundary = self.disk.first_index() - 1
        kept = self.disk.contents
        if boundary == self.base[0] and reported:  # what was reported is there
            assert list(kept[: stable - boundary]) == self.entries[: max(0, stable - boundary)]
        self.base, self.entries = (boundary, self.disk.term(boundary)), list(kept)
        self.snapshot = None

    @invariant()
    def log_is_the_list(self) -> None:
        log, first = self.log, self.base[0] + 1
        assert (log.first_index, log.last_index) == (first, self.last)
        terms = [self.base[1], *(entry.term for entry in self.entries)]
        assert [log.term(index) for index in range(first - 1, self.last + 1)] == terms
        assert log.last_term == terms[-1]
        for lo in range(first, self.last + 1):
            page = log.entries(lo, self.last + 1, 1 << 20)
            assert page
            assert list(page) == self.entries[lo - first : lo - first + len(page)]

    @invariant()
    def what_is_stable_is_on_the_disk(self) -> None:
        assert self.log.stable <= self.last
        below = self.entries[: max(0, self.log.stable - self.base[0])]
        if below:
            assert list(self.disk.entries(self.base[0] + 1, self.log.stable + 1, 1 << 20)) == below

    def teardown(self) -> None:
        """All that is written becomes stable."""
        if self.log.has_unwritten or self.snapshot:
            self.write()
        while self.disk.pending:
            self.sync(1)
        assert self.log.stable == self.last
        assert list(self.disk.contents) == self.entries


TestLog = Log.TestCase
TestLog.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)


def test_truncation_that_waits_for_its_write_takes_nothing_of_a_snapshot_that_comes_before() -> None:
    disk = UnsyncedStorage(configuration())
    disk.write(Persist(0, HardState(1), None, log_of(1, 1, 1, 1, 1, 1)))
    log = RaftLog(disk)
    log.truncate(3)
    log.append(log_of(1, 1, 2, 2, 2, 2, 2, 2)[2:])
    assert log.restore(5, 2)
    truncate_from, entries = log.take_unwritten(1)
    assert truncate_from == 6
    assert [entry.index for entry in entries] == [6, 7, 8]
