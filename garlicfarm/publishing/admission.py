"""Whether an entry may be proposed, posted, and folded in."""

from __future__ import annotations

from garlicfarm.errors import EntryRefused
from garlicfarm.publishing import clients
from garlicfarm.publishing.administration import FINDINGS, check_arguments
from garlicfarm.publishing.entries import Administrative, Entry, Note, Status, check_author, parse_entry
from garlicfarm.publishing.farm_queries import FarmQueries
from garlicfarm.publishing.strict_json import NO_OBJECT, check_values

YEAR_2020_MS = 1_577_836_800_000
TEN_YEARS_MS = 315_576_000_000
_DOCUMENTS_ONLY = "this farm takes status documents; a farm of the application log takes any bytes"


def check_posted(farm: FarmQueries, entry: bytes, author: int, user: str, now_ms: int) -> None:
    """`check_entry` where the entry is posted, at ``now_ms`` of the wall clock there. Also refuses a note in
    the name of another user than ``user`` ("": not known; D18: a note names its user), and a ``sequence``
    more than ten years above both its author's last one and this date (one before 2020 counts as 2020):
    it would block its author for as long. Raises `EntryRefused`."""
    try:
        posted = check_entry(farm, entry, author)
    except EntryRefused as refused:
        if refused.field or refused.reason not in NO_OBJECT:
            raise
        raise EntryRefused("", refused.reason, _DOCUMENTS_ONLY) from None
    if isinstance(posted, Note) and user not in ("", posted.by):
        raise EntryRefused("config.by", f"not {user}, who posts it")
    sequence = posted.document.sequence if isinstance(posted, Status) else posted.sequence
    last = farm.last_sequence(posted.by if isinstance(posted, Note) else author)
    newest = max(last, now_ms, YEAR_2020_MS)
    if sequence is not None and sequence > newest + TEN_YEARS_MS:
        raise EntryRefused("sequence", "years ahead")


def check_entry(farm: FarmQueries, entry: bytes, author: int) -> Entry:
    """Check an entry before it is proposed. Refuses what would be skipped if committed (`entries`,
    `Policy.check`), and too many values or unknown arguments. Raises `EntryRefused`."""
    check_values(entry)
    parsed = parse_entry(entry, farm.farm, farm.level)
    check_state(farm, parsed)
    check_author(parsed, author)
    if isinstance(parsed, Administrative):
        if parsed.admin.action in FINDINGS:
            raise EntryRefused("config.admin.action", "only the leader's node finds this")
        check_arguments(parsed.admin)
    return parsed


def check_state(farm: FarmQueries, parsed: Entry) -> None:
    """Raises `EntryRefused`: the state does not allow a valid entry."""
    if isinstance(parsed, Administrative):
        farm.policy.check(parsed, farm.members)
        if parsed.admin.action in clients.ACTIONS:
            farm.clients.check(
                parsed.admin.action, parsed.admin.args, farm.farm_time_ms, farm.own_destinations
            )
    elif YEAR_2020_MS < farm.farm_time_ms < parsed.date - TEN_YEARS_MS and (
        # Two wrong clocks must not exclude a correct one, nor one that began in 1970.
        isinstance(parsed, Note) or len(farm.recent()) >= 3
    ):
        raise EntryRefused("date", "years ahead")
