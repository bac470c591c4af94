"""`garlicfarm dafka consume`: records as JSON lines."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.dafka import mesh_options, plugin, run_role
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.printable import printable_json

LAST_LINES_S = 1.0
"""How long a command that is told to end waits for the lines that it is printing, to save that they are."""


class Start(click.ParamType[str | int]):
    """``earliest``, ``latest``, or a sequence."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        text = str(value)
        if text in ("earliest", "latest"):
            return text
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            self.fail(f"{value!r} is not earliest, latest or a sequence such as 1000", param, ctx)
        return int(text)


@click.command(
    cls=Command,
    examples=[
        "garlicfarm dafka consume weather --from latest",
        "garlicfarm dafka consume weather --offsets weather.offsets --count 100",
    ],
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC…")
@click.option(
    "--from",
    "start",
    type=Start(),
    default="earliest",
    show_default=True,
    metavar="earliest|latest|N",
    help="Where to begin a partition that --offsets does not name: with its first record, with the next one"
    " that is produced, or with sequence N.",
)
@click.option(
    "--offsets",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Continue where FILE says, and save there what has been printed.",
)
@click.option(
    "--skip-lost",
    is_flag=True,
    help="Skip records that no node has any more, with a warning. Without it, they are an error.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N records.")
@mesh_options
@shared_options("timeout", "verbosity")
def consume(
    options: Options,
    topics: tuple[str, ...],
    start: str | int,
    offsets: Path | None,
    skip_lost: bool,
    count: int | None,
    mesh: Mapping[str, Any],
) -> None:
    """Print records as JSON lines: topic, partition, sequence, value (or value_base64).

    Each record of a partition comes once and in order, also across runs with the same --offsets. A process
    that was killed may repeat what it printed last.
    """
    config = plugin("config").MeshConfig(**mesh)
    wanted = {"start": start, "offsets_file": offsets, "skip_lost": skip_lost}
    run_role("warning", options, _main, config, topics, wanted, count, options)


async def _main(
    config: Any,
    topics: tuple[str, ...],
    wanted: Mapping[str, Any],
    count: int | None,
    options: Options,
) -> None:
    import trio

    from garlicfarm.cli.node_access import deadline
    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.cli.signals import ended_by_signals, stopped_by_signals

    token = trio.lowlevel.current_trio_token()
    # Without a count it reads until it is told to end; with one, that comes too early.
    ending = stopped_by_signals if count is None else ended_by_signals
    what, quiet = f"the first record of {', '.join(topics)}", options.verbosity < 0
    async with (
        ending(),
        plugin("consumer").open_consumer(config, topics, **wanted) as consumer,
        sign_of_life(what, quiet=quiet) as came,
    ):
        with deadline(options.timeout_s, "the topics were followed"):
            while count is None or count > 0:
                records = await consumer.receive(count)
                came()
                if count is not None:
                    count -= len(records)
                printed = trio.Event()
                on_printed = partial(token.run_sync_soon, printed.set)
                try:
                    # Not here: a reader that is slow would keep us from telling others that we are there.
                    await trio.to_thread.run_sync(_print, records, on_printed, abandon_on_cancel=True)
                    printed.set()
                except trio.Cancelled:
                    with trio.move_on_after(LAST_LINES_S, shield=True):
                        await printed.wait()
                    raise
                finally:
                    if printed.is_set() and wanted["offsets_file"] is not None:
                        with trio.CancelScope(shield=True):
                            await consumer.save_offsets()


def _print(records: Iterable[Any], on_printed: Callable[[], None]) -> None:
    import trio

    # By os.write: a thread left behind in a write of sys.stdout ends the interpreter with a fatal error.
    data = memoryview("".join([record_line(record) for record in records]).encode())
    descriptor = sys.stdout.fileno()
    while data:
        data = data[os.write(descriptor, data) :]
    with suppress(trio.RunFinishedError):  # the reader was too slow
        on_printed()


def record_line(record: Any) -> str:
    row = {"topic": record.topic, "partition": record.partition, "sequence": record.sequence}
    try:
        row["value"] = record.content.decode()
    except UnicodeDecodeError:
        row["value_base64"] = base64.b64encode(record.content).decode()
    return printable_json(json.dumps(row, ensure_ascii=False)) + "\n"
