"""`garlicfarm farm add`: another farm for the node of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import Options, application_option, epoch_length_option, shared_options
from garlicfarm.cli.say import say

__all__ = ["add"]


@click.command(
    cls=Command, examples=["garlicfarm farm add second", "garlicfarm farm add notes --application log"]
)
@click.argument("name")
@click.option(
    "--endpoint",
    metavar="URL",
    default="",
    help="The endpoint that others dial, such as ssl://a.example:27150.  [default: that of the node's first"
    " farm]",
)
@click.option("--master", metavar="BASE64", default="", help="Master destination of the Meta LeaseSet.")
@application_option()
@epoch_length_option()
@shared_options("config")
def add(options: Options, name: str, endpoint: str, master: str, application: str, epoch_length: int) -> None:
    """Add the farm NAME to this machine's node, its only member at first. The node must not run.

    This adds a table to the configuration, and the farm's secret and store to the data directory. Other
    nodes join with a token (`member token`, `node join`), also those that run already for another farm.
    """
    from garlicfarm.config import find_config, load
    from garlicfarm.config.model import PRESET_INTERVALS_MS
    from garlicfarm.names import FARM_NAME_RULE, is_farm_name
    from garlicfarm.setup.add_farm import add_farm
    from garlicfarm.setup.provision import FarmPlan

    if not is_farm_name(name):
        raise click.BadParameter(f"{name!r} must be {FARM_NAME_RULE}", param_hint="NAME")
    config = load(find_config(options.config, os.environ, Path.cwd()), os.environ)
    plan = FarmPlan(
        name=name,
        application=application,
        preset=config.node.preset,
        master=master,
        interval_ms=PRESET_INTERVALS_MS[config.node.preset],
        epoch_length=epoch_length,
    )
    made = add_farm(config, endpoint, plan)
    say(
        f"farm {name} ({made.farm_id.hex()}) has one member, {made.configuration.servers[0].endpoint}; "
        f"run the node with: garlicfarm node start --config {config.path}\n"
        f"and make a token for another node, with its id: garlicfarm member token --farm {name} --id ID "
        "--out FILE",
    )
