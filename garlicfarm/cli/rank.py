"""``rank``: a Spark process that ranks the members by the reports of their routers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import deadline, find_node
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.rank_options import (
    conf_option,
    master_option,
    parse_address,
    parse_farms,
    parse_sink,
    parse_trigger,
)
from garlicfarm.cli.rank_screen import viewer
from garlicfarm.durations import format_ms
from garlicfarm.errors import ConfigError
from garlicfarm.names import FARM_NAME_RULE, is_farm_name

TRIGGER_MS = 5_000
_GIVEN = click.core.ParameterSource.COMMANDLINE


RANK_COMMANDS = {
    "compact": "garlicfarm.cli.rank_compact:compact",
    "history": "garlicfarm.cli.rank_history:history",
    "inspect": "garlicfarm.cli.rank_inspect:inspect",
    "report": "garlicfarm.cli.rank_report:report",
    "whatif": "garlicfarm.cli.rank_whatif:whatif",
}


@click.group(
    cls=CommandGroup,
    targets=RANK_COMMANDS,
    invoke_without_command=True,
    examples=["garlicfarm rank --once", "garlicfarm rank --sink parquet:rankings --checkpoint progress"],
)
@master_option("local[2]")
@click.option("--once", is_flag=True, help="Rank the entries that are committed now, then end.")
@click.option(
    "--trigger",
    type=parse_trigger,
    metavar="DURATION",
    help="Rank at most this often, such as 500ms or 1m: fewer batches cost less CPU. 0s: as often as"
    f" possible. Default: {format_ms(TRIGGER_MS)}.",
)
@click.option(
    "--checkpoint",
    metavar="DIRECTORY|URI",
    help="Where Spark keeps its progress: a path, or a URI as hdfs://HOST/DIRECTORY. Default: nowhere; each"
    " start starts over.",
)
@click.option(
    "--sink",
    type=parse_sink,
    metavar="console|memory|garlicfarm|parquet:DIRECTORY|parquet:URI",
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
    "--query",
    metavar="NAME",
    help="The name by which the nodes show this query: how far it has read, and with --sink garlicfarm, which"
    " needs it and a user with the role writer, its rankings.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compare the states with the nodes' at the same index, once a second; end where they differ.",
)
@click.option(
    "--metrics",
    type=parse_address,
    metavar="HOST:PORT",
    help="Serve metrics for Prometheus there, without a login.",
)
@click.option(
    "--max-entries",
    type=click.IntRange(1, 1_000_000),
    help="Most entries in one batch, which is held in memory. Default: 20000; with --rows changes or entries"
    " fewer for a farm of more than 13 members, 1024 for 256.",
)
@conf_option()
@click.option(
    "--farm",
    "farms",
    type=parse_farms,
    metavar="NAME[,NAME…]|*",
    help="The farms, if the node has several; *: all of the application publisher, now and later.",
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
    query: str | None,
    verify: bool,
    metrics: tuple[str, int] | None,
    max_entries: int | None,
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
        raise click.UsageError("--once ends without another batch: --trigger is for a rank without an end")
    if checkpoint == "":  # an unset variable, and each start would start over
        raise click.UsageError("--checkpoint is empty: name a directory, or leave it out")
    if query is not None and not is_farm_name(query):
        raise click.UsageError(f"--query {query!r} is not a name, which has {FARM_NAME_RULE}")
    if query is None and sink == "garlicfarm":
        raise click.UsageError("--sink garlicfarm needs --query NAME, by which the nodes keep the rankings")
    if rows is None:
        rows = "changes" if sink.startswith("parquet:") else "batches"
    plugin("session").check_installed()
    nodes = find_node(options)
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
            "query": query,
            "once": once,
            "trigger_ms": TRIGGER_MS if trigger is None else trigger,
            "max_entries": max_entries,
            "verify": verify,
            "metrics": metrics,
            "conf": dict(conf),
            "verbosity": options.verbosity,
        }
        with _reader_left():
            trio.run(_main, nodes, farms, job, options)


async def _main(nodes: Any, farms: tuple[str, ...] | None, job: dict[str, Any], options: Options) -> None:
    import trio

    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.cli.signals import ended_by_signals

    runner, job_module = plugin("runner"), plugin("job")
    quiet = options.verbosity < 0
    async with ended_by_signals(), sign_of_life("Spark and its first ranking", quiet=quiet) as came:
        with deadline(options.timeout_s, "the ranking was ended"):
            if farms is None:
                farms = (await trio.to_thread.run_sync(only_farm, nodes, abandon_on_cancel=True),)
            with viewer(came, quiet=quiet) as shown:
                await runner.run(job_module.Job(nodes=nodes, farms=farms, **job), shown)


def only_farm(nodes: Any) -> str:
    """The name of the farm that the nodes have; blocks. Raises `ConfigError`: they have several, or none;
    `UnreachableError`, `AuthError`."""
    with closing(plugin("node_reader").NodeReader(nodes)) as reader:
        names: list[str] = [*reader.heads()]
    if len(names) != 1:
        raise ConfigError([f"--farm is needed: this node has {', '.join(names) or 'no farm'}"])
    return names[0]


def plugin(module: str) -> Any:
    """A module of the plugin. Raises `ConfigError`: what it needs is not installed."""
    try:
        return import_module(f"garlicfarm_plugin_spark.{module}")
    except ImportError as error:
        raise ConfigError([f"{error}: pip install 'garlicfarm[spark]'"]) from error


@contextmanager
def _reader_left() -> Iterator[None]:
    """A reader of our output that left, out of the group that Trio makes of it. Others are taken out where
    errors become exit codes."""
    try:
        yield
    except BaseExceptionGroup as group:
        from garlicfarm.errors import first_error

        if (found := group.subgroup(BrokenPipeError)) is not None:
            raise first_error(found) from group
        raise
