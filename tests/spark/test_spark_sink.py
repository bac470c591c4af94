"""The sink on a real admin listener: what is stored where, once, and again after Java was killed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

import pyarrow
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StringType, StructField, StructType

from garlicfarm.errors import AuthError, ConfigError, RankingConflict, UnreachableError
from garlicfarm_plugin_spark import rankings
from garlicfarm_plugin_spark.job import Job
from garlicfarm_plugin_spark.rank_metrics import RankMetrics
from garlicfarm_plugin_spark.runner import QueryRunner
from garlicfarm_plugin_spark.session import Session
from garlicfarm_plugin_spark.sink import RankingWriter
from tests.spark.feed_server import FARM_ID, FeedServer
from tests.spark.script import expectations, scripted_log
from tests.spark.test_rank_job import Told
from tests.spark.test_spark_reports import told

pytestmark = pytest.mark.spark

LOG = scripted_log()
END = len(LOG)
EXPECTED = expectations(LOG)
SCHEMA = pyarrow.schema(
    [("farm", "string"), ("farm_id", "string"), ("log_index", "int64"), ("ranking", "string")]
)
QUERY_ID = "e85a5c29-f31a-4639-beec-3978cbebaf08"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "check point"
    directory.mkdir()
    (directory / "metadata").write_text(json.dumps({"id": QUERY_ID}))
    return directory


def columns(*names: str) -> StructType:
    """As much of a schema as the sink looks at."""
    return StructType([StructField(name, StringType()) for name in names])


RANKINGS = columns("farm", "farm_id", "log_index", "publisher", "ranking")


def writer(server: FeedServer, *, schema: StructType = RANKINGS, **changes: str | None) -> RankingWriter:
    given = {**server.options(), "query": "spark", **changes}
    options = {name: value for name, value in given.items() if value is not None and name != "farm"}
    made = RankingWriter(options, schema, "fresh")
    again: RankingWriter = pickle.loads(pickle.dumps(made))
    return again


def rows(*indexes: int, farm_id: str = FARM_ID, farm: str = "farm") -> pyarrow.RecordBatch:
    return pyarrow.RecordBatch.from_pylist(
        [
            {"farm": farm, "farm_id": farm_id, "log_index": index, "ranking": EXPECTED[index].ranking}
            for index in indexes
        ],
        SCHEMA,
    )


def stored(server: FeedServer) -> tuple[int, int, str] | None:
    """The batch, the index and the run of the newest ranking."""
    for row in server.farm.rankings.queries():
        assert row["query"] == "spark"
        return row["batch"], row["asof"], row["run"]
    return None


@dataclass
class Asked:
    """A request to store a ranking, and what the node answered."""

    batch: int
    asof: int
    run: str
    body: str
    is_new: bool


def watched(server: FeedServer, answered: Callable[[Asked], None] = lambda asked: None) -> list[Asked]:
    """The requests from now on; ``answered`` is called before the answer leaves."""
    put = server.farm.rankings.put
    asked: list[Asked] = []

    async def put_and_tell(query: str, batch: int, body: bytes, *, asof: int, run: str, user: str) -> bool:
        is_new = await put(query, batch, body, asof=asof, run=run, user=user)
        asked.append(Asked(batch, asof, run, body.decode(), is_new))
        answered(asked[-1])
        return is_new

    server.farm.rankings.put = put_and_tell  # type: ignore[method-assign]
    return asked


def test_commit_stores_the_newest_ranking_of_all_tasks_byte_for_byte(
    server: FeedServer, checkpoint: Path
) -> None:
    sink = writer(server, checkpointLocation=str(checkpoint))
    messages: list[Any] = [sink.write(iter(each)) for each in ([rows(3, 20, 7), rows(9)], [], [rows(15)])]
    sink.commit(pickle.loads(pickle.dumps(messages)), 4)
    assert stored(server) == (4, 20, QUERY_ID)
    assert server.stored_ranking("spark") == EXPECTED[20].ranking
    sink.commit(messages, 4)  # repeated after a crash
    sink.commit([sink.write(iter([]))], 5)  # nothing new
    sink.abort([None], 6)
    assert stored(server) == (4, 20, QUERY_ID)


def test_run_is_the_querys_id_or_the_option_or_new_at_each_start(
    server: FeedServer, checkpoint: Path
) -> None:
    for batch, (options, run) in enumerate(
        [
            ({"checkpointLocation": checkpoint.as_uri()}, QUERY_ID),
            ({"checkpointLocation": str(checkpoint), "run": "mine"}, "mine"),
            ({"checkpointLocation": "hdfs://nowhere/checkpoint"}, "fresh"),
            ({"checkpointLocation": str(checkpoint.parent)}, "fresh"),
            ({}, "fresh"),
        ]
    ):
        sink = writer(server, **options)
        sink.commit([sink.write(iter([rows(10 + batch)]))], batch)
        assert stored(server) == (batch, 10 + batch, run)


def test_contradiction_is_an_error_of_the_batch_and_another_run_replaces(server: FeedServer) -> None:
    sink = writer(server, run="a")
    sink.commit([sink.write(iter([rows(20)]))], 1)
    with pytest.raises(RankingConflict, match="query spark, run a: batch 1 is stored with other contents"):
        sink.commit([sink.write(iter([rows(21)]))], 1)
    again = writer(server, run="b")
    again.commit([again.write(iter([rows(10)]))], 1)
    assert stored(server) == (1, 10, "b")


def test_rows_of_a_farm_that_the_node_lacks_are_refused(server: FeedServer) -> None:
    sink = writer(server)
    for other in (rows(5, farm_id="f" * 32), rows(5, farm="other", farm_id="f" * 32)):
        with pytest.raises(ConfigError, match=r"has no farm (farm|other) with the id f{32}"):
            sink.commit([sink.write(iter([other]))], 1)
    assert stored(server) is None


def test_rows_of_a_farm_that_the_node_lacks_are_left_out_where_losses_are_allowed(
    server: FeedServer, caplog: pytest.LogCaptureFixture
) -> None:
    sink = writer(server, failOnDataLoss="false")
    sink.commit([sink.write(iter([rows(5, farm="other", farm_id="f" * 32), rows(9)]))], 1)
    assert stored(server) == (1, 9, "fresh")
    (said,) = caplog.messages
    assert said.endswith(f"no farm other with the id {'f' * 32}: its ranking at index 5 is not stored")


def test_farm_with_urls_of_its_own_is_stored_there(server: FeedServer) -> None:
    nowhere = "https://127.0.0.1:1?pin=sha256-" + "A" * 43
    sink = writer(server, **{"url": nowhere, "url.FARM": server.url})
    sink.commit([sink.write(iter([rows(9)]))], 1)
    assert stored(server) == (1, 9, "fresh")


def test_password_is_read_for_each_batch_and_the_next_node_asked(server: FeedServer) -> None:
    sink = writer(server, url=f"https://127.0.0.1:1 {server.url}", pin="sha256-" + "A" * 43)
    message = sink.write(iter([rows(9)]))
    right = server.password_file.read_text()
    server.password_file.write_text("wrong\n")
    with pytest.raises(AuthError, match="the user or the password is wrong"):
        sink.commit([message], 1)
    server.password_file.write_text(right)
    sink.commit([message], 1)
    assert stored(server) == (1, 9, "fresh")
    with pytest.raises(UnreachableError):
        writer(server, url="https://127.0.0.1:1", pin="sha256-" + "A" * 43).commit([message], 1)


def test_options_and_columns_that_cannot_be_used_are_all_named(server: FeedServer) -> None:
    with pytest.raises(ConfigError) as raised:
        writer(
            server,
            schema=columns("farm", "log_index"),
            user=None,
            query="a/b",
            run="..",
            farms="x",
            pasword="x",
            queryName="x",
        )
    assert list(raised.value.problems) == [
        "the option farms is unknown",
        "the option pasword is unknown; did you mean 'passwordFile'?",
        "the option user is missing",
        "query is 'a/b', not 1 to 64 of A-Z a-z 0-9 . _ -, not . or ..",
        "run is '..', not 1 to 64 of A-Z a-z 0-9 . _ -, not . or ..",
        "the rows have no column farm_id: the sink takes those of rankings()",
        "the rows have no column ranking: the sink takes those of rankings()",
    ]


# With Java


def start(spark: Any, server: FeedServer, checkpoint: Path, size: int = 20, **options: str) -> Any:
    entries = spark.readStream.format("garlicfarm").options(
        **server.options(startingIndex="state", maxEntriesPerTrigger=str(size), query="reader")
    )
    given = {name: value for name, value in server.options().items() if name != "farm"}
    return (
        rankings(entries.load(), rows="batches")
        .writeStream.format("garlicfarm")
        .options(**given, query="spark", **options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def test_query_stores_each_batch_and_begins_anew_with_another_checkpoint(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    asked = watched(server)
    for size in (20, 30):
        checkpoint = tmp_path / f"by {size}"
        start(spark.spark, server, checkpoint, size).awaitTermination()
        run = json.loads((checkpoint / "metadata").read_text())["id"]
        ends = [*range(size, END, size), END]
        assert asked == [
            Asked(batch, end, run, EXPECTED[end].ranking, True) for batch, end in enumerate(ends)
        ]
        assert stored(server) == (len(ends) - 1, END, run)
        asked.clear()
    (reader,) = told(server)
    assert reader[:2] == ("reader", "local")
    assert reader[2] in {*range(20, END, 20), *ends}  # after which batch depends on the time
    (row,) = server.farm.rankings.queries()
    assert row["comparison"] == {"batch": len(ends) - 1, "asof": END, "equal": True, "difference": ""}
    with pytest.raises(StreamingQueryException, match="ConfigError: the option farms is unknown"):
        start(spark.spark, server, tmp_path / "third", farms="*").awaitTermination()


def test_sink_of_rank_starts_in_any_thread(spark: Session, server: FeedServer, tmp_path: Path) -> None:
    """Trio runs blocking calls in any of its threads, and Spark knows a Python sink in few of its own."""
    job = Job(
        server.access,
        ("farm",),
        str(tmp_path / "checkpoint"),
        tmp_path,
        sink="garlicfarm",
        query="spark",
        once=True,
    )
    runner = QueryRunner(job, Told(), spark, lambda: spark, RankMetrics())
    with ThreadPoolExecutor(1) as other:
        query = other.submit(runner.start, lambda batch, number: None).result()
    query.awaitTermination()
    found = stored(server)
    assert found is not None
    assert found[:2] == (0, END)


DRIVER = """
import sys
from pathlib import Path
from types import SimpleNamespace

from garlicfarm_plugin_spark.session import Session
from tests.spark.test_spark_sink import start

options = dict(word.split("=", 1) for word in sys.argv[3:])
session = Session(Path(sys.argv[1]), master="local[2]")
print(session._process.pid, flush=True)
server = SimpleNamespace(options=lambda **more: options | more)
start(session.spark, server, Path(sys.argv[2])).awaitTermination()
"""
KILLED_AT = 2


def test_java_killed_between_the_request_and_its_own_note_repeats_the_same_bytes(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    driver: list[int] = []

    def kill(request: Asked) -> None:
        if request.batch == KILLED_AT and driver:
            os.kill(driver.pop(), signal.SIGKILL)  # it has no answer yet, and has noted nothing

    asked = watched(server, kill)
    checkpoint, scratch = tmp_path / "checkpoint", tmp_path / "scratch"
    scratch.mkdir()
    words = [f"{name}={value}" for name, value in server.options().items()]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(scratch), str(checkpoint), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            driver.append(int(process.stdout.readline()))
            assert process.wait(240) != 0
        finally:
            process.kill()
    assert [request.batch for request in asked] == [0, 1, KILLED_AT]
    assert not (checkpoint / "commits" / f"{KILLED_AT}").exists()

    start(spark.spark, server, checkpoint).awaitTermination()
    ends = [*range(20, END, 20), END]
    (run,) = {request.run for request in asked}
    once = [Asked(batch, end, run, EXPECTED[end].ranking, True) for batch, end in enumerate(ends)]
    again = replace(once[KILLED_AT], is_new=False)
    assert asked == [*once[: KILLED_AT + 1], again, *once[KILLED_AT + 1 :]]
    assert stored(server) == (len(ends) - 1, END, run)
