"""Error answers, with the next step: ``application/problem+json`` (RFC 9457).

``type`` is ``garlicfarm:`` and a fixed word that programs may rely on; ``title``, ``detail`` and
``next`` are for people. No answer carries a secret or a traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from garlicfarm.errors import (
    Compacted,
    DiskHangs,
    EntryRefused,
    GarlicFarmError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ProposalDropped,
    RankingConflict,
    RankingNotStored,
)
from garlicfarm.refusals import Refusal


class Problem(Exception):
    """An error answer to a request; raised by endpoints, sent by the app.

    :param kind: the fixed word after ``garlicfarm:``.
    :param next_step: what the caller should do now.
    :param members: additional members of the JSON object.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        next_step: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        **members: Any,
    ) -> None:
        self.status = status
        self.kind = kind
        self.detail = detail
        self.next_step = next_step
        self.headers = headers
        self.members = members
        super().__init__(detail)

    def body(self) -> dict[str, Any]:
        return {
            "type": f"garlicfarm:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "next": self.next_step,
            **self.members,
        }

    def response(self) -> Response:
        response = Response(
            msgspec.json.encode(self.body()), self.status, media_type="application/problem+json"
        )
        for name, value in self.headers:
            response.headers.append(name, value)
        return response


def problem_of(error: GarlicFarmError) -> Problem | None:
    """The answer to an error of the node; None for an error that no request may cause."""
    text = str(error)
    match error:
        case NotLeader(leader_id=int(leader), endpoint=endpoint):
            hint = f"{leader} {endpoint}" if endpoint and endpoint.isascii() else str(leader)  # a header's
            return Problem(
                421, "not-leader", text, "Send it to the leader.", headers=[("Garlic-Farm-Leader", hint)]
            )
        case NoQuorum() | NotLeader():
            return Problem(
                503,
                "no-quorum",
                text,
                "Nothing was appended. See `garlicfarm status`, and try again when a leader is elected.",
            )
        case DiskHangs():
            return Problem(
                503,
                "disk-hangs",
                text,
                "Nothing was appended. Ask another node, and see to the disk of this one.",
                headers=[("Retry-After", "5")],
            )
        case ProposalDropped(reason=Refusal.DISK_FULL):
            return Problem(
                507,
                "disk-full",
                text,
                "Nothing was appended. Make room on the disk of the node that leads, and send it again.",
                headers=[("Retry-After", "30")],
                reason=error.full_reason,
            )
        case ProposalDropped(reason=reason) if reason.advice:
            detail = error.full_reason.replace(reason, reason.replace("-", " "), 1)
            return Problem(409, "change-refused", detail, reason.advice, reason=error.full_reason)
        case ProposalDropped():
            return Problem(
                503,
                "proposal-dropped",
                text,
                "Nothing was appended. Try again in a moment.",
                headers=[("Retry-After", "1")],
                reason=error.full_reason,
            )
        case EntryRefused():
            return Problem(
                422,
                "entry-refused",
                text,
                "Correct the entry; nothing was appended.",
                field=error.field,
                reason=error.reason,
                hint=error.hint,
            )
        case OutcomeUnknown():
            return Problem(
                504,
                "outcome-unknown",
                text,
                "Read the log to see whether the entry is there before sending it again.",
            )
        case RankingConflict():
            return Problem(
                409,
                "ranking-conflict",
                text,
                "Nothing was stored. A query that starts over takes another `run`; an admin deletes the"
                " ranking of a query with `DELETE …/rankings/QUERY`.",
            )
        case RankingNotStored():
            return Problem(
                507,
                "ranking-not-stored",
                text,
                "Free some space on this node's disk, or repair it; then send it again.",
            )
        case Compacted():
            return Problem(
                410,
                "compacted",
                text,
                "Start from the farm's `state`, then read the entries after its index.",
                first_index=error.first_index,
            )
    return None
