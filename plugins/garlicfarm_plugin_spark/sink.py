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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from garlicfarm.errors import ConfigError
from garlicfarm.names import FARM_NAME_RULE, did_you_mean, is_farm_name
from garlicfarm_plugin_spark.hide_traceback import hide_traceback

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from garlicfarm.client import AdminClient

__all__ = ["RankingWriter"]

REQUIRED = ("url", "user", "passwordFile", "query")
OPTIONAL = ("pin", "ca", "run", "failOnDataLoss")
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
        problems = [f"the option {name} is missing" for name in REQUIRED if not options.get(name)]
        known = {name.lower() for name in (*REQUIRED, *OPTIONAL)} | {*_OF_SPARK}
        problems += [
            f"the option {name} is unknown{did_you_mean(name, (*REQUIRED, *OPTIONAL))}"
            for name in options
            if name.lower() not in known and not name.lower().startswith("url.")
        ]
        for name in ("query", "run"):
            if options.get(name) and not is_farm_name(options[name]):
                problems.append(f"{name} is {options[name]!r}, not {FARM_NAME_RULE}")
        strict = options.get("failOnDataLoss", "true").lower()
        if strict not in ("true", "false"):
            problems.append(f"failOnDataLoss is {strict!r}, not true or false")
        problems += [
            f"the rows have no column {name}: the sink takes those of rankings()"
            for name in COLUMNS
            if name not in schema.fieldNames()
        ]
        if problems:
            raise ConfigError(problems)
        self._options = {name: options[name] for name in (*REQUIRED, *OPTIONAL) if name in options}
        self._urls = {  # by farm, in lower case as Spark passes it
            name.lower().removeprefix("url."): value
            for name, value in options.items()
            if name.lower().startswith("url.")
        }
        self._strict = strict == "true"
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
        import trio

        newest: dict[str, Ranking] = {}
        for message in messages:
            assert isinstance(message, Newest)  # none is None: all tasks have succeeded
            for ranking in message.rankings:
                if ranking.farm_id not in newest or newest[ranking.farm_id].index < ranking.index:
                    newest[ranking.farm_id] = ranking
        if newest:
            trio.run(self._store, list(newest.values()), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing was stored before `commit`, which is repeated."""

    async def _store(self, rankings: Sequence[Ranking], batch: int) -> None:
        from garlicfarm.client import AdminClient
        from garlicfarm.credentials.private_files import read_private_file

        options = self._options
        # Read each time: it may have been changed.
        password = read_private_file(Path(options["passwordFile"])).strip()
        of_urls: dict[str, list[Ranking]] = {}
        for ranking in rankings:
            of_urls.setdefault(self._urls.get(ranking.farm.lower(), options["url"]), []).append(ranking)
        for urls, group in of_urls.items():
            async with AdminClient(
                urls.split(),
                user=options["user"],
                password=password,
                pin=options.get("pin"),
                ca=Path(options["ca"]) if "ca" in options else None,
            ) as client:
                await self._store_at(client, group, batch)

    async def _store_at(self, client: AdminClient, rankings: Sequence[Ranking], batch: int) -> None:
        """Raises `ConfigError`: the node has no such farm, or another one of that name, and the sink is
        strict."""
        query, run = self._options["query"], self._run()
        ids = {row["name"]: row["farm_id"] for row in await client.farms()}
        for ranking in rankings:
            if ids.get(ranking.farm) != ranking.farm_id:
                name, farm_id = ranking.farm, ranking.farm_id
                if self._strict:
                    raise ConfigError(
                        [
                            f"the node of the sink has no farm {name} with the id {farm_id}: give URLs of"
                            " nodes that have the farms of the rows"
                        ]
                    )
                _log.warning(
                    "%s",
                    f"the node of the sink has no farm {name} with the id {farm_id}: its ranking at index"
                    f" {ranking.index} is not stored",
                )
                continue
            body = ranking.body.encode()
            await client.put_ranking(ranking.farm, query, batch, body, asof=ranking.index, run=run)

    def _run(self) -> str:
        return self._options.get("run") or _query_id(self._checkpoint) or self._fresh_run


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
