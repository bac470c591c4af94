"""A farm that has lost its majority permanently: one survivor's store becomes a new farm of this member
alone.

The new farm has another id, and so other member passwords (D10): members of the old farm that come back are
refused at the handshake, and the two farms cannot mix. The new farm has the survivor's whole log, including
entries that were not known to be committed (a lost majority may have acknowledged them). After it, in the
term after the log's last one, follows the Configuration that names this member alone. The others
are removed; they can come back under new ids, since each id is used once (D12).

The new store is made beside the old one, which is then renamed and kept::

    data/farms/<farm>                   the recovered store
    data/farms/<farm>~<old farm id>     the store as it was; never to be started
    data/farms/<farm>~recovered         while at work
"""

from __future__ import annotations

import secrets
import shutil
from contextlib import closing
from pathlib import Path

import msgspec

from garlicfarm.application import StateMachine
from garlicfarm.digests import DigestKeeper
from garlicfarm.durable_files import fsync_path
from garlicfarm.errors import LocalProtocolError, StorageError
from garlicfarm.levels import algorithm_of
from garlicfarm.raft.state import MAX_TERM
from garlicfarm.raft.types import Entry, HardState
from garlicfarm.storage import SNAPSHOTS, LogStore, Snapshot, write_snapshot
from garlicfarm.wire import decode_configuration, encode_configuration
from garlicfarm.wire.messages import ClusterServer, Configuration, ValueType

_PAGE_BYTES = 1 << 20


class Survivor(msgspec.Struct, frozen=True):
    """What a survivor's store holds, all of its log applied. Of several survivors, the one with
    the highest (``last_term``, ``last_index``) lacks least. ``all_members``: removed ones too.
    ``application_entries``: as in `SnapshotMeta`."""

    farm: str
    farm_id: bytes
    term: int
    commit: int
    first_index: int
    last_index: int
    last_term: int
    configuration: Configuration
    all_members: tuple[ClusterServer, ...]
    application_entries: int | None
    application: StateMachine
    digests: DigestKeeper


def read_survivor(directory: Path, farm: str, application: StateMachine) -> Survivor:
    """Read the store in ``directory``, whose data directory is locked, and bring the new ``application`` to
    the state after its whole log. On disk nothing is changed but what `LogStore.open` does. Blocking.

    Raises `StorageMissing`, `StorageError`, `StorageDamaged`, `StorageVersion` as `LogStore.open`.
    """
    with closing(LogStore.open(directory, farm=farm)) as store:
        hard_state, last = store.initial_state()[0], store.last_index()
        applied, digests = store.snapshot(), DigestKeeper()
        all_members = {server.id: server for server in applied.configuration.servers}
        if store.restored is not None:
            application.restore(store.restored.state)
            digests.restore(store.restored.chain, 0)
            all_members = {server.id: server for server in store.restored.all_members}
        elif applied.configuration.servers:
            application.configure(0, applied.configuration)
        while applied.index < last:
            page = store.entries(applied.index + 1, last + 1, _PAGE_BYTES)
            for entry in page:
                level = None
                if entry.value_type is ValueType.CONFIGURATION:
                    configuration = decode_configuration(entry.value)
                    all_members.update((server.id, server) for server in configuration.servers)
                    application.configure(entry.index, configuration)
                    level = configuration.level
                else:
                    application.apply(entry.index, entry.term, entry.value)
                digests.add(entry.index, entry.term, entry.value_type, entry.value, level)
            applied = applied.after(page)
        return Survivor(
            farm,
            store.genesis.farm_id,
            hard_state.term,
            hard_state.commit,
            store.first_index(),
            last,
            store.term(last),
            applied.configuration,
            tuple(all_members[member] for member in sorted(all_members)),
            applied.application_entries,
            application,
            digests,
        )


def recover_store(directory: Path, node_id: int, survivor: Survivor) -> tuple[bytes, Path]:
    """Replace the old store with that of the new farm; returns the new farm id, and where the old store is
    kept. Durable on return. An interrupted call leaves the old store, or the new one for `finish_recovery`.
    Blocking.

    Raises `LocalProtocolError` (this node is not a member), `StorageError`.
    """
    servers = tuple(server for server in survivor.configuration.servers if server.id == node_id)
    if not servers:
        raise LocalProtocolError(f"node {node_id} is not a member of the farm {survivor.farm}")
    # What the old farm voted for binds nobody here, so its terms need not be exceeded but for the log's: a
    # message may have raised the current one beyond what an election can follow.
    index, term = survivor.last_index + 1, survivor.last_term + 1
    if term >= MAX_TERM:
        raise StorageError(
            f"{directory}: the last entry has term {survivor.last_term}, which no other can follow"
        )
    before = survivor.configuration
    alone = Configuration(index, before.log_index, servers, before.level)
    entry = Entry(index, term, ValueType.CONFIGURATION, encode_configuration(alone))
    farm_id = secrets.token_bytes(16)
    survivor.application.configure(index, alone)
    survivor.digests.add(entry.index, entry.term, entry.value_type, entry.value, alone.level)
    made, kept = _beside(directory, "recovered"), _beside(directory, survivor.farm_id.hex())
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(mode=0o700)
        with closing(LogStore.open(directory, farm=survivor.farm)) as store:
            genesis = store.copy_to(made, farm_id, HardState(term, 0, index), entry)
        snapshot = Snapshot(
            farm_id,
            genesis.application,
            algorithm_of(alone.level),
            index,
            term,
            alone,
            survivor.all_members,
            survivor.application_entries,
            survivor.application.snapshot(),
            survivor.digests.chain,
        )
        write_snapshot(made / SNAPSHOTS, snapshot)
        LogStore.open(made, farm=survivor.farm).close()  # verifies it, as a node's start will
        fsync_path(made)
        directory.rename(kept)
        made.rename(directory)
        fsync_path(directory.parent)
    except OSError as error:
        raise StorageError(f"{made}: {error}; the store in {directory} is as it was") from error
    return farm_id, kept


def finish_recovery(directory: Path) -> bool:
    """Complete a recovery that was interrupted between its two renames; whether there was one. Raises
    `StorageError`."""
    made = _beside(directory, "recovered")
    if directory.exists() or not made.exists():
        return False
    try:
        made.rename(directory)
        fsync_path(directory.parent)
    except OSError as error:
        raise StorageError(f"cannot rename {made} to {directory.name}: {error.strerror}") from error
    return True


def _beside(directory: Path, what: str) -> Path:
    return directory.with_name(f"{directory.name}~{what}")  # no farm's name has a tilde
