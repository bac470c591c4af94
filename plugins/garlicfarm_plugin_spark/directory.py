"""Directories that a query writes to: a path of this machine, or a URI of any file system that Hadoop knows.

A URI is passed to Spark verbatim and looked at through the Java process. A path is looked at directly, before
Spark takes half a minute to start, and passed on as ``file:``, because Spark may have another default.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol
from uuid import uuid4

from garlicfarm.durable_files import fsync_path, move_into_place
from garlicfarm.errors import ConfigError, GarlicFarmError, UnreachableError
from garlicfarm.levels import FIRST_ALGORITHM

_KIND = ".rows"
"""The file in a directory of rankings that says which rows it has, and by which version of the common
algorithm. Readers of Parquet pass over it."""

_OLD = "_spark_metadata"
_CHUNK_BYTES = 4 * 1024 * 1024
_PART = ".part"


def is_uri(where: str) -> bool:
    """Whether it names a directory of a Hadoop file system, as ``hdfs://…`` or ``file:/…``."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", where) is not None


def location(where: str) -> str:
    """What Spark gets for a path or a URI; ``./a:b`` is a path."""
    return where if is_uri(where) else f"file:{Path(where).absolute()}"


def local_path(where: str) -> Path:
    """Of a directory that commands read without Spark. Raises `ConfigError`: it is a URI."""
    if is_uri(where) and not Path(where).exists():
        raise ConfigError(
            [f"{where} is a URI, and this command needs a path of this machine, such as a mount"]
        )
    return Path(where)


class Directory(Protocol):
    """A directory, which need not exist. Methods raise `ConfigError`, or `UnreachableError` if the servers
    of the file system do not answer, or are not ready."""

    @property
    def name(self) -> str:
        """As the user named it."""

    def names(self, below: str) -> list[str]:
        """The names in one of its directories (``.``: its own); none if that does not exist."""

    def read(self, file: str) -> bytes:
        """A file in it."""

    def add(self, file: str, data: bytes, *, replace: bool = False) -> None:
        """Add a file, all of it or nothing; if there is one already, it stays, unless ``replace``. Raises
        `GarlicFarmError`."""

    def check_writable(self, option: str) -> None:
        """Create it, if need be, and write there. ``option`` named it."""


def open_directory(where: str, session: Any) -> Directory:
    """A path or a URI; a URI needs the ``session`` of Spark."""
    return HadoopDirectory(where, session) if is_uri(where) else LocalDirectory(Path(where))


def check_directory(directory: Directory, rows: str | None = None) -> None:
    """Check what a directory of rankings holds already.

    Raises `ConfigError`: an earlier version wrote there, whose files have other columns and other rows; or
    its ``rows`` are of another kind, or by another version of the common algorithm: which of two rows at an
    index counts is not defined.
    """
    names = directory.names(".")
    if _OLD in names:
        raise ConfigError(
            [
                f"{directory.name} was written by an earlier version of garlicfarm ({_OLD}): name another"
                " directory"
            ]
        )
    if rows is None or _KIND not in names:
        return
    stored, _, version = directory.read(_KIND).decode(errors="replace").strip().partition(" ")
    if version != str(FIRST_ALGORITHM):
        raise ConfigError(
            [
                f"{directory.name} has rankings by version {version or 'unknown'} of the common algorithm,"
                f" and this program ranks by {FIRST_ALGORITHM}: name another directory"
            ]
        )
    if stored != rows:
        raise ConfigError(
            [
                f"{directory.name} has the rankings of --rows {stored}, not {rows}: give that, or name"
                " another directory"
            ]
        )


def claim_directory(directory: Directory, rows: str) -> None:
    """Check it, and have it say which rows it has from now on. Raises what `Directory.add` does, too."""
    check_directory(directory, rows)
    directory.add(_KIND, f"{rows} {FIRST_ALGORITHM}\n".encode())
    check_directory(directory, rows)  # another query may have begun in between


class LocalDirectory:
    """A path of this machine. A file survives a power cut once `add` has returned."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._durable: set[Path] = set()

    @property
    def name(self) -> str:
        return str(self._path)

    def names(self, below: str) -> list[str]:
        return [path.name for path in (self._path / below).glob("*")]

    def read(self, file: str) -> bytes:
        try:
            return (self._path / file).read_bytes()
        except OSError as error:
            raise ConfigError(
                [f"{self._path / file} cannot be read ({error.strerror}): name another directory"]
            ) from error

    def add(self, file: str, data: bytes, *, replace: bool = False) -> None:
        path = self._path / file
        part = path.with_name(f".{path.name}{_PART}")
        try:
            if path.exists() and not replace:
                fsync_path(path.parent)  # a killed process may have left that out
                return
            self._make(path.parent)
            with locked(part, os.O_WRONLY | os.O_CREAT) as descriptor:
                if path.exists() and not replace:  # another process was first
                    part.unlink()
                    fsync_path(path.parent)
                    return
                os.ftruncate(descriptor, 0)
                left = memoryview(data)
                while left:
                    left = left[os.write(descriptor, left[:_CHUNK_BYTES]) :]
                move_into_place(part, path)
        except BlockingIOError as error:
            raise GarlicFarmError(f"{path} cannot be written: another process writes it") from error
        except OSError as error:
            raise GarlicFarmError(f"{path} cannot be written ({error.strerror})") from error

    def clear(self, below: str) -> None:
        """Remove what killed processes left unfinished in one of its directories. A file that a process
        writes is locked, and stays. Raises `OSError`."""
        for part in (self._path / below).glob(f".*{_PART}"):
            with suppress(BlockingIOError, FileNotFoundError), locked(part, os.O_WRONLY):
                part.unlink()

    def check_writable(self, option: str) -> None:
        try:
            self._make(self._path)
            with TemporaryFile(dir=self._path) as file:
                file.write(b"1")
        except OSError as error:
            raise ConfigError(
                [f"{option}: {self._path} cannot be written to ({error.strerror}): name another directory"]
            ) from error

    def _make(self, directory: Path) -> None:
        """Durable once it is made, even if the process that made it was killed before it had synced that."""
        if directory in self._durable and directory.is_dir():
            return
        if self._path in directory.parents or not directory.parent.exists():
            self._make(directory.parent)
        directory.mkdir(exist_ok=True)
        with suppress(PermissionError):  # above, this user may be allowed to pass but not to read
            fsync_path(directory.parent)
        self._durable.add(directory)


class HadoopDirectory:
    """A URI, in a Java process with Spark. Calls block."""

    def __init__(self, uri: str, session: Any) -> None:
        """:param session: a `pyspark.sql.SparkSession`."""
        self._uri = uri
        self._java = session._jvm
        self._conf = session.sparkContext._jsc.hadoopConfiguration()

    @property
    def name(self) -> str:
        return self._uri

    def names(self, below: str) -> list[str]:
        with self._mapped(f"{self._uri} cannot be read"):
            path = self._path(below)
            files = path.getFileSystem(self._conf)
            return [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []

    def read(self, file: str) -> bytes:
        with self._mapped(f"{self._uri}/{file} cannot be read"):
            path = self._path(file)
            stream = path.getFileSystem(self._conf).open(path)
            try:
                return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def add(self, file: str, data: bytes, *, replace: bool = False) -> None:
        from py4j.protocol import Py4JJavaError

        from garlicfarm_plugin_spark.session import cause

        path = self._path(file)
        part = self._java.org.apache.hadoop.fs.Path(path.getParent(), f".{path.getName()}{_PART}")
        try:
            files = path.getFileSystem(self._conf)
            if replace:
                files.delete(path, False)
            elif files.exists(path):
                return
            out = files.create(part, True)
            try:
                for begin in range(0, len(data), _CHUNK_BYTES):
                    out.write(data[begin : begin + _CHUNK_BYTES])
                out.hsync()
            finally:
                out.close()
            if not files.rename(part, path) and not files.exists(path):
                raise GarlicFarmError(f"{path.toString()} cannot be written: {part.getName()} keeps its name")
        except Py4JJavaError as error:
            raise self._away(error) or GarlicFarmError(
                f"{path.toString()} cannot be written: {cause(error)}"
            ) from error

    def check_writable(self, option: str) -> None:
        with self._mapped(f"{option}: {self._uri} cannot be written to"):
            path = self._path(f".garlicfarm-{uuid4().hex}")
            files = path.getFileSystem(self._conf)
            stream = files.create(path)
            try:
                stream.write(b"1")
            finally:
                stream.close()
                files.delete(path, False)

    def _path(self, below: str) -> Any:
        path = self._java.org.apache.hadoop.fs.Path
        return path(self._uri) if below == "." else path(path(self._uri), below)

    @contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        from garlicfarm_plugin_spark.session import cause

        try:
            yield
        except Py4JJavaError as error:
            raise self._away(error) or ConfigError(
                [f"{what} ({cause(error)}): name another directory"]
            ) from error

    def _away(self, error: Exception) -> UnreachableError | None:
        from garlicfarm_plugin_spark.session import unreachable

        return unreachable(error, f"the file system of {self._uri}")


@contextmanager
def locked(path: Path, flags: int) -> Iterator[int]:
    """The descriptor of what no other process has locked, a file or a directory. The lock ends with this
    process.

    Raises `BlockingIOError`: one has, and other `OSError`.
    """
    while True:
        descriptor = os.open(path, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(path, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _is(path: Path, descriptor: int) -> bool:
    """Whether it is this file still: another process may have renamed or removed it before the lock."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
