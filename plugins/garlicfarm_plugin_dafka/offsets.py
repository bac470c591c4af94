"""Where a consumer was in each partition, in a file, so that a new process continues there."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import ExitStack
from pathlib import Path

import msgspec

from garlicfarm.durable_files import locked, make_private_directory, replace_file
from garlicfarm.errors import StorageDamaged, StorageError, StorageInUse
from garlicfarm.regular_files import read_file
from garlicfarm_plugin_dafka.reading import LAST_SEQUENCE, Partition


class _Offset(msgspec.Struct, frozen=True):
    topic: str
    partition: str
    next: int


class _Offsets(msgspec.Struct, frozen=True, omit_defaults=True):
    schema: str
    offsets: list[_Offset]
    forgot: list[str] = []


_SCHEMA = "garlicfarm.dafka.offsets/1"


class OffsetsFile:
    """The next record of each partition, ``saved`` in a JSON file, and the topics of which the consumer has
    ``forgot`` partitions. One process at a time has it open, by a lock beside it.

    Raises `StorageInUse`; `StorageDamaged`: the file holds something else; `StorageError`: it cannot be read
    or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        lock = path.with_name(f"{path.name}.lock")
        with ExitStack() as stack:
            try:
                make_private_directory(path.parent)
                stack.enter_context(locked(lock))
            except BlockingIOError as error:
                raise StorageInUse(
                    f"{path} is in use by another consumer; stop that one, or name another file"
                ) from error
            except OSError as error:
                raise StorageError(f"{lock}: {error.strerror}") from error
            self.saved, self.forgot = _read(path)
            self.close = stack.pop_all().close
            """Let another process open it."""

    def save(self, offsets: Mapping[Partition, int], forgot: Set[str] = frozenset()) -> None:
        """Replace what the file holds; a crash leaves the old contents or the new ones, which are durable on
        return."""
        if (offsets, forgot) == (self.saved, self.forgot):
            return
        rows = [_Offset(*key, following) for key, following in offsets.items()]
        saved = _Offsets(_SCHEMA, rows, sorted(forgot))
        data = msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n"
        try:
            replace_file(self.path, [data], 0o600)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}") from error
        self.saved, self.forgot = dict(offsets), frozenset(forgot)


def _read(path: Path) -> tuple[dict[Partition, int], frozenset[str]]:
    try:
        found = msgspec.json.decode(read_file(path), type=_Offsets)
    except FileNotFoundError:
        return {}, frozenset()
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise StorageDamaged(f"{path} holds no offsets of a consumer ({error}); name another file") from error
    if found.schema != _SCHEMA or any(not 0 <= each.next <= LAST_SEQUENCE + 1 for each in found.offsets):
        raise StorageDamaged(f"{path} holds no offsets of a consumer; name another file")
    return {(each.topic, each.partition): each.next for each in found.offsets}, frozenset(found.forgot)
