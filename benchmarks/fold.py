"""The cost of the fold, including evaluation, on one core; and how often noise changes the publisher.

* five members with one destination each: at least 5,000 entries a second,
* a hundred members with twenty: 1 ms per entry, the median,
* 256 members with one: 0.3 ms per entry, the median,
* two equal servers, every figure up to a tenth off its mean: at most two changes a week.

One JSON line for each, in CPU time. Run by `make bench`.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.bench_farm import command_line, report
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.posting import WEEK_MS, WORST, Posting, changes_in, noisy
from tests.publishing.scripted_log import configuration


def entries(members: int, destinations: int, rounds: int) -> Sequence[bytes]:
    """A log of honest members' statuses, all different."""
    posting = Posting(
        range(1, members + 1), 1, noisy(random.Random(1), WORST), destinations=destinations, keep=True
    )
    while len(posting.entries) < members * rounds:
        posting.step()
    return posting.entries


def fold_us(members: int, log: Sequence[bytes]) -> Iterator[float]:
    """The CPU time of each entry, in µs."""
    farm = PublisherFold("farm")
    farm.configure(0, configuration(*range(1, members + 1)))
    for index, entry in enumerate(log, 1):
        begun = time.thread_time_ns()
        farm.apply(index, 1, entry)
        yield (time.thread_time_ns() - begun) / 1000
    assert farm.skipped == {}
    assert farm.publisher is not None


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--weeks", type=int, default=5, help="seeds of noise (default 5)")
    weeks = parser.parse_args().weeks
    small, large, many = entries(5, 1, 800), entries(100, 20, 8), entries(256, 1, 8)
    each = list(fold_us(5, small))
    us = statistics.fmean(each)
    ok = report(
        "fold_5x1_us", us, 200, entries=len(each), bytes=len(small[-1]), entries_per_s=round(1e6 / us)
    )
    each = list(fold_us(100, large))
    middle_ms = statistics.median(each) / 1000
    ok &= report(
        "fold_100x20_ms", middle_ms, 1, entries=len(each), bytes=len(large[-1]), worst=max(each) / 1000
    )
    each = list(fold_us(256, many))
    middle_ms = statistics.median(each) / 1000
    ok &= report(
        "fold_256x1_ms", middle_ms, 0.3, entries=len(each), bytes=len(many[-1]), worst=max(each) / 1000
    )
    changes = [changes_in(seed, WEEK_MS) for seed in range(1, weeks + 1)]
    ok &= report("changes_in_a_noisy_week", max(changes, default=0), 2, seeds=changes)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
