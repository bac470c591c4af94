"""Storage that forgets what was not synced when the power goes: a FUSE file system in memory.

Every file and every directory has two states: what processes see, and what would be there after a power
cut. A write, a truncation or a change of names touches the first only; fsync or fdatasync of the file
(of the directory, for names) makes the second equal to it. POSIX promises no more, so a name that
nobody synced is lost as well, be its file synced or not. Owner and mode are not lost.

::

    unshare -rm python powerloss.py MOUNTPOINT    then, on stdin, a line each, answered by a number:

    lose KEEP SEED    cut the power: of the unsynced changes each survives with probability KEEP
    fail WHAT         from now on fails with an error what writes (full: ENOSPC), or syncs files (sync:
                      EIO, and what was unsynced counts as synced although it is not), or leaves every sync
                      of a file without an answer (hang); none: no longer, and those are done. The answer:
                      how many calls failed since the last such line
    count             how many fsyncs of files there were

It speaks the kernel's FUSE protocol 7.31 (linux/fuse.h) itself, so that no library is needed. Shared
mappings, POSIX and BSD locks work: they are the kernel's. The idea is from a file system over the
library fusepy that held writes back until fsync.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import select
import stat
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from garlicfarm.lab.line_server import LineServer, line_server, startup_error

_HEADER = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node …
_ANSWER = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_IO = struct.Struct("<QQIIQII")  # handle, offset, size …
_REQUEST_BYTES = 1 << 18
_MAX_WRITE = 1 << 17
_VALID_S = 3600  # the kernel sees every change, it may remember as long as it likes
_SET_MODE, _SET_SIZE = 1, 8
_KEEP_CACHE = 2
_DETACH = 2
_ROOT = 1

_NO_ANSWER = (2, 42)  # FORGET, BATCH_FORGET
_EMPTY = (18, 25, 29)  # RELEASE, FLUSH, RELEASEDIR


class File:
    """``pending``: (offset, bytes) written, or (size, None) truncated, since the last sync."""

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.links = 0
        self.changed_ns = time.time_ns()
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []

    def change(self, offset: int, data: bytes | None) -> None:
        self.pending.append((offset, data))
        self.changed_ns = time.time_ns()
        _change(self.content, offset, data)

    def sync(self) -> None:
        for change in self.pending:
            _change(self.durable, *change)
        self.pending.clear()

    def lose(self, survives: Callable[[], bool]) -> None:
        self.pending = [change for change in self.pending if survives()]
        self.sync()
        self.content = self.durable[:]


class Directory:
    """``pending``: changes of names since the last sync; those of one change come true together."""

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.links = 0
        self.changed_ns = time.time_ns()
        self.content: dict[bytes, Node] = {}
        self.durable: dict[bytes, Node] = {}
        self.pending: list[dict[bytes, Node | None]] = []

    def change(self, names: dict[bytes, Node | None]) -> None:
        self.pending.append(names)
        self.changed_ns = time.time_ns()
        _rename(self.content, names)

    def sync(self) -> None:
        self.durable = dict(self.content)
        self.pending.clear()

    def lose(self, survives: Callable[[], bool]) -> None:
        for names in self.pending:
            if survives():
                _rename(self.durable, names)
        self.pending.clear()
        self.content = dict(self.durable)


Node = File | Directory


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def _rename(content: dict[bytes, Node], names: dict[bytes, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            content.pop(name, None)
        else:
            content[name] = node


class PowerLoss:
    """The file system, mounted at ``mountpoint`` from `mount` on."""

    def __init__(self, mountpoint: Path) -> None:
        self.syncs = 0
        self.failing = "none"
        self._failures = 0
        self._hanging: list[tuple[int, int, bytes]] = []  # syncs that wait: unique, number, body
        self._mountpoint = os.fsencode(mountpoint)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._root = Directory(stat.S_IFDIR | 0o700)
        self._nodes: dict[int, Node] = {}
        self._numbers: dict[int, int] = {}  # id(node) → number; self._nodes keeps the node alive
        self._buffer = bytearray(_REQUEST_BYTES)
        self.descriptor = -1

    def mount(self) -> None:
        """Show the tree to the system. Raises `OSError`."""
        self._nodes, self._numbers = {}, {}
        self._number(self._root)
        self._root.links = 2
        self._count_links(self._root)
        self.descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.descriptor},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        if self._libc.mount(b"powerloss", self._mountpoint, b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "cannot mount")

    def unmount(self) -> None:
        """Break the connection first: what the kernel still holds dirty is lost, as it should be."""
        os.close(self.descriptor)
        if self._libc.umount2(self._mountpoint, _DETACH):
            raise OSError(ctypes.get_errno(), "cannot unmount")

    def lose(self, survives: Callable[[], bool]) -> int:
        """Cut the power and mount what is left. Returns how many changes were unsynced."""
        self.unmount()
        unsynced = sum(len(node.pending) for node in self._nodes.values())
        for node in self._nodes.values():
            node.lose(survives)
        self.mount()
        return unsynced

    def serve_one(self) -> None:
        """Read one request of the kernel's, and answer it."""
        try:
            size = os.readv(self.descriptor, [self._buffer])
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                return  # the request was interrupted meanwhile
            raise
        _, opcode, unique, number, *_ = _HEADER.unpack_from(self._buffer)
        body = bytes(memoryview(self._buffer)[_HEADER.size : size])
        if opcode in _NO_ANSWER:
            return
        if opcode == 20 and self.failing == "hang":
            self._hanging.append((unique, number, body))
        elif opcode == 36:  # INTERRUPT: whoever waits is being killed
            self._interrupt(*struct.unpack_from("<Q", body))
        else:
            self._serve(opcode, unique, number, body)

    def fail(self, what: str) -> int:
        """See the module's page."""
        failed, self._failures, self.failing = self._failures, 0, what
        if what != "hang":
            hanging, self._hanging = self._hanging, []
            for asked in hanging:
                self._serve(20, *asked)
        return failed

    def _interrupt(self, unique: int) -> None:
        for asked in self._hanging:
            if asked[0] == unique:
                self._hanging.remove(asked)
                self._send(unique, -errno.EINTR, b"")
                return

    def _serve(self, opcode: int, unique: int, number: int, body: bytes) -> None:
        try:
            failure, answer = 0, self._answer(opcode, number, body)
        except OSError as error:
            failure, answer = -(error.errno or errno.EIO), b""
        self._send(unique, failure, answer)

    def _send(self, unique: int, failure: int, answer: bytes) -> None:
        try:
            os.writev(self.descriptor, [_ANSWER.pack(_ANSWER.size + len(answer), failure, unique), answer])
        except OSError as error:
            if error.errno != errno.ENOENT:  # whoever asked was killed
                raise

    def _answer(self, opcode: int, number: int, body: bytes) -> bytes:
        if opcode in _EMPTY:
            return b""
        if opcode == 26:  # INIT
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, _MAX_WRITE, 1 << 5, 16, 12, _MAX_WRITE, 1, 0, 0, 0)
        if opcode == 17:  # STATFS
            return struct.pack("<QQQQQIII28x", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096)
        node = self._nodes[number]
        if isinstance(node, File):
            return self._file(opcode, node, body)
        return self._directory(opcode, node, body)

    def _both(self, opcode: int, node: Node, body: bytes) -> bytes:
        if opcode == 3:  # GETATTR
            return struct.pack("<QII", _VALID_S, 0, 0) + self._attributes(node)
        if opcode == 4:  # SETATTR
            valid, size, mode = struct.unpack_from("<I12xQ44xI", body)
            if valid & _SET_SIZE and isinstance(node, File):
                node.change(size, None)
            if valid & _SET_MODE:
                node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
            return struct.pack("<QII", _VALID_S, 0, 0) + self._attributes(node)
        if opcode in (14, 27):  # OPEN, OPENDIR
            return struct.pack("<QII", 0, _KEEP_CACHE, 0)
        raise OSError(errno.ENOSYS, "")

    def _file(self, opcode: int, file: File, body: bytes) -> bytes:
        if opcode == 15:  # READ
            _, offset, size, *_ = _IO.unpack_from(body)
            return bytes(file.content[offset : offset + size])
        if opcode == 16:  # WRITE
            self._need_space()
            _, offset, size, *_ = _IO.unpack_from(body)
            file.change(offset, body[_IO.size : _IO.size + size])
            return struct.pack("<II", size, 0)
        if opcode == 20:  # FSYNC
            self.syncs += 1
            if self.failing == "sync":
                file.pending.clear()  # as Linux does: the pages stay, and count as written
                self._failures += 1
                raise OSError(errno.EIO, "")
            file.sync()
            return b""
        return self._both(opcode, file, body)

    def _directory(self, opcode: int, directory: Directory, body: bytes) -> bytes:
        content = directory.content
        if opcode == 1:  # LOOKUP
            return self._entry(_find(content, body[:-1]))
        if opcode == 28:  # READDIR
            _, offset, size, *_ = _IO.unpack_from(body)
            return self._list(content, offset, size)
        if opcode == 30:  # FSYNCDIR
            directory.sync()
            return b""
        if opcode == 35:  # CREATE
            file = File(struct.unpack_from("<4xI", body)[0])
            self._add(directory, body[16:-1], file)
            return self._entry(file) + struct.pack("<QII", 0, _KEEP_CACHE, 0)
        if opcode == 8:  # MKNOD
            file = File(struct.unpack_from("<I", body)[0])
            self._add(directory, body[16:-1], file)
            return self._entry(file)
        if opcode == 9:  # MKDIR
            made = Directory(stat.S_IFDIR | struct.unpack_from("<I", body)[0])
            self._add(directory, body[8:-1], made)
            return self._entry(made)
        if opcode in (10, 11):  # UNLINK, RMDIR
            node = _find(content, body[:-1])
            if isinstance(node, Directory) and node.content:
                raise OSError(errno.ENOTEMPTY, "")
            node.links -= 1
            directory.change({body[:-1]: None})
            return b""
        if opcode in (12, 45):  # RENAME, RENAME2
            start = 8 if opcode == 12 else 16
            if opcode == 45 and body[8:12] != bytes(4):
                raise OSError(errno.EINVAL, "")
            target = self._nodes[struct.unpack_from("<Q", body)[0]]
            assert isinstance(target, Directory)
            old, new = body[start:-1].split(b"\0")
            self._rename(directory, old, target, new)
            return b""
        return self._both(opcode, directory, body)

    def _need_space(self) -> None:
        if self.failing == "full":
            self._failures += 1
            raise OSError(errno.ENOSPC, "")

    def _add(self, directory: Directory, name: bytes, node: Node) -> None:
        self._need_space()
        node.links = 1 if isinstance(node, File) else 2
        directory.change({name: node})

    def _rename(self, source: Directory, old: bytes, target: Directory, new: bytes) -> None:
        node, replaced = _find(source.content, old), target.content.get(new)
        if replaced is not None:
            replaced.links -= 1
        if source is target:
            source.change({old: None, new: node})
        else:
            target.change({new: node})
            source.change({old: None})

    def _list(self, content: dict[bytes, Node], offset: int, size: int) -> bytes:
        answer = b""
        for place, (name, node) in enumerate(list(content.items())[offset:], offset + 1):
            kind = stat.S_IFMT(node.mode) >> 12
            entry = struct.pack("<QQII", self._number(node), place, len(name), kind) + name
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def _entry(self, node: Node) -> bytes:
        head = _ENTRY.pack(self._number(node), 0, _VALID_S, _VALID_S, 0, 0)
        return head + self._attributes(node)

    def _attributes(self, node: Node) -> bytes:
        size = len(node.content) if isinstance(node, File) else 4096
        seconds, nanos = divmod(node.changed_ns, 1_000_000_000)
        times = (seconds, seconds, seconds, nanos, nanos, nanos)
        owner = (os.getuid(), os.getgid(), 0)
        return _ATTRIBUTES.pack(
            self._number(node), size, (size + 511) // 512, *times, node.mode, node.links, *owner, 4096, 0
        )

    def _number(self, node: Node) -> int:
        number = self._numbers.setdefault(id(node), _ROOT + len(self._numbers))
        self._nodes[number] = node
        return number

    def _count_links(self, directory: Directory) -> None:
        for node in directory.content.values():
            self._number(node)
            if isinstance(node, File):
                node.links = 1
            else:
                node.links = 2
                self._count_links(node)


def _find(content: dict[bytes, Node], name: bytes) -> Node:
    try:
        return content[name]
    except KeyError:
        raise OSError(errno.ENOENT, "") from None


def serve(mountpoint: Path) -> None:
    """Serve the kernel, and commands on stdin, until its end."""
    system = PowerLoss(mountpoint)
    system.mount()
    commands = bytearray()
    while True:
        readable, _, _ = select.select([system.descriptor, 0], [], [])
        if 0 in readable:
            data = os.read(0, 4096)
            if not data:
                break
            commands += data
            while b"\n" in commands:
                line, _, rest = bytes(commands).partition(b"\n")
                commands = bytearray(rest)
                print(_obey(system, line.decode().split()), flush=True)
        elif system.descriptor in readable:
            system.serve_one()
    system.unmount()


def _obey(system: PowerLoss, command: list[str]) -> int:
    if command == ["count"]:
        return system.syncs
    if command[0] == "fail":
        return system.fail(command[1])
    word, keep, seed = command
    assert word == "lose"
    rnd = random.Random(int(seed))
    return system.lose(lambda: rnd.random() < float(keep))


class Storage:
    """The file system from the side of the test: made by `mounted`."""

    def __init__(self, served: LineServer) -> None:
        self._served = served

    async def lose(self, keep: float, seed: int) -> int:
        """Cut the power; every process that has files open must have been killed. Of the unsynced
        changes each survives with probability ``keep``. Returns how many there were."""
        return int(await self._served.ask(f"lose {keep} {seed}"))

    async def fail(self, what: str) -> int:
        """Let every write (``full``) or every sync (``sync``) fail from now on, or every sync wait
        (``hang``); ``none``: no longer. Returns how many calls failed since it was last called."""
        return int(await self._served.ask(f"fail {what}"))

    async def syncs(self) -> int:
        """How many fsyncs of files there were."""
        return int(await self._served.ask("count"))


@asynccontextmanager
async def mounted(mountpoint: Path) -> AsyncIterator[Storage]:
    """The file system at ``mountpoint`` for as long as the block lasts, served by an own process; this
    process must be in a mount namespace of its own."""
    async with line_server([sys.executable, __file__, str(mountpoint)]) as served:
        storage = Storage(served)
        if await storage.syncs():
            raise EOFError("the file system did not start")
        yield storage


def why_unavailable(sandbox: Sequence[str] = ("unshare", "-rm")) -> str | None:
    """Why this machine cannot mount it in the namespaces that ``sandbox`` makes; None if it can."""
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    with tempfile.TemporaryDirectory() as directory:
        cause = startup_error([*sandbox, sys.executable, __file__, directory])
    return cause and f"no FUSE mount: {cause}"


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
