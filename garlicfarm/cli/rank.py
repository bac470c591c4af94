"""``rank``: a Spark process that ranks the members by the reports of their routers."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.durations import DURATION_RULE, format_ms, parse_ms
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.ranking_table import Trends, ranking_view
from garlicfarm.cli.remote import deadline, find_node
from garlicfarm.names import FARM_NAME_RULE, is_farm_name

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["Setting", "plugin", "rank"]

TRIGGER_MS = 5_000
_GIVEN = click.core.ParameterSource.COMMANDLINE
LONGEST_TRIGGER_MS = 3_600_000


class Sink(click.ParamType[str]):
    """``console``, ``memory``, or ``parquet:DIRECTORY``."""

    name = "sink"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, where = str(value).partition(":")
        if kind not in ("console", "memory", "parquet") or (kind == "parquet") != bool(where):
            self.fail(f"{value!r} is none of console, memory, parquet:DIRECTORY", param, ctx)
        return str(value)


class Trigger(click.ParamType[int]):
    """``5s``, ``500ms``, ``1m``: milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        trigger_ms = parse_ms(str(value))
        if trigger_ms is None or trigger_ms > LONGEST_TRIGGER_MS:
            self.fail(f"{value!r} must be {DURATION_RULE}, up to {format_ms(LONGEST_TRIGGER_MS)}", param, ctx)
        return trigger_ms


class Farms(click.ParamType[tuple[str, ...]]):
    """A name, several with commas, or ``*``: none for that."""

    name = "farms"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if value == "*":
            return ()
        names = tuple(dict.fromkeys(str(value).split(",")))
        for name in names:
            if not is_farm_name(name):
                self.fail(f"{name!r} is no farm's name, which has {FARM_NAME_RULE}", param, ctx)
        return names


class Address(click.ParamType[tuple[str, int]]):
    """``HOST:PORT``, an IPv6 address in brackets."""

    name = "address"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]+)):([0-9]{1,5})", str(value))
        if found is None or not 0 < int(found[3]) < 65536:
            self.fail(f"{value!r} is no HOST:PORT, as 127.0.0.1:9110 or [::1]:9110", param, ctx)
        return found[1] or found[2], int(found[3])


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
    "inspect": "garlicfarm.cli.rank_inspect:inspect",
    "report": "garlicfarm.cli.rank_report:report",
    "whatif": "garlicfarm.cli.rank_whatif:whatif",
}


@click.group(cls=CommandGroup, targets=RANK_COMMANDS, invoke_without_command=True)
@click.option("--master", default="local[2]", show_default=True, help="Where Spark runs.")
@click.option("--once", is_flag=True, help="Rank the entries that are committed now, then end.")
@click.option(
    "--trigger",
    type=Trigger(),
    help="Rank at most this often, as 500ms or 1m: a rarer batch costs less CPU. 0s: as often as possible."
    f" Default: {format_ms(TRIGGER_MS)}.",
)
@click.option(
    "--checkpoint",
    metavar="DIRECTORY|URI",
    help="Where Spark keeps its progress: a path, or a URI as hdfs://HOST/DIRECTORY. Default: nowhere; each"
    " start begins anew.",
)
@click.option(
    "--sink",
    type=Sink(),
    metavar="console|memory|parquet:DIRECTORY|parquet:URI",
    default="console",
    show_default=True,
    help="Where the rankings go.",
)
@click.option(
    "--rows",
    type=click.Choice(["changes", "batches", "entries"]),
    help="Which indexes get a ranking: those that change something, the last of each batch, or all. Default:"
    " changes for parquet, else batches.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare the states with the nodes' at the same index, once a second; end where they differ.",
)
@click.option(
    "--metrics",
    type=Address(),
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus there, without a login.",
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
@click.option(
    "--farm",
    "farms",
    type=Farms(),
    metavar="NAME[,NAME…]|*",
    help="The farms, if the node has several; *: all that it has or will have.",
)
@shared_options("config", "node", "user", "tls", "timeout", "verbosity")
@click.pass_context
def rank(
    context: click.Context,
    options: Options,
    master: str,
    once: bool,
    trigger: int | None,
    checkpoint: str | None,
    sink: str,
    rows: str | None,
    verify: bool,
    metrics: tuple[str, int] | None,
    max_entries: int,
    conf: tuple[tuple[str, str], ...],
    farms: tuple[str, ...] | None,
) -> None:
    """Rank the members continuously in Spark, by the nodes' own rules.

    On a terminal it shows the ranking and how many entries it lags; elsewhere it prints each ranking as
    a JSON line, equal to the nodes' at the same index. Needs the extra `spark`, and Java 17 or later.
    """
    if context.invoked_subcommand is not None:
        for param in context.command.params:
            if param.name is not None and context.get_parameter_source(param.name) == _GIVEN:
                command = context.invoked_subcommand
                raise click.UsageError(f"{param.opts[-1]} before {command} has no effect: put it behind")
        return
    import trio

    if once and trigger is not None:
        raise click.UsageError("--once ends without another batch: --trigger is for a rank that goes on")
    if rows is None:
        rows = "changes" if sink.startswith("parquet:") else "batches"
    found = find_node(options)
    with tempfile.TemporaryDirectory(prefix="garlicfarm-rank-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        spark = scratch / "spark"
        spark.mkdir()
        job: dict[str, Any] = {
            "checkpoint": checkpoint or str(scratch / "checkpoint"),
            "scratch": spark,
            "master": master,
            "sink": sink,
            "rows": rows,
            "once": once,
            "trigger_ms": TRIGGER_MS if trigger is None else trigger,
            "max_entries": max_entries,
            "verify": verify,
            "metrics": metrics,
            "conf": dict(conf),
            "verbosity": options.verbosity,
        }
        nodes = {
            "urls": found.urls,
            "farm": "",
            "user": found.user,
            "password_file": found.password_file,
            "pin": found.pin,
            "ca": found.ca,
        }
        with _one_error():
            trio.run(_main, nodes, farms, job, options)


async def _main(
    nodes: dict[str, Any], farms: tuple[str, ...] | None, job: dict[str, Any], options: Options
) -> None:
    import trio

    from garlicfarm.cli.signals import ended_by_signals

    runner, feed, job_module = plugin("runner"), plugin("feed"), plugin("job")
    async with ended_by_signals():
        with deadline(options.timeout_s, "the ranking was ended"):
            given = feed.Nodes(**nodes)
            if farms is None:
                names = await trio.to_thread.run_sync(_farms, feed, given, abandon_on_cancel=True)
                if len(names) != 1:
                    raise click.UsageError(f"--farm is needed: this node has {', '.join(names) or 'no farm'}")
                farms = tuple(names)
            with _viewer(quiet=options.verbosity < 0) as viewer:
                await runner.run(job_module.Job(nodes=given, farms=farms, **job), viewer)


@contextmanager
def _viewer(*, quiet: bool) -> Iterator[Lines | Screen]:
    if not sys.stdout.isatty():
        yield Lines(quiet)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        yield Screen(live, quiet)


def _farms(feed: Any, nodes: Any) -> list[str]:
    asked = feed.FarmFeed(nodes)
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


class Lines:
    """Off a terminal: rankings on stdout, all else on stderr."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._skipped: dict[str, Mapping[str, int]] = {}

    async def ranking(self, farm: str, text: str, skipped: Mapping[str, int]) -> None:
        click.echo(text)
        if skipped != self._skipped.get(farm, {}):
            self._skipped[farm] = skipped
            self.note(f"entries of {farm} skipped, as the nodes do: {_counts(skipped)}")

    def progress(self, farm: str, index: int | None, commit_index: int | None) -> None:
        pass

    def verified(self, count: int) -> None:
        pass

    def note(self, text: str) -> None:
        if not self._quiet:
            click.echo(text, err=True)


class _Shown:
    """One farm on the screen."""

    def __init__(self) -> None:
        self.body: dict[str, Any] | None = None
        self.index: int | None = None
        self.commit_index: int | None = None
        self.skipped: Mapping[str, int] = {}
        self.trends = Trends()

    def view(self, farm: str, verified: str, width: int) -> RenderableType:
        from rich.text import Text

        lag = "unknown"
        if self.index is not None and self.commit_index is not None:
            lag = f"{max(0, self.commit_index - self.index)} entries"
        title = f"farm {farm}: ranked up to index {self.index or 'none'}, lag {lag}{verified}"
        if self.skipped:
            title += f", skipped {_counts(self.skipped)}"
        return ranking_view(self.body, title, width, trends=self.trends) if self.body else Text(title)


class Screen:
    """On a terminal: one table per farm, kept up to date."""

    def __init__(self, live: Live, quiet: bool) -> None:
        self._live = live
        self._quiet = quiet
        self._farms: dict[str, _Shown] = {}
        self._verified = ""

    async def ranking(self, farm: str, text: str, skipped: Mapping[str, int]) -> None:
        shown = self._farms.setdefault(farm, _Shown())
        shown.body = json.loads(text)
        shown.trends.add(shown.body)
        shown.skipped = skipped
        shown.index = shown.body["index"]
        self._show()

    def progress(self, farm: str, index: int | None, commit_index: int | None) -> None:
        shown = self._farms.setdefault(farm, _Shown())
        shown.index = max(index or 0, shown.index or 0) or None
        shown.commit_index = commit_index
        self._show()

    def verified(self, count: int) -> None:
        self._verified = f", verified {count} times"
        self._show()

    def note(self, text: str) -> None:
        if not self._quiet:
            self._live.console.print(text, style="dim", markup=False)

    def _show(self) -> None:
        from rich.console import Group

        width = self._live.console.width
        views = [shown.view(farm, self._verified, width) for farm, shown in sorted(self._farms.items())]
        self._live.update(Group(*views), refresh=True)


def _counts(skipped: Mapping[str, int]) -> str:
    """How many entries were skipped in all, and why."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items()))
    return f"{sum(skipped.values())} ({reasons})"
