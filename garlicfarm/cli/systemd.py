"""`garlicfarm systemd`: the node of this machine as a service of systemd."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import node_config
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.say import put, say

if TYPE_CHECKING:
    from garlicfarm.config import Config

UNIT_FILE = "garlicfarm.service"
UNITS = "etc/systemd/system"
SYSTEMCTL_S = 120.0
"""A node is started once its farms run: systemctl does not wait for it."""
_PROGRAM = "/opt/garlicfarm/bin/garlicfarm"
_DIRECTORY = "/var/lib/garlicfarm/node"
_HOMES = ("/home", "/root", "/run/user")


@click.group(cls=CommandGroup)
def systemd() -> None:
    """Run the node of this machine as a service of systemd."""


@systemd.command(
    examples=[
        "garlicfarm systemd install --config /var/lib/garlicfarm/node/garlicfarm.toml",
        "garlicfarm systemd install --name second --config second/garlicfarm.toml",
    ]
)
@click.option(
    "--name", default="garlicfarm", metavar="NAME", show_default=True, help="Of the unit, without .service."
)
@click.option(
    "--root",
    default=Path("/"),
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Write into the root directory of another system, such as an image, and start nothing.",
)
@shared_options("config")
def install(options: Options, name: str, root: Path) -> None:
    """Have systemd run the node of this machine, now and after each boot.

    As root. It writes the unit that `garlicfarm node unit` prints to /etc/systemd/system, then enables and
    starts it. Run it again after an upgrade: what has changed in the unit holds from the next restart. A unit
    of that name that runs something else is left as it is.
    """
    from garlicfarm.errors import ConfigError

    if not name or name.startswith(".") or not all(c.isalnum() or c in "-_.@" for c in name):
        raise ConfigError([f"--name {name!r}: a unit's name has letters, digits and -_.@ only"])
    text = unit_text(node_config(options))
    path = root / UNITS / f"{name}.service"
    before = path.read_text(encoding="utf-8") if path.exists() else None
    if before is not None and _started_by(before) != _started_by(text):
        raise ConfigError([f"{path} runs something else: {_started_by(before)}; choose another --name"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    put(path)
    if root != Path("/"):
        _systemctl(f"--root={root}", "enable", path.name)
        return
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", "--no-block", path.name)
    if before is None:
        say(f"it runs, and after each boot; its log: journalctl -u {name} -f")
    elif before != text:
        say(f"the unit has changed; it holds from: systemctl restart {name}")


def unit_text(config: Config) -> str:
    """The unit that runs the node of ``config`` with this program.

    :raises ConfigError: systemd cannot name its paths, or its store is outside of its directory.
    """
    from importlib.resources import files

    from garlicfarm.errors import ConfigError

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
    text = files("garlicfarm.cli").joinpath(UNIT_FILE).read_text(encoding="utf-8")
    text = text.replace(f"{_DIRECTORY}/garlicfarm.toml", str(config.path))
    text = text.replace(_PROGRAM, str(program)).replace(_DIRECTORY, str(directory))
    text = text.replace("User=garlicfarm\n", f"User={owner}\n")
    if str(config.path).startswith(_HOMES) or str(program).startswith(_HOMES):
        text = text.replace("ProtectHome=yes\n", "ProtectHome=read-only\n")
    return text


def _started_by(unit: str) -> str:
    """What a unit runs, without the program's path, which an upgrade may change."""
    command = next((line for line in unit.splitlines() if line.startswith("ExecStart=")), "nothing")
    return command.partition(" ")[2] or command


def _systemctl(*arguments: str) -> None:
    import subprocess

    from garlicfarm.errors import GarlicFarmError

    try:
        done = subprocess.run(
            ["systemctl", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SYSTEMCTL_S,
            check=False,
        )
    except FileNotFoundError:
        raise GarlicFarmError("there is no systemctl on this machine") from None
    except subprocess.TimeoutExpired:
        raise GarlicFarmError(f"systemctl {arguments[0]} takes longer than {SYSTEMCTL_S:g} s") from None
    if done.returncode:
        raise GarlicFarmError(f"systemctl {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")
