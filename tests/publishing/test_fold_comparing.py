"""The fold since level 4 (point 11): members that hold something else than most others. Each state is also
restored from its snapshot, which has to make no difference."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from garlicfarm.errors import EntryRefused, StorageDamaged
from garlicfarm.levels import COMPARING
from garlicfarm.publishing.comparing import STATUSES_EACH
from garlicfarm.publishing.documents import DigestReport
from garlicfarm.publishing.entries import parse_entry
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.scripted_log import T0, configuration
from tests.publishing.test_fold_leases import LeaseLog

RIGHT, WRONG, OTHER = "0" * 32, "1" * 32, "2" * 32


def agreed(*members: int, level: int = COMPARING) -> LeaseLog:
    """Member 1 is named and publishes, and an index has just been agreed."""
    log = LeaseLog(*members, level=level)
    for round_ in range(STATUSES_EACH):
        for member in members:
            live(log, member, round_)
    return log


def live(log: LeaseLog, member: int, second: float = 9, **changes: Any) -> int:
    headroom = 90 if member == 1 else 50 if member == 2 else 10
    return log.post(member, second, headroom=headroom, publishing=log.farm.publisher == member, **changes)


def claim(
    log: LeaseLog, member: int, state: str = RIGHT, chain: str = RIGHT, origin: int | None = None, at: int = 0
) -> int:
    """A status that says what its author holds at the agreed index; returns its index."""
    index = at or log.farm.agreed_index
    held = DigestReport(index=index, state=state, chain=chain, origin=origin)
    return live(log, member, digests=held)


def found(log: LeaseLog) -> dict[int, str]:
    pairs = ((member, log.farm.contradicted(member)) for member in log.farm.members)
    return {member: one.what for member, one in pairs if one is not None}


def test_index_is_agreed_after_four_statuses_for_each_member_and_not_below_the_level() -> None:
    log = agreed(1, 2, 3)
    assert log.farm.agreed_index == log.index
    for member in (1, 2, 3) * 3:
        live(log, member)
    before = log.farm.agreed_index
    assert before < log.index
    for member in (1, 2, 3):
        live(log, member)
    assert log.farm.agreed_index == log.index > before
    assert agreed(1, 2, 3, level=COMPARING - 1).farm.agreed_index == 0


@pytest.mark.parametrize(
    ("held", "what"), [((WRONG, RIGHT), "state"), ((RIGHT, WRONG), "chain"), ((WRONG, WRONG), "chain")]
)
def test_publisher_that_two_of_three_contradict_loses_the_role_at_that_index(
    held: tuple[str, str], what: str
) -> None:
    log = agreed(1, 2, 3)
    assert log.farm.publisher == 1
    claim(log, 1, *held)
    claim(log, 2)
    assert (log.farm.publisher, found(log)) == (1, {})
    index = claim(log, 3)
    state = log.farm.state
    assert (log.farm.publisher, state.since, state.because) == (2, index, "contradicted")
    assert found(log) == {1: what}
    assert log.farm.eligible() == [2, 3]
    assert log.farm.disagreeing == ()


def test_member_is_contradicted_until_it_holds_what_a_majority_holds() -> None:
    log = agreed(1, 2, 3)
    for member, state in ((1, WRONG), (2, RIGHT), (3, RIGHT)):
        claim(log, member, state)
    first = log.farm.contradicted(1)
    for round_ in range(2 * STATUSES_EACH):
        for member in (1, 2, 3):
            live(log, member, 20 + round_)
    assert log.farm.contradicted(1) == first  # that it says nothing clears nothing
    claim(log, 1)
    assert log.farm.contradicted(1) == first
    claim(log, 2)
    assert found(log) == {}
    assert log.farm.eligible() == [1, 2, 3]


def test_member_that_was_repaired_is_cleared_though_all_share_one_vote_now() -> None:
    log = agreed(1, 2, 3)
    for member, state in ((1, WRONG), (2, RIGHT), (3, RIGHT)):
        claim(log, member, state)
    for member in (1, 2, 3) * STATUSES_EACH:
        live(log, member, 20)
    claim(log, 1, origin=2)
    assert found(log) == {1: "state"}
    claim(log, 3, origin=2)
    assert found(log) == {}


def test_forged_digests_of_one_member_contradict_that_member_alone() -> None:
    log = agreed(1, 2, 3)
    claim(log, 3, WRONG, WRONG, origin=2)
    claim(log, 3, OTHER, OTHER, origin=1, at=log.farm.agreed_index + 1)  # not at the agreed index
    claim(log, 1)
    claim(log, 2)
    assert found(log) == {3: "chain"}
    assert log.farm.publisher == 1


def test_without_a_majority_members_disagree_and_keep_what_they_have() -> None:
    log = agreed(1, 2)
    claim(log, 1, WRONG)
    assert log.farm.disagreeing == ()
    claim(log, 2)
    assert (log.farm.disagreeing, found(log), log.farm.publisher) == (((1,), (2,)), {}, 1)
    claim(log, 1)
    assert log.farm.disagreeing == ()


def test_members_that_restored_a_snapshot_share_the_vote_of_its_origin() -> None:
    log = agreed(1, 2, 3)
    claim(log, 1, WRONG)
    claim(log, 2, WRONG, origin=1)
    claim(log, 3)
    assert (log.farm.disagreeing, found(log)) == (((1, 2), (3,)), {})
    log = agreed(1, 2, 3, 4, 5)
    for member, state, origin in ((1, WRONG, 2), (2, WRONG, 3), (3, WRONG, 4), (4, WRONG, None)):
        claim(log, member, state, origin=origin)
    claim(log, 5)
    assert (log.farm.disagreeing, found(log)) == (((1, 2, 3, 4), (5,)), {})
    log = agreed(1, 2, 3, 4, 5)
    for member, origin in ((1, None), (2, 1), (3, None), (4, None)):
        claim(log, member, origin=origin)
    claim(log, 5, WRONG)
    assert found(log) == {5: "state"}


def test_claim_is_confirmed_while_a_majority_of_votes_says_the_same_at_the_agreed_index() -> None:
    def confirmed() -> list[int]:
        return [member for member in log.farm.members if log.farm.is_confirmed(member)]

    log = agreed(1, 2, 3)
    claim(log, 1)
    claim(log, 2, origin=1)
    assert confirmed() == []  # one vote
    claim(log, 3, chain=WRONG)
    assert confirmed() == []
    claim(log, 3)
    assert confirmed() == [1, 2, 3]
    claim(log, 2, WRONG, origin=1)
    assert confirmed() == [1, 3]
    while log.farm.agreed_index == log.farm.claim(1).index:
        live(log, 1)
    assert confirmed() == []
    assert not LeaseLog(1, 2, 3).farm.is_confirmed(1)


def test_where_most_members_are_silent_nobody_is_contradicted() -> None:
    log = agreed(1, 2, 3, 4, 5)
    claim(log, 1, WRONG)
    claim(log, 2)
    claim(log, 3)
    assert (found(log), log.farm.disagreeing) == ({}, ())
    claim(log, 4)
    assert found(log) == {1: "state"}


def test_claims_at_an_earlier_index_are_not_compared() -> None:
    log = agreed(1, 2, 3)
    claim(log, 1, WRONG)
    for member in (1, 2, 3) * STATUSES_EACH:
        live(log, member)
    claim(log, 2)
    claim(log, 3)
    assert found(log) == {}


def test_removed_member_leaves_no_claim_behind() -> None:
    log = agreed(1, 2, 3)
    for member, state in ((1, RIGHT), (2, RIGHT), (3, WRONG)):
        claim(log, member, state)
    log.configure(1, 2)
    compared = log.farm.state.compared
    assert compared
    assert ({*compared.claims}, compared.contradicted) == ({1, 2}, {})


def test_where_half_of_the_members_are_contradicted_no_majority_says_so_any_more() -> None:
    log = agreed(1, 2, 3, 4, 5)
    for member, state in ((1, WRONG), (2, OTHER), (3, RIGHT), (4, RIGHT), (5, RIGHT)):
        claim(log, member, state)
    assert found(log) == {1: "state", 2: "state"}
    log.configure(1, 2, 3, 4, 5)
    assert found(log) == {1: "state", 2: "state"}
    log.configure(1, 3, 4)
    assert found(log) == {1: "state"}
    log.configure(1, 3)
    assert found(log) == {}


def test_contradiction_is_told_to_operators_and_among_the_events() -> None:
    log = agreed(1, 2, 3)
    log.restores = False
    for member, chain in ((1, WRONG), (2, RIGHT), (3, RIGHT)):
        claim(log, member, chain=chain)
    assert "most others contradict the chain of member 1" in str(log.farm.events()[-1]["text"])
    (trouble,) = [one.text for one in log.farm.troubles(T0) if one.kind == "damage"]
    assert "member 1" in trouble
    assert "publishes, leads nor votes" in trouble
    assert "`garlicfarm member repair`" in trouble
    claim(log, 1)
    assert "member 1 no longer contradicted" in str(log.farm.events()[-1]["text"])


@pytest.mark.parametrize(
    ("digests", "reason"),
    [
        ({"index": 1, "state": RIGHT}, "missing"),
        ({"index": -1, "state": RIGHT, "chain": RIGHT}, "out of range"),
        ({"index": 1, "state": RIGHT[1:], "chain": RIGHT}, "not 32 hexadecimal digits"),
        ({"index": 1, "state": RIGHT, "chain": "G" * 32}, "not 32 hexadecimal digits"),
        ({"index": 1, "state": RIGHT, "chain": RIGHT, "origin": 0}, "out of range"),
        ([], "not an object"),
    ],
)
def test_malformed_digests_are_refused_from_the_level_on_and_unknown_below(digests: Any, reason: str) -> None:
    entry = {"cluster": "farm", "date": 1, "id": 1, "config": {"node": {"digests": digests}}}
    with pytest.raises(EntryRefused, match=reason):
        parse_entry(json.dumps(entry).encode(), "farm", COMPARING)
    parse_entry(json.dumps(entry).encode(), "farm", COMPARING - 1)


@pytest.mark.parametrize(
    "damage",
    [
        {"claims": {"9": {"index": 1, "state": RIGHT, "chain": RIGHT}}},
        {"contradicted": {"1": {"index": 1, "what": "state"}}},
        {"contradicted": {"1": {"index": 1, "what": "log"}}},
        None,
    ],
)
def test_snapshot_that_contradicts_itself_is_refused(damage: dict[str, Any] | None) -> None:
    log = agreed(1, 2, 3)
    state = json.loads(log.farm.snapshot())
    if damage is None:
        del state["compared"]
    else:
        state["compared"] |= damage
    with pytest.raises(StorageDamaged):
        PublisherFold("farm").restore(json.dumps(state).encode())


def test_snapshot_below_the_level_has_no_key_of_it() -> None:
    farm = PublisherFold("farm")
    farm.configure(1, msgspec.structs.replace(configuration(1, 2, 3, index=1), level=COMPARING - 1))
    assert "compared" not in json.loads(farm.snapshot())
