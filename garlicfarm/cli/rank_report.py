"""``rank report``: a page about the history of a farm."""

from __future__ import annotations

from pathlib import Path

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.rank import plugin
from garlicfarm.cli.say import say
from garlicfarm.errors import ConfigError


@click.command(cls=Command, examples=["garlicfarm rank report rankings --html report.html"])
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Where to write the page; an older one is replaced.",
)
@click.option("--farm", metavar="NAME", help="The farm, if there are several.")
@click.option(
    "--by", type=click.Choice(["hour", "day"]), default="hour", show_default=True, help="What a bar covers."
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True, max=100_000),
    metavar="N",
    help="Only the newest N days of farm time.  [default: all]",
)
@click.option(
    "--whatif",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Show what other parameters would have led to: a file of `rank whatif --parquet`.",
)
def report(
    directory: str, html: Path, farm: str | None, by: str, days: float | None, whatif: Path | None
) -> None:
    """Write a page with charts of publishers, recency and scores.

    DIRECTORY is that of `rank --sink parquet:DIRECTORY`. The page is one file, without scripts, and
    loads nothing from elsewhere. Needs the extra `spark`, but starts no Spark.
    """
    from garlicfarm.cli.sign_of_life import run_blocking
    from garlicfarm.durable_files import replace_file

    write, path = plugin("report").report, plugin("directory").local_path(directory)
    page = run_blocking("the stored rankings to be read", lambda: write(path, farm, by, days, whatif))
    try:
        replace_file(html, [page.encode()], 0o644)
    except OSError as error:
        raise ConfigError([f"--html: {html} cannot be written ({error.strerror})"]) from error
    say(f"wrote {html}")
