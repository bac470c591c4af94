"""The dashboard's view of a farm's log: its newest committed entries in words, and scores over time.

Entries never change, so each is read and scored once, at the first request; the newest `KEPT` are cached. The
score of a status is that of the ranking under the weights in force now, by the figures that count now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import msgspec
import trio

from garlicfarm.admin.contract import FarmView
from garlicfarm.errors import Compacted, EntryRefused, FellBehind
from garlicfarm.levels import HIGHEST
from garlicfarm.publishing import scoring
from garlicfarm.publishing.entries import Administrative, Note, parse_entry
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType

KEPT = 300
PIECE_BYTES = 64 << 10
MAX_TEXT = 200

WIDTH, HEIGHT = 1000, 240
STEPS = (10_000, 25_000, 50_000, 100_000, 250_000)
TICKS = 5
SILENCE = 3  # times the usual distance of a member's statuses
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Line:
    """A committed entry in words; ``member`` and ``score`` are set for a status."""

    index: int
    term: int
    what: str
    by: str
    text: str
    date_ms: int | None = None
    member: int | None = None
    score: int | None = None


class History:
    """The newest entries of one farm."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque(maxlen=KEPT)
        self._reading: tuple[bool, Mapping[str, int], Sequence[str] | None] = (False, {}, None)
        self._turn = trio.Lock()

    async def lines(
        self, farm: FarmView, *, are_documents: bool, counted: Sequence[str] | None = None
    ) -> Sequence[Line]:
        """The last `KEPT` entries up to the commit index, oldest first. ``are_documents``: they are statuses,
        orders and notes, since the farm ranks its members by them. ``counted``: of the farm's ranking.
        Cancelled: keeps the entries read so far.
        """
        async with self._turn:
            weights = farm.policy().get("weights", scoring.WEIGHTS)
            if self._reading != (are_documents, weights, counted):
                self._reading = (are_documents, weights, counted)
                self._lines.clear()
            upto = farm.commit_index
            newest = self._lines[-1].index if self._lines else 0
            after = max(newest, upto - KEPT, farm.first_index - 1)
            with suppress(Compacted, FellBehind):  # the log was compacted: the next call continues after that
                async for entries in farm.entries(after, PIECE_BYTES, upto=upto):
                    self._lines.extend(
                        _document_line(farm.farm, entry, weights, counted) if are_documents else _line(entry)
                        for entry in entries
                    )
            return tuple(self._lines)


def _line(entry: Entry) -> Line:
    if entry.value_type is not ValueType.APPLICATION:
        return Line(entry.index, entry.term, "members", "", "the farm's Configuration")
    text = entry.value[: 4 * MAX_TEXT].decode("utf-8", "replace")
    text = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " …"
    return Line(entry.index, entry.term, "entry", "", text)


def _document_line(
    farm: str, entry: Entry, weights: Mapping[str, int], counted: Sequence[str] | None
) -> Line:
    line = _line(entry)
    if entry.value_type is not ValueType.APPLICATION:
        return line
    head = (entry.index, entry.term)
    try:
        parsed = parse_entry(entry.value, farm, HIGHEST)
    except EntryRefused as error:
        return Line(*head, "skipped", "", f"{error.field}: {error.reason}: {line.text}")
    if isinstance(parsed, Note):
        return Line(*head, "note", parsed.by, line.text, parsed.date)
    if isinstance(parsed, Administrative):
        args = msgspec.json.encode(parsed.admin.args, enc_hook=_as_written).decode()
        return Line(*head, parsed.admin.action, parsed.admin.by, args[:MAX_TEXT], parsed.date)
    document = parsed.document
    parts = parsed.parts
    if counted is not None:
        parts = scoring.counted_parts(parsed.figures, scoring.set_of(counted))
    score = scoring.score(parts, weights)
    by = f"member {document.id}"
    return Line(*head, "status", by, f"score {score:,}", document.date, document.id, score)


def _as_written(number: object) -> msgspec.Raw:
    """JSON of a `NumberText`, the only type in an entry that msgspec cannot encode."""
    return msgspec.Raw(str(number).encode())


@dataclass(frozen=True, slots=True)
class Curve:
    """One member's scores: ``lines`` of points for SVG, one for each stretch without a silence; ``style``
    0 … 8 distinguishes it."""

    member: int
    style: int
    lines: Sequence[str]
    last: int


@dataclass(frozen=True, slots=True)
class Plot:
    """Scores over time, in a box of `WIDTH` × `HEIGHT`: ``grid`` are heights and scores, ``ticks`` places and
    times (UTC) on the axis."""

    grid: Sequence[tuple[float, int]]
    ticks: Sequence[tuple[float, str]]
    curves: Sequence[Curve]


def plot(lines: Sequence[Line], members: Sequence[dict[str, Any]]) -> Plot | None:
    """The curves of ``members`` (rows with an ``id``); None if there is no line to draw."""
    ids = sorted(row["id"] for row in members)
    scored = [line for line in lines if line.member in ids]
    times = _times(scored)
    if not times or times[0] == times[-1]:
        return None
    scores = [line.score or 0 for line in scored]
    step = next((one for one in STEPS if max(scores) - min(scores) <= 4 * one), STEPS[-1])
    low, high = min(scores) // step * step, -(-(max(scores) + 1) // step) * step
    first, span = times[0], times[-1] - times[0]

    def y(score: int) -> float:
        return round(HEIGHT * (high - score) / (high - low), 1)

    curves = []
    for style, member in enumerate(ids):
        drawn = zip(times, scores, scored, strict=True)
        own = [(time, score) for time, score, line in drawn if line.member == member]
        if own:
            curve = [
                " ".join(f"{WIDTH * (time - first) / span:.1f},{y(score)}" for time, score in stretch)
                for stretch in _stretches(own)
            ]
            curves.append(Curve(member, style % 9, curve, own[-1][1]))
    form = "%H:%M:%S" if span < DAY_MS else "%d %b %H:%M"
    ticks = [
        (WIDTH * number / (TICKS - 1), f"{_utc(first + span * number // (TICKS - 1)):{form}}")
        for number in range(TICKS)
    ]
    return Plot([(y(mark), mark) for mark in range(low, high + 1, step)], ticks, curves)


def _stretches(own: Sequence[tuple[int, int]]) -> Sequence[Sequence[tuple[int, int]]]:
    """Times and scores of a member, apart where it was silent for much longer than it usually is; a lone one
    twice, since SVG draws no line of one point."""
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(own)]
    usual = sorted(gaps)[len(gaps) // 2] if gaps else 0
    cuts = [at for at, gap in enumerate(gaps, 1) if gap > SILENCE * usual]
    found = [own[begin:end] for begin, end in pairwise([0, *cuts, len(own)])]
    return [stretch if len(stretch) > 1 else [*stretch, *stretch] for stretch in found]


def _times(statuses: Sequence[Line]) -> Sequence[int]:
    """A time for each status, never earlier than the one before: the lower median of the dates of the
    members' newest statuses, since one clock may be wrong."""
    newest = {line.member: line.date_ms or 0 for line in reversed(statuses)}
    times: list[int] = []
    for line in statuses:
        newest[line.member] = line.date_ms or 0
        dates = sorted(newest.values())
        times.append(max([dates[(len(dates) - 1) // 2], *times[-1:]]))
    return times


def _utc(date_ms: int) -> datetime:
    return datetime.fromtimestamp(date_ms / 1000, UTC)
