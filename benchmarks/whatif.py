"""What an entry costs under each setting that `garlicfarm rank whatif` compares: part of `make bench-spark`.

The plain fold and the comparison alternate over the same log; medians of the rounds. One JSON line, exit code
1 where the limit is missed:

* ``whatif_to_fold``: the CPU time of an entry under one of 50 settings, with its share of decoding the log
  once, compared with that of an entry in the plain fold: at most 0.4.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from benchmarks.bench_farm import report
from benchmarks.fold import entries
from garlicfarm.publishing.application import PublisherApplication
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark.grid import parse_grid, settings_of
from garlicfarm_plugin_spark.ranking import Row
from garlicfarm_plugin_spark.whatif import Recording
from tests.publishing.scripted_log import configuration

MEMBERS = 5
MOST = 0.4
GRIDS = ("margin=0:200000:50000", "R=3,10", "weight.bandwidth_headroom=10,20,25,30,40")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    log = entries(MEMBERS, 1, arguments.entries // MEMBERS)
    members = configuration(*range(1, MEMBERS + 1), index=1)
    rows: list[Row] = [
        (1, 1, int(ValueType.CONFIGURATION), encode_configuration(members)),
        *((index, 1, int(ValueType.APPLICATION), entry) for index, entry in enumerate(log, 2)),
    ]
    settings = settings_of([parse_grid(text) for text in GRIDS])

    def fold() -> None:
        farm = PublisherApplication("farm")
        farm.configure(1, members)
        for index, entry in enumerate(log, 2):
            farm.apply(index, 1, entry)

    def compare() -> None:
        recording = Recording("farm", rows)
        for setting in settings:
            recording.outcome(setting)

    plain, compared = [], []
    for _ in range(arguments.rounds):
        plain.append(_cpu_us(fold) / len(rows))
        compared.append(_cpu_us(compare) / len(rows) / len(settings))
    plain_us, compared_us = statistics.median(plain), statistics.median(compared)
    ok = report(
        "whatif_to_fold",
        compared_us / plain_us,
        MOST,
        entries=len(rows),
        settings=len(settings),
        fold_us=round(plain_us, 1),
        whatif_us=round(compared_us, 1),
    )
    return 0 if ok else 1


def _cpu_us(work: Callable[[], None]) -> float:
    begun = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begun) / 1000


if __name__ == "__main__":
    sys.exit(main())
