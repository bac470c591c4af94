"""What `make bench` computes of garlicfarm, etcd and PySyncObj."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import commits, compare, etcd, pysyncobj_cluster
from benchmarks.bench_farm import cpu_s
from benchmarks.goals import Goals
from benchmarks.samples import Load, Sample

GOALS = Goals(slack=0.2, yardstick_us=4.0, judged={}, shown={})
ROW = compare.Row("64", 3, 64)


def sample(commits: int, nodes_s: float, client_s: float | None, yardstick_us: float | None = None) -> Sample:
    return Sample(
        commits=commits,
        seconds=2.0,
        p50_ms=1.0,
        p99_ms=9.0,
        nodes_cpu_s=nodes_s,
        client_cpu_s=client_s,
        yardstick_us=yardstick_us,
    )


OURS = [sample(1000, 0.1, 0.05, 4.0), sample(1000, 0.2, 0.05, 8.0)]
THEIRS = [sample(500, 0.1, 0.01), sample(2000, 0.8, 0.02)]
INSIDE = [sample(1000, 0.3, None), sample(1000, 0.5, None)]


def test_figures_have_one_value_per_round_and_refer_to_the_reference_machine() -> None:
    found = dict(compare.figures(ROW, {"garlicfarm": OURS, "etcd": THEIRS, "pysyncobj": INSIDE}, GOALS))
    assert {figure: [round(each, 6) for each in values] for figure, values in found.items()} == {
        "cpu_to_client_64": [2, 4],
        "cpu_us_64": [100, 100],
        "client_us_64": [50, 25],
        "cpu_to_etcd_64": [0.5, 0.5],
        "rate_to_etcd_64": [2, 0.5],
        "cpu_to_pysyncobj_64": [0.5, 0.5],  # a client inside a node: nodes and client of both
        "rate_to_pysyncobj_64": [1, 1],
    }
    assert found.keys() <= set(compare.FIGURES)


async def test_systems_are_measured_in_turn_in_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, int, list[int]]] = []

    def system(name: str) -> compare.Samples:
        async def samples(nodes: int, loads: Sequence[Load]) -> list[Sample]:
            asked.append((name, nodes, [load.outstanding for load in loads]))
            return [sample(load.outstanding, 1.0, None) for load in loads]

        return samples

    rows = [ROW, compare.Row("1", 3, 1), compare.Row("5_nodes", 5, 64)]
    results = await compare.measure(rows, {"a": system("a"), "b": system("b")}, 2, 0.1)
    assert asked == [("a", 3, [64, 1]), ("b", 3, [64, 1]), ("a", 5, [64]), ("b", 5, [64])] * 2
    assert [each.commits for each in results[rows[1]]["b"]] == [1, 1]
    assert len(capsys.readouterr().out.splitlines()) == 12


def rivals(
    monkeypatch: pytest.MonkeyPatch, found: str | None, client: Path | None
) -> tuple[set[str], dict[str, str]]:
    monkeypatch.setattr(etcd, "version", lambda: found)
    monkeypatch.setattr(etcd, "build_client", lambda directory: (client, "" if client else "no Go"))
    monkeypatch.setattr(pysyncobj_cluster, "version", lambda: found)
    names, unjudged = compare.found_rivals(Path())
    return set(names), unjudged


def test_rivals_that_are_not_installed_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rivals(monkeypatch, None, None) == (set(), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "etcd: left out, since it is not installed: as root, make bench-debs"
    assert second == "pysyncobj: left out, since it is not installed: make .venv/bench"


def test_etcd_without_a_compiled_client_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rivals(monkeypatch, "3.4.23", None) == ({"etcd", "pysyncobj"}, {"etcd": "JSON gateway: no Go"})
    assert "etcd: put through its JSON gateway; shown, not judged" in capsys.readouterr().out
    assert rivals(monkeypatch, "3.4.23", Path("client")) == ({"etcd", "pysyncobj"}, {})


def test_etcd_client_without_its_sources_cannot_be_built_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert etcd.build_client(tmp_path) == (None, "go is not installed: as root, make bench-debs")
    go = "#!/bin/sh\necho '# command-line-arguments' >&2\necho 'no clientv3' >&2\nexit 2\n"
    (tmp_path / "go").write_text(go)
    (tmp_path / "go").chmod(0o755)
    assert etcd.build_client(tmp_path) == (
        None,
        "its client cannot be built (no clientv3): as root, make bench-debs",
    )


def test_cpu_time_of_a_process_is_read_from_its_clock() -> None:
    before = time.process_time()
    assert before <= cpu_s([os.getpid()]) <= time.process_time()


@pytest.mark.slow
async def test_sample_of_a_farm_of_processes_counts_nodes_client_and_yardstick() -> None:
    (found,) = await commits.samples(1, [Load(4, 200, 0.2)])
    assert found.commits >= 4
    assert found.p50_ms <= found.p99_ms
    assert min(found.nodes_cpu_s, found.client_cpu_s, found.yardstick_us) > 0
