"""The memory that long histories take: `make bench-spark`.

Rankings of 16 members are stored, a file for each date as `rank compact` leaves it, and the commands that
read them run on a few dates and on ten times as many. One JSON line per command: the peak memory on each, the
CPU time per row, and by how much the longer history takes more (at most 1.2 times; exit code 1).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMBERS, ROWS_A_DATE = range(1, 17), 2_000
DATES, TIMES, MOST = 6, 10, 1.2
T0, DAY_MS = 1_800_000_000_000, 86_400_000
COMMANDS = {
    "history": ("history", "-o", "jsonl", "--by", "hour"),
    "report": ("report", "--by", "day"),
    "report-days": ("report", "--by", "day", "--days", "2"),
}


def rows(date: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(date)
    scores = {member: chance.randint(500_000, 900_000) for member in MEMBERS}
    for number in range(ROWS_A_DATE):
        scores[chance.choice(MEMBERS)] = chance.randint(500_000, 900_000)
        index = date * ROWS_A_DATE + number + 1
        yield {
            "farm": "farm",
            "farm_id": "07" * 16,
            "log_index": index,
            "farm_time_ms": T0 + date * DAY_MS + number * DAY_MS // ROWS_A_DATE,
            "interval_ms": 30_000,
            "changed": ["order"] if number % 50 else ["publisher", "order"],
            "publisher": number // 50 % 16 + 1,
            "holders": [number // 50 % 16 + 1],
            "recent": [*MEMBERS],
            "order": sorted(scores, key=scores.__getitem__),
            "scores": dict(scores),
            "contents": b"",
            "skipped": {},
            "ranking": json.dumps({"because": "margin", "orders": {}, "of": [hash(index)] * 500}),
            "state_sha256": f"{index:064x}",
        }


def store(few: Path, many: Path) -> None:
    from tests.spark.stored import write

    for date in range(DATES * TIMES):
        for directory in (few, many) if date < DATES else (many,):
            write(directory, rows(date))


def measured(directory: Path, command: tuple[str, ...]) -> tuple[float, float]:
    """Peak memory in MB, and CPU seconds."""
    name, *options = command
    if name == "report":
        options += ["--html", str(directory.with_name("page.html"))]
    process = subprocess.Popen(
        [sys.executable, "-m", "garlicfarm", "rank", name, str(directory), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"rank {name} failed"
    return used.ru_maxrss * 1024 / 1e6, used.ru_utime + used.ru_stime


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        few, many = Path(scratch) / "few", Path(scratch) / "many"
        # Apart: a process starts with the peak memory of the one that starts it.
        subprocess.run([sys.executable, "-m", "benchmarks.history", str(few), str(many)], check=True)
        for name, command in COMMANDS.items():
            of_few, _ = measured(few, command)
            of_many, cpu_s = measured(many, command)
            count = ROWS_A_DATE * DATES * TIMES
            figure: dict[str, Any] = {"few_mb": round(of_few), "many_mb": round(of_many), "rows": count}
            figure |= {"ratio": round(of_many / of_few, 2), "limit": MOST}
            if name != "report-days":
                figure["cpu_us_per_row"] = round(cpu_s / count * 1e6)
            missed += of_many > MOST * of_few
            print(json.dumps({"figure": name, **figure}), flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        store(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        sys.exit(main())
