"""What `garlicfarm metrics` prints: rules that fire as they say, and a dashboard of what is served."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from garlicfarm.cli import cli
from garlicfarm.metrics import NodeMetrics
from garlicfarm_plugin_spark.rank_metrics import RankMetrics
from tests.project.pages import ROOT

MINUTES = 25
FARM = 'job="g", instance="a", farm="f"'
PER_ALERT: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    # Alert: series of a farm that is well, and what is different where it fires. `x+1x9`: Prometheus'
    # notation, a value and how it goes on at each minute.
    "NoLeader": ({"raft_leader_id{F}": "1"}, {"raft_leader_id{F}": "0"}),
    "NothingCommitted": (
        {"raft_last_index{F}": "9+1x", "raft_commit_index{F}": "8+1x", 'raft_role{F, role="leader"}': "1"},
        {"raft_commit_index{F}": "8"},
    ),
    "NoPublisher": (
        {"farm_publisher_id{F}": "1", 'farm_score{F, member="1"}': "7"},
        {"farm_publisher_id{F}": "0"},
    ),
    "Problems": ({"farm_problems{F}": "0"}, {"farm_problems{F}": "2"}),
    "MembersDiffer": (
        {'farm_contradicted_members{F, what="state"}': "0"},
        {'farm_contradicted_members{F, what="state"}': "1"},
    ),
    "TargetDown": ({'publisher_target_up{F, target="t"}': "1"}, {'publisher_target_up{F, target="t"}': "0"}),
    "StreamsFull": (
        {"publisher_streams{F}": "50", "publisher_streams_max{F}": "256"},
        {"publisher_streams{F}": "250"},
    ),
    "ClientsRefused": (
        {'publisher_refused_total{F, cause="a"}': "0+60x"},
        {'publisher_refused_total{F, cause="a"}': "0+900x"},
    ),
    "MemberUnreachable": (
        {'peer_state{F, peer="2", state="unreachable"}': "0"},
        {'peer_state{F, peer="2", state="unreachable"}': "1"},
    ),
    "LeaderChanges": ({"raft_leader_changes_total{F}": "1"}, {"raft_leader_changes_total{F}": "1+1x"}),
    "ClockWrong": (
        {'clock_offset_seconds{F, source="farm"}': "-3"},
        {'clock_offset_seconds{F, source="farm"}': "-90"},
    ),
    "KeysExpire": (
        {'farm_key_expiry_timestamp_seconds{F, member="1"}': "5000000"},
        {'farm_key_expiry_timestamp_seconds{F, member="1"}': "500000"},
    ),
    "DiskHangs": ({"storage_hangs_seconds{F}": "0"}, {"storage_hangs_seconds{F}": "4"}),
    "DiskFills": ({"storage_used_ratio{F}": "0.7"}, {"storage_used_ratio{F}": "0.85"}),
    "DiskFull": ({"storage_used_ratio{F}": "0.7"}, {"storage_used_ratio{F}": "0.95"}),
    "DiskSlow": (
        {
            'storage_fsync_seconds_bucket{F, le="0.05"}': "0+100x",
            'storage_fsync_seconds_bucket{F, le="0.25"}': "0+100x",
            'storage_fsync_seconds_bucket{F, le="+Inf"}': "0+100x",
        },
        {'storage_fsync_seconds_bucket{F, le="0.05"}': "0+90x"},
    ),
    "Damage": (
        {'storage_damage_total{F, what="segment"}': "1"},
        {'storage_damage_total{F, what="segment"}': "1+1x"},
    ),
    "SnapshotsFail": (
        {'storage_snapshots_total{F, outcome="failed"}': "1"},
        {'storage_snapshots_total{F, outcome="failed"}': "1+1x"},
    ),
    "BackupOld": ({"backup_timestamp_seconds{F}": "0"}, {"backup_timestamp_seconds{F}": "-700000"}),
    "NoticesFail": (
        {'notices_total{job="g", instance="a", receiver="r", outcome="failed"}': "1"},
        {'notices_total{job="g", instance="a", receiver="r", outcome="failed"}': "1+1x"},
    ),
    "Defect": (
        {'listener_rejected_total{job="g", instance="a", transport="ssl", reason="defect"}': "0"},
        {'listener_rejected_total{job="g", instance="a", transport="ssl", reason="defect"}': "0+1x"},
    ),
    "FewDescriptors": (
        {
            'process_open_fds{job="g", instance="a"}': "40",
            'process_max_fds{job="g", instance="a"}': "1000",
            'build_info{job="g", instance="a"}': "1",
            'process_open_fds{job="other", instance="b"}': "999",  # of another program
            'process_max_fds{job="other", instance="b"}': "1000",
        },
        {'process_open_fds{job="g", instance="a"}': "950"},
    ),
    "FeedBehind": (
        {'feed_lag_entries{F, reader="0"}': "90-1x"},
        {'feed_lag_entries{F, reader="0"}': "90+10x"},
    ),
    "FeedFails": (
        {'feed_failures_total{F, reader="0"}': "1"},
        {'feed_failures_total{F, reader="0"}': "1+1x"},
    ),
    "RankingDiffers": (
        {'farm_ranking_equal{F, query="q"}': "1"},
        {'farm_ranking_equal{F, query="q"}': "0"},
    ),
    "RankBehind": (
        {"rank_lag_entries{F}": "9", "rank_index{F}": "0+5x"},
        {"rank_index{F}": "5"},
    ),
}


def printed(*command: str) -> str:
    return CliRunner().invoke(cli, ["metrics", *command], catch_exceptions=False).output


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bgarlicfarm_[a-z_]+|\bprocess_[a-z_]+", text))


def served() -> set[str]:
    """The names of all samples that a node or `garlicfarm rank` can serve."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    registry = CollectorRegistry()
    NodeMetrics(registry)
    families = [*registry.collect(), *RankMetrics().registry.collect()]
    return {family.name + suffix for family in families for suffix in suffixes.get(family.type, ("",))}


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize("what", ["rules", "dashboard"])
def test_every_metric_that_is_asked_for_is_served(what: str) -> None:
    asked = names_in(printed(what))
    assert len(asked) > 20
    assert asked <= served()


def test_dashboard_shows_nothing_twice_at_one_place() -> None:
    panels = json.loads(printed("dashboard"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_reference_lists_the_alerts_that_there_are() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(Garlicfarm\w+)` \|", page, re.M)
    assert listed == re.findall(r"alert: (\w+)", printed("rules"))


def test_each_alert_is_tried() -> None:
    assert re.findall(r"alert: Garlicfarm(\w+)", printed("rules")) == list(PER_ALERT)


@pytest.mark.prometheus
def test_alerts_fire_where_they_should_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(printed("rules"))
    tests = []
    for alert, (well, different) in PER_ALERT.items():
        assert different.keys() <= well.keys()
        for series, fires in ((well, False), (well | different, True)):
            tests.append(
                {
                    "name": f"{alert} {fires}",
                    "interval": "1m",
                    "input_series": [
                        {
                            "series": full(name),
                            "values": f"{value}{MINUTES}" if "x" in value else f"{value}x{MINUTES}",
                        }
                        for name, value in series.items()
                    ],
                    "promql_expr_test": [
                        {
                            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                            "eval_time": f"{MINUTES}m",
                            "exp_samples": [
                                {"labels": f'{{alertname="Garlicfarm{alert}"}}', "value": 1},
                            ]
                            * fires,
                        }
                    ],
                }
            )
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(json.dumps(document))  # YAML, too
    assert promtool(tmp_path, "test", "rules", "tests.yaml") == 0


@pytest.mark.prometheus
def test_prometheus_understands_the_rules_and_each_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = [
        each.replace("$__rate_interval", "5m") for each in expressions(json.loads(printed("dashboard")))
    ]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "panels.yaml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    (tmp_path / "rules.yaml").write_text(printed("rules"))
    assert promtool(tmp_path, "check", "rules", "panels.yaml", "rules.yaml") == 0


def full(name: str) -> str:
    name = name.replace("{F", "{" + FARM)
    return name if name.startswith("process_") else f"garlicfarm_{name}"


def promtool(directory: Path, *arguments: str) -> int:
    done = subprocess.run(
        ["promtool", *arguments], cwd=directory, timeout=240, capture_output=True, text=True
    )
    print(done.stdout, done.stderr)
    return done.returncode
