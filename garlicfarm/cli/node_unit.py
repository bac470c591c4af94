"""`garlicfarm node unit`: the systemd unit of this machine's node."""

from __future__ import annotations

import os
import sys
from importlib.resources import files
from pathlib import Path

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.say import put

__all__ = ["unit"]

FILE_NAME = "garlicfarm.service"
_PROGRAM = "/opt/garlicfarm/bin/garlicfarm"
_DIRECTORY = "/var/lib/garlicfarm/node"
_HOMES = ("/home", "/root", "/run/user")


@click.command(cls=Command, examples=["garlicfarm node unit > /etc/systemd/system/garlicfarm.service"])
@shared_options("config")
def unit(options: Options) -> None:
    """Print a systemd unit that runs the node of this machine.

    It names this program, the node's directory, and the owner of that as the user. As root, write it to
    /etc/systemd/system/garlicfarm.service, then run `systemctl daemon-reload` and `systemctl enable --now
    garlicfarm`.
    """
    from garlicfarm.config import find_config, load
    from garlicfarm.errors import ConfigError

    config = load(find_config(options.config, os.environ, Path.cwd()), os.environ)
    program, directory = Path(sys.executable).with_name("garlicfarm"), config.base_dir
    for path in (program, config.path):
        if not str(path).isprintable() or any(character in str(path) for character in " \"'\\$%"):
            raise ConfigError([f"{path}: systemd needs a path without blanks, quotes, backslashes, $ and %"])
    if not config.node.data_dir.resolve().is_relative_to(directory.resolve()):
        raise ConfigError([f"node.data_dir, {config.node.data_dir}, must be in {directory} for this unit"])
    try:
        owner = directory.owner()
    except KeyError:
        owner = str(directory.stat().st_uid)
    text = files("garlicfarm.cli").joinpath(FILE_NAME).read_text(encoding="utf-8")
    text = text.replace(f"{_DIRECTORY}/garlicfarm.toml", str(config.path))
    text = text.replace(_PROGRAM, str(program)).replace(_DIRECTORY, str(directory))
    text = text.replace("User=garlicfarm\n", f"User={owner}\n")
    if str(config.path).startswith(_HOMES) or str(program).startswith(_HOMES):
        text = text.replace("ProtectHome=yes\n", "ProtectHome=read-only\n")
    put(text, nl=False)
