"""Lets Spark show an error of the source or the sink as its sentence, without a Python traceback.

Spark runs both in Python processes of its own, and puts what they raise into its exception: by default as a
traceback, whose last line is the sentence. `pyspark.util.handle_worker_exception` leaves the traceback out
where ``SPARK_HIDE_TRACEBACK`` is set in that process. Spark's setting for that,
``spark.sql.execution.pyspark.udf.hideTraceback.enabled``, does not reach the process that plans streams, and
would hide tracebacks of the user's own functions too.

In a batch query, Spark writes a line of its own before that of a Python function's error: there `map_frames`
has the JVM raise it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from garlicfarm.errors import GarlicFarmError

if TYPE_CHECKING:
    import pandas
    from pyspark.sql import DataFrame

    Mapped = Callable[[Iterator[pandas.DataFrame]], Iterator[pandas.DataFrame]]

_FAILURE = "failure"


@contextmanager
def hide_traceback() -> Iterator[None]:
    """Mark an error of ours that leaves the block, or the function that this decorates, as one without a
    traceback. The process ends with it, so no other error is affected. Those that are not ours keep theirs.
    """
    try:
        yield
    except GarlicFarmError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def map_frames(rows: DataFrame, mapped: Mapped, columns: str) -> DataFrame:
    """``rows.mapInPandas(mapped, columns)``; an error of ours is in the first line of Spark's exception."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    names = StructType.fromDDL(columns).names
    told = rows.mapInPandas(partial(_with_failure, mapped, names), f"{columns}, {_FAILURE} string")
    failure = f.col(_FAILURE)
    # A filter, because Spark evaluates no column that nobody reads.
    return told.where(f.when(failure.isNotNull(), f.raise_error(failure)).otherwise(True)).drop(_FAILURE)


def _with_failure(
    mapped: Mapped, names: Sequence[str], frames: Iterator[pandas.DataFrame]
) -> Iterator[pandas.DataFrame]:
    """The frames, and behind them an error of ours as a row of nothing else."""
    import pandas

    try:
        for frame in mapped(frames):
            yield frame.assign(**{_FAILURE: None})
    except GarlicFarmError as error:
        text = f"{type(error).__module__}.{type(error).__name__}: {error}"
        yield pandas.DataFrame([{**dict.fromkeys(names), _FAILURE: text}], dtype=object)
