"""Directories that a query writes to: a path of this machine, or a URI of any file system that Hadoop knows.

A URI is passed to Spark verbatim and looked at through the Java process. A path is looked at directly, before
Spark takes half a minute to start, and passed on as ``file:``, because Spark may have another default.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol
from uuid import uuid4

from garlicfarm.errors import ConfigError, UnreachableError
from garlicfarm_plugin_spark.files import is_uri

__all__ = ["HadoopPlace", "LocalPlace", "Place", "location"]

_NETWORK = ("java.net.", "org.apache.hadoop.net.", "java.nio.channels.UnresolvedAddressException")


def location(where: str) -> str:
    """What Spark gets for a path or a URI; ``./a:b`` is a path."""
    return where if is_uri(where) else f"file:{Path(where).absolute()}"


class Place(Protocol):
    """A directory, which need not exist. Methods raise `ConfigError`, or `UnreachableError` if the servers
    of the file system do not answer."""

    @property
    def name(self) -> str:
        """As the user named it."""

    def names(self, below: str) -> list[str]:
        """The names in one of its directories; none if that does not exist."""

    def read(self, file: str) -> bytes:
        """A file in it."""

    def check_writable(self, option: str) -> None:
        """Create it, if need be, and write there. ``option`` named it."""


class LocalPlace:
    """A path of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

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

    def check_writable(self, option: str) -> None:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self._path) as file:
                file.write(b"1")
        except OSError as error:
            raise ConfigError(
                [f"{option}: {self._path} cannot be written to ({error.strerror}): name another directory"]
            ) from error


class HadoopPlace:
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
        return path(path(self._uri), below)

    @contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        from garlicfarm_plugin_spark.session import cause

        try:
            yield
        except Py4JJavaError as error:
            if _is_network(error.java_exception):
                raise UnreachableError(
                    f"the file system of {self._uri} does not answer ({cause(error)})",
                    "is its server running, and the address right?",
                ) from error
            raise ConfigError([f"{what} ({cause(error)}): name another directory"]) from error


def _is_network(error: Any) -> bool:
    while error is not None:
        if str(error.getClass().getName()).startswith(_NETWORK):
            return True
        error = error.getCause()
    return False
