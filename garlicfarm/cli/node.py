"""`garlicfarm node`: making a node, and running it (`garlicfarm.cli.node_start`)."""

from __future__ import annotations

from pathlib import Path

import click

from garlicfarm.cli.command_group import Command, CommandGroup
from garlicfarm.cli.options import Options, application_option, epoch_length_option, shared_options
from garlicfarm.cli.say import put, say

__all__ = ["init", "node"]

I2P_PROXY_PORT = 4444


@click.group(
    cls=CommandGroup,
    targets={
        "address": "garlicfarm.cli.node_address:address",
        "init": "garlicfarm.cli.node:init",
        "join": "garlicfarm.cli.node_join:join",
        "join-jraft": "garlicfarm.cli.node_join_jraft:join_jraft",
        "leave": "garlicfarm.cli.member:leave",
        "start": "garlicfarm.cli.node_start:start",
        "unit": "garlicfarm.cli.node_unit:unit",
    },
)
def node() -> None:
    """Make and run the node of this machine."""


@click.command(
    cls=Command,
    examples=[
        "garlicfarm node init --host a.example",
        "garlicfarm node init mynode --host 127.0.0.1 --application log",
    ],
)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), default=".")
@click.option("--id", "node_id", type=click.IntRange(1, 2**31 - 1), default=1, show_default=True)
@click.option(
    "--endpoint", metavar="URL", help="The endpoint that others dial, such as ssl://a.example:27150."
)
@click.option("--host", help="Short for --endpoint ssl://HOST:PORT.")
@click.option("--port", type=click.IntRange(1, 65535), default=27150, show_default=True)
@click.option(
    "--listen", metavar="URL", default="", help="Where to listen, if not on every address at that port."
)
@click.option(
    "--admin-url", metavar="URL", help="Where the admin API listens.  [default: https://127.0.0.1:27151]"
)
@application_option()
@epoch_length_option()
@click.option(
    "--preset",
    type=click.Choice(["clearnet", "i2p"]),
    help="Raft's times.  [default: i2p for an endpoint of i2p, else clearnet]",
)
@click.option("--master", metavar="BASE64", default="", help="Master destination of the Meta LeaseSet.")
@shared_options("farm")
def init(
    options: Options,
    directory: Path,
    node_id: int,
    endpoint: str | None,
    host: str | None,
    port: int,
    listen: str,
    admin_url: str | None,
    application: str,
    epoch_length: int,
    preset: str | None,
    master: str,
) -> None:
    """Make a new farm of one node in DIRECTORY (default: here).

    Writes garlicfarm.toml and data/: certificate, farm secret, the user `local`, and the store with its
    first Configuration. Overwrites nothing.
    """
    from msgspec.structs import replace

    from garlicfarm.config.model import PRESET_INTERVALS_MS
    from garlicfarm.setup.provision import FarmPlan, MemberPlan, create_node

    if endpoint and host:
        raise click.UsageError("give --endpoint or --host, not both")
    if not endpoint and not host:
        say(
            f"warning: other machines cannot reach ssl://127.0.0.1:{port}; "
            "name the address that they dial with --endpoint or --host",
        )
    if not (endpoint or "").startswith("i2p://") and (preset == "i2p" or _i2p_proxy_answers()):
        say(
            "warning: members, and observers of their traffic, learn the address of an ssl endpoint; with "
            "an I2P router `garlicfarm i2p setup` makes an endpoint in I2P, for --endpoint i2p://….b32.i2p:27150",
        )
    if preset is None:
        preset = "i2p" if endpoint and endpoint.startswith("i2p://") else "clearnet"
    # An IPv6 address needs its brackets in a URL.
    host = f"[{host}]" if host and ":" in host else host or "127.0.0.1"
    member = MemberPlan(endpoint=endpoint or f"ssl://{host}:{port}", listen=listen)
    if admin_url is not None:
        member = replace(member, admin_url=admin_url)
    farm = FarmPlan(
        name=options.farm or "farm",
        application=application,
        preset=preset,
        master=master,
        interval_ms=PRESET_INTERVALS_MS[preset],
        epoch_length=epoch_length,
    )
    made = create_node(directory, node_id, member, farm)
    put(directory / "garlicfarm.toml")
    say(
        f"farm {farm.name} ({made.farm_id.hex()}) has one member, {made.configuration.servers[0].endpoint}; "
        f"run it with: garlicfarm node start --config {directory / 'garlicfarm.toml'}",
    )


def _i2p_proxy_answers() -> bool:
    """Whether a router's HTTP proxy is at its usual place on this machine."""
    import socket
    from contextlib import suppress

    with suppress(OSError), socket.create_connection(("127.0.0.1", I2P_PROXY_PORT), timeout=0.5):
        return True
    return False
