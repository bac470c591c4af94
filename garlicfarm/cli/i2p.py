"""`garlicfarm i2p setup`: the server tunnel through which others reach this machine's node."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import farm_section
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.say import put, say
from garlicfarm.regular_files import read_text

if TYPE_CHECKING:
    from garlicfarm.config import Config, FarmSection
    from garlicfarm.transport import Endpoint

PORT = 27150
POLL_S = 0.2
DEFAULT_TIMEOUT_S = 120.0


@click.group(cls=CommandGroup)
def i2p() -> None:
    """Connect this node to others through an I2P router."""


@i2p.command(examples=["garlicfarm i2p setup", "garlicfarm i2p setup --java"])
@click.option(
    "--tunnels-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="/etc/i2pd/tunnels.conf.d",
    show_default=True,
    help="Where i2pd looks for tunnels.",
)
@click.option(
    "--keys",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The tunnel's keys, which the router makes.  [default: /var/lib/i2pd/garlicfarm-FARM.dat]",
)
@click.option(
    "--java", is_flag=True, help="Print the tunnel for Java I2P instead; with --keys, its address too."
)
@shared_options("config", "farm", "timeout")
def setup(options: Options, tunnels_dir: Path, keys: Path | None, java: bool) -> None:
    """Set up the server tunnel of this node, and print the endpoint that others dial.

    Writes the tunnel into i2pd's configuration, waits until the router has made its keys (2 minutes, or
    --timeout), and puts the address into the configuration of the node, if there is one. The command can be
    repeated: existing keys are kept.
    """
    import trio

    from garlicfarm.setup.i2p_tunnel import Tunnel
    from garlicfarm.transport import Endpoint

    config, farm = _configured(options)
    name = f"garlicfarm-{farm.name if farm else options.farm or 'farm'}"
    listener = _listener(config, farm)
    dialled = Endpoint.parse(farm.endpoint, farm.default_transport) if farm else None
    inport = dialled.port if dialled and dialled.scheme == "i2p" else PORT
    file = keys or Path("/var/lib/i2pd") / f"{name}.dat"
    tunnel = Tunnel(name, listener.host, listener.port, inport, file.name)
    if java:
        put(tunnel.java(), nl=False)
        if keys is None:
            say(
                f"put this into {name}-i2ptunnel.config in the router's i2ptunnel.config.d, restart "
                f"the router, and run this again with --keys and the path of its {file.name}"
            )
            return
    else:
        _write_tunnel(tunnels_dir / f"{name}.conf", tunnel.i2pd())
    address = trio.run(_await_address, file, options.timeout_s or DEFAULT_TIMEOUT_S)
    endpoint = Endpoint("i2p", address, inport)
    put(endpoint)
    if config is None or farm is None:
        say(f"make a node that is reached there: garlicfarm node init --endpoint {endpoint}")
    else:
        _configure(config, farm, endpoint, listener)


def _configured(options: Options) -> tuple[Config | None, FarmSection | None]:
    """The configuration of this machine's node and the farm meant, if there is a node yet."""
    from garlicfarm.config import find_config, load
    from garlicfarm.errors import ConfigError

    try:
        path = find_config(options.config, os.environ, Path.cwd())
    except ConfigError:
        if options.config is not None or "GARLICFARM_CONFIG" in os.environ:
            raise
        return None, None
    config = load(path, {})
    return config, farm_section(config, options)


def _listener(config: Config | None, farm: FarmSection | None) -> Endpoint:
    """Where the node listens for the tunnel, or is to."""
    from garlicfarm.transport import Endpoint

    listeners = config.listener if config else ()
    for each in listeners:
        url = Endpoint.parse(each.url)
        if url.scheme == "i2p" and farm is not None and farm.name in (each.farms or (farm.name,)):
            return url
    taken = {Endpoint.parse(each.url).port for each in listeners}
    return Endpoint("i2p", "127.0.0.1", next(port for port in range(PORT, PORT + 100) if port not in taken))


def _write_tunnel(path: Path, text: str) -> None:
    from garlicfarm.durable_files import replace_file
    from garlicfarm.errors import ConfigError

    try:
        if path.exists() and read_text(path) == text:
            return
        # A program that can write it can make the router forward anything.
        replace_file(path, [text.encode()], 0o644)
    except OSError as error:
        raise ConfigError(
            [
                f"cannot write {path}: {error.strerror}; "
                "run this as root, or name the directory with --tunnels-dir"
            ]
        ) from error
    say(f"wrote {path}; let the router read it: systemctl reload i2pd (or send it SIGHUP)")


async def _await_address(keys: Path, timeout_s: float) -> str:
    import trio

    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.setup.i2p_tunnel import b32_address

    with trio.move_on_after(timeout_s):
        async with sign_of_life(f"the router to make {keys}"):
            while True:
                with suppress(FileNotFoundError):
                    return b32_address(keys)
                await trio.sleep(POLL_S)
    raise TimeoutError(
        f"the router has not made {keys} within {timeout_s:g} s; has it read its tunnels again?"
    )


def _configure(config: Config, farm: FarmSection, endpoint: Endpoint, listener: Endpoint) -> None:
    """Put the endpoint into the node's file, and the listener if it lacks it."""
    import tomllib

    from garlicfarm.config.files import rewrite
    from garlicfarm.errors import ConfigError

    text = read_text(config.path)
    if farm.endpoint != str(endpoint):
        text = _with_endpoint(text, config.farm.index(farm), str(endpoint))
        if str(endpoint) not in [table["endpoint"] for table in tomllib.loads(text)["farm"]]:
            raise ConfigError([f'in {config.path}, set by hand: endpoint = "{endpoint}"'])
    if str(listener) not in [each.url for each in config.listener]:
        text = f'{text.rstrip()}\n\n[[listener]]\nurl = "{listener}"\n'
    changed = rewrite(config.path, text)
    if changed.farm != config.farm or changed.listener != config.listener:
        say(
            f"wrote {config.path}; restart the node, then let the farm dial it there: "
            f"garlicfarm member set {config.node.id} {endpoint}"
        )


def _with_endpoint(text: str, index: int, endpoint: str) -> str:
    """The text with another endpoint in the ``index``-th table ``[[farm]]``."""
    lines, farms, inside = text.splitlines(), -1, False
    for number, line in enumerate(lines):
        if re.match(r"\s*\[", line):
            inside = re.match(r"\s*\[\[\s*farm\s*\]\]", line) is not None
            farms += inside
        elif inside and farms == index and re.match(r"\s*endpoint\s*=", line):
            lines[number] = f'endpoint = "{endpoint}"'
    return "\n".join([*lines, ""])
