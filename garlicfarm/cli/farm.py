"""`garlicfarm farm`: a whole farm at once, or another one for this machine's node. `farm show` and what
administers a farm are modules of their own."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import node_config
from garlicfarm.cli.options import Options, new_farm, new_farm_options, print_rows, shared_options
from garlicfarm.cli.say import say

if TYPE_CHECKING:
    from garlicfarm.setup.provision import MadeFarm, MemberPlan


MEMBERS = click.option(
    "--member",
    "members",
    multiple=True,
    required=True,
    metavar="ID=ENDPOINT",
    help="The id of a member and the endpoint that others dial, such as 1=ssl://a.example:27150; repeatable.",
)
PRESET = click.option(
    "--preset", type=click.Choice(["clearnet", "i2p"]), default="clearnet", show_default=True
)
OUT = click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Directory to make. It must not exist."
)


@click.group(
    cls=CommandGroup,
    targets={
        "exclude": "garlicfarm.cli.farm_policy:exclude",
        "include": "garlicfarm.cli.farm_policy:include",
        "level": "garlicfarm.cli.farm_level:level",
        "override": "garlicfarm.cli.farm_policy:override",
        "set": "garlicfarm.cli.farm_policy:set_",
        "show": "garlicfarm.cli.farm_show:show",
    },
)
def farm() -> None:
    """Make a farm of several nodes, show its state, and administer it through its log."""


@farm.command(
    examples=[
        "garlicfarm farm create --out myfarm --member 1=ssl://a.example:27150 \\\n"
        "    --member 2=ssl://b.example:27150 --member 3=ssl://c.example:27150"
    ],
)
@MEMBERS
@new_farm_options
@PRESET
@OUT
@shared_options("farm", "output")
def create(options: Options, members: tuple[str, ...], preset: str, out: Path, **new: Any) -> None:
    """Make a farm: one directory per node, each with everything that the node needs to start.

    Copy each directory to its machine, and run `garlicfarm node start` in it. It holds the farm's secret.
    The preset sets the timing of each node; how often members post their statuses (interval=5s, i2p 30s);
    after how many of the others a silent one counts as gone (R=5, i2p 7); and how long a lease lasts, after
    which a dead publisher may be replaced (lease=6s, i2p 2m). `garlicfarm farm set` changes these three.
    """
    from garlicfarm.setup.provision import create_farm

    made = create_farm(out, member_plans(members), new_farm(options.farm or "farm", preset, **new))
    print_rows(options.output, "garlicfarm.farm-create/1", made_rows(made))


def made_rows(made: MadeFarm) -> list[dict[str, Any]]:
    """A row for each node of a new farm."""
    endpoints = {server.id: server.endpoint for server in made.configuration.servers}
    return [
        {"id": node_id, "directory": str(directory), "endpoint": endpoints[node_id]}
        for node_id, directory in made.directories.items()
    ]


def member_plans(members: tuple[str, ...]) -> dict[int, MemberPlan]:
    """The members of a new farm, from the values of `MEMBERS`."""
    from garlicfarm.setup.provision import ADMIN_PORT, MemberPlan
    from garlicfarm.transport import Endpoint

    urls: dict[int, str] = {}
    endpoints: dict[int, Endpoint] = {}
    for text in members:
        number, equals, url = text.partition("=")
        if not (number.isascii() and number.isdigit() and equals) or int(number) in endpoints:
            raise click.BadParameter(
                f"{text!r} must be ID=ENDPOINT, each id once, as 1=ssl://a.example:27150",
                param_hint="--member",
            )
        urls[int(number)], endpoints[int(number)] = url, Endpoint.parse(url)
    # Members on one machine need an admin port each, and none that a member is dialled at.
    taken = {(endpoint.host, endpoint.port) for endpoint in endpoints.values()}
    plans: dict[int, MemberPlan] = {}
    for node_id, endpoint in endpoints.items():
        port = next(port for port in count(ADMIN_PORT) if (endpoint.host, port) not in taken)
        taken.add((endpoint.host, port))
        plans[node_id] = MemberPlan(endpoint=urls[node_id], admin_url=f"https://127.0.0.1:{port}")
    return plans


@farm.command(examples=["garlicfarm farm add second", "garlicfarm farm add notes --application log"])
@click.argument("name")
@click.option(
    "--endpoint",
    metavar="URL",
    default="",
    help="The endpoint that others dial, such as ssl://a.example:27150.  [default: that of the node's first"
    " farm]",
)
@new_farm_options
@shared_options("config")
def add(options: Options, name: str, endpoint: str, **new: Any) -> None:
    """Add the farm NAME to this machine's node, its only member at first. The node must not run.

    This adds a table to the configuration, and the farm's secret and store to the data directory. Other
    nodes join with a token (`member token`, `node join`), even if they already run for another farm.
    """
    from garlicfarm.names import FARM_NAME_RULE, is_farm_name
    from garlicfarm.setup.add_farm import add_farm

    if not is_farm_name(name):
        raise click.BadParameter(f"{name!r} must be {FARM_NAME_RULE}", param_hint="NAME")
    config = node_config(options)
    made = add_farm(config, endpoint, new_farm(name, config.node.preset, **new))
    say(
        f"farm {name} ({made.farm_id.hex()}) has one member, {made.configuration.servers[0].endpoint}; "
        f"run the node with: garlicfarm node start --config {config.path}\n"
        f"and make a token for another node, with its id: garlicfarm member token --farm {name} --id ID "
        "--out FILE",
    )
