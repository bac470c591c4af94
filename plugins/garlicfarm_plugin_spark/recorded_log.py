"""A farm's log, from a node's data directory or from running nodes, for `rank whatif`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from garlicfarm.client.trust import NodeAccess
from garlicfarm.errors import Compacted, ConfigError, StorageMissing
from garlicfarm.feed import Entry
from garlicfarm.names import is_farm_name
from garlicfarm.storage import DataDirectory, read_committed, read_genesis
from garlicfarm_plugin_spark.node_reader import NodeReader
from garlicfarm_plugin_spark.ranking import STATE, Row


@dataclass(frozen=True)
class RecordedLog:
    """``rows``: in order of their index, without gaps, to be read once; the first may be a state (`STATE`).
    ``farm_id``: 32 hex digits."""

    farm: str
    farm_id: str
    rows: Iterable[Row]


@contextmanager
def read_directory(path: Path, farm: str | None) -> Iterator[RecordedLog]:
    """The log of a node's data directory, or of a copy of one; nothing in it is changed.

    :param farm: the farm's name; None: the only one of the node.
    :raises StorageInUse: the node runs.
    :raises StorageError: the directory cannot be read, or is damaged.
    :raises ConfigError: it is none of a node; the node has no such farm, or ``farm`` is needed; or the farm
        names no publisher.
    """
    with ExitStack() as stack:
        try:
            data = stack.enter_context(DataDirectory.open(path))
        except StorageMissing as error:  # whose advice is for the operator of a node
            raise ConfigError(
                [f"{path} is not a node's data directory: name `data` in the directory of the node"]
            ) from error
        names = sorted(each.name for each in (path / "farms").iterdir() if is_farm_name(each.name))
        if farm is None and len(names) != 1:
            raise ConfigError([f"--farm is needed: {path} has {', '.join(names) or 'no farm'}"])
        farm = farm or names[0]
        if farm not in names:
            raise ConfigError([f"{path} has no farm {farm!r}, only: {', '.join(names) or 'none'}"])
        directory = data.farm_directory(farm)
        _check_application(farm, read_genesis(directory).application)
        log = read_committed(directory)
        state = [] if log.begins is None else [(log.begins.index, 0, STATE, log.begins.state)]
        yield RecordedLog(farm, log.genesis.farm_id.hex(), chain(state, _rows(log.entries)))


@contextmanager
def read_nodes(nodes: NodeAccess, farm: str) -> Iterator[RecordedLog]:
    """The log of the first of ``nodes`` that answers: from index 1, else from the oldest state that the node
    has. The errors can come while its rows are read.

    :raises UnreachableError: none does. :raises AuthError: the user or the certificate is wrong.
    :raises ConfigError: they have no such farm, or it names no publisher; or they deleted entries just now.
    """
    with closing(NodeReader(nodes)) as reader:
        try:
            head = reader.heads((farm,))[farm]
            _check_application(farm, head.application)
            begins, snapshot = reader.oldest_state(farm, head.farm_id)
            state = [(begins, 0, STATE, snapshot)] if begins else []
            pieces = reader.entries(farm, head.farm_id, begins, head.commit_index)
            rows = chain(state, chain.from_iterable(map(_rows, pieces)))
            yield RecordedLog(farm, head.farm_id, rows)
        except Compacted as gone:
            raise ConfigError(
                [
                    f"the nodes deleted entries of {farm} up to index {gone.first_index - 1} just now:"
                    " try again"
                ]
            ) from gone


def _check_application(farm: str, application: str | None) -> None:
    if application not in (None, "publisher"):
        raise ConfigError([f"{farm} runs the application {application}, not publisher: nothing to replay"])


def _rows(entries: Iterable[Entry]) -> Iterator[Row]:
    return ((each.index, each.term, int(each.value_type), each.value) for each in entries)
