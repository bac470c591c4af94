"""A leader takes no more than it commits in time, so that posts of quiet members are committed, too."""

from __future__ import annotations

import pytest

from garlicfarm.errors import ProposalDropped
from garlicfarm.raft.uncommitted import UncommittedProposals
from tests.raft.playbook import Player

MAX_BYTES = 64_000
WAIT_MS = 4000  # a post waits twice as long
STEP_MS = 10


class SlowDisk:
    """The only member of a cluster, whose disk writes so many bytes a millisecond."""

    def __init__(self, rate: int) -> None:
        player = Player(members=(1,), max_uncommitted_bytes=MAX_BYTES, max_commit_wait_ms=WAIT_MS)
        self.player = player.lead()
        self.player.slow_disk = True
        self.rate = rate
        self.written = 0
        self.begun: dict[int, int] = {}
        self.waits: dict[int, int] = {}

    def post(self, size: int) -> int | None:
        """Its token, None if it is refused."""
        token = len(self.begun) + 1
        try:
            self.player.propose(b"x" * size, token=token)
        except ProposalDropped:
            return None
        self.begun[token] = self.player.now
        return token

    def flood(self) -> None:
        """Post until it is refused."""
        while self.post(1000):
            pass

    def step(self) -> None:
        """Time passes, and the disk writes."""
        player = self.player
        player.wait(STEP_MS)
        self.written += STEP_MS * self.rate
        while player.writes and self.written >= (size := self._size()):
            self.written -= size
            player.sync()
        if not player.writes:
            self.written = 0
        for token in self.begun.keys() & player.outcomes.keys() - self.waits.keys():
            self.waits[token] = player.now - self.begun[token]

    def _size(self) -> int:
        return sum(len(entry.value) for entry in self.player.writes[0].entries)


def test_posts_are_committed_in_time_under_a_flood_that_the_disk_cannot_follow() -> None:
    """Only what was taken before one has waited too long may be late."""
    disk = SlowDisk(rate=4)
    one_ms = 1000 // 4
    quiet = []
    for step in range(6000):
        disk.flood()
        if step >= 2000 and not step % 100:
            quiet.append(disk.post(100))
        disk.step()
    assert None not in quiet
    committed = [disk.waits[token] for token in quiet if token in disk.waits]
    assert len(committed) >= len(quiet) - 4  # the last ones still wait
    assert max(committed) < 2 * WAIT_MS
    late = [token for token, waited in disk.waits.items() if waited > 2 * WAIT_MS]
    assert all(disk.begun[token] <= WAIT_MS + one_ms for token in late)
    assert len(disk.waits) * one_ms > STEP_MS * 6000  # the disk is never idle


def test_disk_that_is_fast_again_gets_all_that_it_got_before() -> None:
    disk = SlowDisk(rate=4)
    for _ in range(3000):
        disk.flood()
        disk.step()
    before = len(disk.begun) - len(disk.waits)
    disk.rate = 100
    for _ in range(1000):
        disk.flood()
        disk.step()
    disk.flood()
    assert before * 1000 < MAX_BYTES // 2
    assert (len(disk.begun) - len(disk.waits)) * 1000 > MAX_BYTES * 0.9


@pytest.mark.parametrize(
    ("waited_ms", "fits"),
    [(WAIT_MS, 64_000), (2 * WAIT_MS, 10_000), (4 * WAIT_MS, 5000), (100 * WAIT_MS, 500)],
)
def test_bound_is_what_was_committed_in_time_and_never_below_a_64th(waited_ms: int, fits: int) -> None:
    proposals = UncommittedProposals(MAX_BYTES, WAIT_MS)
    assert proposals.admit([bytes(40_000 - 13)], 1, 1, 0, from_client=False)
    assert [proposal.token for proposal in proposals.take_committed(1, waited_ms)] == [1]
    assert proposals.admit([b""], 2, 2, waited_ms, from_client=False)
    assert not proposals.admit([bytes(fits)], 3, 3, waited_ms, from_client=False)
    assert proposals.admit([bytes(fits - 100)], 3, 3, waited_ms, from_client=False)
