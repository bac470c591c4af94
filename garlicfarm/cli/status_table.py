"""A farm's status in words and as a table: the body of ``GET …/status``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from garlicfarm.admin.health import (
    events,
    level_word,
    plugin_text,
    program_word,
    publishing,
    quorum_loss,
    since,
    streams_text,
    utc,
)

if TYPE_CHECKING:
    from rich.console import Group

EVENTS = 6
ERROR_COLUMN_WIDTH = 110
"""From this width on, errors are a column; below, they are lines under the table."""

_COLOURS = {"leader": "bold green", "candidate": "yellow", "unreachable": "red"}


def headline(body: dict[str, Any]) -> str:
    """The body in one line."""
    return (
        f"farm {body['farm']}: leader {body['leader'] or 'none'}, publisher {publisher_text(body)}, "
        f"term {body['term']}, commit {body['commit']}, "
        f"{'quorum, ' if body['quorum'] else 'no quorum: '}{spare_text(body)}"
    )


def spare_text(body: dict[str, Any]) -> str:
    """By how much a majority is there, or missed."""
    if body["quorum"]:
        return f"can lose {body['fault_tolerance']} more"
    missing = f"{body['needed']} more needed" if body["needed"] else ""
    return ", ".join(each for each in (quorum_loss(body), missing) if each)


def publisher_text(body: dict[str, Any]) -> str:
    """The publisher's id, and where it is only a name, why."""
    named = body["publisher"]
    if named is None or publishing(body) is not None:
        return str(named or "none")
    return f"{named} (unreachable)" if body["quorum"] else f"none ({named} was named)"


def status_rows(body: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per member, dead ones too: cells by column."""
    return [
        {
            "id": member["id"],
            "endpoint": (endpoint := member["endpoint"].partition("?")[0]),
            "role": member["role"] + (", drained" if member.get("drained") else ""),
            "publisher": "*" if member["id"] == publishing(body) else None,
            "term": member["term"],
            "commit": member["commit"],
            "applied": member["applied"],
            "lag": member["lag"],
            "last contact": _seconds(member["last_contact_s"]) if _hears(body, member) else None,
            "rtt": _seconds(member["rtt_s"]),
            "transport": member["transport"],
            "version": program_word(member),
            "age": _seconds(member["age_s"]),
            "error": member["error"] and member["error"].removeprefix(f"{endpoint}: ") + _since(member),
        }
        for member in body["members"]
    ]


def _since(member: dict[str, Any]) -> str:
    return f" ({text.strip()})" if (text := since(member)) else ""


def _hears(body: dict[str, Any], member: dict[str, Any]) -> bool:
    """Whether the node that answered hears of a member regularly: a follower only hears of its leader."""
    return member["id"] != body["node"] and body["leader"] in (body["node"], member["id"])


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"


def status_view(body: dict[str, Any], width: int) -> Group:
    """The table for a terminal of ``width`` columns, and below it what found no place in it."""
    from rich.console import Group
    from rich.text import Text

    from garlicfarm.cli.tables import WIDE, Column, make_table
    from garlicfarm.printable import printable

    columns = [
        Column("id"),
        Column("endpoint", 80, most=30),
        Column("role"),
        Column("publisher"),
        Column("term", 100),
        Column("commit"),
        Column("applied", WIDE),
        Column("lag"),
        Column("last contact", 56),
        Column("rtt", WIDE),
        Column("transport", WIDE),
        Column("version", WIDE),
        Column("age", WIDE),
        Column("error", ERROR_COLUMN_WIDTH),
    ]
    rows = [(_COLOURS.get(str(row["role"]).partition(",")[0], ""), row) for row in status_rows(body)]
    errors = [
        Text(printable(f"member {row['id']}: {row['error']}"), style="red")
        for _, row in rows
        if row["error"] and width < ERROR_COLUMN_WIDTH
    ]
    more = [Text(printable(line)) for line in more_lines(body)]
    table = make_table(headline(body), columns, rows, width, yielding=("error", "endpoint", "role"))
    return Group(table, *errors, *more)


def key_problems(body: dict[str, Any]) -> dict[str, str]:
    """For each member whose offline keys expire within 14 days, what to do, as the rest of a sentence."""
    from garlicfarm.publishing.publication import expiry_problem

    now_ms = time.time_ns() // 1_000_000
    expiries: dict[str, int] = body.get("key_expiries") or {}
    return {id_: text for id_, ms in expiries.items() if (text := expiry_problem(ms, now_ms))}


def publisher_lines(body: dict[str, Any]) -> list[str]:
    """What is wrong with the farm, whether the other members reach the publisher's leaves, and what the node
    that answered publishes, a line for each of its publishers; no line where its answer has nothing about
    that."""
    from garlicfarm.publishing.publication import sight

    found = body.get("publishers")
    if found is None:
        return []
    lines = [*(body.get("problems") or ())]
    for leaf in body.get("published_leaves") or []:
        if leaf["seen"] is not None:
            lines.append(f"leaf {leaf['hash']} of member {body['publisher']}: {sight(leaf['seen'])}")
    if measured := measured_line(body):
        lines.append(measured)
    for one in found:
        since = f" since {utc(one['since_ms'])} UTC" if one["since_ms"] else ""
        until = f", until {utc(one['until_ms'])}" if one["until_ms"] else ""
        seen = f"; {one['seen']}" if one.get("seen") else ""
        streams = f"; {text}" if (text := streams_text(one)) else ""
        problems = "".join(f"; {problem}" for problem in one["problems"])
        lines.append(
            f"node {body['node']}, publisher {plugin_text(one)}: "
            f"{one['state']}{since}{until}{seen}{streams}{problems}"
        )
    if not found:
        lines.append(has_no_publisher(body["node"]))
    return lines


def measured_line(body: dict[str, Any]) -> str:
    """How much of the members' scores is measured; "": no member has a score."""
    members: dict[int, list[str]] = {}
    for member, percent in (body.get("measured") or {}).items():
        members.setdefault(percent, []).append(member)
    told = [
        f"{percent} % of member{'s' if len(of) > 1 else ''} {', '.join(of)}"
        for percent, of in sorted(members.items(), reverse=True)
    ]
    return f"measured of the scores: {'; '.join(told)}" if told else ""


def more_lines(body: dict[str, Any]) -> list[str]:
    """What finds no place in the table, a line for each: the publishers and feeds of the node that answered,
    what is wrong with the farm, and a level that it could be raised to."""
    level = level_word(body)
    return [*publisher_lines(body), *feed_lines(body), *([level] if level else [])]


def feed_lines(body: dict[str, Any]) -> list[str]:
    """How far the feeds of the node that answered are, a line for each."""
    lines = []
    for feed in body.get("feeds") or []:
        behind = f"{feed['lag']} entries behind" if feed["lag"] else "up to date"
        problem = f"; {feed['problem']}" if feed["problem"] else ""
        lines.append(f"node {body['node']}, feed {feed['name']}: {feed['state']}, {behind}{problem}")
    return lines


def has_no_publisher(node: int) -> str:
    """The sentence for a node without publishers."""
    return f"node {node} publishes nothing, even where it is named: it has no [[farm.publisher]]"


def event_lines(body: dict[str, Any], most: int = EVENTS) -> list[str]:
    """The newest ``most`` events, the newest last."""
    return [f"{utc(event['date_ms'])}  {event['text']}" for event in events(body)[-most:]]
