"""The fold: what orders change, which entries it skips, its snapshot, and what it says of its reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

from garlicfarm.errors import EntryRefused, StorageDamaged, StorageVersion
from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing.documents import NodeReport
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.scoring import WEIGHTS
from tests.publishing.dated_log import Log, due_member_1, leaf_hash
from tests.publishing.scripted_log import T0, configuration

# administration


def test_exclude_takes_a_leaf_out_and_the_last_one_takes_the_role() -> None:
    log = Log(1, 2)
    log.post(1, 0, leaves=(1, 2))
    log.exclude(1)
    assert [encode(one.hash) for one in log.farm.leases()] == [leaf_hash(2)]
    log.post(1, 1, leaves=(1, 2))
    assert len(log.farm.leases()) == 1
    log.exclude(2)
    assert (log.farm.leases(), log.farm.publisher) == ((), None)
    assert log.farm.ranking()["excluded"] == sorted([leaf_hash(1), leaf_hash(2)])
    log.order("include", {"hash": leaf_hash(1)})
    assert [encode(one.hash) for one in log.farm.leases()] == [leaf_hash(1)]
    assert log.farm.publisher == 1


def test_exclude_more_than_fit_is_refused_and_skipped() -> None:
    log = Log(1)
    hashes = [encode(number.to_bytes(32, "big")) for number in range(1025)]
    for one in hashes[:1024]:
        log.order("exclude", {"hash": one})
    before = log.farm.ranking()
    late = encode_admin("farm", T0, 1, None, "exclude", "alice", {"hash": hashes[1024]})
    with pytest.raises(EntryRefused, match=r"config\.admin\.args\.hash: too many"):
        log.farm.check(late, 1)
    log.append(late)
    assert (log.farm.skipped, log.farm.ranking()) == ({"too many": 1}, before)
    log.order("exclude", {"hash": hashes[0]})  # once more takes no room
    log.order("include", {"hash": hashes[0]})
    log.farm.check(late, 1)


def test_weights_change_every_score_at_once_and_later_ones() -> None:
    log = Log(1, 2)
    log.post(1, 0, headroom=100)
    log.post(2, 0, headroom=10)
    log.order("weights", dict.fromkeys(WEIGHTS, 0) | {"bandwidth_headroom": 100})
    assert log.farm.scores() == {1: 1_000_000, 2: 100_000}
    assert [one.cost for one in log.farm.leases()] in ([0, 14], [14, 0])
    log.post(2, 1, headroom=20)
    assert log.farm.scores()[2] == 200_000
    restored = PublisherFold("farm")
    restored.restore(log.farm.snapshot())
    assert restored.scores() == log.farm.scores()
    members: Any = restored.ranking()["members"]
    assert members[0]["parts"]["bandwidth_headroom"]["weight"] == 100


def test_staleness_and_interval_hold_for_statuses_begun_from_then_on() -> None:
    log = Log(1, 2)
    log.post(1, 0, R=None)
    log.order("staleness", {"R": 5})
    log.order("interval", {"ms": 1000})
    assert (log.farm.R, log.farm.interval_ms) == (5, 1000)
    for second in (30, 60, 90):
        assert log.farm.is_recent(1)  # its newest status was begun at R 3
        log.post(2, second)
    assert not log.farm.is_recent(1)
    log.post(1, 91, R=None)
    for second in range(92, 97):
        assert log.farm.is_recent(1)
        log.post(2, second)
    assert not log.farm.is_recent(1)


def test_publisher_parameters_are_the_margin_and_the_lifetime_of_a_leaf() -> None:
    log = Log(1, 2, 3)
    log.post(1, 0, headroom=50)
    log.order("publisher", {"margin": 100_000})
    log.order("publisher", {"lifetime_ms": 600_000})
    assert {one.end_date for one in log.farm.leases()} == {T0 // 1000 + 600}
    for second in (1, 2, 3):
        log.post(2, second, headroom=89)  # 97,500 ahead
    assert log.farm.publisher == 1
    for second in (4, 5, 6):
        assert log.farm.publisher == 1
        log.post(2, second, headroom=90)
    assert log.farm.publisher == 2


def test_publish_keeps_its_index_and_changes_nothing_else() -> None:
    log = Log(1, 2)
    log.post(1, 0, headroom=50)
    log.post(2, 1, headroom=90)
    assert log.farm.publish_index == 0
    before = json.loads(log.farm.snapshot())
    log.order("publish", {})
    assert log.farm.publish_index == 3
    log.order("publish", {})
    assert log.farm.publish_index == 4
    after = json.loads(log.farm.snapshot())
    assert after["policy"]["orders"].pop("publish") == {"by": "alice", "date": T0, "index": 4}
    assert after == before
    restored = PublisherFold("farm")
    restored.restore(log.farm.snapshot())
    assert restored.publish_index == 4


def test_publish_with_an_argument_is_refused_where_it_is_posted() -> None:
    log = Log(1)
    entry = json.loads(encode_admin("farm", T0, 1, None, "publish", "alice", {}))
    entry["config"]["admin"]["args"] = {"member": 1}
    with pytest.raises(EntryRefused, match=r"config\.admin\.args\.member: unknown argument"):
        log.farm.check(json.dumps(entry).encode(), 1)


def test_orders_in_force_tell_who_when_and_at_which_index() -> None:
    log = Log(1, 2)
    log.override(2, "on")
    log.exclude(1)
    log.order("interval", {"ms": 1000})
    log.override(1, "off")
    log.override(1, None)
    log.exclude(2)
    log.order("include", {"hash": leaf_hash(1)})
    alice = {"by": "alice", "date": T0}
    assert log.farm.ranking()["orders"] == {
        f"exclude {leaf_hash(2)}": alice | {"index": 6},
        "interval": alice | {"index": 3},
        "override 2": alice | {"index": 1},
    }
    log.farm.configure(8, configuration(1, index=8))
    assert "override 2" not in str(log.farm.ranking()["orders"])


# D21


def test_duplicate_transients_are_those_of_a_current_member_with_a_lower_id() -> None:
    log = Log(1, 2, 3)

    def post(member: int, *transients: str) -> None:
        node = NodeReport(applied=log.index, transients=tuple(one * 16 for one in transients) or None)
        log.post(member, log.index, config={"node": node})

    def duplicate() -> list[int]:
        return [member for member in range(5) if log.farm.has_duplicate_transients(member)]

    assert duplicate() == []
    post(2, "a", "b")
    post(3, "c", "b")
    assert duplicate() == [3]
    post(1, "c")
    post(3, "c")
    assert duplicate() == [3]
    log.farm.configure(log.index, configuration(2, 3))
    assert duplicate() == []
    post(3, "a")
    post(2)
    assert duplicate() == []


# D17, D18


def test_sequence_not_above_the_last_of_its_author_is_skipped() -> None:
    log = Log(1, 2)
    assert log.farm.last_sequence(1) == -1
    log.post(1, 0, sequence=5)
    log.post(1, 1, sequence=5)
    log.post(1, 2, sequence=4)
    log.append(encode_admin("farm", T0, 1, 5, "interval", "alice", {"ms": 1000}))
    assert (log.farm.interval_ms, log.farm.skipped) == (30_000, {"repeated": 3})
    newest = log.farm.newest(1)
    assert newest is not None
    assert newest[0] == 1
    log.append(encode_admin("farm", T0, 1, 6, "interval", "alice", {"ms": 1000}))
    log.post(1, 3, sequence=None)
    assert (log.farm.interval_ms, log.farm.last_sequence(1), log.farm.last_sequence(2)) == (1000, 6, -1)


def note(by: str, sequence: int | None) -> bytes:
    document = {"cluster": "farm", "date": 1, "id": 0, "sequence": sequence, "config": {"by": by}}
    return json.dumps(document).encode()


def test_notes_are_deduplicated_per_user_and_remembered_for_a_bounded_number() -> None:
    log = Log(1)
    log.append(note("alice", 7))
    log.append(note("alice", 7))
    log.append(note("bob", 7))
    log.append(note("bob", None))
    assert (log.farm.skipped, log.farm.last_sequence("alice")) == ({"repeated": 1}, 7)
    for number in range(1100):
        log.append(note(f"user{number}", 100 + number))
    forgotten = [log.farm.last_sequence(name) for name in ("alice", "bob", "user0", "user75")]
    assert forgotten == [-1] * 4  # those of the lowest sequences
    assert (log.farm.last_sequence("user76"), log.farm.last_sequence("user1099")) == (176, 1199)
    assert len(json.loads(log.farm.snapshot())["notes"]) == 1024


def test_administrative_entry_of_no_member_is_skipped_and_takes_no_sequence() -> None:
    log = Log(1)
    log.append(encode_admin("farm", T0, 2, None, "interval", "alice", {"ms": 1000}))
    log.append(encode_admin("farm", T0, 1, 9, "override", "alice", {"member": 2, "mode": "on"}))
    assert (log.farm.skipped, log.farm.interval_ms) == ({"not a member": 2}, 30_000)
    assert log.farm.last_sequence(1) == -1


def test_override_goes_with_its_member() -> None:
    log = Log(1, 2)
    log.override(2, "off")
    log.farm.configure(log.index, configuration(1))
    log.farm.configure(log.index, configuration(1, 2))
    assert log.farm.mode(2) == "auto"


# snapshot and explain


def test_snapshot_of_equal_states_is_equal_whatever_led_to_them() -> None:
    one, other = Log(1, 2), Log(1, 2)
    for log, members in ((one, (1, 2)), (other, (2, 1))):
        for member in members:
            log.override(member, "off")
            log.append(note(f"user{member}", member))
        for member in members:
            log.exclude(member)
        for member in (1, 2):
            log.override(member, "on")
            log.exclude(member)
    assert one.farm.snapshot() == other.farm.snapshot()


def test_restore_of_what_is_no_snapshot_changes_nothing() -> None:
    log = due_member_1()
    before = log.farm.snapshot()
    entry = json.dumps(json.loads(before)["records"]["1"]["status"], separators=(",", ":"))
    bad: list[tuple[bytes, type[Exception]]] = [
        (b"", StorageDamaged),
        (b"{}", StorageDamaged),
        (before[:-1], StorageDamaged),
        (before.replace(b'"farm":"farm"', b'"farm":"other"'), StorageDamaged),
        (before.replace(entry.encode(), b"{}"), StorageDamaged),
        (before.replace(entry.encode(), note("alice", 1)), StorageDamaged),
        (before.replace(b'"algorithm":2', b'"algorithm":9'), StorageVersion),
        (before.replace(b"garlicfarm.farm/1", b"garlicfarm.farm/2"), StorageVersion),
    ]
    for data, error in bad:
        assert data != before
        with pytest.raises(error):
            log.farm.restore(data)
        assert log.farm.snapshot() == before
    log.farm.restore(before)
    assert log.farm.snapshot() == before


def why(log: Log) -> dict[int, list[str]]:
    members: Any = log.farm.ranking()["members"]
    return {one["id"]: [text for text in one["why"] if "not reported" not in text] for one in members}


ALIVE = "recent: 0 of 3 other members have posted 3 times since index %d; it would take 2"


def test_ranking_says_why_for_every_member() -> None:
    log = Log(1, 2, 3, 4)
    log.post(1, 0, leaves=())
    assert why(log)[1] == [ALIVE % 1, "not eligible: no recent member reports a usable leaf"]
    log.post(1, 0)
    log.post(2, 0, mode="off")
    log.post(3, 0, publishing=None)
    log.override(1, "off")
    assert why(log) == {
        1: [
            ALIVE % 2,
            "not eligible: its mode is off by override",
            "has not let go of the role that index 5 took from it",
        ],
        2: [ALIVE % 3, "not eligible: its mode is off"],
        3: [
            ALIVE % 4,
            "eligible: its mode is auto; it reports no meta.publishing, but nor does any other candidate",
            "publisher since index 5: an override took it from the one before",
            "not due to start yet: member 1 has not let go",
        ],
        4: ["not recent: no status yet", "not eligible: it is not recent"],
    }
    log.post(2, 1)
    assert why(log)[3][1] == "not eligible: it reports no meta.publishing, and others do"
    for second in (2, 3, 4):
        for member in (1, 2, 4):
            log.post(member, second)
    assert why(log)[3] == [
        "not recent: 3 of 3 other members have posted 3 times since index 4",
        "not eligible: it is not recent",
    ]
    members: Any = log.farm.ranking()["members"]
    assert members[0]["parts"]["remote_sensing"] == {"value": 500_000, "weight": 5, "reported": False}
    assert "remote_sensing: not reported" in members[0]["why"]
    alone = Log(1)
    alone.post(1, 0)
    assert why(alone)[1][0] == "recent: there are no others to judge it"


def test_ranking_says_when_a_challenger_would_win_and_behind_whom_it_is() -> None:
    log = Log(1, 2, 3)
    log.post(1, 0, headroom=50)
    log.post(2, 0, headroom=40)
    takes_over = "takes over from member 1 once 50000 ahead at 3 statuses in a row: now "
    assert why(log)[2][-1] == takes_over + "25000 behind, at 0 so far"
    for second in (1, 2):
        log.post(2, second, headroom=70)
        assert why(log)[2][-1] == takes_over + f"50000 ahead, at {second} so far"
    log.override(1, "on")
    assert why(log)[2][-1] == "behind member 1 regardless of the scores: that one's mode is on"
    log.override(1, None)
    log.post(2, 3, headroom=70)
    log.post(2, 4, headroom=70)
    log.post(2, 5, headroom=70)
    assert log.farm.publisher == 2


def test_ranking_of_a_sanctioned_member_says_for_how_long() -> None:
    log = due_member_1()
    for second in (1, 2, 3):
        log.post(1, second)
    assert why(log)[1][2:] == [
        "ranks behind the others for 30 more statuses: it was due and did not publish",
        "behind member 2 regardless of the scores: it is sanctioned",
        "has not let go of the role that index 5 took from it",
    ]
