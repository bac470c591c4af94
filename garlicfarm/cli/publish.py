"""`garlicfarm publish`: whether the farm's publisher publishes, and the order to publish now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from garlicfarm.admin.health import plugin_text, streams_text
from garlicfarm.cli.command_group import CommandGroup
from garlicfarm.cli.durations import date_text
from garlicfarm.cli.node_access import ask, deadline
from garlicfarm.cli.options import Options, print_object, print_rows, shared_options
from garlicfarm.cli.status_table import has_no_publisher
from garlicfarm.cli.wait import POLL_INTERVAL_S, why_no_publisher

if TYPE_CHECKING:
    from garlicfarm.client.admin import AdminClient

PATIENCE_S = 60.0
"""beside two intervals: a publisher publishes at most once in 20 s, and a router takes its time"""


@click.group(
    cls=CommandGroup,
    targets={
        name: f"garlicfarm.cli.publish_clients:{name}"
        for name in ("allow", "ban", "clients", "disallow", "unban")
    },
)
def publish() -> None:
    """What the publisher of a farm publishes, and for which clients."""


@publish.command(examples=["garlicfarm publish now"])
@shared_options()
def now(options: Options) -> None:
    """Order the publisher to publish now, and wait until it reports that it has.

    Without --timeout this waits for a minute and two intervals of the farm. Where no member can publish,
    nothing is ordered.
    """

    unmet = "the order is not known to be committed; `garlicfarm publish show` shows the last one"

    async def order(client: AdminClient, farm: str) -> dict[str, Any]:
        import trio

        began_s = trio.current_time()
        with deadline(options.timeout_s, unmet):
            before = _publication(await client.ranking(farm))
            if before["publisher"] is None or not before["can_publish"]:
                await _refuse(client, farm, before)
            index, term = await client.administer(farm, "publish", {})
        default_s = PATIENCE_S + 2 * before["interval_ms"] / 1000
        wait_s = default_s if options.timeout_s is None else options.timeout_s
        seen = before
        with trio.move_on_at(began_s + wait_s):
            while True:
                seen = _publication(await client.ranking(farm))
                newer = seen["last_published_ms"] > before["last_published_ms"]
                if newer and seen["reported_at"] > index:
                    found = {"publisher": seen["publisher"], "last_published_ms": seen["last_published_ms"]}
                    return {"index": index, "term": term, **found}
                await trio.sleep(POLL_INTERVAL_S)
        raise TimeoutError(_unmet(index, wait_s, seen))

    published = ask(replace(options, timeout_s=None), order, awaited="the publisher's report")
    if options.output == "table":
        published["last_published"] = date_text(published.pop("last_published_ms"))
    print_rows(options.output, "garlicfarm.publish-now/1", [published])


@publish.command(examples=["garlicfarm publish show"])
@shared_options()
def show(options: Options) -> None:
    """Show which member publishes, since when, when it last published, and what is wrong with it.

    For each leaf of a publisher that publishes, this shows whether other members reach it.

    For each publisher of the queried node, this shows since when and until when it publishes.
    """

    async def question(client: AdminClient, farm: str) -> tuple[dict[str, Any], dict[str, Any]]:
        return await client.ranking(farm), await client.status(farm)

    ranking, status = ask(options, question)
    found = _publication(ranking)
    dates = [event["date_ms"] for event in status["events"] if event["index"] == found["since"]]
    found["since_ms"] = dates[0] if dates else None
    found["node"], found["publishers"] = status["node"], status.get("publishers") or []
    if found["publisher"] is None:
        found["problems"] = [why_no_publisher(status, ranking), *found["problems"]]
    print_object(options.output, "garlicfarm.publish/1", found, lines=_lines(found))


def _publication(ranking: dict[str, Any]) -> dict[str, Any]:
    """What a ranking says of the publication."""
    if "publication" not in ranking:
        from garlicfarm.errors import PublisherError

        raise PublisherError(
            "the node that answered does not say what is published: the farm is of the application log"
        )
    same = ("farm", "publisher", "since", "because", "due_since", "interval_ms")
    reported = [row["index"] for row in ranking["members"] if row["publisher"]]
    return {
        **{key: ranking[key] for key in same},
        **{key: ranking.get(key, 0) for key in ("banned", "allowed")},
        "order": ranking["orders"].get("publish"),
        "reported_at": max(reported, default=0),
        **ranking["publication"],
    }


async def _refuse(client: AdminClient, farm: str, found: dict[str, Any]) -> None:
    from garlicfarm.errors import PublisherError

    status = await client.status(farm)
    if found["publisher"] is None:
        why = why_no_publisher(status, await client.ranking(farm))
    else:
        own = [] if status.get("publishers") else [has_no_publisher(status["node"])]
        why = "; ".join([*found["problems"], *own])
    raise PublisherError(f"nothing was ordered: {why}")


def _unmet(index: int, waited_s: float, seen: dict[str, Any]) -> str:
    who = "no member publishes" if seen["publisher"] is None else f"member {seen['publisher']} did not report"
    problems = "".join(f"; {problem}" for problem in seen["problems"])
    return f"the order is entry {index}, and within {waited_s:g} s {who} that it published{problems}"


def _lines(found: dict[str, Any]) -> Iterator[str]:
    from garlicfarm.publishing.publication import sight

    publisher, since = found["publisher"], found["since"]
    if publisher is None:
        yield f"farm {found['farm']}: no publisher"
    else:
        does = {True: "publishes", False: "does not publish", None: "cannot publish"}[found["publishing"]]
        when = "" if found["since_ms"] is None else f", {date_text(found['since_ms'])}"
        yield f"farm {found['farm']}: publisher {publisher} since index {since}{when}; it {does}"
    last_ms, order = found["last_published_ms"], found["order"]
    yield f"  last published  {date_text(last_ms) if last_ms else 'never'}"
    yield f"  can publish     {', '.join(map(str, found['can_publish'])) or 'no member'}"
    if order is not None:
        yield f"  last ordered    by {order['by']}, {date_text(order['date'])}, entry {order['index']}"
    if found["banned"] or found["allowed"]:
        served = (
            f"only {found['allowed']} on the access list are served"
            if found["allowed"]
            else "the others are served"
        )
        yield f"  clients         {found['banned']} banned; {served} (`garlicfarm publish clients`)"
    for leaf in found["leaves"]:
        yield f"  leaf            {leaf['hash']}: {sight(leaf['seen'])}"
    for problem in found["problems"]:
        yield f"  problem         {problem}"
    for one in found["publishers"]:
        since = "" if one["since_ms"] is None else f" since {date_text(one['since_ms'])}"
        until = "" if one["until_ms"] is None else f", until {date_text(one['until_ms'])}"
        streams = f"; {text}" if (text := streams_text(one)) else ""
        problems = "".join(f"; {problem}" for problem in one["problems"])
        seen = f"; {one['seen']}" if one.get("seen") else ""
        rest = f"{since}{until}{seen}{streams}{problems}"
        yield f"  node {found['node']}, {plugin_text(one)}: {one['state']}{rest}"
    if not found["publishers"]:
        yield f"  {has_no_publisher(found['node'])}"
