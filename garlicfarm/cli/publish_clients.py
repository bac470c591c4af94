"""`garlicfarm publish ban|unban|allow|disallow|clients`: which clients the farm's services serve (D25)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.farm_policy import administer
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import Options, Seconds, print_rows, shared_options
from garlicfarm.durations import date_text

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

_CLIENT = (
    "CLIENT must be an address of 52 characters and .b32.i2p, the I2P base64 of that hash, or a destination"
)
_HASH = "n5EWH0NDPkmm3m22gNefYBWfLkrJFyYhoShGQoFYRAs="
BAN_S = 3600.0


@click.command(
    cls=Command, examples=[f"garlicfarm publish ban {_HASH}", f"garlicfarm publish ban {_HASH} --for 1d"]
)
@click.argument("client")
@click.option(
    "--for",
    "duration_s",
    type=Seconds(),
    metavar="TIME",
    help=f"How long the ban lasts.  [default: {BAN_S / 3600:g}h]",
)
@click.option("--forever", is_flag=True, help="The ban lasts until it is lifted.")
@shared_options()
def ban(options: Options, client: str, duration_s: float | None, forever: bool) -> None:
    """Ban a client from the services of the farm, whichever member publishes.

    CLIENT is its destination: the address ….b32.i2p, the I2P base64 of its hash, or the whole destination.
    A second ban of a client takes the place of the first one.
    """
    if forever and duration_s is not None:
        raise click.UsageError("give --for or --forever, not both")
    until_ms = None if forever else _now_ms() + round(1000 * (duration_s or BAN_S))
    administer(options, [("ban", {"hash": _hash(client), "until_ms": until_ms})])


@click.command(cls=Command, examples=[f"garlicfarm publish unban {_HASH}"])
@click.argument("client")
@shared_options()
def unban(options: Options, client: str) -> None:
    """Lift the ban of a client."""
    administer(options, [("unban", {"hash": _hash(client)})])


@click.command(cls=Command, examples=[f"garlicfarm publish allow {_HASH}"])
@click.argument("client")
@shared_options()
def allow(options: Options, client: str) -> None:
    """Put a client on the access list: while it has any, only these are served.

    What the other members measure of the service decides nothing then: their tests are strangers to it, too.
    """
    administer(options, [("allow", {"hash": _hash(client)})], _who_is_served)


@click.command(cls=Command, examples=[f"garlicfarm publish disallow {_HASH}"])
@click.argument("client")
@shared_options()
def disallow(options: Options, client: str) -> None:
    """Take a client off the access list. Without any, all clients are served that are not banned."""
    administer(options, [("disallow", {"hash": _hash(client)})], _who_is_served)


@click.command(cls=Command, examples=["garlicfarm publish clients"])
@shared_options()
def clients(options: Options) -> None:
    """List the clients that are banned, and those on the access list: until when, by whom, and since which
    entry of the log."""

    from garlicfarm.publishing.clients import rows as client_rows

    async def question(client: AdminClient, farm: str) -> dict[str, Any]:
        return await client.policy(farm)

    rows = client_rows(ask(options, question), _now_ms())
    if options.output == "table":
        for row in rows:
            until_ms, date_ms = row.pop("until_ms"), row.pop("date_ms")
            row["until"] = "" if until_ms is None else date_text(until_ms)
            row["date"] = date_text(date_ms)
    print_rows(options.output, "garlicfarm.publish-clients/1", rows)


def _who_is_served(policy: Mapping[str, Any]) -> str:
    allowed = len(policy["clients"]["allowed"])
    if not allowed:
        return "the access list is empty: all clients are served that are not banned"
    return f"only clients on the access list are served: {allowed}"


def _hash(client: str) -> str:
    """I2P base64 of the hash of a client's destination."""
    from garlicfarm.publishing.clients import hash_text

    try:
        return hash_text(client)
    except ValueError:
        raise click.UsageError(_CLIENT) from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
