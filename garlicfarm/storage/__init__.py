"""The durable room: a node's data directory, and per farm one SQLite file with log and hard state.

* `DataDirectory`: who this node is, held by one process at a time.
* `create_store` makes a farm's store, once; `LogStore.open` checks every byte that counts and is then
  the read side of the consensus core (`garlicfarm.raft.types.Storage`).
* `Writer`: the one thread that writes; everything queued becomes one transaction and one fsync, and
  only what is durable is reported. An error of a write or an fsync ends it: nothing is tried again.
* `write_snapshot`: an application's state, which lets `Writer.compact` delete entries. It is sent to
  members that need these (`LogStore.snapshot_chunk`), which receive it (`Writer.submit_chunk`) and let it
  stand for their log (`garlicfarm.raft.types.Persist`).
* `LogReader`: pieces of the log for feeds, from worker threads, over a connection of its own.
"""

from garlicfarm.storage.directory import DataDirectory
from garlicfarm.storage.log_store import SNAPSHOTS, LogStore, create_store
from garlicfarm.storage.reader import LogReader
from garlicfarm.storage.snapshots import Snapshot, remove_snapshots, write_snapshot
from garlicfarm.storage.tables import Genesis
from garlicfarm.storage.writer import Writer

__all__ = [
    "SNAPSHOTS",
    "DataDirectory",
    "Genesis",
    "LogReader",
    "LogStore",
    "Snapshot",
    "Writer",
    "create_store",
    "remove_snapshots",
    "write_snapshot",
]
