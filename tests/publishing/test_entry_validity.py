"""Which entries are valid, and what is said of those that are not: the same at posting and at apply."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from garlicfarm.errors import EntryRefused
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import HIGHEST, OUTSIDE
from garlicfarm.publishing.documents import RouterStatus, StatusDocument
from garlicfarm.publishing.entries import (
    Administrative,
    Note,
    Status,
    encode_admin,
    encode_status,
    parse_entry,
)
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.scoring import WEIGHTS
from tests.publishing.scripted_log import CERTIFICATE, T0, configuration, destination, status


def valid(**changes: Any) -> dict[str, Any]:
    return json.loads(encode_status(status(2, T0, applied=5))) | changes


def leaf(**changes: Any) -> dict[str, Any]:
    return {"destination": destination(1)} | changes


SHORT = encode(bytes(386))
LYING = encode(bytes(384) + CERTIFICATE + b"x")
FOREIGN_ALPHABET = destination(1).replace("-", "+").replace("~", "/")
SPARE_BITS = destination(1)[:-3] + "B=="
NO_TRANSIENT = "not 16 hexadecimal digits"
ADMIN = {"action": "interval", "by": "alice", "args": {"ms": 1000}}

INVALID = [
    ({"cluster": None}, "cluster", "missing"),
    ({"cluster": 1}, "cluster", "not a string"),
    ({"cluster": "other"}, "cluster", "another cluster"),
    ({"date": None}, "date", "missing"),
    ({"date": -1}, "date", "out of range"),
    ({"date": 2**32 * 1000}, "date", "out of range"),
    ({"date": 1.0}, "date", "not an integer"),
    ({"date": "1"}, "date", "not an integer"),
    ({"id": None}, "id", "missing"),
    ({"id": True}, "id", "not an integer"),
    ({"id": 2**31}, "id", "out of range"),
    ({"sequence": 2**63}, "sequence", "out of range"),
    ({"sequence": -(10**30)}, "sequence", "out of range"),
    ({"config": []}, "config", "not an object"),
    ({"config": {"node": 1}}, "config.node", "not an object"),
    ({"config": {"node": {"applied": -1}}}, "config.node.applied", "out of range"),
    ({"config": {"node": {"interval_ms": 999}}}, "config.node.interval_ms", "out of range"),
    ({"config": {"node": {"interval_ms": 3_600_001}}}, "config.node.interval_ms", "out of range"),
    ({"config": {"node": {"R": 2}}}, "config.node.R", "out of range"),
    ({"config": {"node": {"R": 1001}}}, "config.node.R", "out of range"),
    ({"config": {"node": {"tests": {}}}}, "config.node.tests", "not an array"),
    ({"config": {"node": {"tests": [{}]}}}, "config.node.tests[0]", "not an array"),
    ({"config": {"node": {"tests": [[1, 2], [3]]}}}, "config.node.tests[1]", "wrong length"),
    ({"config": {"node": {"tests": [[1, 2, 3]]}}}, "config.node.tests[0]", "wrong length"),
    ({"config": {"node": {"tests": [[0, 2]]}}}, "config.node.tests[0][0]", "out of range"),
    ({"config": {"node": {"tests": [[1, -2]]}}}, "config.node.tests[0][1]", "out of range"),
    ({"config": {"node": {"tests": [[1, None]]}}}, "config.node.tests[0][1]", "not an integer"),
    ({"config": {"node": {"tests": [[1, -1], [1, 5]]}}}, "config.node.tests[1]", "named twice"),
    ({"config": {"node": {"transients": "0" * 16}}}, "config.node.transients", "not an array"),
    ({"config": {"node": {"transients": ["0" * 16] * 17}}}, "config.node.transients", "too many"),
    *(
        ({"config": {"node": {"transients": [text]}}}, "config.node.transients[0]", NO_TRANSIENT)
        for text in ("0" * 15, "0" * 17, "0" * 15 + "A", "0" * 15 + "g", "0" * 15 + "٣")
    ),
    ({"config": {"node": {"keyExpires": -1}}}, "config.node.keyExpires", "out of range"),
    ({"config": {"node": {"leaseSet": "a"}}}, "config.node.leaseSet", "not I2P base64"),
    ({"config": {"node": {"leaseSet": encode(bytes(1025))}}}, "config.node.leaseSet", "too large"),
    ({"meta": {"publishConfig": "maybe"}}, "meta.publishConfig", "not one of its values"),
    ({"meta": {"publishing": 1}}, "meta.publishing", "not true or false"),
    ({"meta": {"destination": SHORT}}, "meta.destination", "not a destination"),
    ({"meta": {"lastPublishedLS": "a"}}, "meta.lastPublishedLS", "not I2P base64"),
    ({"router": {"uptime": -1}}, "router.uptime", "out of range"),
    ({"router": {"uptime": 1.5}}, "router.uptime", "not an integer"),
    ({"router": {"uptime": 10**400}}, "router.uptime", "out of range"),
    ({"router": {"currentBandwidth": {"in": 1}}}, "router.currentBandwidth.out", "missing"),
    ({"destinations": {}}, "destinations", "not an array"),
    ({"destinations": [{}]}, "destinations[0].destination", "missing"),
    ({"destinations": [leaf(), leaf(destination="")]}, "destinations[1].destination", "not a destination"),
    ({"destinations": [leaf(destination=SHORT)]}, "destinations[0].destination", "not a destination"),
    ({"destinations": [leaf(destination=LYING)]}, "destinations[0].destination", "not a destination"),
    ({"destinations": [leaf(destination="ü")]}, "destinations[0].destination", "not I2P base64"),
    ({"destinations": [leaf(destination=FOREIGN_ALPHABET)]}, "destinations[0].destination", "not I2P base64"),
    ({"destinations": [leaf(destination=SPARE_BITS)]}, "destinations[0].destination", "not I2P base64"),
    ({"destinations": [leaf(), leaf()]}, "destinations[1].destination", "named twice"),
    (
        {"destinations": [leaf(), leaf(destination=destination(2), currentTunnels={"in": "x", "out": 1})]},
        "destinations[1].currentTunnels.in",
        "not an integer",
    ),
    ({"destinations": [leaf(blacklist=[1])]}, "destinations[0].blacklist[0]", "not a string"),
    ({"remoteRouters": [{"hash": "AAAA"}]}, "remoteRouters[0].hash", "not a hash"),
    ({"remoteMeta": {"hash": destination(1), "x": 1}}, "remoteMeta.hash", "not a hash"),
    ({"id": 0}, "config.by", "missing"),
    ({"id": 0, "config": {"by": ""}}, "config.by", "not a name of 1 … 64 characters"),
    ({"id": 0, "config": {"by": "x" * 65}}, "config.by", "not a name of 1 … 64 characters"),
    ({"id": 0, "config": {"admin": ADMIN}}, "id", "not a member's"),
    ({"config": {"admin": 1}}, "config.admin", "not an object"),
    ({"config": {"admin": ADMIN | {"by": ""}}}, "config.admin.by", "not a name of 1 … 64 characters"),
    ({"config": {"admin": ADMIN | {"action": "explode"}}}, "config.admin.action", "unknown action"),
    ({"config": {"admin": ADMIN | {"args": {"ms": 999}}}}, "config.admin.args.ms", "out of range"),
    ({"config": {"admin": ADMIN | {"args": {"ms": 3_600_001}}}}, "config.admin.args.ms", "out of range"),
    ({"config": {"admin": ADMIN | {"args": {}}}}, "config.admin.args.ms", "missing"),
    *(
        (
            {"config": {"admin": {"action": action, "by": "a", "args": args}}},
            f"config.admin.args{field}",
            reason,
        )
        for action, args, field, reason in [
            ("staleness", {"R": 2}, ".R", "out of range"),
            ("staleness", {"R": 1001}, ".R", "out of range"),
            ("exclude", {}, ".hash", "missing"),
            ("exclude", {"hash": "AAAA"}, ".hash", "not a hash"),
            ("include", {"hash": "a"}, ".hash", "not I2P base64"),
            ("weights", {"job_lag": 100}, ".router_uptime", "missing"),
            ("weights", dict.fromkeys(WEIGHTS, 17), "", "do not add up to 100"),
            ("weights", dict.fromkeys(WEIGHTS, -1), ".router_uptime", "out of range"),
            ("publisher", {}, "", "nothing to set"),
            ("publisher", {"margin": 1_000_001}, ".margin", "out of range"),
            ("publisher", {"lifetime_ms": 599_999}, ".lifetime_ms", "out of range"),
        ]
    ),
    (
        {"config": {"admin": {"action": "override", "by": "a", "args": {"member": 2, "mode": "yes"}}}},
        "config.admin.args.mode",
        "not one of its values",
    ),
    (
        {"config": {"admin": {"action": "override", "by": "a", "args": {"member": 9, "mode": "on"}}}},
        "config.admin.args.member",
        "not a member",
    ),
]


@pytest.mark.parametrize(("changes", "field", "reason"), INVALID)
def test_check_invalid_entry_is_refused_with_field_and_reason_and_skipped_by_it(changes, field, reason):
    entry = json.dumps(valid(**changes)).encode()
    farm = PublisherFold("farm")
    farm.configure(0, configuration(1, 2, 3))
    before = farm.snapshot()
    with pytest.raises(EntryRefused) as refused:
        farm.check(entry, 0 if changes.get("id") == 0 else 2)
    assert (refused.value.field, refused.value.reason) == (field, reason)
    farm.apply(1, 1, entry)
    assert farm.skipped == {reason: 1}
    assert farm.snapshot() == before.replace(
        b'"skipped":{}', msgspec.json.encode({"skipped": {reason: 1}})[1:-1]
    )


@pytest.mark.parametrize(
    ("figures", "field", "reason"),
    [
        ({"leaseEnds": [-1]}, "leaseEnds[0]", "out of range"),
        ({"leaseEnds": [1] * 17}, "leaseEnds", "too many"),
        ({"streams": []}, "streams", "not an object"),
        ({"streams": {"sentPackets": 2**63}}, "streams.sentPackets", "out of range"),
        ({"streams": {"refused": "7"}}, "streams.refused", "not an integer"),
    ],
)
def test_keys_of_a_leaf_since_level_3_are_unknown_ones_below(
    figures: dict[str, Any], field: str, reason: str
) -> None:
    entry = json.dumps(valid(destinations=[leaf(**figures)])).encode()
    assert isinstance(parse_entry(entry, "farm", OUTSIDE - 1), Status)
    with pytest.raises(EntryRefused) as refused:
        parse_entry(entry, "farm", OUTSIDE)
    assert (refused.value.field, refused.value.reason) == (f"destinations[0].{field}", reason)


@pytest.mark.parametrize(
    ("measured", "field"),
    [
        ({"remoteMeta": {"hash": encode(bytes(32)), "date": "7"}}, "remoteMeta.date"),
        ({"remoteDestinations": [{"hash": encode(bytes(32)), "date": "7"}]}, "remoteDestinations[0].date"),
    ],
)
def test_date_of_a_measurement_is_an_unknown_key_below_level_3(measured: dict[str, Any], field: str) -> None:
    entry = json.dumps(valid(**measured)).encode()
    assert isinstance(parse_entry(entry, "farm", OUTSIDE - 1), Status)
    with pytest.raises(EntryRefused) as refused:
        parse_entry(entry, "farm", OUTSIDE)
    assert (refused.value.field, refused.value.reason) == (field, "not an integer")


@pytest.mark.parametrize("key", ["configuredTunnels", "currentTunnels"])
@pytest.mark.parametrize("tunnels", [{"in": 3}, {"out": 3}, {}, {"in": 3, "out": None}])
def test_tunnels_of_one_way_are_valid_since_level_3(key: str, tunnels: dict[str, Any]) -> None:
    entry = json.dumps(valid(destinations=[leaf(**{key: tunnels})])).encode()
    parsed = parse_entry(entry, "farm", OUTSIDE)
    assert isinstance(parsed, Status)
    assert len(parsed.leaves) == 1
    with pytest.raises(EntryRefused, match="missing") as refused:
        parse_entry(entry, "farm", OUTSIDE - 1)
    assert refused.value.field == f"destinations[0].{key}.{'out' if 'in' in tunnels else 'in'}"


def test_state_keeps_statuses_that_were_valid_at_the_level_of_then() -> None:
    """A key that was unknown then, whatever it has; and since level 3, tunnels of one way."""
    farm, other = PublisherFold("farm"), PublisherFold("farm")
    farm.configure(0, configuration(1, 2, 3))
    farm.apply(1, 1, json.dumps(valid(id=1, destinations=[leaf(streams="odd")])).encode())
    farm.configure(2, msgspec.structs.replace(configuration(1, 2, 3), level=OUTSIDE))
    farm.apply(3, 1, json.dumps(valid(destinations=[leaf(currentTunnels={"in": 1})])).encode())
    assert farm.skipped == {}
    other.restore(farm.snapshot())
    assert other.snapshot() == farm.snapshot()
    assert other.ranking() == farm.ranking()


def test_parse_status_at_the_limits_of_the_keys_of_a_node_is_valid() -> None:
    node = {
        "tests": [[1, -1], [2**31 - 1, 0]],
        "transients": ["0123456789abcdef"] * 16,
        "keyExpires": 2**63 - 1,
        "leaseSet": encode(bytes(1024)),
    }
    parsed = parse_entry(json.dumps(valid(config={"node": node})).encode(), "farm", HIGHEST)
    assert isinstance(parsed, Status)
    assert json.loads(msgspec.json.encode(parsed.node)) == node


def test_parse_valid_status_keeps_its_bytes_and_ignores_unknown_keys() -> None:
    document = valid(load=0.5, extra={"deep": ["HUGE", None, "\0é😀"]})
    document["router"]["mood"] = 1.5
    document["router"]["jobLag"] = None
    entry = b" " + json.dumps(document, indent=1).encode() + b"\n"
    entry = entry.replace(b'"HUGE"', b"1e400, -1E-400, " + b"9" * 5000)
    parsed = parse_entry(entry, "farm", HIGHEST)
    assert isinstance(parsed, Status)
    assert parsed.entry == entry.strip()
    assert parsed.document.router.job_lag is None
    farm, other = PublisherFold("farm"), PublisherFold("farm")
    farm.configure(0, configuration(1, 2, 3))
    farm.apply(1, 1, entry)
    assert entry.strip() in farm.snapshot()
    other.restore(farm.snapshot())
    assert other.snapshot() == farm.snapshot()
    assert other.newest(2) == farm.newest(2)


@pytest.mark.parametrize(
    ("tunnels", "usable"),
    [(None, True), ((1, 1), True), ((0, 1), False), ((1, 0), False), ((1, None), True), ((None, 0), False)],
)
def test_parse_leaf_is_usable_unless_it_reports_no_tunnels(tunnels, usable):
    reported = None if tunnels is None else {"in": tunnels[0], "out": tunnels[1]}
    parsed = parse_entry(
        json.dumps(valid(destinations=[leaf(currentTunnels=reported)])).encode(), "farm", HIGHEST
    )
    assert isinstance(parsed, Status)
    assert len(parsed.leaves) == usable


STATUS = encode_status(status(2, T0))
NOTE = b'{"cluster":"farm","date":1,"id":0,"sequence":1,"config":{"by":"alice"}}'
ORDER = encode_admin("farm", T0, 2, None, "override", "alice", {"member": 3, "mode": "off"})


@pytest.mark.parametrize(
    ("entry", "author", "kind", "welcome"),
    [
        (STATUS, 2, Status, True),
        (STATUS, 1, Status, False),
        (STATUS, 0, Status, False),
        (NOTE, 0, Note, True),
        (NOTE, 2, Note, True),
        (ORDER, 2, Administrative, True),
        (ORDER, 3, Administrative, False),
        (ORDER, 0, Administrative, False),
    ],
)
def test_check_author_may_post_its_own_and_members_forward_notes(entry, author, kind, welcome):
    assert isinstance(parse_entry(entry, "farm", HIGHEST), kind)
    farm = PublisherFold("farm")
    farm.configure(0, configuration(1, 2, 3))
    if welcome:
        farm.check(entry, author)
        return
    with pytest.raises(EntryRefused) as refused:
        farm.check(entry, author)
    assert (refused.value.field, refused.value.reason) == ("id", "not the poster's id")


def test_encode_status_invalid_document_is_refused_here() -> None:
    with pytest.raises(EntryRefused, match=r"router\.uptime: out of range"):
        encode_status(StatusDocument(cluster="farm", date=1, id=1, router=RouterStatus(uptime=-1)))
    with pytest.raises(EntryRefused, match="too large"):
        encode_status(status(1, T0, leaves=range(130)))


def test_encode_status_equal_documents_give_equal_bytes_without_absent_keys() -> None:
    one = StatusDocument(cluster="farm", date=1, id=1, config={"b": 1, "a": 2})
    other = StatusDocument(cluster="farm", date=1, id=1, config={"a": 2, "b": 1})
    assert encode_status(one) == encode_status(other)
    assert encode_status(one) == b'{"cluster":"farm","date":1,"id":1,"config":{"a":2,"b":1}}'


def test_encode_admin_unknown_action_is_refused() -> None:
    with pytest.raises(EntryRefused, match="unknown action"):
        encode_admin("farm", T0, 1, None, "explode", "alice", {})
