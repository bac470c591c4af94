"""`garlicfarm farm show`: every statistic of every member, and what is in force."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.cli.command_group import Command
from garlicfarm.cli.node_access import ask
from garlicfarm.cli.options import Options, print_object, shared_options
from garlicfarm.durations import date_text, format_ms

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

SHOWN_CHARS = 60
"""of a text; destinations have 516 and more. -o json has all"""


@click.command(cls=Command, examples=["garlicfarm farm show"])
@shared_options()
def show(options: Options) -> None:
    """Show every statistic of every member, with its age; scores and their parts; which members are recent,
    eligible and publisher, and why; and the administrators' orders: by whom, when, and by which entry.
    Also the rankings that queries store at this node, whether they equal its own, and which queries read
    the farm.
    """

    async def question(client: AdminClient, farm: str) -> dict[str, Any]:
        body = await client.ranking(farm, statuses=True)
        body["queries"] = await client.rankings(farm)
        body["readers"] = await client.readers(farm)
        return body

    body = ask(options, question)
    print_object(options.output, "garlicfarm.ranking/1", body, rows=body["members"], lines=_lines(body))


def _lines(body: dict[str, Any]) -> Iterator[str]:
    if "farm" not in body:
        yield f"index {body['index']}: a farm of the application log has no statistics"
        yield from _queries(body)
        return
    yield f"farm {body['farm']} at index {body['index']}: {_publisher(body)}"
    in_force = {"interval": f"{body['interval_ms'] / 1000:g} s", "staleness": f"R {body['R']}"}
    if "lease_ms" in body:
        in_force["lease"] = f"{body['lease_ms'] / 1000:g} s"
    if body.get("lease_ms") != body.get("lease_ordered_ms", body.get("lease_ms")):
        in_force["lease"] += f", at most {body['lease_ordered_ms'] / 1000:g} s"
    if "lease_before_ms" in body:
        in_force["lease"] += f", one of {body['lease_before_ms'] / 1000:g} s may still run"
    if "election_timeout_ms" in body:
        in_force["elections"] = f"after up to {body['election_timeout_ms'] / 1000:g} s without a leader"
    if "control_ms" in body:
        in_force["control"] = f"{body['control_ms'] / 1000:g} s"
        in_force["clients"] = f"{body['banned']} banned, {body['allowed'] or 'none'} on the access list"
    if "forget" in body:
        forget = body["forget"]
        silent = f"members silent for {format_ms(forget['after_ms'])}"
        in_force["forget"] = f"{silent}, while there are more than {forget['min_members']}"
    in_force["publisher"] = f"margin {body['margin']}, lifetime {body['lifetime_ms'] / 1000:g} s"
    orders = body["orders"]
    for what in (*in_force, *(what for what in orders if what not in in_force)):
        yield f"  {what:12} {in_force.get(what, '')}".rstrip() + _order(orders.get(what))
    yield from _queries(body)
    for row in body["members"]:
        yield from ("", *_member(row))


def _queries(body: dict[str, Any]) -> Iterator[str]:
    from garlicfarm.admin.health import ranking_word

    for row in body.get("queries", ()):
        stored = f"batch {row['batch']} as of index {row['asof']}, {date_text(row['stored_ms'])}"
        yield f"  query {row['query']} of {row['user']}: {stored}; {ranking_word(row)}"
    for row in body.get("readers", ()):
        read = f"has read up to index {row['index']}, {row['lag']} behind, {row['age_s']:g} s ago"
        yield f"  reader {row['query']} of {row['user']}: {read}; since {date_text(row['since_ms'])}"


def _publisher(body: dict[str, Any]) -> str:
    from garlicfarm.publishing.ranking import BECAUSE

    if body["publisher"] is None:
        return f"no publisher since index {body['since']}" if body["since"] else "no publisher yet"
    return f"publisher {body['publisher']} since index {body['since']}: {BECAUSE[body['because']]}"


def _order(order: dict[str, Any] | None) -> str:
    if order is None:
        return ""
    return f" (by {order['by']}, {date_text(order['date'])}, entry {order['index']})"


def _member(row: dict[str, Any]) -> Iterator[str]:
    words = [word for word in ("publisher", "eligible", "recent") if row[word]]
    yield f"member {row['id']}: {', '.join(words) or 'not recent'}, mode {row['mode']}"
    for sentence in row["why"]:
        yield f"  {sentence}"
    if row["status"] is None:
        return
    measured = f", {row['measured']} % of it measured" if row.get("measured") is not None else ""
    yield f"  score {row['score']}{measured}, leaves at cost {row['cost']}"
    for name, part in row["parts"].items():
        told = ", left out" if part.get("left_out") else "" if part["reported"] else ", not reported"
        yield f"    {name:18} {part['value']:>7} at {part['weight']} %{told}"
    yield f"  status of {date_text(row['date'])}, {row['age_s']:g} s old, entry {row['index']}"
    for key, value in _leaves("", row["status"]):
        text = value if isinstance(value, str) else json.dumps(value)
        yield f"    {key} = {text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + '…'}"


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value of a document, unknown ones too, with its path."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}" if path else key, inner)
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _leaves(f"{path}[{place}]", inner)
    else:
        yield path, value
