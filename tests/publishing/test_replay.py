"""A replay without other parameters is history, and one with others what the farm would have done."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from garlicfarm.publishing.entries import encode_admin, observe
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.policy import Pinned
from garlicfarm.publishing.replay import Replay, RoleLog
from garlicfarm.publishing.scoring import WEIGHTS
from garlicfarm.wire.messages import Configuration
from tests.publishing.dated_log import Log
from tests.publishing.posting import INTERVAL_MS, WORST, Posting, noisy
from tests.publishing.scripted_log import T0, configuration
from tests.publishing.test_fold_against_naive_fold import Script
from tests.publishing.test_fold_leases import LeaseLog

Entries = list[tuple[int, int, Configuration | bytes]]
"""index, term, value"""
EVEN = {"router_uptime": 0, "job_lag": 0, "tunnel_health": 50, "bandwidth_headroom": 50} | dict.fromkeys(
    ("destination_health", "remote_sensing"), 0
)


class Recorder(PublisherFold):
    """Keeps what it folds, and the state after each."""

    def __init__(self, *, with_states: bool = True) -> None:
        super().__init__("farm")
        self._with_states = with_states
        self.log: Entries = []
        self.states: dict[int, bytes] = {}
        self.roles = RoleLog()

    def apply(self, index: int, term: int, entry: bytes) -> None:
        super().apply(index, term, entry)
        self._keep(index, term, entry)

    def configure(self, index: int, members: Configuration) -> None:
        super().configure(index, members)
        self._keep(index, 0, members)

    def _keep(self, index: int, term: int, entry: Configuration | bytes) -> None:
        self.log.append((index, term, entry))
        if self._with_states:
            self.states[index] = self.snapshot()
        self.roles.note(index, (self.publisher, self.holders))


def replayed(
    log: Entries, pinned: Pinned | None = None, history: RoleLog | None = None, *, with_states: bool = True
) -> tuple[Replay, dict[int, bytes]]:
    replay, states = Replay("farm", pinned, history), {}
    for index, term, entry in log:
        take(replay, index, term, entry)
        if with_states:
            states[index] = replay.farm.snapshot()
    return replay, states


def take(replay: Replay, index: int, term: int, entry: Configuration | bytes) -> None:
    if isinstance(entry, Configuration):
        replay.configure(index, entry)
    else:
        replay.fold(index, observe(entry, "farm", replay.farm.level, term))


def random_log(seed: int) -> Recorder:
    script = Script(random.Random(seed), 0)
    made = script.farm = Recorder()
    script.run()
    for _ in range(150):
        script.step()
    return made


@pytest.mark.parametrize("seed", range(6))
def test_replay_under_historys_own_parameters_is_history_at_every_index(seed: int) -> None:
    """Random logs with orders, dead members, wrong clocks, publishers that fail, and nonsense."""
    made = random_log(seed)
    history, states = replayed(made.log)
    assert states == made.states
    again, states = replayed(made.log, Pinned(), history.roles)
    assert states == made.states
    assert (again.roles.indexes, again.roles.roles) == (history.roles.indexes, history.roles.roles)


@pytest.mark.parametrize("seed", range(6))
def test_replay_with_the_values_pinned_that_history_had_is_history(seed: int) -> None:
    made = random_log(seed)
    orders = [entry for *_, entry in made.log if isinstance(entry, bytes)]
    pinned = Pinned(
        margin=None if any(b'"margin"' in entry for entry in orders) else 50_000,
        R=None if any(b'"R"' in entry for entry in orders) else 3,
        weights=None if any(b'"weights"' in entry for entry in orders) else WEIGHTS,
    )
    assert replayed(made.log, pinned, replayed(made.log)[0].roles)[1] == made.states


@pytest.mark.parametrize("seed", range(5))
def test_replay_from_a_state_goes_on_from_there(seed: int) -> None:
    made = random_log(seed)
    cut = random.Random(seed).randrange(20, 120)
    (begin, *_), rest = made.log[cut], made.log[cut + 1 :]
    history = Replay("farm")
    history.restore(begin, made.states[begin])
    for index, term, entry in rest:
        take(history, index, term, entry)
        assert history.farm.snapshot() == made.states[index]


def lived(margin: int, R: int, seed: int, weights: dict[str, int] | None = None) -> Recorder:
    """Hours of a farm that has these parameters from its first entry on: what members report of their
    routers, and when they die, does not depend on them."""
    posting = Posting(range(1, 5), seed, noisy(random.Random(seed), WORST))
    made = Recorder(with_states=False)
    made.configure(0, configuration(1, 2, 3, 4))
    posting.farm = made
    orders: list[tuple[str, dict[str, Any]]] = [("staleness", {"R": R}), ("publisher", {"margin": margin})]
    for action, args in [*orders, ("weights", dict(weights or WEIGHTS))]:
        posting.index += 1
        made.apply(posting.index, 1, encode_admin("farm", T0, 1, None, action, "alice", args))
    chance = random.Random(seed)
    for _ in range(6):
        dead = chance.randrange(1, 5)
        posting.alive.discard(dead)
        posting.run(chance.randrange(1, 30) * INTERVAL_MS)
        posting.revive(dead)
        posting.run(chance.randrange(10, 60) * INTERVAL_MS)
    return made


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "other", [Pinned(margin=0), Pinned(margin=20_000, R=10), Pinned(R=6), Pinned(margin=10_000, weights=EVEN)]
)
def test_replay_with_others_is_what_the_farm_does_that_has_them(seed: int, other: Pinned) -> None:
    made = lived(200_000, 3, seed)
    history, _ = replayed(made.log, with_states=False)
    found, _ = replayed(made.log, other, history.roles, with_states=False)
    margin = 200_000 if other.margin is None else other.margin
    expected = lived(margin, other.R or 3, seed, other.weights).roles
    assert (found.roles.indexes, found.roles.roles) == (expected.indexes, expected.roles)
    assert found.roles.roles != history.roles.roles


def test_replay_sanctions_no_member_for_what_it_was_not_asked() -> None:
    """Verbatim, history's answers sanction each other publisher."""
    made = lived(1_000_000, 3, 1)
    history, _ = replayed(made.log, with_states=False)
    verbatim = PublisherFold("farm", Pinned(margin=0))
    closed = Replay("farm", Pinned(margin=0), history.roles)
    sanctions = [0, 0]
    for index, term, entry in made.log:
        take(closed, index, term, entry)
        if isinstance(entry, Configuration):
            verbatim.configure(index, entry)
        else:
            verbatim.apply(index, term, entry)
        for place, farm in enumerate((verbatim, closed.farm)):
            sanctions[place] += any(farm.group(member)[0] for member in farm.members)
    assert sanctions[0] > 100
    assert sanctions[1] == 0


def test_replay_sanctions_a_publisher_that_failed_in_history_as_well() -> None:
    log = Log(1, 2, 3)
    made = log.farm = Recorder()
    made.configure(0, configuration(1, 2, 3))
    for second in range(6):
        for member, headroom in ((1, 90), (2, 50), (3, 40)):
            log.post(member, second, headroom=headroom, publishing=False)
    history, _ = replayed(made.log, with_states=False)
    assert history.farm.publisher == 2  # 1 was due, and did not publish
    other, _ = replayed(made.log, Pinned(margin=100_000), history.roles)
    assert other.roles.roles == history.roles.roles


def test_replay_with_a_margin_pinned_follows_all_other_orders() -> None:
    log = Log(1, 2, 3)
    made = log.farm = Recorder()
    made.configure(0, configuration(1, 2, 3))
    log.order("publisher", {"margin": 70_000, "lifetime_ms": 600_000})
    log.order("staleness", {"R": 7})
    policy = replayed(made.log, Pinned(margin=10_000), replayed(made.log)[0].roles)[0].farm.policy
    assert (policy.margin, policy.lifetime_ms, policy.R) == (10_000, 600_000, 7)
    policy = replayed(made.log, Pinned(R=4), replayed(made.log)[0].roles)[0].farm.policy
    assert (policy.margin, policy.lifetime_ms, policy.R) == (70_000, 600_000, 4)


def recorded_leases() -> tuple[LeaseLog, Recorder]:
    """Level 2: member 1 is named for good, though 2 is better."""
    log, made = LeaseLog(1, 2, 3), Recorder()
    log.farm, log.restores = made, False
    made.configure(1, msgspec.structs.replace(configuration(1, 2, 3, index=1), level=2))
    log.order("publisher", {"margin": 1_000_000})
    log.order("lease", {"ms": 5_000})
    rounds(log, range(8), {1: 30, 2: 90, 3: 10})
    assert (made.publisher, made.holders) == (1, (1,))
    return log, made


def rounds(log: LeaseLog, seconds: range, headroom: dict[int, int]) -> None:
    for second in seconds:
        for member, free in headroom.items():
            log.post(member, second, headroom=free, publishing=log.farm.publisher == member)


def replay_of(made: Recorder) -> Replay:
    """With a margin by which members take the role from each other."""
    history, states = replayed(made.log)
    assert states == made.states
    assert replayed(made.log, Pinned(), history.roles)[1] == made.states
    return replayed(made.log, Pinned(margin=20_000), history.roles)[0]


def test_replay_that_names_another_member_releases_it_once_it_falls_silent() -> None:
    """No leader looked for it. Were it not released, no other would be due for the rest of the replay."""
    log, made = recorded_leases()
    rounds(log, range(8, 20), {1: 30, 3: 10})
    other = replay_of(made)
    assert [role for role in other.roles.roles if role[0] == 2] == [(2, (1, 2)), (2, (2,))]
    assert other.roles.roles[-1] == (1, (1,))
    assert made.holders == (1,)


def test_replay_takes_whom_history_found_lost_whenever_that_one_is_named_in_it() -> None:
    """Else each death after a time of other roles would cost a replay the time that silence takes."""
    log, made = recorded_leases()
    rounds(log, range(8, 14), {1: 90, 2: 10, 3: 30})  # in the replay, 1 is named again
    assert replay_of(made).farm.state.since != made.state.since
    found = log.lost(1, made.state.since)
    assert made.holders == (3,)
    other = replay_of(made)
    assert other.roles.indexes[-1] == found
    assert (other.farm.publisher, other.farm.holders, other.farm.is_lost(1)) == (3, (3,), True)


def test_replay_takes_no_finding_that_was_void_in_history() -> None:
    log, made = recorded_leases()
    named = replay_of(made).farm.state.since
    log.lost(2, named)
    assert made.skipped == {"another naming": 1}
    other = replay_of(made)
    assert (other.farm.publisher, other.farm.state.since) == (2, named)
    assert other.farm.skipped == {"another naming": 1}


def test_role_log_knows_the_role_after_every_index() -> None:
    roles = RoleLog()
    roles.note(3, (1, (1,)))
    roles.note(4, (1, (1,)))
    roles.note(9, (2, (1, 2)))
    assert [roles.at(index)[0] for index in (0, 2, 3, 8, 9, 100)] == [None, None, 1, 1, 2, 2]
    assert roles.indexes == [0, 3, 9]
