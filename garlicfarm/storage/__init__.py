"""The durable room: a node's data directory, and per farm a log in segments, with the hard state.

* `DataDirectory`: the node's identity, locked by one process at a time.
* `create_store` makes a farm's store, once. `LogStore.open` verifies it and is then the read side of the
  consensus core (`garlicfarm.raft.types.Storage`).
* `Writer`: the one thread that writes. Everything queued becomes one frame with one sync; a step is
  reported only once it is durable. An error of a write or an fsync ends the thread; nothing is retried.
* `write_snapshot`: stores an application's state, so that `Writer.compact` may delete entries. A member that
  needs them is sent the snapshot (`LogStore.snapshot_chunk`), receives it (`Writer.submit_chunk`) and lets
  it replace its log (`garlicfarm.raft.types.Persist`).
* `read_saved`: a snapshot that was saved outside of any store. `keep_backup` saves one, and deletes older
  ones.
* `LogReader`: reads the log for feeds in worker threads.
* `scrub_segment`, `scrub_snapshot`, `KeyFiles`: read files of a node that runs again, to find damage.
* `RankingStore`: rankings that queries outside of the farm have computed; no part of the log.
* `keep_leave_order`: that a leader told this member to leave, for the next start.
* `read_committed`: all of a log that no node runs on, and the state that it continues.
"""

from garlicfarm.storage.backups import keep_backup, list_backups
from garlicfarm.storage.committed_log import CommittedLog, read_committed
from garlicfarm.storage.damage import Corrupt
from garlicfarm.storage.directory import DataDirectory
from garlicfarm.storage.leave_order import forget_leave_order, has_leave_order, keep_leave_order
from garlicfarm.storage.log_store import SNAPSHOTS, LogStore, create_store, read_genesis
from garlicfarm.storage.ranking_store import RankingStore
from garlicfarm.storage.reader import LogReader
from garlicfarm.storage.scrub import KeyFiles, scrub_segment, scrub_snapshot
from garlicfarm.storage.segments import Genesis, list_segments, segment_name
from garlicfarm.storage.snapshots import (
    Saved,
    Snapshot,
    encode_snapshot,
    list_snapshots,
    read_saved,
    remove_snapshots,
    snapshot_name,
    write_snapshot,
)
from garlicfarm.storage.writer import Writer

__all__ = [
    "SNAPSHOTS",
    "CommittedLog",
    "Corrupt",
    "DataDirectory",
    "Genesis",
    "KeyFiles",
    "LogReader",
    "LogStore",
    "RankingStore",
    "Saved",
    "Snapshot",
    "Writer",
    "create_store",
    "encode_snapshot",
    "forget_leave_order",
    "has_leave_order",
    "keep_backup",
    "keep_leave_order",
    "list_backups",
    "list_segments",
    "list_snapshots",
    "read_committed",
    "read_genesis",
    "read_saved",
    "remove_snapshots",
    "scrub_segment",
    "scrub_snapshot",
    "segment_name",
    "snapshot_name",
    "write_snapshot",
]
