"""What ranking many farms in one Spark query costs: ``python -m benchmarks.spark_farms``.

The feed is the real admin listener, over logs in memory, in a process of its own; its CPU time is not
counted. Each Spark session has a process of its own, too. One JSON line per figure:

* ``cores``: rows per second and CPU per row of one query with 64 farms of five members, with 1, 2 and 4
  executor cores (``spark.cores.max``) of a standalone cluster of two workers, and with as many of a local
  session. The three run by turns, so that they share what else the machine does; ``cores_used`` is CPU time
  by wall time. More cores than the machine has show nothing; ``machine_cores`` says how many that are.
* ``farms``: CPU per row of one query with four farms, compared with that of one farm, in alternating
  rounds: at most half of it (exit code 1), where a batch has what five members post in five intervals
  (``live``), and where it has 2,000 entries of each farm (``backlog``). Farms of a query share what a batch
  costs whatever is in it: planning, files of the checkpoint, round trips to Python. A row costs the same in
  any query, so the ratio nears 1 as batches grow.

CPU is that of driver, Java, executors and Python workers together. The first query of a session, and the
first batch of each, which starts the query, warm up: rates leave them out. A figure of several rounds is
median, least and most.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench_farm import command_line
from garlicfarm.publishing.entries import encode_status
from garlicfarm.raft.types import Entry
from garlicfarm.wire import encode_configuration
from garlicfarm.wire.messages import ValueType
from garlicfarm_plugin_spark.ranking import rankings
from garlicfarm_plugin_spark.session import Session
from tests.publishing.scripted_log import T0, configuration, status
from tests.spark.feed_server import feed_server
from tests.spark.services import LOOPBACK, standalone

MEMBERS = 5
FARMS = 64
KINDS = ("local", "cluster")
CORES = (1, 2, 4)
CORES_BATCHES = 3
PARTITIONS = max(CORES)  # of the state
LIVE, BACKLOG = 25, 2000  # entries of a farm in a batch
LIVE_BATCHES, BACKLOG_BATCHES = 10, 2
RATIO_MOST = 0.5
STOP_S = 30
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


# The processes that measure


def measure(master: str, settings: dict[str, str]) -> None:
    """Start a session; run a query for each line on stdin, its options, and print what it took."""
    with tempfile.TemporaryDirectory(prefix="garlicfarm-bench-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        (scratch / "spark").mkdir()
        session = Session(scratch / "spark", master=master, conf=settings)
        try:
            for line in sys.stdin:
                print(json.dumps(run_query(session, json.loads(line), scratch / "checkpoint")), flush=True)
        finally:
            session.close()


def run_query(session: Session, options: dict[str, str], checkpoint: Path) -> dict[str, float]:
    shutil.rmtree(checkpoint, ignore_errors=True)
    stream = session.spark.readStream.format("garlicfarm").options(startingIndex="state", **options).load()
    writer = rankings(stream).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    application = session.spark.sparkContext.applicationId
    cpu, begun = cpu_s(application), time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds, cpu = time.perf_counter() - begun, cpu_s(application) - cpu
    progress = query.recentProgress
    rows = [each["numInputRows"] for each in progress]
    later_ms = sum(each["durationMs"]["triggerExecution"] for each in progress[1:])
    return {
        "rows": sum(rows),
        "batches": len(rows),
        "rows_per_s": 1000 * sum(rows[1:]) / later_ms,
        "cpu_us_per_row": 1e6 * cpu / sum(rows),
        "cores_used": cpu / seconds,
    }


def cpu_s(application: str) -> float:
    """CPU of this process, of executors of this application of Spark's, and of their descendants, those that
    have ended included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    roots = {os.getpid()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            pid = int(entry.name)
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if application.encode() in (entry / "cmdline").read_bytes():
                    roots.add(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[pid] = int(fields[1])
            ticks[pid] = sum(map(int, fields[11:15]))
    total = 0
    for pid in ticks:
        above = pid
        while above not in (0, *roots):
            above = parents.get(above, 0)
        total += ticks[pid] if above else 0
    return total / TICKS


class Measurer:
    """The process that runs `measure`."""

    def __init__(self, master: str, settings: dict[str, str]) -> None:
        command = [sys.executable, "-m", __spec__.name, "--measure", master, json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, options: dict[str, str]) -> dict[str, float]:
        """What a query took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process that measures has ended ({self._process.wait()}): see above")
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        """End it; its Java process ends with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:  # in the midst of a query
            self._process.kill()
            self._process.wait()


@contextmanager
def measurer(master: str, settings: dict[str, str]) -> Iterator[Measurer]:
    started = Measurer(master, settings)
    try:
        yield started
    finally:
        started.close()


# Figures


def names_of(farms: int) -> list[str]:
    return [f"farm-{number:02}" for number in range(farms)]


def asked(options: dict[str, str], farms: list[str], size: int) -> dict[str, str]:
    """The options of a query that reads ``size`` entries of each farm in a batch."""
    return {**options, "farm": " ".join(farms), "maxEntriesPerTrigger": str(size * len(farms))}


def on_cores(scratch: Path, kind: str, rounds: int, entries: int) -> None:
    with ExitStack() as stack:
        options = stack.enter_context(feed(scratch / kind, FARMS, entries * CORES_BATCHES))
        masters = {cores: f"local[{cores}]" for cores in CORES}
        settings = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
        if kind == "cluster":
            # Room for the executors of all three on each worker.
            limits: dict[str, Any] = {"workers": 2, "cores": max(CORES), "memory": "2g"}
            masters = dict.fromkeys(CORES, stack.enter_context(standalone(scratch / "spark", **limits)).url)
            settings |= dict(each.split("=", 1) for each in LOOPBACK[1::2])
        sessions = {
            cores: stack.enter_context(measurer(masters[cores], {**settings, "spark.cores.max": str(cores)}))
            for cores in CORES
        }
        found: dict[int, list[dict[str, float]]] = {cores: [] for cores in CORES}
        for number in range(-1, rounds):
            for cores, session in sessions.items():
                figures = session.run(asked(options, names_of(FARMS), entries))
                if number >= 0:
                    found[cores].append(figures)
    for cores, rows in found.items():
        report(
            "cores",
            of=kind,
            cores=cores,
            machine_cores=os.cpu_count(),
            farms=FARMS,
            rows_in_a_batch=round(rows[0]["rows"] / rows[0]["batches"]),
            rounds=rounds,
            rows_per_s=spread([each["rows_per_s"] for each in rows]),
            cpu_us_per_row=spread([each["cpu_us_per_row"] for each in rows]),
            cores_used=spread([each["cores_used"] for each in rows], 2),
        )


def by_farms(scratch: Path, rounds: int, partitions: int) -> bool:
    ok = True
    settings = {"spark.sql.shuffle.partitions": str(partitions)}
    for kind, size, batches in (("live", LIVE, LIVE_BATCHES), ("backlog", BACKLOG, BACKLOG_BATCHES)):
        us: dict[int, list[float]] = {1: [], 4: []}
        with (
            feed(scratch / kind, 4, size * batches) as options,
            measurer("local[2]", settings) as session,
        ):
            for number in range(-1, rounds):
                for count, each in us.items():
                    figures = session.run(asked(options, names_of(count), size))
                    if number >= 0:
                        each.append(figures["cpu_us_per_row"])
        ratio = statistics.median(us[4]) / statistics.median(us[1])
        ok &= ratio <= RATIO_MOST
        report(
            "farms",
            batches_of=kind,
            entries_of_a_farm_in_a_batch=size,
            rounds=rounds,
            one_farm_cpu_us_per_row=spread(us[1]),
            four_farms_cpu_us_per_row=spread(us[4]),
            ratio=round(ratio, 2),
            at_most=RATIO_MOST,
            ok=ratio <= RATIO_MOST,
        )
    return ok


def spread(values: list[float], digits: int | None = None) -> dict[str, float]:
    figures = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: round(value, digits) for name, value in figures.items()}


def report(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values, "load": round(os.getloadavg()[0], 1)}), flush=True)


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", type=int, default=250, help="of each of the 64 farms, in a batch")
    parser.add_argument("--partitions", type=int, default=2, help="of the state, for four farms")
    parser.add_argument("--only", choices=["farms", *KINDS])
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(Path(given.serve[0]), int(given.serve[1]), int(given.serve[2]))
        return 0
    if given.measure:
        measure(given.measure[0], json.loads(given.measure[1]))
        return 0
    ok = True
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # the cluster's processes do not end with this one
    with tempfile.TemporaryDirectory(prefix="garlicfarm-bench-", ignore_cleanup_errors=True) as directory:
        if given.only in (None, "farms"):
            ok = by_farms(Path(directory), given.rounds, given.partitions)
        for kind in KINDS:
            if given.only in (None, kind):
                on_cores(Path(directory), kind, given.rounds, given.entries)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
