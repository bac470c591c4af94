"""`garlicfarm node`: the node of this machine. What makes it a member, and `node start`, are modules of their
own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import node_config
from garlicfarm.cli.options import (
    ADMIN_URL,
    DIRECTORY,
    LISTEN,
    MEMBER_ID,
    Options,
    new_farm,
    new_farm_options,
    print_object,
    shared_options,
)
from garlicfarm.cli.say import put, say

I2P_PROXY_PORT = 4444


@click.group(
    cls=CommandGroup,
    targets={
        "drain": "garlicfarm.cli.node_drain:drain",
        "undrain": "garlicfarm.cli.node_drain:undrain",
        "join": "garlicfarm.cli.node_join:join",
        "join-jraft": "garlicfarm.cli.node_join_jraft:join_jraft",
        "leave": "garlicfarm.cli.member:leave",
        "start": "garlicfarm.cli.node_start:start",
        "upgrade-check": "garlicfarm.cli.node_upgrade_check:upgrade_check",
    },
)
def node() -> None:
    """Make and run the node of this machine."""


@node.command(
    examples=[
        "garlicfarm node init --host a.example",
        "garlicfarm node init mynode --host 127.0.0.1 --application log",
    ],
)
@DIRECTORY
@click.option("--id", "node_id", type=MEMBER_ID, default=1, show_default=True)
@click.option(
    "--endpoint", metavar="URL", help="The endpoint that others dial, such as ssl://a.example:27150."
)
@click.option("--host", help="Short for --endpoint ssl://HOST:PORT.")
@click.option("--port", type=click.IntRange(1, 65535), default=27150, show_default=True)
@LISTEN
@ADMIN_URL
@click.option(
    "--preset",
    type=click.Choice(["clearnet", "i2p"]),
    help="Raft's times.  [default: i2p for an endpoint of i2p, else clearnet]",
)
@new_farm_options
@shared_options("farm")
def init(
    options: Options,
    directory: Path,
    node_id: int,
    endpoint: str | None,
    host: str | None,
    port: int,
    preset: str | None,
    listen: str,
    admin_url: str,
    **new: Any,
) -> None:
    """Make a new farm of one node in DIRECTORY (default: here).

    Writes garlicfarm.toml and data/: certificate, farm secret, the user `local`, and the store with its
    first Configuration. Overwrites nothing.
    """
    from garlicfarm.setup.provision import MemberPlan, create_node

    if endpoint and host:
        raise click.UsageError("give --endpoint or --host, not both")
    if not endpoint and not host:
        say(
            f"warning: other machines cannot reach ssl://127.0.0.1:{port}; "
            "name the address that they dial with --endpoint or --host",
        )
    is_inside = (endpoint or "").startswith("i2p://")
    if not is_inside and (preset == "i2p" or _i2p_proxy_answers()):
        say(
            "warning: members, and observers of their traffic, learn the address of an ssl endpoint; with "
            "an I2P router `garlicfarm i2p setup` makes an endpoint in I2P, for --endpoint i2p://….b32.i2p:27150",
        )
    # An IPv6 address needs its brackets in a URL.
    host = f"[{host}]" if host and ":" in host else host or "127.0.0.1"
    member = MemberPlan(endpoint=endpoint or f"ssl://{host}:{port}", listen=listen, admin_url=admin_url)
    farm = new_farm(options.farm or "farm", preset or ("i2p" if is_inside else "clearnet"), **new)
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


@node.command(examples=["garlicfarm node address"])
@shared_options("config", "output")
def address(options: Options) -> None:
    """Print the admin URL of this machine's node, and the pin of its certificate.

    The table is one line, https://HOST:PORT?pin=sha256-…, which --node takes on another machine. The other
    formats have url and pin separately, for --node and --pin.
    """
    from garlicfarm.client.local_node import node_pin, remote_admin_url
    from garlicfarm.transport import Endpoint

    config = node_config(options)
    url, pin = remote_admin_url(config), node_pin(config)
    found = {"url": url, "pin": pin}
    print_object(options.output, "garlicfarm.node-address/1", found, lines=[f"{url}?pin={pin}"])
    if Endpoint.parse(url).is_loopback:
        say(
            f"warning: only this machine can reach {url}; "
            f"set admin.url in {config.path} to an address that others reach, and restart the node",
        )


@node.command(examples=["garlicfarm node unit > /etc/systemd/system/garlicfarm.service"])
@shared_options("config")
def unit(options: Options) -> None:
    """Print a systemd unit that runs the node of this machine.

    It names this program, the node's directory, and that directory's owner as the user. `garlicfarm systemd
    install` writes the same, and starts it.
    """
    from garlicfarm.cli.systemd import unit_text

    put(unit_text(node_config(options)), nl=False)
