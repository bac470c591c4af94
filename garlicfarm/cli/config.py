"""`garlicfarm config`: check a configuration, and turn it into a template and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import node_config
from garlicfarm.cli.options import Options, print_rows, shared_options
from garlicfarm.cli.say import put, say
from garlicfarm.printable import printable

if TYPE_CHECKING:
    from garlicfarm.config import Config, FarmSection


@click.group(cls=CommandGroup)
def config() -> None:
    """The configuration of this machine's node."""


@config.command(
    examples=[
        "garlicfarm config check",
        "garlicfarm config check --config node-1/garlicfarm.toml --effective",
    ]
)
@click.option("--effective", is_flag=True, help="Print every value and its source; so does -o json.")
@shared_options("config", "output")
def check(options: Options, effective: bool) -> None:
    """Check the configuration, its plugins and the files that it names. Starts nothing."""
    from garlicfarm.errors import ConfigError

    checked = node_config(options)
    effective = effective or options.output != "table"
    if effective:
        rows = [  # the value last: a destination would push everything behind it off the screen
            {"key": origin.key, "source": origin.source, "value": _plain(origin.value)}
            for origin in checked.effective()
        ]
        print_rows(options.output, "garlicfarm.config/1", rows)
    for warning in warnings_of(checked):
        say(printable(f"warning: {warning}"))
    problems = list(problems_of(checked))
    if problems:
        raise ConfigError(problems)
    (say if effective else put)(f"{checked.path}: ok")


@config.command("export", examples=["garlicfarm config export > template.toml"])
@shared_options("config")
def export_(options: Options) -> None:
    """Print the configuration as a template for other nodes: without the values that each node has for itself
    (id, endpoint, leaves, priority), and without secrets, which are in files of their own.
    """
    from garlicfarm.config import find_config
    from garlicfarm.config.template import export

    text, left_out = export(find_config(options.config, os.environ, Path.cwd()), os.environ)
    put(text, nl=False)
    say(f"left out: {', '.join(left_out)}")


@config.command("import", examples=["garlicfarm config import template.toml --set node.id=3"])
@click.argument("template", type=click.File("r", encoding="utf-8"))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value of this node, such as node.id=3 or farm[0].endpoint=ssl://c.example:27150; repeatable.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    default="garlicfarm.toml",
    show_default=True,
    help="New file to write; - is stdout.",
)
def import_(template: TextIO, settings: tuple[str, ...], out: Path) -> None:
    """Make the configuration of one node from TEMPLATE (- is stdin), and check it. Overwrites no file."""
    from garlicfarm.config.template import fill
    from garlicfarm.durable_files import write_new_file
    from garlicfarm.errors import ConfigError

    pairs = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} must be KEY=VALUE, as node.id=3", param_hint="--set")
        pairs.append((key, text))
    try:
        text = template.read()
    except UnicodeDecodeError as error:
        raise ConfigError([f"the template is not UTF-8 at byte {error.start}"]) from error
    filled = fill(text, pairs)
    if str(out) == "-":
        put(filled, nl=False)
        return
    try:
        write_new_file(out, filled.encode(), 0o644)
    except FileExistsError as error:
        raise ConfigError([f"{out} exists already; nothing was overwritten"]) from error
    except OSError as error:
        raise ConfigError([f"cannot write {out}: {error.strerror}"]) from error


def warnings_of(checked: Config) -> Iterator[str]:
    """What is unusual in a configuration, or in what this machine gives it."""
    yield from _strange_applications(checked)
    yield from _ties(checked)
    yield from _few_descriptors(checked)
    for farm in checked.farm:
        if farm.backup.directory is not None and not farm.backup.directory.is_dir():
            yield f"farm {farm.name}: there are no backups while {farm.backup.directory} is no directory"


def _strange_applications(checked: Config) -> Sequence[str]:
    """The farms whose application `node start` does not have: a program of the user's runs them, or the name
    is misspelt."""
    from garlicfarm.errors import ConfigError
    from garlicfarm.node import check_applications, find_applications

    try:
        check_applications(checked.farm, find_applications())
    except ConfigError as error:
        return [f"{problem}; `node start` runs no other" for problem in error.problems]
    return ()


def _ties(checked: Config) -> Iterator[str]:
    """The members of a farm that serves something inside I2P whose network addresses its log reveals."""
    from garlicfarm.errors import StorageError
    from garlicfarm.storage import read_genesis
    from garlicfarm.transport import Endpoint

    for farm in checked.farm:
        members = {checked.node.id: farm.endpoint}
        try:
            first = read_genesis(checked.node.data_dir / "farms" / farm.name).configuration
        except StorageError:
            first = None  # the store is not what is checked here
        if first is not None:
            members = {server.id: server.endpoint for server in first.servers} | members
        hosts = {id_: Endpoint.parse(text, farm.default_transport) for id_, text in sorted(members.items())}
        inside = [host for host in hosts.values() if host.host.endswith(".i2p")]
        if not (inside or farm.meta.destination or farm.leaf):
            continue
        for id_, host in hosts.items():
            if host not in inside and not host.is_loopback:
                yield (
                    f"farm {farm.name}: its Configuration names the clearnet host {host.host} of member"
                    f" {id_}, and its members and log name I2P destinations: a reader can connect the two"
                    ' ("Privacy" in the documentation explains it)'
                )


def _few_descriptors(checked: Config) -> Iterator[str]:
    """What a node that was started here would miss."""
    from garlicfarm import descriptors

    descriptors.raise_limit()
    limit, farms = descriptors.limit(), len(checked.farm)
    if limit < descriptors.required(farms):
        needed = f"and the node needs {descriptors.required(farms)}"
        yield f"a process may open {limit} files here, {needed}: {descriptors.RAISE}"
    elif limit < descriptors.wanted(farms):
        fewer = f"below {descriptors.wanted(farms)} the node admits fewer connections that have not logged in"
        yield f"a process may open {limit} files here; {fewer}: {descriptors.RAISE}"


def _plain(value: object) -> object:
    """A value as it stands in TOML: an unset file is ""."""
    if value is None or isinstance(value, Path):
        return str(value or "")
    return value


def problems_of(checked: Config) -> Iterator[str]:
    """Problems that only loading the plugins and reading the files shows."""
    from garlicfarm.credentials.member_credentials import read_secret_file
    from garlicfarm.credentials.private_files import read_private_file
    from garlicfarm.errors import ConfigError, PluginError, StorageError
    from garlicfarm.node import find_applications
    from garlicfarm.node.hosted_feed import check_retention, make_feeds
    from garlicfarm.plugins import make_router, make_transport
    from garlicfarm.storage import read_genesis
    from garlicfarm.transport import Endpoint, Transport, listener_problems

    applications = find_applications()
    transports: dict[str, Transport] = {}

    def attempt(action: Callable[..., object], *arguments: object) -> Iterator[str]:
        try:
            action(*arguments)
        except ConfigError as error:
            yield from error.problems
        except PluginError as error:
            yield str(error)

    def check_application(farm: FarmSection) -> None:
        applications[farm.application](farm.name).check_configuration(farm, checked)

    def use(scheme: str) -> None:
        transports[scheme] = make_transport(scheme, checked.transport.get(scheme, {}), checked.base_dir)

    def check_feeds(farm: FarmSection) -> None:
        feeds = make_feeds(farm, checked)
        with suppress(StorageError):  # the store is not what is checked here
            genesis = read_genesis(checked.node.data_dir / "farms" / farm.name)
            check_retention(farm, feeds, genesis.epoch_length)

    schemes = {Endpoint.parse(listener.url).scheme for listener in checked.listener}
    schemes |= {Endpoint.parse(farm.endpoint, farm.default_transport).scheme for farm in checked.farm}
    for scheme in sorted(schemes | checked.transport.keys()):
        yield from attempt(use, scheme)
    for listener in checked.listener:
        url = Endpoint.parse(listener.url)
        if url.scheme in transports:
            farms = listener.farms or [farm.name for farm in checked.farm]
            yield from listener_problems(transports[url.scheme], url, farms)
    if checked.admin.metrics_token_file is not None:
        yield from attempt(read_private_file, checked.admin.metrics_token_file)
    for farm in checked.farm:
        yield from attempt(read_secret_file, farm.secret_file)
        if farm.router:
            table = {key: value for key, value in farm.router.items() if key != "plugin"}
            yield from attempt(make_router, farm.router["plugin"], table, checked.base_dir)
        if farm.application in applications:
            yield from attempt(check_application, farm)
        yield from attempt(check_feeds, farm)
