"""Makes ``format("garlicfarm")`` known to every Spark session, without a call of ``register()``.

Spark imports each module on its path whose name begins with ``pyspark_``, and registers its
``DefaultSource`` (`pyspark.sql.worker.lookup_data_sources`). An error here would hide all Python data
sources of a session, so this module imports nothing heavy.
"""

from __future__ import annotations

from garlicfarm_plugin_spark import GarlicFarm as DefaultSource

__all__ = ["DefaultSource"]
