"""Lets Spark show an error of the source or the sink as its sentence, without a Python traceback.

Spark runs both in Python processes of its own, and puts what they raise into its exception: by default as a
traceback, whose last line is the sentence. `pyspark.util.handle_worker_exception` leaves the traceback out
where ``SPARK_HIDE_TRACEBACK`` is set in that process. Spark's setting for that,
``spark.sql.execution.pyspark.udf.hideTraceback.enabled``, does not reach the process that plans streams, and
would hide tracebacks of the user's own functions too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from garlicfarm.errors import GarlicFarmError

__all__ = ["sentences"]


@contextmanager
def sentences() -> Iterator[None]:
    """Mark an error of ours that leaves the block, or the function that this decorates, as one without a
    traceback. The process ends with it, so no other error is affected. Those that are not ours keep theirs.
    """
    try:
        yield
    except GarlicFarmError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
