"""Figures in docs/explanation/publisher.md that follow from the rules."""

from __future__ import annotations

import re
from pathlib import Path

from garlicfarm.config import PublisherSection
from garlicfarm.publishing.lease import lease_ms

PAGE = Path(__file__).parents[2] / "docs/explanation/publisher.md"
ROW = r"^\| (\d+) s \| (\d+) \| (\d+) to (\d+) s \| ([\d.]+) s \|$"


def test_what_a_lease_outlasts_is_the_lease_less_an_interval_and_the_time_to_stop() -> None:
    rows = re.findall(ROW, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == 6
    for interval_s, R, earliest_s, latest_s, outlasts_s in rows:
        interval, count = int(interval_s), int(R)
        lease_s = lease_ms(1000 * interval, count) / 1000
        stop_s = min(PublisherSection(plugin="any").retire_timeout_s, lease_s / 4)
        assert outlasts_s == f"{lease_s - stop_s - interval:.1f}"
        assert (int(earliest_s), int(latest_s)) == ((count - 1) * interval, count * interval)
