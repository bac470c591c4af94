"""Spark on farms' replicated logs: a data source, and a ranking equal to the nodes'.

::

    entries = spark.readStream.format("garlicfarm").options(
        url="https://127.0.0.1:27151", farm="farm", user="rita", passwordFile="rita.password"
    ).load()

`garlicfarm_plugin_spark.source` is the data source, which `pyspark_garlicfarm` makes known to Spark, and
`garlicfarm_plugin_spark.ranking` the query that `garlicfarm rank` runs. Spark kills a worker that takes more
than ten seconds to start, so this module imports lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garlicfarm.lazy_names import lazy_names

if TYPE_CHECKING:
    from garlicfarm_plugin_spark.java import find_java_home
    from garlicfarm_plugin_spark.ranking import rankings
    from garlicfarm_plugin_spark.source import GarlicFarm
    from garlicfarm_plugin_spark.status_columns import statuses

__all__ = ["GarlicFarm", "find_java_home", "rankings", "statuses"]

__getattr__ = lazy_names(
    __name__,
    {
        "garlicfarm_plugin_spark.java": ("find_java_home",),
        "garlicfarm_plugin_spark.ranking": ("rankings",),
        "garlicfarm_plugin_spark.source": ("GarlicFarm",),
        "garlicfarm_plugin_spark.status_columns": ("statuses",),
    },
)
