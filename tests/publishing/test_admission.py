"""What is refused where it is posted and nowhere else: committed, it is folded as it always was."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from garlicfarm.errors import EntryRefused
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import HIGHEST, LOWEST
from garlicfarm.publishing.administration import ACTIONS, FINDINGS, LEADER, SINCE
from garlicfarm.publishing.documents import StatusDocument
from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.scoring import WEIGHTS
from garlicfarm.publishing.strict_json import MAX_VALUES
from tests.publishing.scripted_log import T0, configuration, destination, status

TEN_YEARS_MS = 315_576_000_000
LAST_SEQUENCE = 2**63 - 1


def new_farm(level: int = LOWEST) -> PublisherFold:
    farm = PublisherFold("farm")
    farm.configure(0, msgspec.structs.replace(configuration(1, 2, 3), level=level))
    return farm


def note(sequence: int | None = None, **more: Any) -> bytes:
    return encode_status(
        StatusDocument(cluster="farm", date=T0, id=0, sequence=sequence, config={"by": "alice", **more})
    )


def refusal(farm: PublisherFold, entry: bytes, author: int = 0) -> tuple[str, str]:
    with pytest.raises(EntryRefused) as refused:
        farm.check(entry, author)
    return refused.value.field, refused.value.reason


# The number of values


def values(count: int, filler: bytes = b"0") -> bytes:
    """A note of so many values in all."""
    head = note(x=[])  # with 7 values: the note, cluster, date, id, config, by, and x, which is empty
    return head.replace(b"[]", b"[" + b",".join([filler] * (count - 7)) + b"]")


@pytest.mark.parametrize("filler", [b"0", b"0.5", b'""', b'"[{,"', b'"\\",{"', b"null"])
def test_check_entry_with_too_many_values_is_refused_and_folded_if_committed(filler: bytes) -> None:
    farm = new_farm()
    farm.check(values(MAX_VALUES, filler), 0)
    assert refusal(farm, values(MAX_VALUES + 1, filler)) == ("", "too many values")
    farm.apply(1, 1, values(MAX_VALUES + 1, filler).replace(b'"config"', b'"sequence":7,"config"'))
    assert farm.skipped == {}
    assert farm.last_sequence("alice") == 7


def test_check_empty_objects_and_arrays_count_twice() -> None:
    farm = new_farm()
    room = (MAX_VALUES - 7) // 2
    farm.check(values(room + 7, b"{}"), 0)
    assert refusal(farm, values(room + 8, b"[]")) == ("", "too many values")


def test_check_members_count_as_their_values() -> None:
    entry = note(x={f"{key}": 0 for key in range(MAX_VALUES - 7)})
    new_farm().check(entry, 0)


def test_check_values_are_counted_in_what_is_no_json_too() -> None:
    assert refusal(new_farm(), b"[" * 60_000) == ("", "too many values")
    assert refusal(new_farm(), b"," * 70_000) == ("", "too large")


def test_check_status_of_16_leaves_in_a_farm_of_50_is_far_from_the_limit() -> None:
    pair = {"in": 3, "out": 3}
    leaf = {
        "uptime": 1,
        "configuredTunnels": pair,
        "currentTunnels": pair,
        "configuredBandwidth": pair,
        "currentBandwidth": pair,
        "configuredConnections": 1,
        "currentConnections": 1,
        "leaseSetExpires": T0,
        "blacklist": [encode(bytes([n]) * 32) for n in range(8)],
    }
    remote = {
        "hash": encode(bytes(32)),
        "lastSeenVersion": "0.9.64",
        "fetchTimeMs": 1,
        "connectTest": {"ms": 1, "ok": True},
        "floodfills": {"yesterday": 1, "today": 1, "tomorrow": 1},
    }
    document = json.loads(encode_status(status(2, T0, applied=5))) | {
        "destinations": [leaf | {"destination": destination(n)} for n in range(16)],
        "remoteRouters": [remote | {"member": n} for n in range(1, 51)],
        "remoteDestinations": [remote] * 16,
        "remoteMeta": remote,
    }
    entry = json.dumps(document).encode()
    new_farm().check(entry, 2)
    assert 2 * sum(map(entry.count, (b",", b"[", b"{"))) < MAX_VALUES


# Arguments of orders


ARGS: dict[str, dict[str, Any]] = {
    "interval": {"ms": 1000},
    "staleness": {"R": 3},
    "override": {"member": 2, "mode": "on"},
    "exclude": {"hash": encode(bytes(32))},
    "include": {"hash": encode(bytes(32))},
    "weights": dict(WEIGHTS),
    "publisher": {"margin": 1},
    "publish": {},
    "remove": {"member": 2},
    "level": {"to": 1},
    "lease": {"ms": 5_000},
    "lost": {"member": 2, "index": 1, "term": 1},
    "settled": {"index": 1, "term": 1},
    "timeouts": {"election_ms": 20_000, "lease_ms": 60_000, "term": 1},
    "control": {"ms": 10_000},
    "forget": {"after_ms": 3_600_000, "min_members": 3},
    "ban": {"hash": encode(bytes(32)), "until_ms": T0},
    "unban": {"hash": encode(bytes(32))},
    "allow": {"hash": encode(bytes(32))},
    "disallow": {"hash": encode(bytes(32))},
}
POSTED = [action for action in ACTIONS if action not in FINDINGS]
UNDOES = {"unban": "ban", "disallow": "allow"}


def farm_for(action: str, level: int) -> PublisherFold:
    """A farm that can obey the action at its level."""
    farm = new_farm(level)
    if action in UNDOES and level >= SINCE[action]:
        first = UNDOES[action]
        farm.apply(1, 1, encode_admin("farm", T0, 1, None, first, "alice", ARGS[first]))
    return farm


@pytest.mark.parametrize("action", POSTED)
@pytest.mark.parametrize("odd", [0.5, 1e400, None, "x", {"a": [0.5]}])
def test_check_order_with_an_unknown_argument_is_refused_and_obeyed_if_committed(action, odd):
    plain = encode_admin("farm", T0, 1, None, action, "alice", ARGS[action])
    document = json.loads(plain)
    document["config"]["admin"]["args"]["odd"] = odd
    entry = json.dumps(document).replace("Infinity", "1e400").encode()
    farm, other = farm_for(action, HIGHEST), farm_for(action, HIGHEST)
    farm.check(plain, 1)
    assert refusal(farm, entry, 1) == ("config.admin.args.odd", "unknown argument")
    farm.apply(2, 1, entry)
    other.apply(2, 1, plain)
    assert farm.snapshot() == other.snapshot()
    assert farm.skipped == {}


@pytest.mark.parametrize(
    ("entry", "reason"), [(b"hello", "not JSON"), (b"\xff", "not UTF-8"), (b"[1]", "not an object")]
)
def test_check_posted_what_is_no_document_is_told_which_farms_take_it(entry: bytes, reason: str) -> None:
    with pytest.raises(EntryRefused) as refused:
        new_farm().check_posted(entry, 0, "", T0)
    assert (refused.value.field, refused.value.reason) == ("", reason), "servers count by the reason"
    assert "this farm takes status documents" in refused.value.hint
    assert "a farm of the application log takes any bytes" in refused.value.hint


# Sequences


def refused_at(farm: PublisherFold, entry: bytes, author: int, now_ms: int) -> bool:
    try:
        farm.check_posted(entry, author, "", now_ms)
    except EntryRefused as error:
        return (error.field, error.reason) == ("sequence", "years ahead")
    return False


def order(sequence: int) -> bytes:
    return encode_admin("farm", T0, 2, sequence, "interval", "alice", {"ms": 1000})


@pytest.mark.parametrize(
    ("author", "make"),
    [(0, note), (2, order), (2, lambda sequence: encode_status(status(2, T0, sequence=sequence)))],
    ids=["note", "order", "status"],
)
def test_check_posted_sequence_more_than_ten_years_ahead_is_refused_and_folded_if_committed(author, make):
    farm, sequence_of = new_farm(), author or "alice"
    limit = T0 + TEN_YEARS_MS
    assert not refused_at(farm, make(limit), author, T0)
    assert refused_at(farm, make(limit + 1), author, T0)
    assert refused_at(farm, make(LAST_SEQUENCE), author, T0)
    farm.check(make(LAST_SEQUENCE), author)  # which knows no clock
    farm.apply(1, 1, make(LAST_SEQUENCE - 1))
    assert farm.last_sequence(sequence_of) == LAST_SEQUENCE - 1
    assert not refused_at(farm, make(LAST_SEQUENCE), author, T0)  # the one after the last is always taken


def test_check_posted_sequence_is_held_against_the_authors_last_one() -> None:
    farm, last = new_farm(), T0 + 3 * TEN_YEARS_MS
    farm.apply(1, 1, note(last))
    assert not refused_at(farm, note(last + TEN_YEARS_MS), 0, T0)
    assert refused_at(farm, note(last + TEN_YEARS_MS + 1), 0, T0)
    assert refused_at(farm, order(last), 2, T0)


def test_check_posted_a_clock_that_began_in_1970_keeps_no_author_out() -> None:
    farm = new_farm()
    assert not refused_at(farm, note(1_577_836_800_000 + TEN_YEARS_MS), 0, 0)
    assert refused_at(farm, note(1_577_836_800_001 + TEN_YEARS_MS), 0, 0)
    assert not refused_at(farm, note(None), 0, 0)


# Actions of a level


@pytest.mark.parametrize("action", FINDINGS)
def test_check_finding_is_refused_whoever_posts_it(action: str) -> None:
    farm, entry = new_farm(HIGHEST), encode_admin("farm", T0, 1, None, action, LEADER, ARGS[action])
    assert refusal(farm, entry, 1) == ("config.admin.action", "only the leader's node finds this")
    with pytest.raises(EntryRefused, match="only the leader's node finds this"):
        farm.check_posted(entry, 1, LEADER, T0)  # as an order of a user by that name
    for author in (0, 2):  # a user or a raw client, and another member
        assert refusal(farm, entry, author) == ("id", "not the poster's id")
    as_note = entry.replace(b'"id":1', b'"id":0')
    for author in (0, 1):
        assert refusal(farm, as_note, author) == ("id", "not a member's")


@pytest.mark.parametrize("action", [action for action in SINCE if action in POSTED])
def test_action_is_unknown_below_its_level(action: str) -> None:
    entry = encode_admin("farm", T0, 1, None, action, "alice", ARGS[action])
    below, above = farm_for(action, SINCE[action] - 1), farm_for(action, SINCE[action])
    assert refusal(below, entry, 1) == ("config.admin.action", "unknown action")
    above.check(entry, 1)
    for farm in (below, above):
        farm.apply(2, 1, entry)
    assert below.skipped == {"unknown action": 1}
    assert above.skipped == {}


def test_fold_takes_its_level_from_the_configuration_and_never_a_lower_one() -> None:
    farm = new_farm(1)
    farm.configure(1, configuration(1, 2, 3, index=1))
    assert farm.level == 1
    restored = PublisherFold("farm")
    restored.restore(farm.snapshot())
    assert restored.level == 1
