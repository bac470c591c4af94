"""What other members measure of the published service, and when that takes the role from its publisher (D25).

Each report is one member's word, and counts as one of all others: a member that lies, alone among three or
five, takes the role from nobody. Reports are about one turn: of the publisher since the index from which it
was due to start. None outlasts it.
"""

from __future__ import annotations

from collections.abc import Iterable

from garlicfarm.publishing.documents import OutsideReport
from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.publishing.fold_state import MAX_UNREACHED

FAILED_TESTS = 3
"""in a row, for a member to say that it does not reach the service"""
BEHIND_RS = 10
"""so many times R statuses does a member rank behind all others that did not publish (point 5), or was found
unreached the first time"""
_LONGEST_MS = 3_600_000


def reports(farm: FarmQueries, members: Iterable[int]) -> dict[int, OutsideReport]:
    """What those of ``members`` report that are current and recent, of the publisher's present turn. None,
    while an access list keeps those away who test: each test comes from a destination of its own."""
    publisher, due_since = farm.publisher, farm.due_since
    found: dict[int, OutsideReport] = {}
    if farm.clients.allowed:
        return found
    for member in members:
        report = farm.statuses[member].outside if member in farm.statuses else None
        if (
            report is not None
            and due_since is not None
            and (report.publisher, report.since) == (publisher, due_since)
            and member != publisher
            and member in farm.members
            and farm.is_recent(member)
        ):
            found[member] = report
    return found


def fails(report: OutsideReport) -> bool:
    """Whether the member does not reach the service, though it reaches others."""
    return report.failed >= FAILED_TESTS and report.control is not None


def reaches(report: OutsideReport) -> bool:
    """Whether the member reaches the service."""
    return report.failed == 0


def are_most(count: int, members: int) -> bool:
    """Whether ``count`` members other than the publisher decide in a farm of ``members``: at least two, and
    more than half of all others."""
    return count >= 2 and 2 * count > members - 1


def statuses_behind(times: int, R: int, interval_ms: int) -> int:
    """For how many of its statuses a member ranks behind all others that was found unreached ``times`` times
    (≥ 1): twice as long each time, up to an hour."""
    first = BEHIND_RS * R
    return min(first << min(times, MAX_UNREACHED) - 1, max(first, _LONGEST_MS // interval_ms))
