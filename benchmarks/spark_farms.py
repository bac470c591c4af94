"""What ranking many farms in one Spark query costs: ``python -m benchmarks.spark_farms``.

The feed is the real admin listener, over logs in memory, in a process of its own; its CPU time is not
counted. Each master gets a process of its own, too. One JSON line per figure:

* ``cores``: rows per second and CPU per row of one query with 64 farms of five members, on ``local[1]``,
  ``local[2]`` and ``local[4]``. More cores than the machine has show nothing; ``machine_cores`` says it.
* ``farms``: CPU per row of one query with four farms, compared with that of one farm, in alternating
  rounds: at most half of it (exit code 1), where a batch has what five members post in five intervals
  (``live``), and where it has 2,000 entries of each farm (``backlog``). Farms of a query share what a batch
  costs whatever is in it: planning, files of the checkpoint, round trips to Python. A row costs the same in
  any query, so the ratio nears 1 as batches grow.

CPU is that of driver, Java and Python workers together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from garlicfarm.publishing.entries import encode_status
from garlicfarm.raft.types import Entry
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark.ranking import rankings
from garlicfarm_plugin_spark.session import Session
from tests.publishing.scripted_log import T0, configuration, status
from tests.spark.feed_server import feed_server

MEMBERS = 5
FARMS = 64
MASTERS = (1, 2, 4)
PARTITIONS = 4  # of the state: as many as the largest master has cores
LIVE, BACKLOG = 25, 2000  # entries of a farm in a batch
LIVE_BATCHES, BACKLOG_BATCHES = 10, 2
RATIO_MOST = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


# The feed's process


def serve(directory: Path, farms: int, entries: int) -> None:
    """Serve ``farms`` farms with ``entries`` entries each, until stdin ends."""
    with feed_server(directory) as server:
        for farm in names_of(farms):
            server.add_farm(farm, log_of(farm, entries))
        print(json.dumps(server.options()), flush=True)
        sys.stdin.read()


def log_of(farm: str, entries: int) -> list[Entry]:
    """Five members that post in turn; their order changes every 200 entries."""
    members = range(1, MEMBERS + 1)
    made = configuration(*members, index=1)
    log = [Entry(1, 1, ValueType.CONFIGURATION, encode_configuration(made))]
    for index in range(2, entries + 1):
        member = 1 + index % MEMBERS
        document = status(
            member,
            T0 + index * 1000,
            interval_ms=MEMBERS * 1000,
            headroom=20 * ((index // 200 + member) % MEMBERS),
            applied=index - 1,
            sequence=index,
        )
        value = encode_status(document).replace(b'"cluster":"farm"', f'"cluster":"{farm}"'.encode())
        log.append(Entry(index, 1, ValueType.APPLICATION, value))
    return log


@contextmanager
def feed(directory: Path, farms: int, entries: int) -> Iterator[dict[str, str]]:
    """The options of a data source."""
    command = [sys.executable, "-m", __spec__.name, "--serve", str(directory), str(farms), str(entries)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


# The process that measures


def measure(job: dict[str, Any]) -> None:
    """Run each of ``job["queries"]`` once to warm up, then in rounds; print seconds, CPU and rows."""
    with tempfile.TemporaryDirectory(prefix="garlicfarm-bench-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        (scratch / "spark").mkdir()
        settings = {"spark.sql.shuffle.partitions": str(job["partitions"])}
        session = Session(scratch / "spark", master=job["master"], conf=settings)
        try:
            for number in range(-1, job["rounds"]):
                for name, options in job["queries"].items():
                    figures = run_query(session, options, scratch / "checkpoint")
                    if number >= 0:
                        print(json.dumps({"query": name, **figures}), flush=True)
        finally:
            session.close()


def run_query(session: Session, options: dict[str, str], checkpoint: Path) -> dict[str, float]:
    shutil.rmtree(checkpoint, ignore_errors=True)
    stream = session.spark.readStream.format("garlicfarm").options(startingIndex="state", **options).load()
    writer = rankings(stream).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    cpu, begun = cpu_s(), time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds, cpu = time.perf_counter() - begun, cpu_s() - cpu
    progress = query.recentProgress
    rows = sum(each["numInputRows"] for each in progress)
    return {"seconds": seconds, "cpu_s": cpu, "rows": rows, "batches": len(progress)}


def cpu_s() -> float:
    """CPU of this process and its descendants, those that have ended included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total = 0
    for pid in ticks:
        above = pid
        while above not in (0, os.getpid()):
            above = parents.get(above, 0)
        total += ticks[pid] if above else 0
    return total / TICKS


def measured(job: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """What a process of its own measured: by query, a row per round."""
    command = [sys.executable, "-m", __spec__.name, "--measure", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in job["queries"]}
    for line in done.stdout.splitlines():
        figures = json.loads(line)
        found[figures.pop("query")].append(figures)
    return found


# Figures


def names_of(farms: int) -> list[str]:
    return [f"farm-{number:02}" for number in range(farms)]


def asked(options: dict[str, str], farms: list[str], size: int) -> dict[str, str]:
    """The options of a query that reads ``size`` entries of each farm in a batch."""
    return {**options, "farm": " ".join(farms), "maxEntriesPerTrigger": str(size * len(farms))}


def on_cores(scratch: Path, rounds: int, entries: int) -> None:
    with feed(scratch / "cores", FARMS, entries) as options:
        query = asked(options, names_of(FARMS), entries)
        for cores in MASTERS:
            job = {"master": f"local[{cores}]", "partitions": PARTITIONS, "rounds": rounds}
            rows = measured({**job, "queries": {"all": query}})["all"]
            report(
                "cores",
                master=job["master"],
                machine_cores=os.cpu_count(),
                farms=FARMS,
                rows=round(rows[0]["rows"]),
                rows_per_s=[round(each["rows"] / each["seconds"]) for each in rows],
                cpu_us_per_row=[round(1e6 * each["cpu_s"] / each["rows"]) for each in rows],
            )


def by_farms(scratch: Path, rounds: int, partitions: int) -> bool:
    ok = True
    for kind, size, batches in (("live", LIVE, LIVE_BATCHES), ("backlog", BACKLOG, BACKLOG_BATCHES)):
        with feed(scratch / kind, 4, size * batches) as options:
            queries = {str(count): asked(options, names_of(count), size) for count in (1, 4)}
            job = {"master": "local[2]", "partitions": partitions, "rounds": rounds, "queries": queries}
            found = measured(job)
        us = {
            count: [1e6 * each["cpu_s"] / each["rows"] for each in figures]
            for count, figures in found.items()
        }
        ratio = statistics.median(us["4"]) / statistics.median(us["1"])
        ok &= ratio <= RATIO_MOST
        report(
            "farms",
            batches_of=kind,
            entries_of_a_farm_in_a_batch=size,
            one_farm_cpu_us_per_row=[round(each) for each in us["1"]],
            four_farms_cpu_us_per_row=[round(each) for each in us["4"]],
            batches={count: figures[0]["batches"] for count, figures in found.items()},
            ratio=round(ratio, 2),
            at_most=RATIO_MOST,
            ok=ratio <= RATIO_MOST,
        )
    return ok


def report(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--entries", type=int, default=2000, help="of each of the 64 farms")
    parser.add_argument("--partitions", type=int, default=2, help="of the state, for four farms")
    parser.add_argument("--only", choices=["cores", "farms"])
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(Path(given.serve[0]), int(given.serve[1]), int(given.serve[2]))
        return 0
    if given.measure:
        measure(given.measure)
        return 0
    ok = True
    with tempfile.TemporaryDirectory(prefix="garlicfarm-bench-", ignore_cleanup_errors=True) as directory:
        if given.only in (None, "farms"):
            ok = by_farms(Path(directory), given.rounds, given.partitions)
        if given.only in (None, "cores"):
            on_cores(Path(directory), given.rounds, given.entries)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
