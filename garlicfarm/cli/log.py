"""`garlicfarm log post` and `log tail`: the replicated log, written to and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import click

from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import Options, print_object, shared_options
from garlicfarm.cli.say import put

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient


@click.group(cls=CommandGroup)
def log() -> None:
    """Append entries to a farm's log, and read committed ones."""


@log.command(examples=["echo hello | garlicfarm log post", "garlicfarm log post --batch 64 lines.txt"])
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--batch",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Append each line of FILE as an entry of its own, without its line feed, with up to N in"
    " flight, and report the outcome of each line.",
)
@shared_options()
def post(options: Options, file: BinaryIO, batch: int | None) -> int:
    """Append FILE (or stdin, -) as one entry, and print its index once it is committed.

    An empty entry is refused: it usually comes through a pipe from a command that failed.
    """
    if batch is not None:
        return _post_lines(options, file.fileno(), batch)
    entry = file.read()
    if not entry:
        raise click.UsageError(f"{file.name.strip('<>')} is empty; an entry has one byte or more")
    index, term = ask(
        options,
        lambda client, farm: client.post(farm, entry),
        awaited="the entry's index",
        unmet="the entry is not known to be committed; look for it in the log",
    )
    body = {"index": index, "term": term}
    print_object(options.output, "garlicfarm.log-post/1", body, lines=[index])
    return 0


def _post_lines(options: Options, descriptor: int, most: int) -> int:
    from garlicfarm.cli.log_batch import post_lines

    if options.output == "json":
        raise click.UsageError("--batch prints a line as each outcome is known: choose -o table or -o jsonl")
    return ask(
        options,
        lambda client, farm: post_lines(client, farm, descriptor, most, options.output),
        unmet="the end of the input was not reached",
        follows=True,
    )


@log.command(examples=["garlicfarm log tail -f", "garlicfarm log tail --after 1000 --linearizable"])
@click.option("-f", "--follow", is_flag=True, help="Wait for new entries, until Ctrl-C.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only entries with a larger index. Default: all entries that the node still holds.",
)
@click.option(
    "--all",
    "all_types",
    is_flag=True,
    help="Print Configurations too, which name the members: all that a replay of the farm needs.",
)
@click.option(
    "--linearizable",
    is_flag=True,
    help="Show every entry that was acknowledged before; needs a majority.",
)
@shared_options("config", "node", "farm", "user", "tls", "timeout")
def tail(options: Options, follow: bool, after: int | None, all_types: bool, linearizable: bool) -> None:
    """Print committed entries as JSON lines: index, term, type, value (or value_base64).

    With -f the nodes push new ones. A lost connection is retried for a minute.
    """
    from garlicfarm.errors import Compacted
    from garlicfarm.feed.events import EntryEvent
    from garlicfarm.feed.lines import encode_lines
    from garlicfarm.wire.messages import ValueType

    def show(lines: bytes) -> None:
        put(lines.decode(), nl=False)

    async def read(client: AdminClient, farm: str, start: int) -> None:
        from garlicfarm.cli.sign_of_life import sign_of_life

        async with sign_of_life("the first entry") as came:
            async for entry in client.log(farm, start, all_types=all_types, linearizable=linearizable):
                came()
                show(encode_lines([entry]))
                start = entry.index
        if not follow:
            return
        async with client.events(farm, start, kinds=("entry",)) as events:
            async for event in events:
                assert isinstance(event, EntryEvent)
                if all_types or event.entry.value_type is ValueType.APPLICATION:
                    show(encode_lines([event.entry]))

    async def read_all(client: AdminClient, farm: str) -> None:
        try:
            await read(client, farm, after or 0)
        except Compacted as gone:
            if after is not None:
                raise
            await read(client, farm, gone.first_index - 1)

    unmet = f"the {'log was followed' if follow else 'end of the log was not reached'}"
    ask(options, read_all, unmet=unmet, follows=True)
