"""`garlicfarm config`: what the configuration says, and whether it can be used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garlicfarm.cli.options import Options, print_rows, shared_options

if TYPE_CHECKING:
    from garlicfarm.config import Config

__all__ = ["config"]


@click.group()
def config() -> None:
    """The configuration of this machine's node."""


@config.command()
@click.option("--effective", is_flag=True, help="Print every value and where it came from.")
@shared_options("config", "output")
def check(options: Options, effective: bool) -> None:
    """Check the configuration, its plugins and the files that it names; starts nothing."""
    from garlicfarm.config import find_config, load
    from garlicfarm.errors import ConfigError

    checked = load(find_config(options.config, os.environ, Path.cwd()), os.environ)
    if effective:
        rows = [
            {"key": origin.key, "value": _plain(origin.value), "source": origin.source}
            for origin in checked.effective()
        ]
        print_rows(options.output, "garlicfarm.config/1", rows)
    problems = list(_problems(checked))
    if problems:
        raise ConfigError(problems)
    click.echo(f"{checked.path}: ok", err=effective)


def _plain(value: object) -> object:
    """A value as it stands in TOML: an unset file is ""."""
    if value is None or isinstance(value, Path):
        return str(value or "")
    return value


def _problems(checked: Config) -> Iterator[str]:
    """What only shows once plugins are loaded and files are read."""
    from garlicfarm.errors import ConfigError, PluginError
    from garlicfarm.identity import read_private_file, read_secret_file
    from garlicfarm.plugins import make_router, make_transport
    from garlicfarm.transport import Endpoint

    def attempt(action: Callable[..., object], *arguments: object) -> Iterator[str]:
        try:
            action(*arguments)
        except ConfigError as error:
            yield from error.problems
        except PluginError as error:
            yield str(error)

    schemes = {Endpoint.parse(listener.url).scheme for listener in checked.listener}
    schemes |= {Endpoint.parse(farm.endpoint, farm.default_transport).scheme for farm in checked.farm}
    for scheme in sorted(schemes | checked.transport.keys()):
        yield from attempt(make_transport, scheme, checked.transport.get(scheme, {}), checked.base_dir)
    if checked.admin.metrics_token_file is not None:
        yield from attempt(read_private_file, checked.admin.metrics_token_file)
    for farm in checked.farm:
        yield from attempt(read_secret_file, farm.secret_file)
        if farm.router:
            table = {key: value for key, value in farm.router.items() if key != "plugin"}
            yield from attempt(make_router, farm.router["plugin"], table, checked.base_dir)
