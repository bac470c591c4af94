"""``rank whatif``: what a farm would have done with other parameters."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.node_access import deadline, find_node
from garlicfarm.cli.options import Options, print_json, print_rows, shared_options
from garlicfarm.cli.rank import only_farm, plugin
from garlicfarm.cli.say import put, say

LIVE = "live"


@click.command(
    cls=Command,
    examples=[
        "garlicfarm rank whatif --grid R=3,6,10",
        "garlicfarm rank whatif --log copy/data --grid margin=0:200000:50000",
    ],
)
@click.option(
    "--log",
    "source",
    metavar="DIRECTORY|live",
    default=LIVE,
    show_default=True,
    help="Whose log to replay: the data directory of a stopped node, or a copy of it; or running nodes.",
)
@click.option(
    "--grid",
    "grids",
    multiple=True,
    required=True,
    metavar="NAME=VALUES",
    help="Values of margin, R or weight.PART: 3,6,10 or FIRST:LAST:STEP. Repeatable; all combinations are"
    " compared.",
)
@click.option(
    "--parquet",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the outcomes to this file, too.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="NUMBER",
    help="How many processes replay the log; each needs about 2 kB of memory for each entry. Default: one for"
    " each CPU.",
)
@shared_options("config", "node", "farm", "user", "tls", "output", "timeout", "verbosity")
def whatif(
    options: Options,
    source: str,
    grids: tuple[str, ...],
    parquet: Path | None,
    workers: int | None,
) -> int:
    """Replay a farm's log under other parameters, and compare what each would have led to.

    The least score lost comes first; * marks the farm as it was. After Ctrl-C it shows the finished ones.
    Needs neither Spark nor Java; --parquet needs the extra `spark`.
    """
    import trio

    grid, replays = plugin("grid"), plugin("replays")
    settings = grid.settings_of([grid.parse_grid(text) for text in grids])
    if parquet is not None:
        directory = parquet.absolute().parent
        if not directory.is_dir():
            raise click.UsageError(f"--parquet {parquet}: its directory does not exist")
        plugin("directory").LocalDirectory(directory).check_writable("--parquet")
        plugin("whatif_file")  # needs pyarrow
    recorded, nodes = plugin("recorded_log"), find_node(options) if source == LIVE else None
    answers: list[Any] = []
    recording: Any = None
    farm_id = ""

    def judge() -> None:
        nonlocal recording, farm_id
        if nodes is None:
            opened = recorded.read_directory(Path(source), options.farm)
        else:
            opened = recorded.read_nodes(nodes, options.farm or only_farm(nodes))
        with opened as log:
            recording, farm_id = plugin("whatif").Recording(log.farm, log.rows), log.farm_id

    async def main() -> bool:
        from garlicfarm.cli.sign_of_life import sign_of_life
        from garlicfarm.cli.signals import stopped_by_signals

        quiet, number = options.verbosity < 0, len(settings) + 1
        async with stopped_by_signals() as scope:
            with deadline(options.timeout_s, "the settings below are all that were compared"):
                async with sign_of_life("the log to be read", quiet=quiet):
                    await trio.to_thread.run_sync(judge, abandon_on_cancel=True)
                entries = recording.last_index - recording.first_index + 1
                with _progress(number, entries, quiet=quiet) as advance:

                    def tell(answer: Any) -> None:
                        answers.append(answer)
                        advance()

                    # On a terminal the bar tells it.
                    quiet = quiet or sys.stderr.isatty()
                    left = f"of {number} settings to be compared"
                    async with sign_of_life(lambda: f"{number - len(answers)} {left}", quiet=quiet):
                        await replays.compare(
                            recording, settings, workers or len(os.sched_getaffinity(0)), tell
                        )
        return scope.cancel_called

    try:
        is_interrupted = trio.run(main)
    finally:
        if answers:
            rows = [answer.row() for answer in replays.ranked(answers)]
            log = {
                "farm": recording.farm,
                "farm_id": farm_id,
                "first_index": recording.first_index,
                "last_index": recording.last_index,
            }
            if parquet is not None:  # first: who reads stdout may leave
                plugin("whatif_file").write_outcomes(log, rows, parquet)
            _show(options.output, log, rows)
    if is_interrupted:
        say(f"interrupted after {len(answers)} of {len(settings) + 1} settings")
        return 130
    return 0


@contextmanager
def _progress(settings: int, entries: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; the block calls what it gets for each setting that is done."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task(f"{entries} entries, settings", total=settings)
        yield lambda: bar.advance(task)


def _show(output: str, log: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    if output == "table":
        span = _duration(rows[0]["span_ms"])
        put(f"farm {log['farm']}: entries {log['first_index']} to {log['last_index']}, {span} of farm time")
        varied = plugin("replays").varied_parts(rows)
        print_rows("table", "", [_line(row, varied) for row in rows])
    elif output == "jsonl":
        print_rows("jsonl", "", rows)
    else:
        print_json("garlicfarm.whatif/1", {**log, "settings": rows})


def _line(row: Mapping[str, Any], varied: Sequence[str]) -> dict[str, Any]:
    return {
        " ": "*" if row["current"] else " ",
        "margin": row["margin"],
        "R": row["R"],
        **{part: row["weights"][part] for part in varied},
        "changes": row["changes"],
        "flaps": row["flaps"],
        "hand-over": _duration(row["handover_mean_ms"]),
        "longest": _duration(row["handover_max_ms"]),
        "unserved": f"{100 * row['unserved_ms'] / max(row['span_ms'], 1):.2f} %",
        "score_lost": row["score_lost"],
    }


def _duration(ms: int | None) -> str | None:
    if ms is None:
        return None
    if ms < 600_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms / 60_000:.0f} min" if ms < 10_800_000 else f"{ms / 3_600_000:.0f} h"
