"""When `garlicfarm rank` starts a failed query again, how soon, and when it gives up; no Java runs."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from garlicfarm.client.trust import NodeAccess
from garlicfarm.errors import FellBehind, GarlicFarmError, UnreachableError
from garlicfarm_plugin_spark.job import Job
from garlicfarm_plugin_spark.rank_metrics import RankMetrics
from garlicfarm_plugin_spark.runner import QueryRunner, query_error
from garlicfarm_plugin_spark.session import PythonProcessLost
from tests.spark.test_rank_job import Told

pytestmark = pytest.mark.spark


# As Spark 4.3 said it when processes were killed or came late, without most of its frames.
STREAM = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
LATE = f"""{STREAM}Python worker failed to connect back. SQLSTATE: XXKST
=== Streaming Query ===
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.runStream(StreamExecution.scala:372)
Caused by: org.apache.spark.SparkException: Python worker failed to connect back.
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:328)
\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.init(P.scala:109)
\t... 1 more
Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(PythonWorkerFactory.scala:310)
\t... 33 more
"""
PLANNER_DIED = f"""{STREAM} SQLSTATE: XXKST
=== Streaming Query ===
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.runStream(StreamExecution.scala:372)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\tat org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner.commit(P.scala:303)
\tat org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamBase.commit(P.scala:91)
"""
DAEMON_DIED = """An error occurred while calling o158.load.
: java.io.IOException: Stream closed
\tat java.base/java.lang.ProcessBuilder$NullOutputStream.write(ProcessBuilder.java:445)
\tat org.apache.spark.api.python.PythonWorkerFactory.$anonfun$stopWorker$2(PythonWorkerFactory.scala:527)
\tat scala.Option.foreach(Option.scala:437)
\tat org.apache.spark.SparkEnv.createPythonWorker(SparkEnv.scala:326)
"""
WORKER_DIED = """An error occurred while calling o78.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 1.0 failed 1 times
Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.runJob(DAGScheduler.scala:1549)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator$$anonfun$1.applyOrElse(P.scala:1136)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\tat org.apache.spark.sql.execution.python.PythonArrowOutput$$anon$1.read(PythonArrowOutput.scala:124)
\t... 21 more
"""
NO_PYTHON = """An error occurred while calling o68.collectToPython.
: org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon's\
 stdout.
\tat org.apache.spark.errors.SparkCoreErrors$.eofExceptionWhileReadPortNumberError(S.scala:55)
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:382)
"""
NO_PROGRAM = """An error occurred while calling o68.collectToPython.
: java.io.IOException: Cannot run program "/nonexistent/python": error=2, No such file or directory
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:371)
Caused by: java.io.IOException: error=2, No such file or directory
\tat java.base/java.lang.ProcessImpl.forkAndExec(Native Method)
\t... 28 more
"""
TORN_CHECKPOINT = f"""{STREAM} SQLSTATE: XXKST
\tat org.apache.spark.sql.execution.streaming.runtime.StreamExecution.runStream(StreamExecution.scala:372)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\tat org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider.readSnapshotFile(H.scala:1)
\tat org.apache.spark.api.python.BasePythonRunner$Writer.open(PythonRunner.scala:1)
"""


class FailingQuery(QueryRunner):
    """Fails of the same each time; nothing of Spark's runs."""

    def __init__(self, error: GarlicFarmError, *, once: bool) -> None:
        self.told = Told()
        self.error = error
        session: Any = SimpleNamespace(alive=True)
        job = Job(NodeAccess((), "u", Path("p")), ("farm",), "/kept", Path("/scratch"), once=once)
        super().__init__(job, self.told, session, lambda: session, RankMetrics())

    async def _query(self) -> GarlicFarmError | None:
        return self.error

    def pauses(self) -> list[int]:
        return [int(re.findall(r"starts again in (\d+) s: ", text)[0]) for text in self.told.notes]


async def test_query_that_fails_each_time_is_started_again_less_and_less_often_then_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    runner = FailingQuery(GarlicFarmError("IOException: No space left on device"), once=False)
    with pytest.raises(GarlicFarmError) as raised:
        await runner.run()
    assert str(raised.value) == (
        "the query failed 6 times in a row: IOException: No space left on device; where a disk is full, make"
        " room; name a new checkpoint only where this names a damaged file in /kept"
    )
    assert runner.pauses() == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            LATE,
            "one of Spark's Python processes did not start within the ten seconds that Spark waits"
            " (SocketTimeoutException: Timed out while waiting for the Python worker to connect back): is the"
            " machine busy?",
        ),
        (
            PLANNER_DIED,
            "one of Spark's Python processes ended (EOFException): was it killed, or is the memory full?",
        ),
        (
            DAEMON_DIED,
            "one of Spark's Python processes ended (IOException: Stream closed): was it killed, or is the"
            " memory full?",
        ),
        (
            WORKER_DIED,
            "one of Spark's Python processes ended (SparkException: Python worker exited unexpectedly"
            " (crashed).): was it killed, or is the memory full?",
        ),
    ],
)
@pytest.mark.parametrize("once", [True, False])
async def test_query_whose_python_processes_die_or_come_late_is_never_given_up(
    text: str, told: str, once: bool, autojump_clock: trio.testing.MockClock
) -> None:
    runner = FailingQuery(query_error(Exception(text)), once=once)
    with trio.move_on_after(100_000) as scope:
        await runner.run()
    assert scope.cancelled_caught
    assert runner.pauses()[:8] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert len(runner.pauses()) > 2_000  # a power of two has an end
    assert {note.partition(" s: ")[2] for note in runner.told.notes} == {told}
    runner.error = GarlicFarmError("IOException: No space left on device")
    with pytest.raises(GarlicFarmError, match="failed 6 times in a row: IOException: No space"):
        await runner.run()


@pytest.mark.parametrize("text", [NO_PYTHON, NO_PROGRAM, TORN_CHECKPOINT])
def test_python_that_cannot_start_and_files_that_cannot_be_read_count_as_failures(text: str) -> None:
    error = query_error(Exception(text))
    assert not isinstance(error, PythonProcessLost)
    assert str(error) in text


async def test_query_without_nodes_is_started_again_for_ever_and_once_six_times(
    autojump_clock: trio.testing.MockClock,
) -> None:
    away = UnreachableError("nobody", "is the node running?")
    runner = FailingQuery(away, once=False)
    with trio.move_on_after(1000) as scope:
        await runner.run()
    assert scope.cancelled_caught
    assert runner.pauses()[:8] == [1, 2, 4, 8, 16, 30, 30, 30]
    runner = FailingQuery(away, once=True)
    with pytest.raises(UnreachableError):
        await runner.run()
    assert runner.pauses() == [1, 2, 4, 8, 16]


async def test_query_whose_entries_are_gone_is_not_started_again() -> None:
    runner = FailingQuery(FellBehind("gone"), once=False)
    with pytest.raises(FellBehind, match="gone"):
        await runner.run()
    assert runner.told.notes == []


async def test_sink_whose_file_system_is_away_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """It is looked at whenever the query is started."""
    session: Any = SimpleNamespace(alive=True)
    job = Job(NodeAccess((), "u", Path("p")), ("farm",), "/kept", Path("/scratch"))
    told = Told()
    runner = QueryRunner(job, told, session, lambda: session, RankMetrics())
    done = SimpleNamespace(awaitTermination=lambda timeout_s: True, lastProgress=None, stop=lambda: None)

    def start(emit: object) -> object:
        if not told.notes:
            raise UnreachableError("the file system of hdfs://name/rows does not answer")
        return done

    monkeypatch.setattr(runner, "start", start)
    await runner.run()
    assert told.notes == [
        "the query failed and starts again in 1 s: the file system of hdfs://name/rows does not answer"
    ]
