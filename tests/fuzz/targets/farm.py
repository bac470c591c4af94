"""Entries, snapshots and stores of a farm."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio

from garlicfarm.errors import EntryRefused, StorageDamaged, StorageError, StorageVersion
from garlicfarm.levels import HIGHEST
from garlicfarm.log_application import LogApplication
from garlicfarm.publishing.entries import check_author, parse_entry
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.strict_json import decode_object
from garlicfarm.raft.types import Entry, HardState, Persist
from garlicfarm.storage import LogStore, Snapshot, Writer, create_store, write_snapshot
from garlicfarm.storage.snapshot_receiver import SnapshotReceiver
from garlicfarm.storage.snapshots import read_snapshot
from garlicfarm.wire import SnapshotSyncRequest, ValueType, encode_configuration
from tests.fuzz.targets.base import DATA, FARM, GENESIS, MEMBERS, MEMORY, Target, choice


@cache
def _scripted_entries() -> tuple[bytes, ...]:
    lines = (DATA / "farm" / "scripted-log.jsonl").read_text().splitlines()
    return tuple(json.loads(line)["entry"].encode() for line in lines if '"entry"' in line)


def status(data: bytes) -> None:
    """Entries, one per line: judged one by one, then folded as if all had been committed."""
    application = PublisherFold(FARM)
    application.configure(0, MEMBERS)
    for index, entry in enumerate(data.split(b"\n"), 1):
        for judge in (decode_object, lambda text: check_author(parse_entry(text, FARM, HIGHEST), 1)):
            with suppress(EntryRefused):
                judge(entry)
        with suppress(EntryRefused):
            application.check(entry, 1)
        application.apply(index, 1, entry)
        msgspec.json.encode(application.ranking())
        application.contents()
    state = application.snapshot()
    restored = PublisherFold(FARM)
    restored.restore(state)
    assert restored.snapshot() == state
    assert restored.ranking() == application.ranking()


def _status_seeds() -> list[bytes]:
    entries = _scripted_entries()
    note = b'{"cluster":"farm","date":1800000000000,"id":0,"sequence":5,"config":{"by":"alice"}}'
    groups = (b"\n".join(entries[start : start + 4]) for start in range(0, min(len(entries), 80), 16))
    return [note, b'{"a":[1.5,-0,1e5,"\\ud83d\\ude00"]}', *entries[:40], *groups]


SENT = Snapshot(GENESIS.farm_id, "log", 2, 30, 2, MEMBERS, MEMBERS.servers, 21, bytes(range(40)))


@cache
def _sent() -> bytes:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        write_snapshot(Path(directory), SENT)
        return (Path(directory) / "30-2.snap").read_bytes()


@cache
def _farm_states() -> tuple[bytes, ...]:
    application, states = PublisherFold(FARM), []
    application.configure(0, MEMBERS)
    for index, entry in enumerate(_scripted_entries()[:60], 1):
        application.apply(index, 1, entry)
        if index % 12 == 3:
            states.append(application.snapshot())
    return tuple(states)


def _snapshot_restore(application: LogApplication | PublisherFold, data: bytes) -> None:
    before = application.snapshot()
    try:
        application.restore(data)
    except (StorageDamaged, StorageVersion):
        assert application.snapshot() == before
        return
    after = application.snapshot()
    application.restore(after)
    assert application.snapshot() == after


def _snapshot_pieces(data: bytes) -> None:
    """Pieces of a sound snapshot and of others: ``flags u8 | offset u16 | length u8``, and if the first
    flag is set the bytes themselves, else the sound ones of that place."""
    sound = _sent()
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        directory = Path(name) / "snapshots"
        receiver = SnapshotReceiver(directory, GENESIS)
        while len(data) >= 4:
            flags, offset, length = data[0], int.from_bytes(data[1:3], "big"), data[3]
            data = data[4:]
            piece = sound[offset : offset + length]
            if flags & 1:
                piece, data = data[:length], data[length:]
            request = SnapshotSyncRequest(30 + (flags >> 4 & 1), 2, MEMBERS, offset, piece, bool(flags & 2))
            held, meta = receiver.take(request)
            assert held >= 0
            if meta is not None:
                assert meta == SENT.meta
                assert read_snapshot(directory / "30-2.snap") == SENT


def _snapshot_file(data: bytes) -> None:
    """A file whose size and checksum are right, whatever it holds."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        path = Path(name) / "30-2.snap"
        path.write_bytes(_sent()[:8] + len(data).to_bytes(8, "big") + sha256(data).digest() + data)
        with suppress(StorageDamaged, StorageVersion):
            read_snapshot(path)


def snapshot(data: bytes) -> None:
    """Snapshots: states that an application takes up, pieces that come in, files."""
    kind, rest = choice(data, 4)
    if kind == 0:
        _snapshot_restore(LogApplication(), rest)
    elif kind == 1:
        _snapshot_restore(PublisherFold(FARM), rest)
    elif kind == 2:
        _snapshot_pieces(rest)
    else:
        _snapshot_file(rest)


def _snapshot_seeds() -> list[bytes]:
    size = len(_sent())
    places = [(at, min(200, size - at)) for at in range(0, size, 200)]
    pieces = [
        bytes([2 * (at + length == size)]) + at.to_bytes(2, "big") + bytes([length]) for at, length in places
    ]
    smallest = PublisherFold(FARM).snapshot()
    return [
        b"\x00" + LogApplication().snapshot(),
        *(b"\x01" + state for state in (smallest, *_farm_states())),
        b"\x02" + b"".join(pieces),
        b"\x02" + pieces[0] + pieces[0] + b"\x01\x00\xc8\x03abc" + pieces[1],
        b"\x03" + _sent()[48:],
    ]


_STEPS = 6
_FILES = ("log/0000000001.seg", "log/0000000002.seg", "log/synced", f"snapshots/{6}-1.snap")


class _Store(NamedTuple):
    """The files of sound stores whose level was raised: one that was closed, and one of a process that was
    killed."""

    closed: dict[str, bytes]
    killed: dict[str, bytes]


def _files(directory: Path) -> dict[str, bytes]:
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


@cache
def _sound_store() -> _Store:
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        directory = Path(name) / "farm"
        create_store(directory, GENESIS)
        state = LogApplication()
        steps = []
        for token in range(_STEPS):
            entries = [
                Entry(2 * token + at, 1, ValueType.APPLICATION, bytes([token]) * 50 * token) for at in (1, 2)
            ]
            for entry in entries:
                state.apply(entry.index, entry.term, entry.value)
            steps.append(Persist(token, HardState(1, 2, 2 * token + 2), None, tuple(entries)))
            if token == 2:
                taken = Snapshot(
                    GENESIS.farm_id, "log", 2, 6, 1, MEMBERS, MEMBERS.servers, 4, state.snapshot()
                )
        raised = encode_configuration(msgspec.structs.replace(MEMBERS, log_index=2 * _STEPS + 1, level=1))
        entry = Entry(2 * _STEPS + 1, 1, ValueType.CONFIGURATION, raised)
        steps.append(Persist(_STEPS, HardState(1, 2, entry.index), None, (entry,)))
        killed = trio.run(_write, directory, steps)
        write_snapshot(directory / "snapshots", taken)
        closed = _files(directory)
    return _Store(closed, killed)


async def _write(directory: Path, steps: Sequence[Persist]) -> dict[str, bytes]:
    """Write the steps, each a transaction; the files as a process leaves them that is killed then."""
    with closing(LogStore.open(directory, farm=FARM)) as store:
        durable = trio.Event()
        writer = Writer(store, lambda token: durable.set())
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: writer.run(task_status=task_status))
            for step in steps:
                durable = trio.Event()
                writer.submit(step)
                await durable.wait()
            files = _files(directory)
            nursery.cancel_scope.cancel()
    return files


def store(data: bytes) -> None:
    """A store with changed bytes: ``file u8``, then changes of ``place u16 | xor u8``; with the highest bit
    of the first byte the file ends at the first place instead. It opens and serves, or says why not."""
    if not data:
        return
    name = _FILES[data[0] % len(_FILES)]
    sound = _sound_store()
    files = dict(sound.killed if data[0] & 0x40 else sound.closed)
    changed = bytearray(files.get(name, b""))
    places = [data[at : at + 3] for at in range(1, len(data) - 2, 3)]
    for change in places if changed else ():
        place = int.from_bytes(change[:2], "big") % len(changed)
        if data[0] & 0x80:
            del changed[place:]
            break
        changed[place] ^= change[2]
    files[name] = bytes(changed)
    with tempfile.TemporaryDirectory(dir=MEMORY) as where:
        directory = Path(where)
        for file, content in files.items():
            (directory / file).parent.mkdir(exist_ok=True)
            (directory / file).write_bytes(content)
        try:
            found = _contents(directory)
        except StorageError:
            return
        if name in _FILES[:2] and len(places) == 1 and not data[0] & 0x80:  # a checksum finds one such change
            shutil.rmtree(directory)
            for file, content in (sound.killed if data[0] & 0x40 else sound.closed).items():
                (directory / file).parent.mkdir(parents=True, exist_ok=True)
                (directory / file).write_bytes(content)
            assert found == _contents(directory)


def _contents(directory: Path) -> tuple[Any, ...]:
    with closing(LogStore.open(directory, farm=FARM)) as opened:
        last = opened.last_index()
        first = opened.first_index()
        return opened.initial_state(), opened.entries(first, last + 1, 1 << 30) if last >= first else ()


def _store_seeds() -> list[bytes]:
    places = [b"\x00\x10\x01", b"\x10\x05\x80", b"\x20\x64\xff", b"\x10\x05\x80\x20\x64\xff", b""]
    kinds = [file | killed | cut for file in range(len(_FILES)) for killed in (0, 0x40) for cut in (0, 0x80)]
    return [bytes([kind]) + place for kind in kinds for place in places]


TARGETS = {
    "status": Target(status, _status_seeds),
    "snapshot": Target(snapshot, _snapshot_seeds),
    "store": Target(store, _store_seeds),
}
