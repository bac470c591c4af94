"""The fold since level 3: bans, the access list, and for how long a control counts. Each state is also
restored from its snapshot, which has to make no difference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from garlicfarm.errors import EntryRefused, StorageDamaged
from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing.clients import MAX_LISTED, Clients
from garlicfarm.publishing.documents import MetaStatus
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.dated_log import leaf_hash
from tests.publishing.scripted_log import T0, destination
from tests.publishing.test_fold_leases import LeaseLog, named_1
from tests.publishing.test_fold_outside import live, sanction, say

ONE, TWO, THREE = (encode(bytes([number]) * 32) for number in (1, 2, 3))
FIELD = "config.admin.args.hash"


def refusal(log: LeaseLog, action: str, **args: Any) -> tuple[str, str]:
    """Why an order is refused where it is posted; committed, it is skipped for the same reason."""
    entry = encode_admin("farm", T0, 1, None, action, "alice", args)
    with pytest.raises(EntryRefused) as refused:
        log.farm.check(entry, 1)
    before, skipped = log.farm.clients, dict(log.farm.skipped)
    log.append(entry)
    reason = refused.value.reason
    assert log.farm.skipped == skipped | {reason: skipped.get(reason, 0) + 1}
    assert log.farm.clients == before
    return refused.value.field, reason


def listed(log: LeaseLog) -> tuple[dict[str, int | None], list[str]]:
    """Who is banned until when, and who is on the access list."""
    clients = log.farm.clients
    return {hash_: ban.until_ms for hash_, ban in clients.banned.items()}, [*clients.allowed]


def test_lists_are_in_the_state_with_who_put_whom_there_and_no_order_beside() -> None:
    log = named_1(level=3)
    orders = dict(log.farm.policy.orders)
    log.order("ban", {"hash": TWO})
    log.order("ban", {"hash": ONE, "until_ms": T0 + 60_000})
    index = log.order("allow", {"hash": THREE})
    assert listed(log) == ({ONE: T0 + 60_000, TWO: None}, [THREE])
    assert in_snapshot(log)["allowed"] == {
        THREE: {"by": "alice", "date": T0, "index": index, "until_ms": None}
    }
    assert log.farm.policy.orders == orders
    ranking = log.farm.ranking()
    assert (ranking["banned"], ranking["allowed"], ranking["control_ms"]) == (2, 1, 60_000)


def in_snapshot(log: LeaseLog) -> dict[str, Any]:
    clients: dict[str, Any] = json.loads(log.farm.snapshot())["policy"]["clients"]
    return clients


def test_each_list_is_taken_back_by_its_own_order_and_the_last_ban_of_a_client_holds() -> None:
    log = named_1(level=3)
    for until_ms in (None, T0 + 60_000, T0 + 60_000):
        log.order("ban", {"hash": ONE, "until_ms": until_ms})
    log.order("allow", {"hash": ONE})
    log.order("allow", {"hash": ONE})
    assert listed(log) == ({ONE: T0 + 60_000}, [ONE])
    log.order("unban", {"hash": ONE})
    assert listed(log) == ({}, [ONE])
    log.order("ban", {"hash": ONE})
    log.order("disallow", {"hash": ONE})
    assert listed(log) == ({ONE: None}, [])


def test_ban_that_is_over_by_farm_time_goes_with_the_next_order_for_clients_only() -> None:
    log = named_1(level=3)
    log.order("ban", {"hash": ONE, "until_ms": T0 + 10_000})
    live(log, 10, 1, 2, 3)
    log.order("interval", {"ms": 5_000})
    assert listed(log) == ({ONE: T0 + 10_000}, [])
    log.order("ban", {"hash": TWO, "until_ms": T0 + 20_000})
    assert listed(log) == ({TWO: T0 + 20_000}, [])
    log.order("unban", {"hash": TWO})


def test_what_cannot_be_obeyed_is_refused_with_its_reason() -> None:
    log = named_1(level=3)
    assert refusal(log, "unban", hash=ONE) == (FIELD, "not banned")
    assert refusal(log, "disallow", hash=ONE) == (FIELD, "not on the access list")
    past = refusal(log, "ban", hash=ONE, until_ms=log.farm.farm_time_ms)
    assert past == ("config.admin.args.until_ms", "in the past")
    assert refusal(log, "ban", hash=ONE, until_ms=0)[1] == "in the past"
    log.order("ban", {"hash": ONE, "until_ms": log.farm.farm_time_ms + 1})
    assert listed(log) == ({ONE: log.farm.farm_time_ms + 1}, [])


def test_farm_does_not_ban_its_own() -> None:
    log = named_1(level=3)
    log.post(2, 1, headroom=50, leaves=(5,), control=TWO, meta=MetaStatus(destination=destination(6)))
    for own in (leaf_hash(5), leaf_hash(6), TWO):
        assert refusal(log, "ban", hash=own) == (FIELD, "the farm's own")
        log.order("allow", {"hash": own})
    log.post(2, 2, headroom=50, leaves=(7,))
    log.order("ban", {"hash": leaf_hash(5)})


def test_at_most_so_many_are_listed_and_bans_that_are_over_make_room() -> None:
    log = named_1(level=3)
    log.order("allow", {"hash": ONE})
    state = json.loads(log.farm.snapshot())
    kept = state["policy"]["clients"]["allowed"][ONE]
    hashes = sorted(encode(number.to_bytes(32, "big")) for number in range(MAX_LISTED - 1))
    state["policy"]["clients"]["banned"] = dict.fromkeys(hashes, kept)
    log.farm.restore(json.dumps(state).encode())
    assert refusal(log, "ban", hash=TWO) == (FIELD, "too many")
    assert refusal(log, "allow", hash=TWO) == (FIELD, "too many")
    log.order("ban", {"hash": hashes[0], "until_ms": T0 + 10_000})  # once more takes no room
    log.order("allow", {"hash": ONE})
    live(log, 10, 1, 2, 3)
    log.order("ban", {"hash": TWO})
    assert (len(log.farm.clients), TWO in log.farm.clients.banned) == (MAX_LISTED, True)
    state["policy"]["clients"]["banned"][TWO] = kept
    with pytest.raises(StorageDamaged):
        PublisherFold("farm").restore(json.dumps(state).encode())


@pytest.mark.parametrize("hash_", ["", "short", ONE[:-1], ONE[:-2] + "B=", "é" * 43 + "="])
def test_snapshot_with_what_is_no_hash_is_refused(hash_: str) -> None:
    log = named_1(level=3)
    log.order("ban", {"hash": ONE})
    data = log.farm.snapshot().replace(ONE.encode(), hash_.encode())
    with pytest.raises(StorageDamaged):
        PublisherFold("farm").restore(data)


@pytest.mark.parametrize("late", [{"control_ms": 10_000}, {"clients": {"banned": {}, "allowed": {}}}])
def test_snapshot_below_level_3_has_neither(late: dict[str, Any]) -> None:
    state = json.loads(named_1(level=2).farm.snapshot())
    PublisherFold("farm").restore(json.dumps(state).encode())
    state["policy"] |= late
    with pytest.raises(StorageDamaged):
        PublisherFold("farm").restore(json.dumps(state).encode())


def test_what_is_measured_decides_nothing_while_there_is_an_access_list() -> None:
    """Tests come from destinations that no list can name."""
    log = named_1(level=3)
    log.order("allow", {"hash": ONE})
    say(log, 2, 3)
    assert (log.farm.publisher, sanction(log, 1)) == (1, 0)
    log.order("disallow", {"hash": ONE})
    assert log.farm.publisher == 2


def test_rules_admit_whom_no_list_keeps_away() -> None:
    one, two, three = (bytes([number]) * 32 for number in (1, 2, 3))
    log = named_1(level=3)
    assert log.farm.clients.rules().admits(one)
    log.order("ban", {"hash": ONE, "until_ms": T0 + 10_000})
    rules = log.farm.clients.rules()
    assert [rules.admits(each) for each in (one, two)] == [False, True]
    log.order("allow", {"hash": ONE})
    log.order("allow", {"hash": TWO})
    rules = log.farm.clients.rules()
    assert [rules.admits(each) for each in (one, two, three)] == [False, True, False]
    assert log.farm.clients.next_end_ms() == T0 + 10_000
    lasting = log.farm.clients.lasting(T0 + 10_000)
    assert lasting.rules().admits(one)
    assert lasting.next_end_ms() is None
    assert log.farm.clients.lasting(T0 + 9_999) == log.farm.clients
    assert not Clients()


def test_order_control_sets_how_long_a_control_counts() -> None:
    log = named_1(level=3)
    index = log.order("control", {"ms": 10_000})
    assert log.farm.control_ms == 10_000
    assert log.farm.policy.orders["control"].index == index
    assert log.farm.ranking()["control_ms"] == 10_000
