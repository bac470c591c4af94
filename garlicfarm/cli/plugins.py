"""`garlicfarm plugins`: the installed plugins and their options."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import Options, print_rows, shared_options
from garlicfarm.cli.say import put

_TABLES = {
    "transport": "[transport.{}]",
    "router": '[farm.router] plugin = "{}"',
    "publisher": '[[farm.publisher]] plugin = "{}"',
    "feed": '[[farm.feed]] plugin = "{}"',
    "application": '[[farm]] application = "{}"',
}
"""Where each kind is configured."""


@click.command(cls=Command, examples=["garlicfarm plugins", "garlicfarm plugins -o json"])
@shared_options("output")
def plugins(options: Options) -> None:
    """List the installed transports, routers, publishers, feeds and applications, each with its options.

    The options are keys of the table that is named. A plugin that cannot be loaded is listed with the reason.
    """
    rows = _rows()
    if options.output == "table":
        for row in rows:
            put(_text(row))
    else:
        print_rows(options.output, "garlicfarm.plugins/1", rows)


def _rows() -> list[dict[str, Any]]:
    from garlicfarm.application import Application
    from garlicfarm.errors import PluginError
    from garlicfarm.plugins import APPLICATIONS, CONTRACTS, list_plugins, load_plugin, options_of

    contracts: dict[str, tuple[str, type[Any]]] = {**CONTRACTS, "application": (APPLICATIONS, Application)}
    rows: list[dict[str, Any]] = []
    for kind, (group, base_class) in contracts.items():
        for each in list_plugins(group):
            row = {
                "kind": kind,
                "name": each.name,
                "distribution": each.distribution,
                "version": each.version,
            }
            try:
                options = [asdict(option) for option in options_of(load_plugin(group, each.name, base_class))]
                rows.append({**row, "options": options, "problem": None})
            except PluginError as error:
                rows.append({**row, "options": [], "problem": str(error)})
    return rows


def _text(row: dict[str, Any]) -> str:
    """One plugin, as click shows options."""
    formatter = click.HelpFormatter()
    formatter.write(f"{_TABLES[row['kind']].format(row['name'])}  ({row['distribution']} {row['version']})\n")
    with formatter.indentation():
        if row["problem"]:
            formatter.write_text(row["problem"])
        elif not row["options"]:
            formatter.write_text("no options")
        else:
            formatter.write_dl(
                [(f"{each['name']}  {each['type']}", _meaning(each)) for each in row["options"]]
            )
    return formatter.getvalue()


def _meaning(option: dict[str, Any]) -> str:
    default = "required" if option["required"] else f"default: {json.dumps(option['default'])}"
    return " ".join(filter(None, [option["meaning"], f"[{default}]"]))
