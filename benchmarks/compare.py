"""What entries cost, beside etcd and PySyncObj in the same run.

Each round starts a cluster of each system anew, one after the other, and puts the same loads on it: so many
entries outstanding at a time, from clients of which each waits for its commit. Three tables:

* ``outstanding``: three nodes, entries of 200 bytes, 1, 64 and 1,024 outstanding; all three systems.
* ``nodes``: 3, 5, 7 and 9 nodes, 64 outstanding; without PySyncObj, like the next.
* ``sizes``: three nodes, entries of 200 bytes to 1 MiB.

Per entry and round, each figure judged by the median of all rounds (``goals.toml``):

* ``cpu_to_client_…``: CPU time of all nodes as a multiple of the client's. Whatever slows the machine down
  slows both; a faster client raises it.
* ``cpu_us_…``, ``client_us_…``: CPU time of all nodes, and of the client, on the reference machine
  (`Yardstick`).
* ``cpu_to_etcd_…``, ``cpu_to_pysyncobj_…``: CPU time as a multiple of the other system's in the same round;
  of the nodes, or where the other's client is a part of a node, of nodes and client.
* ``rate_to_etcd_…``, ``rate_to_pysyncobj_…``: commits per second, likewise.

garlicfarm uses TLS and fsync; how the others are run: `etcd.py`, `pysyncobj_cluster.py`. Without a compiled
client the ratios to etcd are shown, and not judged. Prints JSON lines, then the tables as Markdown; exit code
1 if a figure misses a goal that was reached. Run by `make bench`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from benchmarks import commits, etcd, pysyncobj_cluster
from benchmarks.bench_farm import VALUE_BYTES, command_line
from benchmarks.goals import Goals, read_goals, report_goal
from benchmarks.samples import Load, Sample

OURS, ETCD, PYSYNCOBJ = "garlicfarm", "etcd", "pysyncobj"

Samples = Callable[[int, Sequence[Load]], Awaitable[list[Sample]]]
"""(nodes, loads) → a sample of each load"""


class Row(NamedTuple):
    """One load on clusters of one size; ``name`` ends the names of its figures."""

    name: str
    nodes: int
    outstanding: int
    size_bytes: int = VALUE_BYTES


TABLES: Mapping[str, Sequence[Row]] = {
    "outstanding": [Row(str(each), 3, each) for each in (1, 64, 1024)],
    "nodes": [Row(f"{nodes}_nodes", nodes, 64) for nodes in (3, 5, 7, 9)],
    "sizes": [
        Row("200_bytes", 3, 16),
        Row("2_kib", 3, 16, 2 << 10),
        Row("64_kib", 3, 16, 64 << 10),
        Row("1_mib", 3, 4, 1 << 20),
    ],
}
RIVALS: Mapping[str, Sequence[str]] = {
    "outstanding": [ETCD, PYSYNCOBJ],
    "nodes": [ETCD],
    "sizes": [ETCD],
}
FIGURES = [
    f"{figure}_{row.name}"
    for rows in TABLES.values()
    for row in rows
    for figure in ("cpu_to_client", "cpu_us", "client_us")
]
FIGURES += [
    f"{figure}_to_{rival}_{row.name}"
    for table, rows in TABLES.items()
    for row in rows
    for rival in RIVALS[table]
    for figure in ("cpu", "rate")
]

Results = Mapping[str, Sequence[Sample]]
"""The samples of one row: one of each round, by system."""


def cpu_ratio(ours: Sample, theirs: Sample) -> float:
    if theirs.client_cpu_s is None:
        return ours.cpu_us / theirs.cpu_us
    return ours.nodes_cpu_us / theirs.nodes_cpu_us


def rate_ratio(ours: Sample, theirs: Sample) -> float:
    return ours.commits_per_s / theirs.commits_per_s


def figures(row: Row, results: Results, goals: Goals) -> Iterator[tuple[str, list[float]]]:
    """The figures of a row, each with a value per round."""
    ours = results[OURS]
    yield f"cpu_to_client_{row.name}", [each.nodes_cpu_us / each.client_cpu_us for each in ours]
    yield f"cpu_us_{row.name}", [goals.scaled(each.nodes_cpu_us, each.yardstick_us) for each in ours]
    yield f"client_us_{row.name}", [goals.scaled(each.client_cpu_us, each.yardstick_us) for each in ours]
    for rival, theirs in results.items():
        if rival != OURS:
            pairs = list(zip(ours, theirs, strict=True))
            yield f"cpu_to_{rival}_{row.name}", [cpu_ratio(*pair) for pair in pairs]
            yield f"rate_to_{rival}_{row.name}", [rate_ratio(*pair) for pair in pairs]


def markdown(rows: Sequence[Row], results: Mapping[Row, Results]) -> Iterator[str]:
    """A table of the medians, and of the ratios to the other systems in each round."""
    columns = ("row", "system", "commits/s", "p50, p99 ms", "CPU µs of nodes + client")
    yield f"| {' | '.join(columns)} | rate; CPU: ours to theirs, per round |"
    yield "|---" * 6 + "|"
    for row in rows:
        for system, samples in results[row].items():
            rate, p50, p99, nodes = (
                statistics.median(getattr(each, name) for each in samples)
                for name in ("commits_per_s", "p50_ms", "p99_ms", "nodes_cpu_us")
            )
            clients = [each.client_cpu_us for each in samples if each.client_cpu_us is not None]
            client = f" + {statistics.median(clients):,.0f}" if clients else ""
            ratios = ""
            if system != OURS:
                pairs = list(zip(results[row][OURS], samples, strict=True))
                ratios = "; ".join(
                    " ".join(f"{ratio(*pair):.2f}" for pair in pairs) for ratio in (rate_ratio, cpu_ratio)
                )
            yield (
                f"| {row.name} | {system} | {rate:,.0f} | {p50:.1f}, {p99:.1f} "
                f"| {nodes:,.0f}{client} | {ratios} |"
            )


async def measure(
    rows: Sequence[Row], systems: Mapping[str, Samples], rounds: int, seconds: float
) -> dict[Row, dict[str, list[Sample]]]:
    """Every row on every system in every round. A line of JSON each."""
    results: dict[Row, dict[str, list[Sample]]] = {row: {name: [] for name in systems} for row in rows}
    for number in range(1, rounds + 1):
        for nodes in sorted({row.nodes for row in rows}):
            same = [row for row in rows if row.nodes == nodes]
            loads = [Load(row.outstanding, row.size_bytes, seconds) for row in same]
            for name, samples in systems.items():
                for row, sample in zip(same, await samples(nodes, loads), strict=True):
                    results[row][name].append(sample)
                    print(json.dumps(told(number, name, row, sample)), flush=True)
    return results


def told(number: int, system: str, row: Row, sample: Sample) -> dict[str, object]:
    line = {
        "round": number,
        "row": row.name,
        "system": system,
        "commits_per_s": round(sample.commits_per_s),
        "p50_ms": round(sample.p50_ms, 2),
        "p99_ms": round(sample.p99_ms, 2),
        "nodes_cpu_us": round(sample.nodes_cpu_us, 1),
        "client_cpu_us": sample.client_cpu_us and round(sample.client_cpu_us, 1),
        "yardstick_us": sample.yardstick_us and round(sample.yardstick_us, 2),
        "unknown": sample.unknown or None,
        "load": round(os.getloadavg()[0], 2),
    }
    return {key: value for key, value in line.items() if value is not None}


def found_rivals(directory: Path) -> tuple[dict[str, Samples], dict[str, str]]:
    """The other systems that this machine has, and why the ratios to one of them are not judged. Prints what
    is compared with, or why not."""
    rivals: dict[str, Samples] = {}
    unjudged: dict[str, str] = {}
    if (version := etcd.version()) is None:
        print("etcd: left out, since it is not installed: as root, make bench-debs", flush=True)
    else:
        client, problem = etcd.build_client(directory)
        rivals[ETCD] = partial(etcd.samples, client=client)
        if client is None:
            unjudged[ETCD] = f"JSON gateway: {problem}"
        print(f"etcd {version}: plaintext, fsync; {problem or 'a client in Go'}", flush=True)
        if client is None:
            print("etcd: put through its JSON gateway; shown, not judged", flush=True)
    if (version := pysyncobj_cluster.version()) is None:
        print("pysyncobj: left out, since it is not installed: make .venv/bench", flush=True)
    else:
        rivals[PYSYNCOBJ] = pysyncobj_cluster.samples
        print(f"pysyncobj {version}: plaintext, no fsync, its client inside the leader", flush=True)
    return rivals, unjudged


def compare(tables: Sequence[str], rounds: int, seconds: float) -> bool:
    goals = read_goals()
    ok = True
    printed: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        rivals, unjudged = found_rivals(Path(directory))
        for table in tables:
            systems = {OURS: commits.samples} | {
                name: rivals[name] for name in RIVALS[table] if name in rivals
            }
            results = trio.run(measure, TABLES[table], systems, rounds, seconds)
            for row in TABLES[table]:
                for figure, values in figures(row, results[row], goals):
                    if goals.of(figure) is None:
                        continue
                    rival = next((name for name in unjudged if f"_to_{name}_" in figure), "")
                    ok &= report_goal(goals, figure, values, unjudged=unjudged.get(rival, ""))
            printed += ["", *markdown(TABLES[table], results)]
    printed += [f"{rival}: not judged ({reason})" for rival, reason in unjudged.items()]
    print("\n".join(printed), flush=True)
    return ok


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    return 0 if compare(options.tables, options.rounds, options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
