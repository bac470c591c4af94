"""`garlicfarm metrics`: what Prometheus and Grafana load to watch a farm."""

from __future__ import annotations

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.say import put

RULES_FILE = "prometheus-rules.yaml"


@click.group(cls=CommandGroup)
def metrics() -> None:
    """What Prometheus and Grafana need to watch a farm.

    The metrics themselves are at /metrics of each node's admin URL, and at `garlicfarm rank --metrics`.
    """


@metrics.command(examples=["garlicfarm metrics rules > /etc/prometheus/garlicfarm.yaml"])
def rules() -> None:
    """Print alerting rules for Prometheus.

    Load them by `rule_files` of prometheus.yml. They go by the labels `job` and `instance`, which Prometheus
    sets, and work for any number of farms.
    """
    from importlib.resources import files

    put(files("garlicfarm.cli").joinpath(RULES_FILE).read_text(encoding="utf-8"), nl=False)


@metrics.command(examples=["garlicfarm metrics dashboard > garlicfarm.json"])
def dashboard() -> None:
    """Print a dashboard for Grafana.

    Import it there ("Dashboards", "New", "Import"), or put it where Grafana's provisioning finds it. It asks
    for the data source, and shows all farms or those that you choose.
    """
    import json

    from garlicfarm.cli.grafana import dashboard as made

    put(json.dumps(made(), indent=2))
