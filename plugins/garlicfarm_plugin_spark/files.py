"""A directory to which a sink adds files: of this machine, or of a file system that Spark knows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from garlicfarm.durable_files import fsync_path, move_into_place
from garlicfarm.errors import ConfigError, GarlicFarmError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Files", "HadoopFiles", "LocalFiles", "check_directory", "is_uri"]

_OLD = "_spark_metadata"
_CHUNK_BYTES = 4 * 1024 * 1024


def is_uri(where: str) -> bool:
    """Whether it names a directory of a Hadoop file system, as ``hdfs://…`` or ``file:/…``."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", where) is not None


class Files(Protocol):
    """A directory to which files are added."""

    def has(self, name: str) -> bool:
        """Whether there is something of this name, a path below the directory."""

    def add(self, name: str, data: bytes) -> None:
        """Add a file, all of it or nothing; if there is one already, it stays. Raises `GarlicFarmError`."""


class LocalFiles:
    """A directory of this machine; a file in it survives a power cut once `add` has returned."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def has(self, name: str) -> bool:
        return (self._directory / name).exists()

    def add(self, name: str, data: bytes) -> None:
        path = self._directory / name
        part = path.with_name(f".{path.name}.part")
        try:
            if path.exists():
                fsync_path(path.parent)  # a killed process may have left that out
                return
            _make_directory(path.parent)
            part.write_bytes(data)
            move_into_place(part, path)
        except OSError as error:
            raise GarlicFarmError(f"{path} cannot be written ({error.strerror})") from error


class HadoopFiles:
    """A directory of any file system that Spark knows, by its URI."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        """Raises `ConfigError`: Spark knows no such file system."""
        from py4j.protocol import Py4JJavaError

        from garlicfarm_plugin_spark.session import cause

        jvm: Any = spark._jvm
        context: Any = spark._jsc
        self._path = jvm.org.apache.hadoop.fs.Path
        try:
            self._root = self._path(uri)
            self._files = self._root.getFileSystem(context.hadoopConfiguration())
        except Py4JJavaError as error:
            raise ConfigError([f"{uri} is in no file system that Spark knows: {cause(error)}"]) from error

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._path(self._root, name)))

    def add(self, name: str, data: bytes) -> None:
        from py4j.protocol import Py4JJavaError

        from garlicfarm_plugin_spark.session import cause

        path = self._path(self._root, name)
        part = self._path(path.getParent(), f".{path.getName()}.part")
        try:
            if self._files.exists(path):
                return
            out = self._files.create(part, True)
            try:
                for begin in range(0, len(data), _CHUNK_BYTES):
                    out.write(data[begin : begin + _CHUNK_BYTES])
                out.hsync()
            finally:
                out.close()
            if not self._files.rename(part, path) and not self._files.exists(path):
                raise GarlicFarmError(f"{path.toString()} cannot be written: {part.getName()} keeps its name")
        except Py4JJavaError as error:
            raise GarlicFarmError(f"{path.toString()} cannot be written: {cause(error)}") from error


def check_directory(files: Files, where: str) -> None:
    """Raises `ConfigError` if an earlier version wrote there: its files have other columns and other rows."""
    if files.has(_OLD):
        raise ConfigError(
            [f"{where} was written by an earlier version of garlicfarm ({_OLD}): name another directory"]
        )


def _make_directory(directory: Path) -> None:
    """Durable once it is made."""
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        fsync_path(directory.parent)
