"""`garlicfarm farm add`: a further farm for the node of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import click

from garlicfarm.cli.options import Options, application_option, shared_options

__all__ = ["add"]


@click.command()
@click.argument("name")
@click.option(
    "--endpoint",
    metavar="URL",
    default="",
    help="What others dial, as ssl://a.example:27150.  [default: what dials the node's first farm]",
)
@click.option("--master", metavar="BASE64", default="", help="Master destination of the Meta LeaseSet.")
@application_option()
@shared_options("config")
def add(options: Options, name: str, endpoint: str, master: str, application: str) -> None:
    """Give this machine's node, which must not run, a further farm, NAME, of which it is the one member.

    Adds a table to its configuration, and the farm's secret and store to its data directory. Other nodes
    join with a token: those of the first farm too, and then in their own process (`node join`).
    """
    from garlicfarm.config import find_config, load
    from garlicfarm.names import FARM_NAME_RULE, is_farm_name
    from garlicfarm.setup.add_farm import add_farm
    from garlicfarm.setup.provision import FarmPlan

    if not is_farm_name(name):
        raise click.BadParameter(f"{name!r} must be {FARM_NAME_RULE}", param_hint="NAME")
    config = load(find_config(options.config, os.environ, Path.cwd()), os.environ)
    plan = FarmPlan(name=name, application=application, preset=config.node.preset, master=master)
    made = add_farm(config, endpoint, plan)
    click.echo(
        f"farm {name} ({made.farm_id.hex()}) has one member, {made.configuration.servers[0].endpoint}; "
        f"run the node with: garlicfarm node start --config {config.path}\n"
        f"and make a token for another node, with its id: garlicfarm member token --farm {name} --id ID "
        "--out FILE",
        err=True,
    )
