"""A directory on a disk whose power can fail: it knows what was synced, and what was not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import pytest


class Crash(BaseException):
    """The process died."""


class CrashingDisk:
    """The disk under ``directory``, all of which is durable at first. Then a name or a byte is once the
    directory or the file is synced; `cut_power` loses the others."""

    def __init__(self, directory: Path, rnd: Random) -> None:
        self._directory = directory
        self._rnd = rnd
        self._left = self._fail = 0
        self._names = {path.name: path.stat().st_ino for path in directory.iterdir()}
        self._durable = {path.stat().st_ino: path.read_bytes() for path in directory.iterdir()}
        self._new_names: list[dict[str, int | None]] = []
        self._pending: dict[int, list[tuple[int, bytes | None]]] = {}
        self._deleted: list[BinaryIO] = []  # open, so that no new file gets the number of one

    @contextmanager
    def process(self, dies_at: int, error: int = 0) -> Iterator[None]:
        """Watch the calls that change the directory. At this one the process dies: of a write, part is done,
        of the others nothing. With ``error`` the call fails instead. As on Linux, after a failed sync the
        contents stay visible, and count as synced although they are not."""
        self._left, self._fail = dies_at, error
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "pwrite", "ftruncate", "fsync", "fdatasync", "unlink", "replace"):
                patch.setattr(os, name, self._watching(name, getattr(os, name)))
            with suppress(Crash, OSError):
                yield

    def _watching(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: getattr(self, f"_{name}")(call, *arguments)

    def close(self) -> None:
        """Close the files that were deleted."""
        for file in self._deleted:
            file.close()
        self._deleted.clear()

    @property
    def has_failed(self) -> bool:
        """Whether the process came to the call at which it dies, or which fails."""
        return self._left <= 0

    def cut_power(self, keep: float | None = None) -> None:
        """Only what is durable is there, and of the rest what chance leaves: ``keep`` of it, or the beginning
        or the middle of a write. ``keep`` 0 leaves nothing."""
        is_all_lost = keep == 0
        if keep is None:
            keep = self._rnd.choice((0.0, 0.5, 0.9))
        names = dict(self._names)
        for change in self._new_names:
            if self._rnd.random() < keep:
                for name, number in change.items():
                    names.pop(name, None)
                    if number is not None:
                        names[name] = number
        for path in self._directory.iterdir():
            path.unlink()
        for name, number in names.items():
            content = bytearray(self._durable.get(number, b""))
            for offset, data in self._pending.get(number, []):
                if self._rnd.random() < keep:
                    _change(content, offset, data)
                elif (
                    data and not is_all_lost and self._rnd.random() < 0.5
                ):  # some of it, not always the beginning
                    start = self._rnd.randint(0, len(data))
                    _change(content, offset + start, data[start : self._rnd.randint(start, len(data))])
            (self._directory / name).write_bytes(content)
        self._names = {path.name: path.stat().st_ino for path in self._directory.iterdir()}
        self._durable = {path.stat().st_ino: path.read_bytes() for path in self._directory.iterdir()}
        self._new_names.clear()
        self._pending.clear()
        self.close()

    def _dies(self) -> bool:
        self._left -= 1
        if self._left == 0 and not self._fail:
            raise Crash
        return self._left == 0

    def _open(self, call: Any, path: Any, flags: int, *mode: Any, **how: Any) -> int:
        is_new = flags & os.O_CREAT and not os.path.exists(path)
        descriptor: int = call(path, flags, *mode, **how)
        if is_new and Path(path).parent == self._directory:
            number = os.fstat(descriptor).st_ino
            self._new_names.append({Path(path).name: number})
        return descriptor

    def _pwrite(self, call: Any, descriptor: int, data: bytes, offset: int) -> int:
        pending = self._pending.setdefault(os.fstat(descriptor).st_ino, [])
        self._left -= 1
        if self._left:
            pending.append((offset, data))
            return int(call(descriptor, data, offset))
        part = data[: self._rnd.randint(0, len(data))]
        pending.append((offset, part))
        call(descriptor, part, offset)
        if self._fail:
            raise OSError(self._fail, os.strerror(self._fail))
        raise Crash

    def _ftruncate(self, call: Any, descriptor: int, size: int) -> None:
        if self._dies():
            raise OSError(self._fail, os.strerror(self._fail))
        self._pending.setdefault(os.fstat(descriptor).st_ino, []).append((size, None))
        call(descriptor, size)

    def _fsync(self, call: Any, descriptor: int) -> None:
        number = os.fstat(descriptor).st_ino
        fails = self._dies()
        if number == self._directory.stat().st_ino:
            if fails:
                raise OSError(self._fail, os.strerror(self._fail))
            self._names = {path.name: path.stat().st_ino for path in self._directory.iterdir()}
            self._new_names.clear()
            return
        pending = self._pending.pop(number, [])
        if fails:
            raise OSError(self._fail, os.strerror(self._fail))
        if number not in self._durable:  # a new one, written by other calls
            self._durable[number] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            return
        content = bytearray(self._durable[number])
        for change in pending:
            _change(content, *change)
        self._durable[number] = bytes(content)

    _fdatasync = _fsync

    def _unlink(self, call: Any, path: Any, **how: Any) -> None:
        if Path(path).parent == self._directory and os.path.exists(path):
            if self._dies():
                raise OSError(self._fail, os.strerror(self._fail))
            self._new_names.append({Path(path).name: None})
            self._deleted.append(Path(path).open("rb"))  # noqa: SIM115
        call(path, **how)

    def _replace(self, call: Any, source: Any, target: Any) -> None:
        if self._dies():
            raise OSError(self._fail, os.strerror(self._fail))
        number = os.stat(source).st_ino
        self._new_names.append({Path(source).name: None, Path(target).name: number})
        call(source, target)


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data
