"""Runs the ranking query for `garlicfarm rank`: Trio waits, threads make Spark's blocking calls.

Outside the main thread Spark does not handle the interrupt signal, so Ctrl-C reaches Trio. A failed query
is restarted from its checkpoint, because Spark gives a worker only ten seconds to start and never retries.
So is a Java process that ended: the query continues from its checkpoint in a new one. Python processes that
died, or that a busy machine started too late, never end the command: it only waits longer each time.
Permanent errors are not retried: a wrong password, deleted entries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from functools import partial
from typing import Any, TypeVar

import trio

from garlicfarm import errors
from garlicfarm.errors import ConfigError, GarlicFarmError, UnreachableError
from garlicfarm_plugin_spark.checkpoint import check_places
from garlicfarm_plugin_spark.directory import HadoopDirectory, location
from garlicfarm_plugin_spark.job import Job, Viewer, bounded, ranked_farms, sink_options, source_options
from garlicfarm_plugin_spark.node_reader import FarmHead, NodeReader
from garlicfarm_plugin_spark.offsets import decode_offset
from garlicfarm_plugin_spark.rank_metrics import RankMetrics, served
from garlicfarm_plugin_spark.ranking import rankings
from garlicfarm_plugin_spark.session import (
    DEFAULTS,
    PythonProcessLost,
    Session,
    cause,
    lost_python,
    text_of,
    unreachable,
)
from garlicfarm_plugin_spark.stored_state import check_state
from garlicfarm_plugin_spark.verify import NodeStates, Verifier

T = TypeVar("T")

POLL_S = 0.5
HEAD_INTERVAL_S = 1.0
VERIFY_INTERVAL_S = 1.0
OBSERVED, MOST_OBSERVED = "ranked", 1_000
LONGEST_PAUSE_S = 30.0
MOST_FAILURES = 6  # in a row, without a batch or a steady run between them
STEADY_S = 60.0
ENDING_S = 5.0
_Ranking = tuple[str, str, Mapping[str, int]]
_OURS = re.compile(r"garlicfarm\.errors\.(\w+): ([^\n]+)")
_LASTING = (
    errors.AuthError,
    errors.ConfigError,
    errors.FellBehind,
    errors.RankingConflict,
    errors.RemoteProtocolError,
    errors.StorageError,
)


async def run(job: Job, viewer: Viewer) -> None:
    """Run ``job`` until it is cancelled, or, with ``once``, done.

    Raises `ConfigError` (the farm, the checkpoint, a directory, Java or Spark is not usable),
    `UnreachableError` and `AuthError` (the nodes), `FellBehind` (the next entries were deleted),
    `GarlicFarmError` (Spark fails repeatedly). Nothing keeps running after it returns or raises, except
    that a thread waiting for the start of Java or for a silent node at the time of a cancellation ends with
    this process.
    """
    metrics = RankMetrics()
    with closing(NodeReader(job.nodes)) as reader:
        heads = await _blocking(reader.heads, job.farms)
        farms = ranked_farms(job, heads)
        ids = {farm: head.farm_id for farm, head in farms.items()}
        job = bounded(job, await _blocking(most_members, reader, farms))
        settings = {**DEFAULTS, **job.conf}
        check_places(job, ids, settings)
        with served(metrics, job.metrics):
            for farm, head in farms.items():
                viewer.progress(farm, None, head.commit_index)
            viewer.note("starting Spark; this takes half a minute")
            open_session = partial(
                Session, job.scratch, master=job.master, conf=job.conf, verbosity=job.verbosity
            )
            runner = QueryRunner(job, viewer, await _blocking(open_session), open_session, metrics)
            runner.committed(heads)
            verifier = runner.verifier
            try:
                await _blocking(runner.check, ids, settings)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_watch, reader, job, ids, runner)
                    if verifier is not None:
                        nursery.start_soon(_verify, job, runner, verifier)
                    await runner.run()
                    nursery.cancel_scope.cancel()
                if verifier is not None:  # a short query ends before the first comparison
                    await _verify(job, runner, verifier, once=True)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(runner.close)
                if verifier is not None:
                    viewer.note(verifier.summary())


async def _blocking(function: Callable[..., T], *arguments: Any) -> T:
    """Call it in a thread; cancelled, do not wait for it."""
    return await trio.to_thread.run_sync(function, *arguments, abandon_on_cancel=True)


def most_members(reader: NodeReader, farms: Iterable[str]) -> int:
    """Of the largest of these farms, by its ranking at a node. Raises as `NodeReader`."""
    return max((len(json.loads(reader.ranking(farm))["members"]) for farm in farms), default=0)


async def _watch(reader: NodeReader, job: Job, ids: Mapping[str, str], runner: QueryRunner) -> None:
    """Keep the commit indexes up to date."""
    known = ids if job.farms else {}  # of all farms, some may vanish and be made anew
    while True:
        await trio.sleep(HEAD_INTERVAL_S)
        try:
            heads = await _blocking(reader.heads, job.farms, known)
        except UnreachableError:
            heads = None
        runner.committed(heads)


async def _verify(job: Job, runner: QueryRunner, verifier: Verifier, *, once: bool = False) -> None:
    """Compare the nodes' states with the query's, until cancelled or ``once``."""
    with closing(await _blocking(NodeStates, job.nodes)) as states:
        while True:
            for found in await _blocking(states.newest, runner.farms):
                verifier.stated(*found)
            if once:
                return
            await trio.sleep(VERIFY_INTERVAL_S)


class QueryRunner:
    """Keeps the query running: in ``session``, and after the end of its Java process in one from
    ``open_session``, which blocks."""

    def __init__(
        self,
        job: Job,
        viewer: Viewer,
        session: Session,
        open_session: Callable[[], Session],
        metrics: RankMetrics,
    ) -> None:
        self._job = job
        self._viewer = viewer
        self._session = session
        self._open_session = open_session
        self._metrics = metrics
        self.verifier = Verifier(self._verified) if job.verify else None
        self._indexes: dict[str, int] = {}
        self._heads: Mapping[str, FarmHead] = {}
        self._ids: dict[str, str] = {}  # of all farms that were ranked
        self._missing: set[str] = set()
        self._batch: int | None = None
        self._restarts = 0  # since a batch or a steady run
        self._failures = 0  # those that count

    def committed(self, heads: Mapping[str, FarmHead] | None) -> None:
        """``heads``: what the nodes have now; None: unknown."""
        if heads is not None:
            self._heads = heads
            for farm, head in self.farms.items():
                if self._ids.setdefault(farm, head.farm_id) != head.farm_id:
                    self._viewer.note(f"the farm {farm} was made again: it is ranked from its beginning")
                    self._ids[farm] = head.farm_id
            missing = self._ids.keys() - self.farms.keys()
            for farm in sorted(missing - self._missing):
                self._viewer.note(f"the nodes have the farm {farm} no longer: it waits")
            self._missing = missing
        for farm, head in sorted(self.farms.items()):
            self._progress(farm, None if heads is None else head.commit_index)

    @property
    def farms(self) -> dict[str, FarmHead]:
        """The farms that are ranked, by name, as the nodes last reported them."""
        return {name: head for name, head in self._heads.items() if self._job.ranks(name, head)}

    def _progress(self, farm: str, commit_index: int | None) -> None:
        self._viewer.progress(farm, self._indexes.get(farm), commit_index)
        self._metrics.progress(farm, self._indexes.get(farm), commit_index)

    def _verified(self, count: int) -> None:
        self._viewer.verified(count)
        self._metrics.verified.inc()

    def check(self, ids: Mapping[str, str], settings: Mapping[str, str]) -> None:
        """Check what can only be read through Spark; the call blocks. Raises as `check_places`."""
        job, spark = self._job, self._session.spark
        check_places(job, ids, settings, spark)
        checkpoint = location(job.checkpoint)
        if HadoopDirectory(checkpoint, spark).names("commits"):
            check_state(spark, checkpoint)

    def close(self) -> None:
        """End the session; the call blocks."""
        self._session.close()

    async def run(self) -> None:
        while True:
            begun = trio.current_time()
            error = await self._attempt()
            if error is None:
                return
            if trio.current_time() - begun > STEADY_S:
                self._restarts = self._failures = 0  # without posts there are no batches
            self._restarts += 1
            if isinstance(error, _LASTING):
                raise error
            if not isinstance(error, PythonProcessLost):
                self._failures += 1
            if self._failures >= MOST_FAILURES:
                if not isinstance(error, UnreachableError):
                    raise self._gives_up(error) from error
                if self._job.once:
                    raise error
            self._metrics.restarts.labels("query" if self._session.alive else "java").inc()
            pause_s = min(2.0 ** min(self._restarts - 1, 10), LONGEST_PAUSE_S)
            self._viewer.note(
                f"the query failed and starts again in {pause_s:.0f} s: {error}"
                if self._session.alive
                else f"Spark's Java process ended and starts again in {pause_s:.0f} s: {error}"
            )
            await trio.sleep(pause_s)

    def _gives_up(self, error: GarlicFarmError) -> GarlicFarmError:
        if not self._session.alive:
            return GarlicFarmError(
                f"Spark's Java process ended {self._failures} times in a row: {error}; -v shows what it says;"
                " where it has too little memory: --conf spark.driver.memory=2g, or a lower --max-entries"
            )
        return GarlicFarmError(
            f"the query failed {self._failures} times in a row: {error}; where a disk is full, make room;"
            f" name a new checkpoint only where this names a damaged file in {self._job.checkpoint}"
        )

    async def _attempt(self) -> GarlicFarmError | None:
        if not self._session.alive:
            await trio.to_thread.run_sync(self._session.close)
            try:
                self._session = await _blocking(self._open_session)
            except GarlicFarmError as error:
                return error
        return await self._query()

    async def _query(self) -> GarlicFarmError | None:
        """Run the query once; its error, None if it is done."""
        from py4j.protocol import Py4JError, Py4JNetworkError
        from pyspark.errors import PySparkException

        send, receive = trio.open_memory_channel[_Ranking](0)
        token = trio.lowlevel.current_trio_token()
        failed: GarlicFarmError | None = None
        self._batch = None

        def emit(batch: Any, number: int) -> None:  # in a thread of py4j's
            for row in batch.select("farm", "ranking", "skipped").collect():
                said = (row["farm"], row["ranking"], row["skipped"])
                trio.from_thread.run(send.send, said, trio_token=token)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._view, receive)
            query = None
            try:
                query = await trio.to_thread.run_sync(self.start, emit)
                while not await trio.to_thread.run_sync(query.awaitTermination, POLL_S):
                    await self.report(query)
                await self.report(query)
            except UnreachableError as error:  # the sink's file system, at the start
                failed = error
            except (Py4JError, PySparkException, OSError) as error:
                failed = query_error(error)
                if isinstance(error, Py4JNetworkError | OSError):  # then Java is ending, if it has not ended
                    await trio.to_thread.run_sync(self._session.wait, ENDING_S)
            finally:
                receive.close()  # unblocks emit()
                if query is not None and self._session.alive:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(_stop, query)
            nursery.cancel_scope.cancel()
        return failed

    def start(self, emit: Callable[[Any, int], None]) -> Any:
        """Start the query, in any thread; the call blocks. ``emit`` is called with each batch and its number
        if the rankings go to the viewer. Returns Spark's query."""
        job = self._job
        self._session.activate()
        entries = self._session.spark.readStream.format("garlicfarm").options(**source_options(job)).load()
        ranked = rankings(entries, job.rows)
        if self.verifier is not None:
            ranked = ranked.observe(OBSERVED, _observed())
        writer = ranked.writeStream.outputMode("append")
        writer = writer.option("checkpointLocation", location(job.checkpoint))
        if job.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{job.trigger_ms} milliseconds")
        kind, _, where = job.sink.partition(":")
        if kind == "console":
            return writer.foreachBatch(emit).start()
        if kind == "memory":
            return writer.format("memory").queryName("rankings").start()
        if kind == "garlicfarm":
            return writer.format("garlicfarm").options(**sink_options(job)).start()
        from garlicfarm_plugin_spark.parquet import ParquetSink

        return writer.foreachBatch(ParquetSink(self._session.spark, where, job.rows)).start()

    async def _view(self, receive: trio.MemoryReceiveChannel[_Ranking]) -> None:
        with suppress(trio.ClosedResourceError):
            async for farm, text, skipped in receive:
                await self._viewer.ranking(farm, text, skipped)

    async def report(self, query: Any) -> None:
        """Report the batches that Spark's ``query`` finished since the last call to the viewer, the metrics
        and the verifier. Raises as `Verifier.ranked`."""
        last = await trio.to_thread.run_sync(lambda: query.lastProgress)
        if not last or last["batchId"] == self._batch:
            return
        new = [last]
        if self._batch is not None and last["batchId"] > self._batch + 1:
            recent = await trio.to_thread.run_sync(lambda: query.recentProgress)
            new = [each for each in recent if each["batchId"] > self._batch]
        self._batch = last["batchId"]
        self._metrics.batches.inc(len({each["batchId"] for each in new}))
        for progress in new:
            self._take(progress)

    def _take(self, progress: Mapping[str, Any]) -> None:
        """Use Spark's report of a finished batch."""
        if progress["sources"]:
            source = progress["sources"][0]
            before, end = (
                decode_offset(json.loads(source.get(name) or "null") or {"farms": {}})
                for name in ("startOffset", "endOffset")
            )
            for farm, position in end.items():
                old = before.get(farm)
                if old is not None and old.farm_id == position.farm_id and position.state is not None:
                    self._viewer.note(
                        f"the entries of the farm {farm} after index {old.index} were deleted before they"
                        f" were read: it is ranked on from a node's state at index {position.begin}"
                    )
                if position.index != self._indexes.get(farm):
                    self._indexes[farm] = position.index
                    self._restarts = self._failures = 0
                    head = self._heads.get(farm)
                    self._progress(farm, None if head is None else head.commit_index)
        if self.verifier is not None and OBSERVED in progress["observedMetrics"]:
            for row in reversed(progress["observedMetrics"][OBSERVED]["rows"]):  # newest first
                of = (row["farm"], row["farm_id"])
                self.verifier.ranked(of, row["log_index"], row["state_sha256"])


def _observed() -> Any:
    from pyspark.sql import functions

    rows = functions.collect_list(functions.struct("log_index", "farm", "farm_id", "state_sha256"))
    # Spark keeps them for its last hundred batches, and nodes are at the newest indexes.
    return functions.slice(functions.sort_array(rows, asc=False), 1, MOST_OBSERVED).alias("rows")


def query_error(error: Exception) -> GarlicFarmError:
    """The error that the source, the sink or the fold raised in one of Spark's processes."""
    found = _OURS.findall(text_of(error))
    if not found:
        return (
            lost_python(error)
            or unreachable(error, "a server that the query needs")
            or GarlicFarmError(cause(error))
        )
    name, text = found[-1]
    kind = getattr(errors, name, GarlicFarmError)
    made: GarlicFarmError = kind([text]) if issubclass(kind, ConfigError) else kind(text)
    return made


def _stop(query: Any) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        query.stop()
    except (Py4JError, PySparkException, OSError):
        return  # the failure was reported already, and closing the session ends the query
