"""What a user of a Spark session sees of an error: its sentence, in the first line of Spark's exception."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make test-spark")

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.util import handle_worker_exception

from garlicfarm.errors import ConfigError
from garlicfarm_plugin_spark import rankings
from garlicfarm_plugin_spark.hide_traceback import hide_traceback
from garlicfarm_plugin_spark.history_query import history
from garlicfarm_plugin_spark.session import Session
from tests.spark.feed_server import FeedServer

pytestmark = pytest.mark.spark


@hide_traceback()
def fails(error: Exception) -> None:
    raise error


def told(error: Exception) -> str:
    """What Spark's own Python process passes on of it."""
    written = io.BytesIO()
    try:
        fails(error)
    except Exception as raised:  # noqa: BLE001
        handle_worker_exception(raised, written)
    return written.getvalue()[8:].decode()


def test_error_of_ours_is_told_without_a_traceback_and_others_with_theirs() -> None:
    assert told(LookupError("farm")).startswith("Traceback (most recent call last):")
    assert told(ConfigError(["the option farm is missing"])) == (
        "garlicfarm.errors.ConfigError: the option farm is missing\n"
    )


def test_errors_of_source_and_sink_are_in_the_first_line_of_spark_exceptions(
    spark: Session, server: FeedServer, tmp_path: Path
) -> None:
    """In each of the processes that Spark starts for them."""

    def stream(**options: str) -> Any:
        return spark.spark.readStream.format("garlicfarm").options(**server.options(**options)).load()

    def run(entries: Any, checkpoint: str, sink: str = "noop", **options: str) -> None:
        writer = entries.writeStream.format(sink).options(checkpointLocation=str(tmp_path / checkpoint))
        writer.options(**options).trigger(availableNow=True).start().awaitTermination()

    def read_again() -> None:
        run(stream(), "again")
        for name in ("0", ".0.crc"):
            (tmp_path / "again" / "commits" / name).unlink()
        server.compact(50)
        run(stream(), "again")

    sink = server.options(user="nobody", query="q")
    del sink["farm"]
    failures: list[tuple[Callable[[], object], type[PySparkException], str]] = [
        (lambda: stream(farmm="x"), PySparkException, "the option farmm is unknown"),
        (
            lambda: run(stream(endingIndex="5"), "use"),
            StreamingQueryException,
            "endingIndex is for spark.read",
        ),
        (lambda: run(stream(farm="barn"), "plan"), StreamingQueryException, "has no farm 'barn', only: farm"),
        (
            lambda: run(rankings(stream(startingIndex="state"), "batches"), "sink", "garlicfarm", **sink),
            StreamingQueryException,
            "the user or the password is wrong",
        ),
        (
            lambda: (
                spark.spark.read.format("garlicfarm")
                .options(**server.options(endingIndex="999"))
                .load()
                .count()
            ),
            PySparkException,
            "endingIndex is 999, and the log of farm ends at",
        ),
        *(
            (
                lambda folded=folded: run(folded(stream(startingIndex="-5")), folded.__name__),
                StreamingQueryException,
                "read them with startingIndex=state",
            )
            for folded in (rankings, history)
        ),
        *(
            (
                lambda folded=folded: folded(
                    spark.spark.read.format("garlicfarm").options(**server.options(startingIndex="-5")).load()
                ).collect(),
                PySparkException,
                "read them with startingIndex=state",
            )
            for folded in (rankings, history)
        ),
        (
            lambda: (
                spark.spark.read.format("garlicfarm")
                .options(**server.options())
                .load()
                .write.format("garlicfarm")
                .mode("append")
                .save()
            ),
            PySparkException,
            "write them with writeStream",
        ),
        (read_again, StreamingQueryException, "the entries after index 0 are gone"),
    ]
    for fail, kind, sentence in failures:
        with pytest.raises(kind) as raised:
            fail()
        text = str(raised.value)
        assert sentence in text.partition("\n")[0], text
        assert "Traceback" not in text
