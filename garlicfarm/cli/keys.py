"""`garlicfarm keys`: the long-term key of a destination, and the bundles that nodes sign with instead."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.options import Options, print_object, print_rows, shared_options
from garlicfarm.cli.say import put, say

if TYPE_CHECKING:
    from garlicfarm.i2p.keys import DestinationKeys

DAY_S = 86_400

_FILE = click.Path(dir_okay=False, path_type=Path)


def _nodes(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        ids = tuple(int(each) for each in text.split(","))
    except ValueError:
        ids = ()
    if not ids or len(set(ids)) < len(ids) or not all(1 <= each <= 2**31 - 1 for each in ids):
        raise click.BadParameter(f"{text!r} must be ids of nodes, each once, such as 1,2,3")
    return ids


@click.group(cls=CommandGroup)
def keys() -> None:
    """Keys of destinations: made on a machine that is not a node, and lent to nodes for a while."""


@keys.command(examples=["garlicfarm keys create site.key"])
@click.argument("file", type=_FILE)
def create(file: Path) -> None:
    """Make a new destination; write its long-term key to FILE (new, mode 0600) and print the destination.

    The key is the destination: keep it, and a copy of it, on machines that are not nodes.
    """
    from garlicfarm.credentials.destination_keys import create_keys
    from garlicfarm.i2p.encoding import b32_address, encode

    made = create_keys(file)
    put(encode(made.destination))
    say(
        f"{file} is the secret of {b32_address(made.destination)}, and nothing can replace it: keep a copy. "
        f"Make bundles for the nodes with `garlicfarm keys offline {file}`",
    )


@keys.command(examples=["garlicfarm keys offline site.key --nodes 1,2,3 --days 90 --out bundles"])
@click.argument("file", type=_FILE)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=90,
    show_default=True,
    help="How long the first bundle is valid; each other one ends a day earlier than the one before.",
)
@click.option(
    "--nodes", metavar="IDS", required=True, callback=_nodes, help="Ids of the nodes, such as 1,2,3."
)
@click.option(
    "--out",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory for the bundles, FILE's name and the node's id each.",
)
@click.option(
    "--hops",
    type=click.IntRange(0, 7),
    default=3,
    show_default=True,
    help="Length of the tunnels of an I2CP session.",
)
@click.option(
    "--quantity",
    type=click.IntRange(1, 16),
    default=2,
    show_default=True,
    help="Tunnels of an I2CP session in each direction.",
)
@shared_options("output")
def offline(
    options: Options, file: Path, days: int, nodes: tuple[int, ...], directory: Path, hops: int, quantity: int
) -> None:
    """Make a bundle for each node: it signs for the destination of the key in FILE until it expires.

    Each bundle is a secret of its node alone: a transient key, the long-term key's permission for it, and
    signed I2CP configurations with the options given here. Overwrites no file.

    Their ends differ, so that not all nodes stop in the same second: by a day, or less where that would halve
    the time of the last one.
    """
    import secrets

    from garlicfarm.credentials.destination_keys import read_keys, write_bundle
    from garlicfarm.errors import ConfigError
    from garlicfarm.i2p.keys import make_bundle

    long_term = read_keys(file)
    if long_term.offline is not None:
        raise ConfigError([f"{file} does not hold a long-term key, and only that can sign bundles"])
    paths = {node: directory / f"{file.stem}-{node}.bundle" for node in nodes}
    existing = [f"{path} exists; nothing was written" for path in paths.values() if path.exists()]
    if existing:
        raise ConfigError(existing)
    now_s = int(time.time())
    rows = []
    earlier_s = min(DAY_S, days * DAY_S // (2 * len(paths)))
    for place, (node, path) in enumerate(paths.items()):
        bundle = make_bundle(
            long_term,
            secrets.token_bytes(32),
            node=node,
            expires_s=now_s + days * DAY_S - place * earlier_s,
            now_ms=now_s * 1000,
            hops=hops,
            quantity=quantity,
        )
        write_bundle(path, bundle)
        rows.append({"node": node, "file": str(path), "transient": bundle.transient, "expires": _day(bundle)})
    print_rows(options.output, "garlicfarm.bundles/1", rows)
    say(
        "each bundle is a secret: copy it to its own node only, then delete it here; before it expires, put "
        "another one in its place, which needs no restart"
    )


@keys.command(examples=["garlicfarm keys show site.key"])
@click.argument("file", type=_FILE)
@shared_options("output")
def show(options: Options, file: Path) -> None:
    """Show what FILE holds and until when it signs, but no secret. Negative days left: it has expired."""
    from garlicfarm.credentials.destination_keys import read_keys
    from garlicfarm.i2p.encoding import b32_address, encode

    found = read_keys(file, allow_expired=True)
    kind = "long-term key" if found.offline is None else "offline key" if found.node is None else "bundle"
    body = {
        "kind": kind,
        "node": found.node,
        "transient": found.transient,
        "expires": _day(found),
        "days_left": None if found.offline is None else (found.offline.expires_s - int(time.time())) // DAY_S,
        "b32": b32_address(found.destination),
        "destination": encode(found.destination),
    }
    lines = [
        f"{name.replace('_', ' '):11}  {'-' if value is None else value}" for name, value in body.items()
    ]
    print_object(options.output, "garlicfarm.keys/1", body, lines=lines)


def _day(found: DestinationKeys) -> str | None:
    if found.expires_ms is None:
        return None
    return time.strftime("%Y-%m-%d", time.gmtime(found.expires_ms / 1000))
