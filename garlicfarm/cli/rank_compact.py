"""``rank compact``: merges the small files that ``rank --sink parquet:DIRECTORY`` wrote."""

from __future__ import annotations

from dataclasses import asdict

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.options import Options, print_rows, shared_options
from garlicfarm.cli.rank import plugin


@click.command(cls=Command, examples=["garlicfarm rank compact rankings"])
@click.argument("directory", type=click.Path(file_okay=False))
@shared_options("output")
def compact(options: Options, directory: str) -> None:
    """Merge the files of stored rankings into a few for each farm and date.

    DIRECTORY is that of `rank --sink parquet:DIRECTORY`, which may keep writing there. An interruption
    loses nothing. Unfinished files of killed writers are removed. Prints the dates whose files were merged.
    """
    from garlicfarm.cli.sign_of_life import run_blocking

    merge, path = plugin("compact").compact, plugin("directory").local_path(directory)
    merged = run_blocking("the files to be merged", lambda: list(merge(path)))
    print_rows(options.output, "garlicfarm.rank-compact/1", map(asdict, merged))
