"""Honest members that post by their clocks into one log, without a network: for hours and weeks of it.

Each posts every interval from a phase of its own; a status is begun when it is due and committed
``commit_ms`` later at most, in between it may be overtaken. Nothing here lasts longer than folding does.
The benchmark of the fold runs it too, where pytest is not installed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from garlicfarm.publishing.documents import (
    Bandwidth,
    DestinationStatus,
    MetaStatus,
    NodeReport,
    RouterStatus,
    StatusDocument,
    Tunnels,
)
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.scripted_log import T0, configuration, destination

INTERVAL_MS = 30_000
WEEK_MS = 7 * 86_400_000
Figures = Callable[[int], dict[str, Any]]


def steady(member: int) -> dict[str, Any]:
    return {"router": RouterStatus(uptime=86_400_000)}


class Posting:
    """``members`` who live, in one farm; ``figures(member)`` is what its next status says of its router.

    ``publishes(member)``: what it says of publishing while it may publish (None: it has no key).
    ``keep``: the log stays in ``entries``.
    """

    def __init__(
        self,
        members: Sequence[int],
        seed: int,
        figures: Figures = steady,
        publishes: Callable[[int], bool | None] = lambda member: True,
        commit_ms: int = 500,
        *,
        destinations: int = 1,
        keep: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.farm = PublisherFold("farm")
        self.farm.configure(0, configuration(*members))
        self.index = 0
        self.now_ms = 0
        self.alive = {*members}
        self._figures = figures
        self._publishes = publishes
        self._commit_ms = commit_ms
        self._queue: list[tuple[int, int, int, bytes | None]] = []  # when, tie, member, entry to commit
        self._ties = iter(range(10**9))
        self._leaves = {
            member: tuple(
                DestinationStatus(destination=destination(member * 1000 + n)) for n in range(destinations)
            )
            for member in members
        }
        self._keep = keep
        self.entries: list[bytes] = []
        for member in members:
            self._at(self.random.randrange(INTERVAL_MS), member, None)

    def _at(self, when: int, member: int, entry: bytes | None) -> None:
        heapq.heappush(self._queue, (when, next(self._ties), member, entry))

    @property
    def pending(self) -> int:
        """How many statuses are due or on their way."""
        return len(self._queue)

    def step(self) -> None:
        """Whatever is next: a status begun, or one committed."""
        self.now_ms, _, member, entry = heapq.heappop(self._queue)
        if entry is not None:
            self.index += 1
            self.farm.apply(self.index, 1, entry)
            if self._keep:
                self.entries.append(entry)
        elif member in self.alive:
            self._at(self.now_ms + INTERVAL_MS + self.random.randrange(20), member, None)
            self._at(self.now_ms + 1 + self.random.randrange(self._commit_ms), member, self.status(member))

    def run(self, for_ms: int) -> None:
        """Go on for so long."""
        end = self.now_ms + for_ms
        while self._queue[0][0] <= end:
            self.step()
        self.now_ms = end

    def revive(self, member: int) -> None:
        """A member that was taken out of ``alive`` posts again, from now on."""
        self.alive.add(member)
        self._at(self.now_ms, member, None)

    def status(self, member: int) -> bytes:
        publishes = self._publishes(member)
        due = self.farm.publisher == member and self.farm.due_since is not None
        node = NodeReport(applied=self.index, interval_ms=INTERVAL_MS, R=self.farm.R)
        fields = self._figures(member)
        leaf = fields.pop("leaf", {})
        fields["destinations"] = tuple(
            msgspec.structs.replace(one, **leaf) if leaf else one for one in self._leaves[member]
        )
        return msgspec.json.encode(
            StatusDocument(
                cluster="farm",
                date=T0 + self.now_ms,
                id=member,
                sequence=T0 + self.now_ms,
                config={"node": node},
                meta=MetaStatus(publishing=None if publishes is None else publishes and due),
                **fields,
            )
        )


WORST = {"uptime": 21_600_000, "lag": 250, "tunnels": 50, "limit": 1_000_000, "used": 800_000, "leaf": 100}
"""Where a tenth more or less moves the score most."""


def noisy(chance: random.Random, means: dict[str, int]) -> Figures:
    """Every figure apart from its mean by up to a tenth, each by itself, each time anew."""

    def figure(name: str) -> int:
        return round(means[name] * chance.uniform(0.9, 1.1))

    def both(name: str) -> Bandwidth:
        return Bandwidth(in_=figure(name), out=figure(name))

    def tunnels() -> Tunnels:
        return Tunnels(in_=figure("leaf"), out=figure("leaf"))

    def figures(member: int) -> dict[str, Any]:
        router = RouterStatus(
            uptime=figure("uptime"),
            job_lag=figure("lag"),
            exploratory_tunnels=4,
            participating_tunnels=figure("tunnels"),
            configured_bandwidth=both("limit"),
            current_bandwidth=both("used"),
        )
        return {"router": router, "leaf": {"configured_tunnels": tunnels(), "current_tunnels": tunnels()}}

    return figures


def changes_in(seed: int, span_ms: int) -> int:
    """How often the publisher of two equal servers changes."""
    posting = Posting((1, 2), seed, noisy(random.Random(seed), WORST))
    posting.run(2 * INTERVAL_MS)
    changes, publisher = 0, posting.farm.publisher
    assert publisher is not None
    end = posting.now_ms + span_ms
    while posting.now_ms < end:
        posting.step()
        changes += posting.farm.publisher != publisher
        publisher = posting.farm.publisher
    assert posting.farm.skipped == {}
    return changes
