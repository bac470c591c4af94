"""The streaming sink ``garlicfarm``: stores the rankings of a query at a node, where operators see them.

Options:

``url``, ``url.NAME``, ``user``, ``passwordFile``, ``pin``, ``ca``
    As for the source; the user needs the role writer. Only the driver connects, and reads the files. The
    URLs are tried in turn; a ranking is stored at the first node that takes it.
``query``
    The name under which the rankings are stored.
``run``
    Tells one count of batches from another: after a new checkpoint they count from 0 again. By default it is
    the query's id, which Spark writes into the checkpoint. Where the driver cannot read that as a file, as on
    another file system, it is a new one at each start.
``failOnDataLoss``
    ``false``: the ranking of a farm that the node does not have is logged and left out. A farm may be deleted
    after its rows were read.

The rows are those of `garlicfarm_plugin_spark.ranking.rankings`. Of each farm the newest row of a batch is
stored, with one idempotent request, when Spark commits the batch. A driver that is killed between the request
and Spark's own note of it repeats the batch, and the node recognizes its bytes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark.hide_traceback import hide_traceback
from garlicfarm_plugin_spark.node_reader import NodeReader
from garlicfarm_plugin_spark.options import GivenOptions

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from garlicfarm.client.trust import NodeAccess

OPTIONS = ("url", "user", "passwordFile", "query", "pin", "ca", "run", "failOnDataLoss")
COLUMNS = ("farm", "farm_id", "log_index", "ranking")
_log = logging.getLogger("garlicfarm.spark")
_OF_SPARK = ("checkpointlocation", "queryname")


@dataclass(frozen=True)
class Ranking:
    """The newest row of one farm in one batch."""

    farm: str
    farm_id: str
    index: int
    body: str


@dataclass
class Newest(WriterCommitMessage):
    """What one task has written: of each farm the newest ranking."""

    rankings: Sequence[Ranking]


class RankingWriter(DataSourceStreamArrowWriter):
    """Raises `ConfigError`: an option is missing, unknown or wrong, or rows are no rankings.

    :param fresh_run: the ``run`` of a query whose checkpoint cannot be read.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, fresh_run: str) -> None:
        given = GivenOptions(options, OPTIONS, _OF_SPARK)
        self._nodes = given.access(given.text("url").split())
        self._nodes_of = {farm: given.access(urls) for farm, urls in given.urls.items()}  # in lower case
        self._query = given.name("query") or given.text("query")
        self._run = given.name("run")
        self._strict = given.flag("failOnDataLoss")
        given.problems += [
            f"the rows have no column {name}: the sink takes those of rankings()"
            for name in COLUMNS
            if name not in schema.fieldNames()
        ]
        given.check()
        self._checkpoint = options.get("checkpointLocation")
        self._fresh_run = fresh_run

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Newest:
        newest: dict[str, Ranking] = {}
        for batch in iterator:
            farms, ids, indexes, bodies = (batch.column(name) for name in COLUMNS)
            for row, (farm_id, index) in enumerate(zip(ids.to_pylist(), indexes.to_pylist(), strict=True)):
                if farm_id not in newest or newest[farm_id].index < index:
                    newest[farm_id] = Ranking(farms[row].as_py(), farm_id, index, bodies[row].as_py())
        return Newest(list(newest.values()))

    @hide_traceback()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        rankings: list[Ranking] = []
        for message in messages:
            assert isinstance(message, Newest)  # none is None: all tasks have succeeded
            rankings += message.rankings
        newest = {each.farm_id: each for each in sorted(rankings, key=lambda each: each.index)}
        of_nodes: dict[NodeAccess, list[Ranking]] = {}
        for ranking in newest.values():
            of_nodes.setdefault(self._nodes_of.get(ranking.farm.lower(), self._nodes), []).append(ranking)
        for nodes, there in of_nodes.items():
            with closing(NodeReader(nodes)) as reader:
                self._store(reader, there, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was stored before `commit`, which is repeated."""

    def _store(self, reader: NodeReader, rankings: Sequence[Ranking], batch: int) -> None:
        """Raises `ConfigError`: the node has no such farm, or another one of that name, and the sink is
        strict."""
        run = self._run or _query_id(self._checkpoint) or self._fresh_run
        heads = reader.heads()
        for ranking in rankings:
            farm = ranking.farm
            if farm in heads and heads[farm].farm_id == ranking.farm_id:
                body = ranking.body.encode()
                reader.put_ranking(farm, self._query, batch, body, asof=ranking.index, run=run)
                continue
            if self._strict:
                raise ConfigError(
                    [
                        f"the node of the sink has no farm {farm} with the id {ranking.farm_id}: give URLs of"
                        " nodes that have the farms of the rows"
                    ]
                )
            _log.warning(
                "%s",
                f"the node of the sink has no farm {farm} with the id {ranking.farm_id}: its ranking at index"
                f" {ranking.index} is not stored",
            )


def _query_id(checkpoint: str | None) -> str | None:
    """The id that Spark has given the query with this checkpoint; None: it is not in a file of this
    machine."""
    if checkpoint is None:
        return None
    url = urlsplit(checkpoint)
    if url.scheme not in ("", "file"):
        return None
    try:
        text = Path(unquote(url.path) if url.scheme else checkpoint, "metadata").read_text(encoding="utf-8")
        return str(json.loads(text)["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
