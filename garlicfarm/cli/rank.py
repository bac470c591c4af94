"""``rank``: a Spark process that ranks the members by the reports of their routers."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.ranking_table import Trends, ranking_view
from garlicfarm.cli.remote import deadline, find_node

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["plugin", "rank"]


class Sink(click.ParamType[str]):
    """``console``, ``memory``, or ``parquet:DIRECTORY``."""

    name = "sink"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, where = str(value).partition(":")
        if kind not in ("console", "memory", "parquet") or (kind == "parquet") != bool(where):
            self.fail(f"{value!r} is none of console, memory, parquet:DIRECTORY", param, ctx)
        return str(value)


class Setting(click.ParamType[tuple[str, str]]):
    """``KEY=VALUE``."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        key, equals, text = str(value).partition("=")
        if not key.startswith("spark.") or not equals:
            self.fail(f"{value!r} must be a setting of Spark, as spark.driver.memory=2g", param, ctx)
        return key, text


RANK_COMMANDS = {
    "compact": "garlicfarm.cli.rank_compact:compact",
    "history": "garlicfarm.cli.rank_history:history",
    "report": "garlicfarm.cli.rank_report:report",
    "whatif": "garlicfarm.cli.rank_whatif:whatif",
}


@click.group(cls=CommandGroup, targets=RANK_COMMANDS, invoke_without_command=True)
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@click.option("--once", is_flag=True, help="Rank the entries that are committed now, then end.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Where Spark keeps its progress, one directory per farm. Default: nowhere; each start begins anew.",
)
@click.option(
    "--sink",
    type=Sink(),
    metavar="console|memory|parquet:DIRECTORY",
    default="console",
    show_default=True,
    help="Where the rankings go.",
)
@click.option(
    "--max-entries",
    type=click.IntRange(1, 1_000_000),
    default=20_000,
    show_default=True,
    help="Most entries in one batch, which is held in memory.",
)
@click.option(
    "--conf", type=Setting(), multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
)
@shared_options("config", "node", "farm", "user", "tls", "timeout", "verbosity")
@click.pass_context
def rank(
    context: click.Context,
    options: Options,
    master: str,
    once: bool,
    checkpoint: Path | None,
    sink: str,
    max_entries: int,
    conf: tuple[tuple[str, str], ...],
) -> None:
    """Rank the members continuously in Spark, by the nodes' own rules.

    On a terminal it shows the ranking and how many entries it lags; elsewhere it prints each ranking as
    a JSON line, equal to the nodes' at the same index. Needs the extra `spark`, and Java 17 or later.
    """
    if context.invoked_subcommand is not None:
        return
    import trio

    found = find_node(options)
    with tempfile.TemporaryDirectory(prefix="garlicfarm-rank-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        spark = scratch / "spark"
        spark.mkdir()
        job: dict[str, Any] = {
            "checkpoint": checkpoint or scratch / "checkpoint",
            "scratch": spark,
            "master": master,
            "sink": sink,
            "once": once,
            "max_entries": max_entries,
            "conf": dict(conf),
            "verbosity": options.verbosity,
        }
        nodes = {
            "urls": found.urls,
            "user": found.user,
            "password_file": found.password_file,
            "pin": found.pin,
            "ca": found.ca,
        }
        with _one_error():
            trio.run(_main, nodes, job, options)


async def _main(nodes: dict[str, Any], job: dict[str, Any], options: Options) -> None:
    import trio

    from garlicfarm.cli.signals import ended_by_signals

    runner, feed = plugin("runner"), plugin("feed")
    async with ended_by_signals():
        with deadline(options.timeout_s, "the ranking was ended"):
            farm = options.farm
            if farm is None:
                names = await trio.to_thread.run_sync(_farms, feed, nodes, abandon_on_cancel=True)
                if len(names) != 1:
                    raise click.UsageError(f"--farm is needed: this node has {', '.join(names) or 'no farm'}")
                farm = names[0]
            given = runner.Job(nodes=feed.Nodes(farm=farm, **nodes), **job)
            with _viewer(farm, quiet=options.verbosity < 0) as viewer:
                await runner.run(given, viewer)


@contextmanager
def _viewer(farm: str, *, quiet: bool) -> Iterator[_Lines | _Screen]:
    if not sys.stdout.isatty():
        yield _Lines(quiet)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        yield _Screen(farm, live, quiet)


def _farms(feed: Any, nodes: dict[str, Any]) -> list[str]:
    asked = feed.FarmFeed(feed.Nodes(farm="", **nodes))
    try:
        names: list[str] = asked.farms()
    finally:
        asked.close()
    return names


def plugin(module: str) -> Any:
    """A module of the plugin. Raises `ConfigError`: what it needs is not installed."""
    from garlicfarm.errors import ConfigError

    try:
        return import_module(f"garlicfarm_plugin_spark.{module}")
    except ImportError as error:
        raise ConfigError([f"{error}: pip install 'garlicfarm[spark]'"]) from error


@contextmanager
def _one_error() -> Iterator[None]:
    """What ended the tasks, out of the group that Trio makes of it: a reader of our output that left, a
    wrong use. Others are taken out where errors become exit codes."""
    try:
        yield
    except BaseExceptionGroup as group:
        from garlicfarm.errors import first_error

        for kind in (BrokenPipeError, click.UsageError):
            if (found := group.subgroup(kind)) is not None:
                raise first_error(found) from group
        raise


class _Lines:
    """Off a terminal: rankings on stdout, all else on stderr."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._skipped: Mapping[str, int] = {}

    async def ranking(self, text: str, skipped: Mapping[str, int]) -> None:
        click.echo(text)
        if skipped != self._skipped:
            self._skipped = skipped
            self.note(f"entries skipped, as the nodes do: {_counts(skipped)}")

    def progress(self, index: int | None, commit_index: int | None) -> None:
        pass

    def note(self, text: str) -> None:
        if not self._quiet:
            click.echo(text, err=True)


class _Screen:
    """On a terminal: one table, kept up to date."""

    def __init__(self, farm: str, live: Live, quiet: bool) -> None:
        self._farm = farm
        self._live = live
        self._quiet = quiet
        self._body: dict[str, Any] | None = None
        self._index: int | None = None
        self._commit_index: int | None = None
        self._skipped: Mapping[str, int] = {}
        self._trends = Trends()

    async def ranking(self, text: str, skipped: Mapping[str, int]) -> None:
        self._body = json.loads(text)
        self._trends.add(self._body)
        self._skipped = skipped
        self._index = self._body["index"]
        self._show()

    def progress(self, index: int | None, commit_index: int | None) -> None:
        self._index = max(index or 0, self._index or 0) or None
        self._commit_index = commit_index
        self._show()

    def note(self, text: str) -> None:
        if not self._quiet:
            self._live.console.print(text, style="dim", markup=False)

    def _show(self) -> None:
        from rich.text import Text

        lag = "unknown"
        if self._index is not None and self._commit_index is not None:
            lag = f"{max(0, self._commit_index - self._index)} entries"
        title = f"farm {self._farm}: ranked up to index {self._index or 'none'}, lag {lag}"
        if self._skipped:
            title += f", skipped {_counts(self._skipped)}"
        width = self._live.console.width
        self._live.update(
            ranking_view(self._body, title, width, trends=self._trends) if self._body else Text(title),
            refresh=True,
        )


def _counts(skipped: Mapping[str, int]) -> str:
    """How many entries were skipped in all, and why."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items()))
    return f"{sum(skipped.values())} ({reasons})"
