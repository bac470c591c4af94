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

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garlicfarm_plugin_spark.java import find_java_home
    from garlicfarm_plugin_spark.ranking import rankings
    from garlicfarm_plugin_spark.source import GarlicFarm
    from garlicfarm_plugin_spark.status_columns import statuses

__all__ = ["GarlicFarm", "find_java_home", "rankings", "statuses"]

_MODULES = {
    "GarlicFarm": "garlicfarm_plugin_spark.source",
    "find_java_home": "garlicfarm_plugin_spark.java",
    "rankings": "garlicfarm_plugin_spark.ranking",
    "statuses": "garlicfarm_plugin_spark.status_columns",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
