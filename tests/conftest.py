"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast a machine draws examples says nothing of the product: speed is the benchmarks' business.
settings.register_profile("garlicfarm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("garlicfarm")
