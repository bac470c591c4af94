"""What `make bench-cost` reads and reckons."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import cost
from benchmarks.bench_sockets import Connection, Meter, Traffic, parse
from garlicfarm.config.model import RetentionSection

# Of iproute2 6.1. The third connection is one that no process has any more; the fourth one's ends are held by
# a parent and by its child.
PRINTED = """\
ESTAB  0 0      127.0.0.1:28150    127.0.0.1:38856 users:(("garlicfarm",pid=1096,fd=21))
\t bbr wscale:10,10 rto:208 rtt:5.088/10.157 bytes_sent:1115 bytes_acked:1115 bytes_received:926 segs_out:4 \
segs_in:7 data_segs_out:2 bbr:(bw:20164921872bps,mrtt:0.011) send 618264151bps lastsnd:55440
ESTAB  0 0          [::1]:45918        [::1]:28170 users:(("a b",pid=7,fd=22))
\t cubic wscale:10,10 segs_in:1 lastsnd:744
TIME-WAIT  0 0  127.0.0.1:4444     127.0.0.1:1
\t cubic bytes_sent:5 segs_out:1
ESTAB  0 0   127.0.0.1%lo:9        10.0.0.1:65535 users:(("p",pid=8,fd=3),("c",pid=9,fd=3))
\t cubic bytes_received:30
"""


def test_parse_what_ss_prints_gives_bytes_and_segments_by_process() -> None:
    assert dict(parse(PRINTED)) == {
        Connection(1096, "127.0.0.1:28150", "127.0.0.1:38856"): Traffic(1115, 926, 4, 7),
        Connection(7, "[::1]:45918", "[::1]:28170"): Traffic(0, 0, 0, 1),
        Connection(8, "127.0.0.1%lo:9", "10.0.0.1:65535"): Traffic(0, 30, 0, 0),
        Connection(9, "127.0.0.1%lo:9", "10.0.0.1:65535"): Traffic(0, 30, 0, 0),
    }
    first, second, *_ = dict(parse(PRINTED))
    assert (first.local_port, first.peer_port) == (28150, 38856)
    assert (second.local_port, second.peer_port) == (45918, 28170)


def test_meter_connections_that_come_and_go_are_counted_from_the_first_reading() -> None:
    old, gone, new = (Connection(1, "a:1", f"b:{port}") for port in (1, 2, 3))
    meter = Meter()
    meter.read({old: Traffic(100, 10, 5, 4), gone: Traffic(50, 5, 2, 2)})
    meter.read({old: Traffic(130, 11, 7, 5), gone: Traffic(60, 5, 3, 2)})
    meter.read({old: Traffic(131, 11, 8, 5), new: Traffic(9, 8, 7, 6)})
    assert meter.total == {old: Traffic(31, 1, 3, 1), gone: Traffic(10, 0, 1, 0), new: Traffic(9, 8, 7, 6)}
    assert meter.ended == 1


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """What is told of a log at so many entries an hour, shortened to `keep` of them."""

    def tell(entries_per_hour: float, keep: int, seen: list[tuple[int, int, int]]) -> dict[str, Any]:
        retention = RetentionSection(snapshot_every_entries=20, keep_entries=keep)
        cost.tell_cap(entries_per_hour, 250.0, retention, seen, (60.0, 61.0))
        line: dict[str, Any] = json.loads(capsys.readouterr().out)
        return line

    return tell


SEEN = [(1, 0, 4_000), (1, 100, 44_000), (21, 100, 52_000), (41, 99, 50_000)]
"""(first index, entries held, bytes on the disk)"""


def test_disk_after_a_month_is_no_more_than_retention_leaves(told: Callable[..., dict[str, Any]]) -> None:
    line = told(600.0, 100, SEEN)
    assert line["disk_bytes_per_entry"] == 400
    assert line["steady_bytes"] == [50_000, 52_000]
    assert line["times_shortened"] == 2
    assert line["extrapolated_days_until_steady"] == 0.0
    assert line["extrapolated_bytes_after_a_month"] == 52_000


def test_disk_after_a_month_of_few_entries_is_what_grew(told: Callable[..., dict[str, Any]]) -> None:
    line = told(0.1, 100, SEEN)
    assert line["extrapolated_days_until_steady"] == 50.0
    assert line["extrapolated_bytes_after_a_month"] == 0.1 * 720 * 400
