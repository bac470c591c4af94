"""The dashboard for Grafana: rows of panels over the metrics of nodes and of `garlicfarm rank --metrics`.

Source: Grafana's "JSON model of a dashboard", schema version 39. What the metrics mean:
docs/reference/metrics.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

WIDTH, HEIGHT = 24, 7
"""Grafana's grid: columns of a page, and the rows that a panel takes."""
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """A chart, or with ``kind`` "stat" the newest values. ``queries``: PromQL and the legend of its series,
    in which ``{{label}}`` is a label's value; ``$farm`` and ``$job`` are what the reader chose. ``unit``: of
    Grafana's names, "" for none."""

    title: str
    queries: dict[str, str]
    unit: str = ""
    kind: str = "timeseries"


_JOB = 'job=~"$job"'
_FARM = f'{_JOB}, farm=~"$farm"'


def _each(metric: str) -> str:
    """A metric of the farms that the reader chose."""
    return f"garlicfarm_{metric}{{{_FARM}}}"


def _p99(metric: str) -> str:
    buckets = f"rate({_each(metric)}[$__rate_interval])".replace("{", "_bucket{", 1)
    return f"histogram_quantile(0.99, sum by (instance, farm, le) ({buckets}))"


def _rate(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({_each(metric)}[$__rate_interval]))"


def _top(metric: str, *by: str) -> str:
    """What all nodes say alike, once."""
    return f"max by ({', '.join(('farm', *by))}) ({_each(metric)})"


_BEHIND = f"{_top('raft_commit_index')} - on (farm) group_right {_each('raft_applied_index')}"
_REJECTED = f"rate(garlicfarm_listener_rejected_total{{{_JOB}}}[$__rate_interval])"

ROWS: dict[str, tuple[Panel, ...]] = {
    "Farm": (
        Panel("Leader", {_top("raft_leader_id"): "{{farm}}"}, kind="stat"),
        Panel("Publisher", {_top("farm_publisher_id"): "{{farm}}"}, kind="stat"),
        Panel("Problems", {_top("farm_problems"): "{{farm}}"}, kind="stat"),
        Panel(
            "Keys expire in",
            {f"min by (farm) ({_each('farm_key_expiry_timestamp_seconds')}) - time()": "{{farm}}"},
            "s",
            "stat",
        ),
        Panel("Scores", {_top("farm_score", "member"): "{{farm}}: member {{member}}"}),
        Panel("Publishing", {_each("farm_publishing"): "{{instance}} {{farm}} {{plugin}}"}),
        Panel("Clock ahead by", {_each("clock_offset_seconds"): "{{instance}}: {{source}}"}, "s"),
    ),
    "Raft": (
        Panel(
            "Committed entries",
            {_rate("raft_commit_index", "instance", "farm"): "{{instance}} {{farm}}"},
            "ops",
        ),
        Panel("Commit, 99th percentile", {_p99("raft_commit_seconds"): "{{instance}} {{farm}}"}, "s"),
        Panel("Entries behind the leader", {_BEHIND: "{{instance}} {{farm}}"}),
        Panel("Term", {_each("raft_term"): "{{instance}} {{farm}}"}),
        Panel("Round trips", {_each("peer_rtt_seconds"): "{{instance}} to {{peer}}"}, "s"),
        Panel("Last contact", {_each("peer_last_contact_seconds"): "{{instance}} with {{peer}}"}, "s"),
        Panel(
            "Messages",
            {_rate("raft_messages_total", "type", "direction"): "{{type}} {{direction}}"},
            "ops",
        ),
        Panel(
            "Refused",
            {
                _rate("raft_refused_total", "instance", "reason"): "{{instance}}: {{reason}}",
                _rate("raft_proposals_total", "instance", "outcome"): "{{instance}}: posts {{outcome}}",
            },
            "ops",
        ),
    ),
    "Service": (
        Panel(
            "Streams",
            {
                _each("publisher_streams"): "{{instance}} {{publisher}}",
                _each("publisher_streams_max"): "{{instance}} {{publisher}}: most",
            },
        ),
        Panel(
            "Refused by cause",
            {_rate("publisher_refused_total", "instance", "cause"): "{{instance}}: {{cause}}"},
            "ops",
        ),
        Panel("Targets that answer", {_each("publisher_target_up"): "{{instance}} {{target}}"}),
        Panel("Clients on lists", {_top("farm_clients", "list"): "{{farm}}: {{list}}"}),
    ),
    "Storage and readers": (
        Panel(
            "Write of the log, 99th percentile", {_p99("storage_fsync_seconds"): "{{instance}} {{farm}}"}, "s"
        ),
        Panel("Size", {_each("storage_bytes"): "{{instance}} {{farm}}"}, "bytes"),
        Panel("Entries sent to readers", {_rate("feed_entries_total", "instance"): "{{instance}}"}, "ops"),
        Panel(
            "Entries behind",
            {
                _each("feed_lag_entries"): "{{instance}}: feed {{reader}}",
                _each("rank_lag_entries"): "ranking of {{farm}}",
            },
        ),
    ),
    "Process": (
        Panel(
            "CPU",
            {f"rate(process_cpu_seconds_total{{{_JOB}}}[$__rate_interval])": "{{instance}}"},
            "percentunit",
        ),
        Panel("Memory", {f"process_resident_memory_bytes{{{_JOB}}}": "{{instance}}"}, "bytes"),
        Panel("Open files", {f"process_open_fds{{{_JOB}}}": "{{instance}}"}),
        Panel(
            "Connections refused",
            {f"sum by (instance, reason) ({_REJECTED})": "{{instance}}: {{reason}}"},
            "ops",
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it. It asks for the data source, the jobs and the farms by itself."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, members in ROWS.items():
        panels.append({"type": "row", "title": row, "collapsed": False, "gridPos": _at(0, y, WIDTH, 1)})
        y += 1
        x = 0
        for each in members:
            width = WIDTH // 4 if each.kind == "stat" else WIDTH // 3
            if x + width > WIDTH:
                x, y = 0, y + HEIGHT
            panels.append(_panel(each, _at(x, y, width, HEIGHT)))
            x += width
        y += HEIGHT
    return {
        "title": "garlicfarm",
        "uid": "garlicfarm",
        "tags": ["garlicfarm", "i2p", "raft"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("job", "label_values(garlicfarm_build_info, job)"),
                _variable("farm", 'label_values(garlicfarm_raft_term{job=~"$job"}, farm)'),
            ]
        },
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, where: dict[str, int]) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": _DATASOURCE,
        "gridPos": where,
        "fieldConfig": {"defaults": {"unit": panel.unit} if panel.unit else {}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _DATASOURCE,
                "expr": query,
                "legendFormat": legend,
            }
            for number, (query, legend) in enumerate(panel.queries.items())
        ],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
