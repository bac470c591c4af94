"""`garlicfarm node address`: the admin URL and pin with which other machines ask this node."""

from __future__ import annotations

import os
from pathlib import Path

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import Options, print_json, print_rows, shared_options
from garlicfarm.cli.say import put, say

__all__ = ["address"]


@click.command(cls=Command, examples=["garlicfarm node address"])
@shared_options("config", "output")
def address(options: Options) -> None:
    """Print the admin URL of this machine's node, and the pin of its certificate.

    The table is one line, https://HOST:PORT?pin=sha256-…, which --node takes on another machine. The other
    formats have url and pin apart, for --node and --pin.
    """
    from garlicfarm.client.local_node import node_pin, remote_admin_url
    from garlicfarm.config import find_config, load
    from garlicfarm.transport import Endpoint

    config = load(find_config(options.config, os.environ, Path.cwd()), os.environ)
    found = {"url": remote_admin_url(config), "pin": node_pin(config)}
    if options.output == "table":
        put(f"{found['url']}?pin={found['pin']}")
    elif options.output == "json":
        print_json("garlicfarm.node-address/1", found)
    else:
        print_rows(options.output, "", [found])
    if Endpoint.parse(found["url"]).is_loopback:
        say(
            f"warning: only this machine reaches {found['url']}; "
            f"set admin.url in {config.path} to an address that others reach, and restart the node",
        )
