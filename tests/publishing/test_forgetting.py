"""Which silent member is removed, and when (D28): by the time that the farm has served, and never one that
is heard."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.errors import EntryRefused
from garlicfarm.levels import FORGETTING
from garlicfarm.publishing.administration import FORGET_BY
from garlicfarm.publishing.documents import NodeReport, StatusDocument
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.forgetting import silences, to_remove
from tests.mutants import Mutant, planted, read_mutants
from tests.publishing.posting import INTERVAL_MS, Posting
from tests.publishing.scripted_log import T0, configuration
from tests.raft.test_raft_mutants import run

MUTANTS = [one for one in read_mutants("publishing").values() if one.rule == "members that stay silent"]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SLACK_MS = 10 * INTERVAL_MS
"""By so much what is counted may differ from what has passed."""
LEADER = 1


class Farm(Posting):
    """Members that post at level 4. ``skews``: by how many ms their clocks are wrong. ``reached``: whom each
    says that it reaches; by default those that live."""

    skews: Mapping[int, int] = MappingProxyType({})
    reached: Mapping[int, tuple[int, ...]] = MappingProxyType({})

    def __init__(self, *members: int, after_ms: int | None = HOUR_MS, min_members: int = 3) -> None:
        super().__init__(members, seed=7)
        self.configure(*members)
        self.order(after_ms, min_members)

    def configure(self, *members: int, level: int = FORGETTING) -> None:
        self.index += 1
        in_force = msgspec.structs.replace(configuration(*members, index=self.index), level=level)
        self.farm.configure(self.index, in_force)

    def order(self, after_ms: int | None, min_members: int | None = 3) -> None:
        self.admin("forget", {"after_ms": after_ms, "min_members": min_members if after_ms else None})

    def admin(self, action: str, args: Any, by: str = "alice") -> None:
        self.index += 1
        self.farm.apply(self.index, 1, encode_admin("farm", T0, LEADER, None, action, by, args))
        assert self.farm.skipped == {}

    def status(self, member: int) -> bytes:
        document = msgspec.json.decode(super().status(member), type=StatusDocument)
        node = msgspec.convert((document.config or {})["node"], NodeReport)
        tests = [[one, 5 if one in self.reached_by(member) else -1] for one in self.farm.members]
        config = {"node": {**msgspec.to_builtins(node), "tests": tests}}
        date = document.date + self.skews.get(member, 0)
        return msgspec.json.encode(msgspec.structs.replace(document, date=date, config=config))

    def reached_by(self, member: int) -> tuple[int, ...]:
        return self.reached.get(member, tuple(self.alive - {member}))

    def kill(self, *members: int) -> None:
        self.alive -= {*members}

    def stop(self, for_ms: int) -> None:
        """All are switched off for so long. Those that live post again; revive the others."""
        alive, self.alive = self.alive, set[int]()
        while self.pending:
            self.step()
        self.now_ms += for_ms
        for member in alive:
            self.revive(member)

    @property
    def dead(self) -> set[int]:
        return {*self.farm.members} - self.alive

    def due(self) -> int | None:
        """The one that the leader removes, if it hears those that live."""
        return to_remove(self.farm, LEADER, self.dead)

    def silent_ms(self, member: int) -> int | None:
        return {one.member: one.for_ms for one in silences(self.farm)}.get(member)


def test_silent_member_is_told_of_and_due_when_its_time_is_over() -> None:
    farm = Farm(1, 2, 3, 4)
    farm.run(HOUR_MS)
    assert (silences(farm.farm), farm.due()) == ([], None)
    farm.kill(3)
    farm.run(HOUR_MS // 2)
    (silence,) = silences(farm.farm)
    assert silence.member == 3
    assert silence.for_ms == pytest.approx(HOUR_MS // 2, abs=SLACK_MS)
    assert silence.left_ms == HOUR_MS - silence.for_ms
    told = "silent for 30 min, and will be removed in 30 min"
    assert farm.farm.ranking()["members"][-1]["why"][-1] == told  # type: ignore[index]
    (trouble,) = farm.farm.troubles(T0 + farm.now_ms)
    assert (trouble.kind, trouble.about, trouble.text) == ("health", "silent 3", f"member 3 is {told}")
    assert farm.due() is None
    farm.run(HOUR_MS // 2 - SLACK_MS)
    assert farm.due() is None
    farm.run(2 * SLACK_MS)
    assert farm.due() == 3
    assert (
        silences(farm.farm)[0].told
        == "silent for 65 min, and will be removed once no other member reaches it"
    )
    farm.revive(3)
    farm.run(INTERVAL_MS)
    assert (silences(farm.farm), farm.due()) == ([], None)


def test_member_that_the_leader_or_another_member_hears_is_kept() -> None:
    farm = Farm(1, 2, 3, 4)
    farm.kill(4)
    farm.run(2 * HOUR_MS)
    assert farm.due() == 4
    assert to_remove(farm.farm, LEADER, []) is None
    assert to_remove(farm.farm, LEADER, [2, 3]) is None
    farm.reached = {2: (1, 3, 4)}
    farm.run(SLACK_MS)
    assert farm.due() is None
    farm.reached = {}
    farm.run(SLACK_MS)
    assert farm.due() == 4


def test_word_of_a_member_that_is_silent_itself_keeps_nobody() -> None:
    farm = Farm(1, 2, 3, 4, 5)
    farm.kill(5)
    farm.reached = {4: (1, 2, 3, 5)}
    farm.run(INTERVAL_MS * 2)
    farm.kill(4)
    farm.run(2 * HOUR_MS)
    assert farm.due() == 5


def test_member_that_posts_seldom_is_kept_while_it_is_recent() -> None:
    """R may be so large that a healthy member is silent for longer than the order says."""
    farm = Farm(1, 2, 3, 4)
    farm.admin("staleness", {"R": 1000})
    farm.run(SLACK_MS)
    farm.kill(4)
    farm.run(2 * HOUR_MS)
    assert (farm.farm.is_recent(4), silences(farm.farm), farm.due()) == (True, [], None)


def test_leader_never_removes_itself() -> None:
    farm = Farm(1, 2, 3, 4)
    farm.kill(1)
    farm.run(2 * HOUR_MS)
    assert to_remove(farm.farm, 2, [1]) == 1
    assert to_remove(farm.farm, 1, [1]) is None


def test_two_silent_members_go_one_after_the_other_the_longest_first() -> None:
    farm = Farm(1, 2, 3, 4, 5)
    farm.kill(4)
    farm.run(5 * SLACK_MS)
    farm.kill(2)
    farm.run(2 * HOUR_MS)
    assert farm.due() == 4
    farm.admin("remove", {"member": 4}, FORGET_BY)
    farm.configure(1, 2, 3, 5)
    assert farm.farm.events()[-1]["text"] == "member 4 removed after a long silence"
    assert farm.due() == 2
    farm.admin("remove", {"member": 2})
    farm.configure(1, 3, 5)
    assert farm.farm.events()[-1]["text"] == "member 2 removed"
    assert farm.due() is None


@pytest.mark.parametrize(
    ("members", "min_members"), [((1, 2, 3), 3), ((1, 2, 3, 4), 4), ((1, 2, 3, 4, 5), 5)]
)
def test_farm_of_the_least_size_removes_nobody(members: tuple[int, ...], min_members: int) -> None:
    farm = Farm(*members, min_members=min_members)
    farm.kill(3)
    farm.run(3 * HOUR_MS)
    assert (silences(farm.farm), farm.due()) == ([], None)
    farm.configure(*members, 9)
    assert farm.due() == 3


def test_farm_tells_of_no_more_removals_than_there_may_be() -> None:
    farm = Farm(1, 2, 3, 4, 5, min_members=4)
    farm.kill(4)
    farm.run(SLACK_MS)
    farm.kill(5)
    farm.run(SLACK_MS)
    assert [one.member for one in silences(farm.farm)] == [4]


def test_without_an_order_nobody_is_removed_and_an_order_counts_what_has_passed() -> None:
    farm = Farm(1, 2, 3, 4, after_ms=None)
    assert not farm.farm.policy.forget
    farm.kill(4)
    farm.run(2 * HOUR_MS)
    assert (silences(farm.farm), farm.due()) == ([], None)
    farm.order(HOUR_MS)
    assert farm.due() == 4
    assert farm.farm.ranking()["forget"] == {"after_ms": HOUR_MS, "min_members": 3}
    farm.order(None)
    assert (farm.due(), "forget" in farm.farm.policy.orders, "forget" in farm.farm.ranking()) == (None,) + (
        False,
    ) * 2


def test_member_that_never_posted_is_silent_since_it_became_a_member() -> None:
    farm = Farm(1, 2, 3)
    farm.run(HOUR_MS)
    farm.configure(1, 2, 3, 4)
    farm.run(HOUR_MS - SLACK_MS)
    assert farm.silent_ms(4) == pytest.approx(HOUR_MS - SLACK_MS, abs=SLACK_MS)
    assert farm.due() is None
    farm.run(2 * SLACK_MS)
    assert farm.due() == 4


def test_raise_to_level_4_begins_the_count() -> None:
    farm = Posting((1, 2, 3, 4), seed=7)
    farm.alive.discard(4)
    farm.run(3 * HOUR_MS)
    with pytest.raises(EntryRefused, match=r"action: unknown action"):
        farm.farm.check(encode_admin("farm", T0, 1, None, "forget", "alice", {"after_ms": HOUR_MS}), 1)
    farm.farm.configure(10**6, msgspec.structs.replace(configuration(1, 2, 3, 4), level=FORGETTING))
    order = encode_admin("farm", T0, 1, None, "forget", "alice", {"after_ms": HOUR_MS})
    farm.farm.check(order, 1)
    farm.farm.apply(10**6 + 1, 1, order)
    assert [one.for_ms for one in silences(farm.farm)] == [0]


def test_restored_state_goes_on_counting() -> None:
    farm = Farm(1, 2, 3, 4)
    farm.kill(4)
    farm.run(HOUR_MS // 2)
    other = PublisherFold("farm")
    other.restore(farm.farm.snapshot())
    assert silences(other) == silences(farm.farm) != []
    farm.farm = other
    farm.run(HOUR_MS // 2 + SLACK_MS)
    assert farm.due() == 4


def test_stop_of_the_whole_farm_makes_nobody_silent() -> None:
    """The first ones that are back must not remove those that take longer."""
    farm = Farm(1, 2, 3, 4, 5)
    farm.run(HOUR_MS)
    farm.kill(5)
    farm.stop(8 * DAY_MS)
    farm.run(HOUR_MS // 2)
    assert farm.silent_ms(5) == pytest.approx(HOUR_MS // 2, abs=SLACK_MS)
    assert farm.due() is None
    farm.revive(5)
    farm.run(SLACK_MS)
    assert silences(farm.farm) == []


@pytest.mark.parametrize("wrong", [(2,), (2, 3), (1, 2, 3, 4)])
@pytest.mark.parametrize("days", [8, -8])
def test_clocks_that_are_set_make_nobody_silent(wrong: tuple[int, ...], days: int) -> None:
    """Of one member, which farm time does not follow; of two of four; and of all."""
    farm = Farm(1, 2, 3, 4, 5)
    farm.run(HOUR_MS)
    farm.kill(5)
    farm.run(HOUR_MS // 4)
    farm.skews = dict.fromkeys(wrong, days * DAY_MS)
    farm.run(HOUR_MS // 4)
    assert farm.silent_ms(5) == pytest.approx(HOUR_MS // 2, abs=SLACK_MS)
    farm.skews = {}
    farm.run(HOUR_MS // 4)
    assert farm.silent_ms(5) == pytest.approx(HOUR_MS * 3 // 4, abs=SLACK_MS)
    assert farm.due() is None
    assert {one.member for one in silences(farm.farm)} == {5}


def test_clock_that_goes_to_and_fro_does_not_count_time_twice() -> None:
    farm = Farm(1, 2, 3, 4)
    farm.kill(4)
    begin = farm.now_ms
    while farm.now_ms < begin + 3 * HOUR_MS:
        farm.skews = {2: -DAY_MS if farm.skews.get(2) == DAY_MS else DAY_MS}
        farm.run(INTERVAL_MS)
    assert farm.silent_ms(4) == pytest.approx(3 * HOUR_MS, abs=SLACK_MS)


@pytest.mark.parametrize(
    ("args", "field"),
    [
        *(({"after_ms": ms}, "after_ms") for ms in (0, HOUR_MS - 1, 365 * DAY_MS + 1, 1e9, "1h")),
        *(({"after_ms": HOUR_MS, "min_members": least}, "min_members") for least in (0, 1, 2, 1001, 3.0)),
        ({"min_members": 3}, "after_ms"),
        ({"min_members": 3, "after_ms": None}, "after_ms"),
        ({"after_ms": HOUR_MS, "members": 3}, "members"),
    ],
)
def test_order_beyond_its_bounds_is_refused(args: dict[str, Any], field: str) -> None:
    farm = Farm(1, 2, 3, 4)
    with pytest.raises(EntryRefused, match=rf"config\.admin\.args\.{field}"):
        farm.farm.check(encode_admin("farm", T0, 1, None, "forget", "alice", args), 1)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_rule_of_silence_fails_its_test(mutant: Mutant) -> None:
    function = globals()[mutant.found_by.partition("::")[2]]
    # By what it asserts: a mutant that only stumbles would be killed by any test.
    with planted(mutant), pytest.raises((AssertionError, pytest.fail.Exception)):
        run(function)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(3, 7),
    st.integers(3, 6),
    st.lists(
        st.tuples(
            st.sampled_from(["kill", "revive", "stop", "skew", "run", "run", "run"]),
            st.integers(2, 7),
            st.integers(1, 50),
        ),
        max_size=12,
    ),
)
def test_whatever_happens_nobody_that_lives_is_removed_and_enough_remain(
    count: int, min_members: int, steps: list[tuple[str, int, int]]
) -> None:
    """A majority always lives, as else nothing is committed."""
    members = {*range(1, count + 1)}
    farm = Farm(*members, min_members=min_members)
    served_ms = dict.fromkeys(members, 0)  # of each member that does not live, while the others post
    for what, member, number in steps:
        if (
            what == "kill"
            and member in farm.alive & members
            and 2 * (len(farm.alive & members) - 1) > len(members)
        ):
            farm.kill(member)
        elif what == "revive" and member in farm.dead & members:
            farm.revive(member)
        elif what == "stop":
            farm.stop(number * DAY_MS)
        elif what == "skew":
            farm.skews = {member: number * DAY_MS}
        farm.run(number * INTERVAL_MS)
        for one in members:
            served_ms[one] = 0 if one in farm.alive else served_ms[one] + number * INTERVAL_MS
        # The leader may take any for unheard: then it is the state alone that keeps those that post.
        for unheard in (farm.dead, members):
            found = to_remove(farm.farm, LEADER, unheard)
            if found is None:
                continue
            assert found in farm.dead
            assert served_ms[found] >= HOUR_MS - SLACK_MS
            assert len(members) > min_members
        if (found := farm.due()) is not None:
            members.discard(found)
            farm.configure(*members)
            assert len(members) >= min_members
            assert 2 * len(farm.alive & members) > len(members)
