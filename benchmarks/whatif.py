"""What `garlicfarm rank whatif` costs, and what it says of the default margin: part of `make bench-spark`.

One JSON line per figure, exit code 1 where a limit is missed:

* ``whatif_to_fold``: the CPU time of an entry under one of 50 settings, with its share of decoding the log
  once, compared with that of an entry in the plain fold over the same log: at most 0.4. The two alternate;
  medians of the rounds.
* ``noisy_week``: how often two equal routers, all of whose figures vary by a tenth, take the role from each
  other in a week: at most twice with the default margin. With others it is shown.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.bench_farm import command_line, report
from benchmarks.fold import entries
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.policy import MARGIN
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark.grid import parse_grid, settings_of
from garlicfarm_plugin_spark.ranking import Row
from garlicfarm_plugin_spark.whatif import Recording
from tests.publishing.posting import WEEK_MS, WORST, Posting, noisy
from tests.publishing.scripted_log import configuration

MEMBERS = 5
MOST = 0.4
MOST_CHANGES = 2
NOISY_GRID = "margin=0:60000:10000"
GRIDS = ("margin=0:200000:50000", "R=3,10", "weight.bandwidth_headroom=10,20,25,30,40")


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--entries", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    log = entries(MEMBERS, 1, arguments.entries // MEMBERS)
    members = configuration(*range(1, MEMBERS + 1), index=1)
    rows = _rows(MEMBERS, log)
    settings = settings_of([parse_grid(text) for text in GRIDS])

    def fold() -> None:
        farm = PublisherFold("farm")
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
    ok &= _noisy_week()
    return 0 if ok else 1


def _noisy_week() -> bool:
    posting = Posting((1, 2), 1, noisy(random.Random(1), WORST), keep=True)
    posting.run(WEEK_MS)
    recording = Recording("farm", _rows(2, posting.entries))
    found = {setting.margin: recording.outcome(setting) for setting in settings_of([parse_grid(NOISY_GRID)])}
    shown = {margin: outcome.changes for margin, outcome in found.items()}
    lost = {margin: outcome.score_lost for margin, outcome in found.items()}
    return report("noisy_week", found[MARGIN].changes, MOST_CHANGES, changes=shown, score_lost=lost)


def _rows(members: int, entries: Sequence[bytes]) -> list[Row]:
    """A log of such a farm."""
    first = encode_configuration(configuration(*range(1, members + 1), index=1))
    return [
        (1, 1, int(ValueType.CONFIGURATION), first),
        *((index, 1, int(ValueType.APPLICATION), entry) for index, entry in enumerate(entries, 2)),
    ]


def _cpu_us(work: Callable[[], None]) -> float:
    begun = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begun) / 1000


if __name__ == "__main__":
    sys.exit(main())
