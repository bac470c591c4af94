"""Runs the ranking query for `garlicfarm rank`: Trio waits, threads make Spark's blocking calls.

Outside the main thread Spark does not handle the interrupt signal, so Ctrl-C reaches Trio. A failed query
is restarted from its checkpoint, because Spark gives a worker only ten seconds to start and never retries.
Permanent errors are not retried: a wrong password, deleted entries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio

from garlicfarm import errors
from garlicfarm.errors import ConfigError, GarlicFarmError, UnreachableError
from garlicfarm_plugin_spark.checkpoint import check_checkpoint, check_writable
from garlicfarm_plugin_spark.feed import FarmFeed, FarmHead, Nodes
from garlicfarm_plugin_spark.files import LocalFiles, check_directory, is_uri
from garlicfarm_plugin_spark.offsets import decode_offset
from garlicfarm_plugin_spark.ranking import Rows, rankings
from garlicfarm_plugin_spark.session import DEFAULTS, Session, cause, text_of

__all__ = ["Job", "Viewer", "run"]

POLL_S = 0.5
HEAD_INTERVAL_S = 1.0
LONGEST_PAUSE_S = 30.0
MOST_FAILURES = 6  # in a row, without a batch or a steady run between them
STEADY_S = 60.0
_Ranking = tuple[str, Mapping[str, int]]
_OURS = re.compile(r"garlicfarm\.errors\.(\w+): ([^\n]+)")
_LASTING = (
    errors.AuthError,
    errors.ConfigError,
    errors.FellBehind,
    errors.RemoteProtocolError,
    errors.StorageError,
)


@dataclass(frozen=True)
class Job:
    """``sink``: ``console``, ``memory`` or ``parquet:DIRECTORY``. ``scratch``: an empty directory for the
    lifetime of the job. ``once``: end when everything committed at the start is ranked."""

    nodes: Nodes
    checkpoint: Path
    scratch: Path
    master: str = "local[2]"
    sink: str = "console"
    once: bool = False
    max_entries: int = 20_000
    conf: Mapping[str, str] = field(default_factory=dict)
    verbosity: int = 0


class Viewer(Protocol):
    """Receives the results. Called on Trio's thread."""

    async def ranking(self, text: str, skipped: Mapping[str, int]) -> None:
        """A ranking was emitted (sink ``console`` only): the body of ``GET …/ranking`` at its index, and
        the number of skipped entries up to there, by reason."""

    def progress(self, index: int | None, commit_index: int | None) -> None:
        """The last ranked index, and the commit index; None: unknown."""

    def note(self, text: str) -> None:
        """A message for the user."""


async def run(job: Job, viewer: Viewer) -> None:
    """Run ``job`` until it is cancelled, or, with ``once``, done.

    Raises `ConfigError` (the farm, the checkpoint, Java or Spark is not usable), `UnreachableError` and
    `AuthError` (the nodes), `FellBehind` (the next entries were deleted), `GarlicFarmError` (Spark fails
    repeatedly). Nothing keeps running after it returns or raises, except that a thread waiting for the
    start of Java or for a silent node at the time of a cancellation ends with this process.
    """
    feed = FarmFeed(job.nodes)
    try:
        head = await trio.to_thread.run_sync(feed.head, abandon_on_cancel=True)
        if head.application != "publisher":
            raise ConfigError(
                [f"{job.nodes.farm} runs the application {head.application}, not publisher: no ranking"]
            )
        settings = {**DEFAULTS, **job.conf}
        check_checkpoint(job.checkpoint, job.nodes.farm, head.farm_id, settings)
        check_writable(job.checkpoint, "--checkpoint")
        kind, _, where = job.sink.partition(":")
        if kind == "parquet" and not is_uri(where):
            check_writable(Path(where), "--sink")
            check_directory(LocalFiles(Path(where)), where)
        viewer.progress(None, head.commit_index)
        viewer.note("starting Spark; this takes half a minute")
        session = await trio.to_thread.run_sync(
            partial(Session, job.scratch, master=job.master, conf=job.conf, verbosity=job.verbosity),
            abandon_on_cancel=True,
        )
        try:
            async with trio.open_nursery() as nursery:
                runner = QueryRunner(job, viewer, session)
                nursery.start_soon(_watch, feed, head, runner)
                await runner.run()
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(session.close)
    finally:
        feed.close()


async def _watch(feed: FarmFeed, head: FarmHead, runner: QueryRunner) -> None:
    """Keep the commit index up to date."""
    while True:
        runner.committed(head.commit_index)
        await trio.sleep(HEAD_INTERVAL_S)
        try:
            head = await trio.to_thread.run_sync(feed.head, head.farm_id, abandon_on_cancel=True)
        except UnreachableError:
            runner.committed(None)


class QueryRunner:
    def __init__(self, job: Job, viewer: Viewer, session: Session) -> None:
        self._job = job
        self._viewer = viewer
        self._session = session
        self._index: int | None = None
        self._commit_index: int | None = None
        self._failures = 0

    def committed(self, index: int | None) -> None:
        self._commit_index = index
        self._viewer.progress(self._index, index)

    async def run(self) -> None:
        while True:
            begun = trio.current_time()
            error = await self._query()
            if error is None:
                return
            if trio.current_time() - begun > STEADY_S:
                self._failures = 0  # without posts there are no batches
            if not self._session.alive:
                raise GarlicFarmError("Spark's Java process ended: start again, -v shows what it says")
            self._failures += 1
            if isinstance(error, _LASTING):
                raise error
            if self._failures >= MOST_FAILURES:
                if not isinstance(error, UnreachableError):
                    raise GarlicFarmError(
                        f"the query failed {self._failures} times in a row: {error}; where a disk is full,"
                        f" make room; where the checkpoint {self._job.checkpoint} is damaged, name a new one"
                    ) from error
                if self._job.once:
                    raise error
            pause_s = min(2.0 ** (self._failures - 1), LONGEST_PAUSE_S)
            self._viewer.note(f"the query failed and starts again in {pause_s:.0f} s: {error}")
            await trio.sleep(pause_s)

    async def _query(self) -> GarlicFarmError | None:
        """Run the query once; its error, None if it is done."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        send, receive = trio.open_memory_channel[_Ranking](0)
        token = trio.lowlevel.current_trio_token()
        failed = None

        def emit(batch: Any, number: int) -> None:  # in a thread of py4j's
            for row in batch.select("ranking", "skipped").collect():
                trio.from_thread.run(send.send, (row["ranking"], row["skipped"]), trio_token=token)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._view, receive)
            query = None
            try:
                query = await trio.to_thread.run_sync(self._start, emit)
                while not await trio.to_thread.run_sync(query.awaitTermination, POLL_S):
                    await self._look(query)
                await self._look(query)
            except (Py4JError, PySparkException, OSError) as error:
                failed = query_error(error)
            finally:
                receive.close()  # unblocks emit()
                if query is not None and self._session.alive:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(_stop, query)
            nursery.cancel_scope.cancel()
        return failed

    def _start(self, emit: Callable[[Any, int], None]) -> Any:
        job = self._job
        entries = self._session.spark.readStream.format("garlicfarm").options(**_options(job)).load()
        kind, _, where = job.sink.partition(":")
        rows: Rows = "changes" if kind == "parquet" else "batches"
        writer = rankings(entries, rows).writeStream.outputMode("append")
        writer = writer.option("checkpointLocation", str(job.checkpoint))
        if job.once:
            writer = writer.trigger(availableNow=True)
        if kind == "console":
            return writer.foreachBatch(emit).start()
        if kind == "memory":
            return writer.format("memory").queryName("rankings").start()
        from garlicfarm_plugin_spark.parquet import ParquetSink

        return writer.foreachBatch(ParquetSink(self._session.spark, where)).start()

    async def _view(self, receive: trio.MemoryReceiveChannel[_Ranking]) -> None:
        with suppress(trio.ClosedResourceError):
            async for text, skipped in receive:
                await self._viewer.ranking(text, skipped)

    async def _look(self, query: Any) -> None:
        progress = await trio.to_thread.run_sync(lambda: query.lastProgress)
        if not progress or not progress["sources"]:
            return
        offset = json.loads(progress["sources"][0]["endOffset"] or '{"farms": {}}')
        position = decode_offset(offset, self._job.nodes.farm).get(self._job.nodes.farm)
        if position is not None and position.index != self._index:
            self._index, self._failures = position.index, 0
            self._viewer.progress(self._index, self._commit_index)


def query_error(error: Exception) -> GarlicFarmError:
    """The error that the source or the fold raised in a process of Spark's, from its traceback."""
    found = _OURS.findall(text_of(error))
    if not found:
        return GarlicFarmError(cause(error))
    name, text = found[-1]
    kind = getattr(errors, name, GarlicFarmError)
    made: GarlicFarmError = kind([text]) if kind is ConfigError else kind(text)
    return made


def _stop(query: Any) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        query.stop()
    except (Py4JError, PySparkException, OSError):
        return  # the failure was reported already, and the session ends with everything in it


def _options(job: Job) -> dict[str, str]:
    nodes = job.nodes
    options = {
        "url": " ".join(nodes.urls),
        "farm": nodes.farm,
        "user": nodes.user,
        "passwordFile": str(nodes.password_file.resolve()),
        "startingIndex": "state",
        "maxEntriesPerTrigger": str(job.max_entries),
    }
    if nodes.pin is not None:
        options["pin"] = nodes.pin
    if nodes.ca is not None:
        options["ca"] = str(nodes.ca.resolve())
    return options
