"""Which member of a farm is upgraded next, and whether it may be stopped now.

Nothing is asked or printed here: the bodies of ``GET …/status`` and ``GET …/members`` go in, a `Decision`
comes out. Nodes of 0.2.0 are asked too, so what they do not say may be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from garlicfarm._version import __version__
from garlicfarm.admin.health import level_word
from garlicfarm.levels import LOWEST, beyond
from garlicfarm.storage.formats import FORMATS, format_of

MAX_LAG = 1000
"""The most entries that another member may be behind the leader while one is stopped."""


@dataclass(frozen=True, slots=True)
class FarmReport:
    """A farm as one node sees it, at best its leader: its status, and the server that is ``joining``."""

    status: Mapping[str, Any]
    joining: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return str(self.status["farm"])

    @property
    def members(self) -> Sequence[Mapping[str, Any]]:
        return self.status["members"]  # type: ignore[no-any-return]

    def row(self, member: int) -> Mapping[str, Any] | None:
        return next((row for row in self.members if row["id"] == member), None)


@dataclass(frozen=True, slots=True)
class Decision:
    """``next``: the member to upgrade next, None: there is none, or none that can be reached. ``holds``: why
    it may not be stopped now, a sentence each; ``notes``: what else is to be known. ``rows``: all members."""

    next: int | None
    holds: Sequence[str]
    notes: Sequence[str]
    rows: Sequence[dict[str, Any]]


def decide(reports: Sequence[FarmReport], version: str) -> Decision:
    """What to do next until all members of these farms run ``version``. A node is stopped in all its farms at
    once, so it must be safe in each of them."""
    todo = {
        row["id"]
        for report in reports
        for row in report.members
        if row["version"] != version and row["transport"] != "jraft"
    }
    away = {row["id"] for report in reports for row in report.members if _is_away(row)}
    candidates = sorted(todo - away, key=lambda member: (max(_ranks(reports, member)), member))
    next_ = candidates[0] if candidates else None
    holds = [
        f"bring member {row['id']} of farm {report.name} back first"
        + (f": {row['error']}" if row["error"] else ": it is unreachable")
        for report in reports
        for row in report.members
        if todo and _is_away(row)
    ]
    if next_ is not None:
        holds += [hold for report in reports for hold in _holds(report, next_, version)]
    notes = [note for report in reports for note in _notes(report, is_done=not todo)]
    rows = [
        {
            "farm": report.name,
            "id": row["id"],
            "role": row["role"],
            "publisher": row["id"] == report.status["publisher"],
            "version": row["version"],
            "revision": row.get("revision"),
            "levels": row.get("levels"),
            "state": "next" if row["id"] == next_ else "to do" if row["id"] in todo else "done",
        }
        for report in reports
        for row in report.members
    ]
    return Decision(next_, holds, notes, rows)


def _is_away(row: Mapping[str, Any]) -> bool:
    """Whether a member has to be brought back. One in trouble is there, and its upgrade may be the cure."""
    return row["role"] == "unreachable" and not row["trouble"]


def _ranks(reports: Sequence[FarmReport], member: int) -> Iterator[int]:
    """When it is the turn of a member, in each of its farms: one in trouble first, as nothing depends on it;
    then followers, then the publisher, the leader last."""
    for report in reports:
        row = report.row(member)
        if row is not None and row["trouble"]:
            yield 0
        elif row is not None:
            is_publisher = member == report.status["publisher"]
            yield 3 if member == report.status["leader"] else 2 if is_publisher else 1


def _holds(report: FarmReport, member: int, version: str) -> Iterator[str]:
    """Why ``member`` may not be stopped now, as far as one farm goes."""
    status, name = report.status, report.name
    row = report.row(member)
    if row is None:
        return
    level = status["level"]["in_force"] if status.get("level") else LOWEST
    if version == __version__ and (unable := beyond(level)):
        yield f"farm {name}: {unable}"
    if least := _too_old(version, level):
        yield (
            f"farm {name} is at level {level}, from which there is no way back: garlicfarm {version} would "
            f"refuse the store; it takes {least} or newer"
        )
    if not status["quorum"] or not status["leader"]:
        yield f"farm {name} has no quorum, as far as node {status['node']} knows: wait until it has"
        return
    if row["trouble"]:
        return  # it counts as lost already
    leader, size = status["leader"], len(report.members)
    if status["fault_tolerance"] < 1:
        yield (
            f"farm {name} can lose no member now: wait until `garlicfarm health` says that it can"
            if size > 2
            else f"farm {name} has {'one member' if size == 1 else 'two members'}: it stops while member "
            f"{member} is down, and continues afterwards; nothing is lost"
        )
    if leader == member and size > 1:
        yield (
            f"member {member} leads farm {name}: let another member lead first, with `garlicfarm leader "
            "stepdown` on its machine"
        )
    if report.joining is not None:
        yield f"member {report.joining['id']} is joining farm {name}: wait until it has caught up"
    if status["disk_hangs_s"] is not None:
        yield f"the disk of node {status['node']} does not answer"
    for problem in status.get("problems") or ():
        yield f"farm {name}: {problem}"
    if leader != status["node"]:
        yield (
            f"only member {leader}, which leads farm {name}, knows how far the others are: run this on its "
            "machine, or name its admin URL with --node"
        )
        return
    for other in report.members:
        if other["id"] == member or _is_away(other):
            continue
        if other["trouble"]:
            yield f"member {other['id']} of farm {name} does not keep up: {other['trouble']}"
        elif other["lag"] is None:
            yield f"it is not known how far member {other['id']} of farm {name} is: wait until it is"
        elif other["lag"] > MAX_LAG:
            yield f"member {other['id']} of farm {name} is {other['lag']:,} entries behind: wait for it"


def _too_old(version: str, level: int) -> str:
    """The least version that reads the stores of a farm at ``level``, if ``version`` is below it; else ""."""
    least = FORMATS[format_of(level)].since
    found = re.match(r"\d+\.\d+", version)
    return least if found and _numbers(found[0]) < _numbers(least) else ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _notes(report: FarmReport, *, is_done: bool) -> Iterator[str]:
    status, name = report.status, report.name
    if is_done and (word := level_word(status)):
        yield f"farm {name}: {word}"
    for row in report.members:
        if row["transport"] == "jraft":
            yield f"member {row['id']} of farm {name} is a JRaft server, which has no garlicfarm to upgrade"
