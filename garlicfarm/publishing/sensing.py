"""What a member tests of the publisher's service, and when, without I/O.

A *test* asks a destination through this member's own router whether it answers. The leaves of the publisher
are tested in turn, one a minute while they answer, one every 10 s while they do not. In the meantime
*controls* are tested, too: destinations of other members, one after the other until one answers. Without a
control this member cannot know whether it is the publisher's router that has lost I2P or its own, and its
word counts for nothing. Nor can it tell a service that has failed from one that answers no tests, before one
has been answered: until then, failed tests are none.

A test that fails takes long. So the next ones begin while it is under way, `AT_ONCE` of the service at most,
and one of a control beside them. An answer ends those that are still under way.

It is told the publisher's *turn* with each step, says which tests to carry out (`Sensing.probes`), is told
what came of each, and says what the next status reports (`Sensing.report`). Times are ms of a clock that
counts suspended time.

Source: docs/reference/protocol.md, D25.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing import outside
from garlicfarm.publishing.documents import OutsideReport
from garlicfarm.publishing.policy import CONTROL_MS

PERIOD_MS = 60_000
"""From one test to the next while the service answers."""
AGAIN_MS = 10_000
"""The same while it does not, and the least between two tests."""
SLOW_MS = 15_000
"""A test that takes longer is taken for one that fails, when the next one is due."""
AT_ONCE = 3
"""So many tests of the service are under way at most."""
GRACE_MS = 60_000
"""Tests that begin sooner after the publisher was due to start do not count as failed: what clients find
until then may be its predecessor's."""
_MOST_FAILED = 999


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher's turn: since the index from which it was due to start. Hashes of 32 bytes of what this
    member can test: the ``leaves`` of the publisher while it publishes, and ``controls``. ``control_ms``: T,
    a control that was reached longer ago shows nothing."""

    publisher: int
    since: int
    leaves: tuple[bytes, ...]
    controls: tuple[bytes, ...]
    control_ms: int = CONTROL_MS


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A test that is to be carried out now. ``number``: higher for each."""

    number: int
    hash: bytes
    is_control: bool
    begun_ms: int


class _Found(msgspec.Struct, kw_only=True):
    """In one turn. ``failed``: tests in a row, None: none was answered yet, and none counts. ``is_answered``:
    the last one was. ``last_ms``: when the last one began. ``leaf``, ``next_control``: places of what was
    tested last, and is tested next."""

    began_ms: int
    failed: int | None = None
    is_answered: bool = True
    last_ms: int | None = None
    leaf: int = 0
    control: bytes | None = None
    control_ms: int = 0
    next_control: int = 0
    control_again_ms: int = 0
    is_against: bool = False


class Sensing:
    """``probes``: the tests to carry out now, by their numbers. ``changes``: how often it has changed within
    a turn whether what is reported counts against the publisher. ``can_judge``: a leaf has answered, of
    whatever publisher."""

    def __init__(self) -> None:
        self.probes: dict[int, Probe] = {}
        self.changes = 0
        self.can_judge = False
        self._number = 0
        self._turn: Turn | None = None
        self._found = _Found(began_ms=0)

    def step(self, now_ms: int, turn: Turn | None) -> None:
        """Take note of the time and of the turn; None: there is nothing to test."""
        if _key(turn) != _key(self._turn):
            self.probes.clear()
            self._found = _Found(began_ms=now_ms)
        self._turn = turn
        if turn is None:
            return
        found, leaf_due_ms, control_due_ms = self._found, self._leaf_due_ms, self._control_due_ms
        if control_due_ms is not None and control_due_ms <= now_ms:
            self._order(turn.controls[found.next_control % len(turn.controls)], now_ms, is_control=True)
        if leaf_due_ms is not None and leaf_due_ms <= now_ms:
            found.leaf += bool(self._leaf_probes) or not found.is_answered
            found.last_ms = now_ms
            self._order(turn.leaves[found.leaf % len(turn.leaves)], now_ms, is_control=False)

    def on_tested(self, number: int, answered: bool | None, now_ms: int) -> None:
        """A test is over. None: this member's router could not carry it out."""
        probe, found = self.probes.pop(number, None), self._found
        if probe is None:
            return
        if probe.is_control:
            self._on_control(probe, answered, now_ms)
        else:
            self._on_leaf(probe, answered)
        assert self._turn is not None
        if found.control is not None and now_ms - found.control_ms > self._turn.control_ms:
            found.control = None
        report = self.report()
        is_against = report is not None and outside.fails(report)
        self.changes += is_against != found.is_against
        found.is_against = is_against

    def report(self) -> OutsideReport | None:
        """What the next status says; None: nothing was found in this turn."""
        turn, found = self._turn, self._found
        if turn is None or found.failed is None:
            return None
        control = encode(found.control) if found.failed and found.control is not None else None
        return OutsideReport(publisher=turn.publisher, since=turn.since, failed=found.failed, control=control)

    def wake_ms(self) -> list[int]:
        """When `step` may have something to do by time alone."""
        return [due_ms for due_ms in (self._leaf_due_ms, self._control_due_ms) if due_ms is not None]

    @property
    def _leaf_probes(self) -> list[Probe]:
        """Under way, the oldest first."""
        return [probe for probe in self.probes.values() if not probe.is_control]

    @property
    def _doubt_ms(self) -> int | None:
        """Since when the service seems not to answer; None: it does, or this is not known."""
        found, under_way = self._found, self._leaf_probes
        is_first_minute = found.last_ms is not None and found.last_ms < found.began_ms + GRACE_MS
        if not found.is_answered and (self.can_judge or is_first_minute):
            return found.began_ms
        return under_way[0].begun_ms + SLOW_MS if under_way and self.can_judge else None

    @property
    def _leaf_due_ms(self) -> int | None:
        turn, last_ms, doubt_ms = self._turn, self._found.last_ms, self._doubt_ms
        if turn is None or not turn.leaves or len(self._leaf_probes) == AT_ONCE:
            return None
        if last_ms is None:
            return self._found.began_ms
        regular_ms = last_ms + PERIOD_MS
        return regular_ms if doubt_ms is None else min(regular_ms, max(doubt_ms, last_ms + AGAIN_MS))

    @property
    def _control_due_ms(self) -> int | None:
        turn, found, doubt_ms = self._turn, self._found, self._doubt_ms
        is_under_way = len(self._leaf_probes) < len(self.probes)
        if turn is None or not turn.controls or doubt_ms is None or is_under_way:
            return None
        stale_ms = 0 if found.control is None else found.control_ms + turn.control_ms // 2
        return max(doubt_ms, found.control_again_ms, stale_ms)

    def _order(self, hash_: bytes, now_ms: int, *, is_control: bool) -> None:
        self._number += 1
        probe = Probe(number=self._number, hash=hash_, is_control=is_control, begun_ms=now_ms)
        self.probes[self._number] = probe

    def _on_leaf(self, probe: Probe, answered: bool | None) -> None:
        found = self._found
        if answered:
            self.can_judge = True
            found.failed, found.is_answered = 0, True
            for other in self._leaf_probes:
                del self.probes[other.number]  # which began because this one was slow, or before it
        elif answered is False:
            found.is_answered = False
            if self.can_judge and probe.begun_ms >= found.began_ms + GRACE_MS:
                found.failed = min((found.failed or 0) + 1, _MOST_FAILED)

    def _on_control(self, probe: Probe, answered: bool | None, now_ms: int) -> None:
        found = self._found
        found.control_again_ms = probe.begun_ms + AGAIN_MS
        if answered:
            found.control, found.control_ms = probe.hash, now_ms
        else:
            found.next_control += 1


def _key(turn: Turn | None) -> Sequence[int] | None:
    return None if turn is None else (turn.publisher, turn.since)
