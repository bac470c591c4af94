"""`garlicfarm dafka tower`: how the nodes find each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.dafka import key_options, plugin, run_role
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.say import put

__all__ = ["tower"]


@click.command(
    cls=Command,
    examples=[
        "garlicfarm dafka tower",
        "garlicfarm dafka tower --listen tcp://0.0.0.0:5556 \\\n"
        "    --key-file tower.key --peers-file peers.toml",
    ],
)
@click.option(
    "--listen",
    default="tcp://127.0.0.1:5556",
    show_default=True,
    metavar="URL",
    help="Where nodes send their beacons, tcp://HOST:PORT?out=PORT. out: where they receive those of the"
    " others; default: the next port. Port 0: any free one.",
)
@key_options
@shared_options("verbosity")
def tower(options: Options, listen: str, key_file: str, peers_file: str) -> None:
    """Run a tower until SIGTERM or Ctrl-C: it tells nodes of each other. Records do not go through it.

    Prints its address, as nodes take it, once it listens. Nodes can have several towers; one is enough.
    """
    config = plugin("config").TowerConfig(listen=listen, key_file=key_file, peers_file=peers_file)
    run_role("info", options, _main, config)


async def _main(config: Any) -> None:
    import trio

    from garlicfarm.cli.signals import stopped_by_signals

    async with stopped_by_signals(), plugin("tower").open_tower(config, Path()) as opened:
        put(str(opened.endpoint))
        await trio.sleep_forever()
