"""How many bytes a second pass, by a clock that the test keeps."""

from __future__ import annotations

from garlicfarm_plugin_i2cp.rate import WINDOW_S, ByteRate


def test_rate_is_the_mean_of_the_whole_seconds_of_its_window() -> None:
    rate = ByteRate()
    assert rate.per_s(0.0) == 0
    rate.add(1000, 100.2)
    rate.add(500, 100.9)
    assert rate.per_s(100.9) == 0  # the second is not over
    assert rate.per_s(101.0) == 1500 // WINDOW_S
    rate.add(3000, 105.0)
    assert rate.per_s(106.0) == 4500 // WINDOW_S
    assert rate.per_s(115.9) == 4500 // WINDOW_S
    assert rate.per_s(116.0) == 3000 // WINDOW_S
    assert rate.per_s(10_000.0) == 0


def test_rate_of_steady_traffic_is_that_of_the_traffic() -> None:
    rate = ByteRate()
    for tenth in range(1000):
        rate.add(10, tenth / 10)
    assert rate.per_s(100.0) == 100
