"""`garlicfarm dafka`: the roles of Dafka, for programs with a farm or without. The plugin does the work."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Literal, TypeVar

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_start import level
from garlicfarm.cli.options import Options

__all__ = ["dafka", "key_options", "mesh_options", "plugin", "run_role"]

_T = TypeVar("_T")


@click.group(
    cls=CommandGroup,
    targets={
        "consume": "garlicfarm.cli.dafka_consume:consume",
        "keys": "garlicfarm.cli.dafka_keys:keys",
        "produce": "garlicfarm.cli.dafka_produce:produce",
        "store": "garlicfarm.cli.dafka_store:store",
        "tower": "garlicfarm.cli.dafka_tower:tower",
    },
)
def dafka() -> None:
    """Records that outlive their producer, over ZeroMQ (RFC 46). Needs the extra `dafka`."""


_KEY_OPTIONS = (
    click.option(
        "--key-file",
        default="",
        metavar="FILE",
        help="Secret CURVE key (`dafka keys create`). Without keys, only loopback addresses are allowed.",
    ),
    click.option(
        "--peers-file", default="", metavar="FILE", help="Known peers: their public keys and their roles."
    ),
)
_MESH_OPTIONS = (
    click.option(
        "--tower",
        "towers",
        multiple=True,
        default=("tcp://127.0.0.1:5556",),
        show_default=False,
        metavar="URL",
        help="Where the others are found, tcp://HOST:PORT?out=PORT&peer=NAME; repeatable. out: the second"
        " port of the tower, if it is not the next one; peer: its name in --peers-file."
        "  [default: tcp://127.0.0.1:5556]",
    ),
    click.option(
        "--listen",
        default="tcp://127.0.0.1:0",
        show_default=True,
        metavar="URL",
        help="Where the others subscribe to this node; port 0: any free one.",
    ),
    click.option(
        "--advertise",
        default="",
        metavar="URL",
        help="Where the others reach --listen, if not there; port 0: at its port.",
    ),
    click.option(
        "--high-water-mark",
        type=click.IntRange(1, 10_000_000),
        default=10_000,
        show_default=True,
        metavar="N",
        help="How many messages are queued for each peer. Those that find a full queue are fetched later.",
    ),
)


def key_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--key-file`` and ``--peers-file``, as arguments of these names."""
    for option in reversed(_KEY_OPTIONS):
        command = option(command)
    return command


def mesh_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a node, which the command gets as its argument ``mesh``: the fields of a
    `garlicfarm_plugin_dafka.config.MeshConfig`."""
    names = ("towers", "listen", "advertise", "high_water_mark", "key_file", "peers_file")

    @functools.wraps(command)
    def with_mesh(**arguments: Any) -> Any:
        return command(mesh={name: arguments.pop(name) for name in names}, **arguments)

    wrapped = key_options(with_mesh)
    for option in reversed(_MESH_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def run_role(
    log_level: Literal["info", "warning"],
    options: Options,
    main: Callable[..., Awaitable[_T]],
    *arguments: object,
) -> _T:
    """Run ``main`` in Trio, with the log on the standard error, from ``log_level`` on unless ``options`` says
    otherwise."""
    import trio

    from garlicfarm import logs

    with logs.configured(level(log_level, options.verbosity), "text", sys.stderr):
        return trio.run(main, *arguments)


def plugin(module: str) -> Any:
    """A module of the plugin. Raises `ConfigError`: the extra is not installed."""
    from garlicfarm.errors import ConfigError

    try:
        return import_module(f"garlicfarm_plugin_dafka.{module}")
    except ImportError as error:
        raise ConfigError([f"{error}: pip install 'garlicfarm[dafka]'"]) from error
