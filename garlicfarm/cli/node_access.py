"""How commands find the node of this machine, or a running one, and ask it."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from garlicfarm.cli.options import Options

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient
    from garlicfarm.client.trust import NodeAccess
    from garlicfarm.config import Config, FarmSection

T = TypeVar("T")

ONLY_THE_LEADER = (
    "only the leader can do this: run this on its machine, or name its admin URL with --node (`garlicfarm "
    "node address` prints it there), and an admin among its users with --user"
)


def node_config(options: Options) -> Config:
    """The configuration of this machine's node, checked, with what the environment overrides.

    :raises ConfigError: there is none, or it is not valid.
    """
    from garlicfarm.config import find_config, load

    return load(find_config(options.config, os.environ, Path.cwd()), os.environ)


def farm_section(config: Config, options: Options) -> FarmSection:
    """The farm of a configuration that the options name, else its only one."""
    found = [section for section in config.farm if options.farm in (None, section.name)]
    if len(found) != 1:
        names = ", ".join(section.name for section in config.farm)
        raise click.UsageError(f"name one of the farms of {config.path} with --farm: {names}")
    return found[0]


def find_node(options: Options) -> NodeAccess:
    """The nodes that the options name, else the node of this machine, found through its configuration.

    :raises click.UsageError: a user without a password file, or URLs without a user.
    :raises ConfigError, StorageMissing, UnreachableError: as `garlicfarm.client.from_config`.
    """
    from garlicfarm.client.local_node import local_node
    from garlicfarm.client.trust import NodeAccess

    if options.node:
        if options.user is None or options.password_file is None:
            raise click.UsageError("--node needs --user and --password-file")
        return NodeAccess(options.node, options.user, options.password_file, options.pin, options.ca)
    if options.user is not None and options.password_file is None:
        raise click.UsageError("--user needs --password-file")

    found = local_node(node_config(options))
    return replace(
        found,
        user=options.user or found.user,
        password_file=options.password_file or found.password_file,
        pin=options.pin or (found.pin if options.ca is None else None),
        ca=options.ca,
    )


async def farm_name(client: AdminClient, options: Options) -> str:
    """The farm that the options name, else the only one of the node."""
    if options.farm is not None:
        return options.farm
    names = [str(row["name"]) for row in await client.farms()]
    if len(names) != 1:
        raise click.UsageError(f"--farm is needed: this node has {', '.join(names) or 'no farm'}")
    return names[0]


def ask(
    options: Options,
    question: Callable[[AdminClient, str], Awaitable[T]],
    *,
    awaited: str = "",
    unmet: str = "",
    follows: bool = False,
) -> T:
    """Run ``question(client, farm)`` under Trio, within ``--timeout``, and return what it returns.

    :param awaited: what takes the time, for the `sign_of_life`.  [default: an answer from the node]
    :param follows: the question goes on after the node has answered, and says itself what it waits for.
    :param unmet: what has not come about where ``--timeout`` passes.  [default: no answer from the node]
    :raises TimeoutError: it passed.
    """
    import trio

    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.client.admin import client_of

    async def main() -> T:
        found = find_node(options)
        with deadline(options.timeout_s, unmet or f"no answer from {' or '.join(found.urls)}"):
            urls = " or ".join(found.urls)
            async with client_of(found) as client:
                async with sign_of_life(f"{awaited or 'an answer'} from {urls}"):
                    farm = await farm_name(client, options)
                    if not follows:
                        return await question(client, farm)
                return await question(client, farm)

    return trio.run(main)


@contextmanager
def deadline(timeout_s: float | None, unmet: str) -> Iterator[None]:
    """Cancel the block after ``--timeout``, and raise `TimeoutError` that says what has not come about."""
    import trio

    with trio.move_on_after(math.inf if timeout_s is None else timeout_s) as scope:
        yield
    if scope.cancelled_caught:
        raise TimeoutError(f"--timeout of {timeout_s:g} s passed: {unmet}")
