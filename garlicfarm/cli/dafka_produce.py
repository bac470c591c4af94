"""`garlicfarm dafka produce`: lines as records."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.dafka import mesh_options, plugin, run_role
from garlicfarm.cli.exits import Exit
from garlicfarm.cli.options import Options, shared_options
from garlicfarm.cli.say import say


@click.command(
    cls=Command,
    examples=[
        "echo rain | garlicfarm dafka produce weather",
        "garlicfarm dafka produce weather --acks 2 < measurements.txt",
    ],
)
@click.argument("topic")
@click.option(
    "--acks",
    type=click.IntRange(0, 100),
    default=1,
    show_default=True,
    metavar="N",
    help="How many stores have to save each record before it counts as produced. With 0, none: the newest"
    " records are served until Ctrl-C.",
)
@click.option(
    "--identity",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Keep the partition in FILE, and each record until it is saved: a later run continues with both.",
)
@mesh_options
@shared_options("timeout", "verbosity")
def produce(options: Options, topic: str, acks: int, identity: Path | None, mesh: Mapping[str, Any]) -> int:
    """Produce each line of the standard input as a record of TOPIC, in a partition of its own.

    Each run makes a new partition, which readers remember. To produce repeatedly, or to lose
    nothing when killed, use --identity.

    Ends when stores have saved all records; without a store it waits, and keeps what it has read.
    Ended by SIGTERM or Ctrl-C, it exits with 0 if all that it has read is saved, else with 130.
    """
    config = plugin("config").MeshConfig(**mesh)
    return run_role("warning", options, _main, config, topic, acks, identity, options)


async def _main(config: Any, topic: str, acks: int, identity: Path | None, options: Options) -> int:
    import trio

    from garlicfarm.cli.node_access import deadline
    from garlicfarm.cli.sign_of_life import sign_of_life
    from garlicfarm.cli.signals import stopped_by_signals

    too_long = 0
    all_saved = True
    async with (
        stopped_by_signals() as stopped,
        plugin("producer").open_producer(config, topic, acks=acks, identity=identity) as producer,
    ):
        try:
            with deadline(options.timeout_s, "not all records are saved"):
                async with _lines(sys.stdin.fileno()) as received:
                    async for lines in received:
                        too_long += lines.count(None)
                        await producer.send_many(line for line in lines if line is not None)
                if not acks:
                    await trio.sleep_forever()

                def what() -> str:
                    left, sent = (
                        producer.next_sequence - producer.acked,
                        producer.next_sequence - producer.first,
                    )
                    return f"stores to save {left} of {sent} records"

                async with sign_of_life(what, quiet=options.verbosity < 0):
                    await producer.wait_acked()
        finally:
            all_saved = producer.acked == producer.next_sequence
            say(_summary(producer, acks, too_long, identity))
    if stopped.cancel_called and not all_saved:
        raise click.Abort
    return Exit.ERROR if too_long else Exit.OK


@asynccontextmanager
async def _lines(descriptor: int) -> AsyncIterator[Any]:
    import trio

    from garlicfarm.cli.log_batch import read_lines

    async with trio.open_nursery() as nursery:
        send, receive = trio.open_memory_channel[Sequence[bytes | None]](0)
        nursery.start_soon(read_lines, descriptor, send)
        yield receive


def _summary(producer: Any, acks: int, too_long: int, identity: Path | None) -> str:
    from garlicfarm.cli.log_batch import MAX_ENTRY_BYTES

    number, saved = producer.next_sequence - producer.first, producer.acked - producer.first
    parts = [f"{number} {'record' if number == 1 else 'records'} in partition {producer.partition}"]
    if acks:
        parts.append(f"{saved} saved")
    if identity is not None and saved < number:
        parts.append(f"the others kept in {identity}")
    if too_long:
        parts.append(f"{too_long} lines refused, which have more than {MAX_ENTRY_BYTES} bytes")
    return ", ".join(parts)
