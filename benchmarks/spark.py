"""The cost of ranking in Spark, compared with its lower bounds: `make bench-spark`.

All in one run, in alternating rounds, medians of the rounds. Ratios have limits (exit code 1); absolute
figures depend on the machine. The feed is the real admin listener, over a log in memory, in a process of
its own. One JSON line per figure:

* ``latency``: commit → ranking emitted at 20 entries/s, compared with an empty batch of the same query: at
  most 2 times that.
* ``backlog``: entries per second through the query, compared with the same fold in plain Python (at least
  0.4 of it), and through the source alone (at least 2.5 times the query).
* ``trigger``: the CPU of a query of three entries a second that begins a batch every 5 s, as `garlicfarm
  rank` does, compared with one that begins them back to back: at most 0.3 times that. On a busy machine
  back to back is seldom, and the ratio says nothing.
* ``memory`` (``--memory``): the peak memory of driver, Java and workers together while ranking a backlog of
  a million: under 2.5 GB.
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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.bench_farm import command_line
from garlicfarm_plugin_spark.offsets import Position, encode_offset
from garlicfarm_plugin_spark.ranking import Fold, rankings
from garlicfarm_plugin_spark.session import Session
from garlicfarm_plugin_spark.source import GarlicFarm, LogReader
from tests.admin.fake_node import FakeFarm
from tests.spark.feed_server import FeedServer, feed_server
from tests.spark.script import many_entries

RATE = 20
LATENCY_S = 15.0
WARM_UP_S = 4.0
EMPTY_BATCHES = 12
LATENCY_MOST, FOLD_LEAST, SOURCE_LEAST = 2.0, 0.4, 2.5
MEMORY_MOST = 2.5e9
SLOW_RATE, SLOW_S, TRIGGER, TRIGGER_MOST = 3, 60, "5 seconds", 0.3


class EmptyReader(LogReader):
    """A source that always reports new entries, and delivers none."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._numbers = count(1)

    def latestOffset(self, start: Any, limit: Any) -> dict[str, Any]:
        return encode_offset({"farm": Position(next(self._numbers), "")})

    def read(self, partition: Any) -> Iterator[Any]:
        return iter(())


class Empty(GarlicFarm):
    @classmethod
    def name(cls) -> str:
        return "garlicfarm-empty"

    def streamReader(self, schema: object) -> EmptyReader:
        return EmptyReader(self.options)


# The feed's process


def serve(directory: Path, entries: int, live: int, rate: int) -> None:
    """Serve ``entries``; for each line on stdin commit ``live`` more, ``rate`` a second, and print the time
    of each."""
    log = many_entries(entries + live * 100)
    with feed_server(directory) as server:
        unranked: Any = FakeFarm()  # it gets no requests for a ranking
        server.farm = server.node.farms["farm"] = unranked
        server.farm.log.extend(log[:entries])
        say({"options": server.options(), "farm_id": server.farm_id})
        at = entries
        for _ in sys.stdin:
            times = []
            begun = time.monotonic()
            for number in range(live):
                time.sleep(max(0.0, begun + number / rate - time.monotonic()))
                commit(server, log[at])
                at += 1
                times.append((at, time.monotonic()))
            say({"times": times})


def commit(server: FeedServer, entry: Any) -> None:
    import trio

    def append() -> None:
        server.farm.commit(entry.value, entry.value_type)

    trio.from_thread.run_sync(append, trio_token=server.token)


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


class Feed:
    """The process that runs `serve`; both processes use the machine's clock."""

    def __init__(self, directory: Path, entries: int, live: int = 0, rate: int = RATE) -> None:
        served = map(str, (directory, entries, live, rate))
        command = [sys.executable, "-m", __spec__.name, "--serve", *served]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.options: dict[str, str] = self.answer()["options"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        return said

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def feed(*arguments: Any) -> Iterator[Feed]:
    opened = Feed(*arguments)
    try:
        yield opened
    finally:
        opened.close()


# Figures


def stream(session: Session, form: str, options: dict[str, str]) -> Any:
    return session.spark.readStream.format(form).options(startingIndex="state", **options).load()


def latency(session: Session, scratch: Path, rounds: int) -> bool:
    session.spark.dataSource.register(Empty)
    empty, live = [], []
    count_live = int((LATENCY_S + WARM_UP_S) * RATE)
    with feed(scratch / "latency", 200, count_live) as source:
        checkpoint = scratch / "latency-checkpoint"
        for number in range(rounds):
            empty.append(empty_batch_s(session, source.options, scratch / f"empty-{number}"))
            live.append(live_latency_s(session, source, checkpoint))
    ratio = statistics.median(live) / statistics.median(empty)
    return report(
        "latency",
        ratio <= LATENCY_MOST,
        committed_to_ranked_p50_ms=[round(each * 1000) for each in live],
        empty_batch_ms=[round(each * 1000) for each in empty],
        ratio=round(ratio, 2),
        at_most=LATENCY_MOST,
    )


def empty_batch_s(session: Session, options: dict[str, str], checkpoint: Path) -> float:
    writer = rankings(stream(session, "garlicfarm-empty", options), "batches").writeStream.outputMode(
        "append"
    )
    query = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(
        lambda batch, _: batch.collect()
    )
    running = query.start()
    try:
        while (progress := running.lastProgress) is None or progress["batchId"] < EMPTY_BATCHES:
            running.awaitTermination(0.1)
        times = [each["durationMs"]["triggerExecution"] for each in running.recentProgress[4:]]
    finally:
        running.stop()
    return statistics.median(times) / 1000


def live_latency_s(session: Session, source: Feed, checkpoint: Path) -> float:
    emitted: list[tuple[int, float]] = []
    first = threading.Event()

    def emit(batch: Any, _: int) -> None:
        for row in batch.select("log_index").collect():
            emitted.append((row["log_index"], time.monotonic()))
        first.set()

    writer = rankings(stream(session, "garlicfarm", source.options), "batches").writeStream.outputMode(
        "append"
    )
    running = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(emit).start()
    try:
        source.go()
        times = source.answer()["times"]
        deadline = time.monotonic() + 60
        while (not emitted or emitted[-1][0] < times[-1][0]) and time.monotonic() < deadline:
            running.awaitTermination(0.1)
    finally:
        running.stop()
    warm = times[int(WARM_UP_S * RATE) :]
    return statistics.median(
        next(at for index, at in emitted if index >= wanted) - committed for wanted, committed in warm
    )


def backlog(session: Session, scratch: Path, rounds: int, entries: int) -> bool:
    log = [(each.index, each.term, int(each.value_type), each.value) for each in many_entries(entries)]
    plain: list[float] = []
    query: list[float] = []
    source: list[float] = []
    with feed(scratch / "backlog", entries) as served:
        for number in range(-1, rounds):  # the first warms up
            figures = (
                timed(lambda: Fold("farm").apply(log)),
                drained(rankings(stream(session, "garlicfarm", served.options), "batches"), scratch / "fold"),
                drained(stream(session, "garlicfarm", served.options), scratch / "source"),
            )
            if number >= 0:
                for each, seconds in zip((plain, query, source), figures, strict=True):
                    each.append(round(entries / seconds))
    fold_ratio = statistics.median(query) / statistics.median(plain)
    source_ratio = statistics.median(source) / statistics.median(query)
    return report(
        "backlog",
        fold_ratio >= FOLD_LEAST and source_ratio >= SOURCE_LEAST,
        entries=entries,
        plain_fold_per_s=plain,
        query_per_s=query,
        source_alone_per_s=source,
        fold_ratio=round(fold_ratio, 2),
        fold_at_least=FOLD_LEAST,
        source_ratio=round(source_ratio, 2),
        source_at_least=SOURCE_LEAST,
    )


def drained(frame: Any, checkpoint: Path) -> float:
    """The time to read all entries and discard them."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return timed(lambda: writer.trigger(availableNow=True).start().awaitTermination())


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def memory(session: Session, scratch: Path, entries: int) -> bool:
    most, over = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.5):
            most = max(most, resident_bytes(but=served.pid))

    with feed(scratch / "memory", entries) as served:
        watcher = threading.Thread(target=watch)
        watcher.start()
        seconds = drained(
            rankings(stream(session, "garlicfarm", served.options), "batches"), scratch / "million"
        )
        over.set()
        watcher.join()
    return report(
        "memory",
        most < MEMORY_MOST,
        entries=entries,
        seconds=round(seconds, 1),
        most_mb=round(most / 1e6),
        at_most_mb=round(MEMORY_MOST / 1e6),
    )


def trigger(session: Session, scratch: Path, rounds: int) -> bool:
    found: dict[str, list[float]] = {"0 seconds": [], TRIGGER: []}
    with feed(scratch / "trigger", 200, SLOW_RATE * SLOW_S, SLOW_RATE) as source:
        for number in range(-1, rounds):  # the first warms up
            for interval, figures in found.items():
                cpu_s = live_cpu_s(session, source, scratch / f"trigger-{interval[0]}", interval)
                if number >= 0:
                    figures.append(round(cpu_s, 1))
    at_once, spaced = found.values()
    ratio = statistics.median(spaced) / statistics.median(at_once)
    return report(
        "trigger",
        ratio <= TRIGGER_MOST,
        seconds=SLOW_S,
        cpu_s_back_to_back=at_once,
        cpu_s_every_5_s=spaced,
        ratio=round(ratio, 2),
        at_most=TRIGGER_MOST,
    )


def live_cpu_s(session: Session, source: Feed, checkpoint: Path, interval: str) -> float:
    """CPU seconds of this process, Java and the workers while entries come."""
    writer = rankings(stream(session, "garlicfarm", source.options), "batches").writeStream
    writer = writer.outputMode("append").option("checkpointLocation", str(checkpoint)).format("noop")
    running = writer.trigger(processingTime=interval).start()
    try:
        while running.lastProgress is None:  # it has caught up
            running.awaitTermination(0.1)
        begun = used_cpu_s(but=source.pid)
        source.go()
        source.answer()
        return used_cpu_s(but=source.pid) - begun
    finally:
        running.stop()


def own_processes(*, but: int) -> Iterator[Path]:
    """In /proc: this process and its descendants, except ``but``."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                status = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(int(status.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    queue = [os.getpid()]
    while queue:
        pid = queue.pop()
        if pid != but:
            queue += parents.get(pid, [])
            yield Path(f"/proc/{pid}")


def resident_bytes(*, but: int) -> int:
    """Their memory (PSS: shared pages count once)."""
    total = 0
    for process in own_processes(but=but):
        try:
            lines = (process / "smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def used_cpu_s(*, but: int) -> float:
    """What they and their ended children have used."""
    ticks = 0
    for process in own_processes(but=but):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def report(figure: str, ok: bool, **values: Any) -> bool:
    print(json.dumps({"figure": figure, "ok": ok, **values}), flush=True)
    return ok


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--only", choices=["latency", "backlog", "trigger", "memory"])
    parser.add_argument("--memory", action="store_true", help="a million entries; takes minutes")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(Path(given.serve[0]), *map(int, given.serve[1:]))
        return 0
    ok = True
    with tempfile.TemporaryDirectory(prefix="garlicfarm-bench-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        (scratch / "spark").mkdir()
        session = Session(scratch / "spark", master="local[2]")
        try:
            if given.only in (None, "latency"):
                ok &= latency(session, scratch, given.rounds)
            if given.only in (None, "backlog"):
                ok &= backlog(session, scratch, given.rounds, given.entries)
            if given.only in (None, "trigger"):
                ok &= trigger(session, scratch, given.rounds)
            if given.memory or given.only == "memory":
                ok &= memory(session, scratch, 1_000_000)
        finally:
            session.close()
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
