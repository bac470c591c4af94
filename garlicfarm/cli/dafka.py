"""`garlicfarm dafka`: the roles of Dafka, for programs with a farm or without. The plugin does the work."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_start import level
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.say import put
from garlicfarm.durations import DURATION_RULE, parse_ms

_T = TypeVar("_T")


@click.group(
    cls=CommandGroup,
    targets={
        "consume": "garlicfarm.cli.dafka_consume:consume",
        "keys": "garlicfarm.cli.dafka_keys:keys",
        "produce": "garlicfarm.cli.dafka_produce:produce",
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
        help="Where to find the others, tcp://HOST:PORT?out=PORT&peer=NAME; repeatable. out: the second"
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
        help="Where the others reach this node, if not at --listen; port 0: the port of --listen.",
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


def _key_options(command: Callable[..., Any]) -> Callable[..., Any]:
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

    wrapped = _key_options(with_mesh)
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


@dafka.command(examples=["garlicfarm dafka store records --max-age 30d"])
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Store only this topic; repeatable.")
@click.option(
    "--max-age",
    metavar="DURATION",
    help="Delete records this long after they were saved, such as 30d. Default: never.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Delete the oldest records when all take more than N bytes. Default: never.",
)
@mesh_options
@shared_options("verbosity")
def store(
    options: Options,
    directory: Path,
    topics: tuple[str, ...],
    max_age: str | None,
    max_bytes: int | None,
    mesh: Mapping[str, Any],
) -> None:
    """Store records in DIRECTORY and serve them to consumers, until SIGTERM or Ctrl-C.

    A record is acknowledged once it is on disk, synced. Prints its address once it runs.
    """
    age_ms = None if max_age is None else parse_ms(max_age)
    if max_age is not None and not age_ms:
        raise click.UsageError(f"--max-age must be {DURATION_RULE}, not {max_age!r}")
    module = plugin("store")
    retention = module.Retention(None if age_ms is None else age_ms / 1000, max_bytes)
    config = plugin("config").MeshConfig(**mesh)
    run_role("info", options, _store, config, directory, topics or None, retention)


async def _store(config: Any, directory: Path, topics: tuple[str, ...] | None, retention: Any) -> None:
    import trio

    from garlicfarm.cli.signals import stopped_by_signals

    async with (
        stopped_by_signals(),
        plugin("mesh").open_mesh(config) as mesh,
        plugin("store").run_store(mesh, directory, topics=topics, retention=retention),
    ):
        put(str(mesh.endpoint))
        await trio.sleep_forever()


@dafka.command(
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
@_key_options
@shared_options("verbosity")
def tower(options: Options, listen: str, key_file: str, peers_file: str) -> None:
    """Run a tower until SIGTERM or Ctrl-C: it introduces nodes to each other. Records do not go through it.

    Prints its address, for --tower, once it listens. Nodes can have several towers; one is enough.
    """
    config = plugin("config").TowerConfig(listen=listen, key_file=key_file, peers_file=peers_file)
    run_role("info", options, _tower, config)


async def _tower(config: Any) -> None:
    import trio

    from garlicfarm.cli.signals import stopped_by_signals

    async with stopped_by_signals(), plugin("tower").open_tower(config, Path()) as opened:
        put(str(opened.endpoint))
        await trio.sleep_forever()
