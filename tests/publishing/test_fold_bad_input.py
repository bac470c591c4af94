"""Each kind of bad input: refused where it is posted, with the field named; found committed, as from a
foreign server, skipped by every server alike, also by one that begins with a snapshot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from garlicfarm.errors import EntryRefused
from garlicfarm.publishing.entries import encode_status
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.scripted_log import T0, configuration, destination, status

YEARS_MS = 86_400_000 * 366 * 11


def document(**changes: Any) -> dict[str, Any]:
    return json.loads(encode_status(status(2, T0 + 5000, applied=3))) | changes


def text(**changes: Any) -> bytes:
    return json.dumps(document(**changes)).encode()


def many(count: int, leaf: dict[str, Any]) -> bytes:
    return text(destinations=[leaf] * count)


BAD = {
    "negative": (text(router={"jobLag": -1}), "router.jobLag", "out of range"),
    "huge": (text(router={"uptime": 10**30}), "router.uptime", "out of range"),
    "huge, as written": (text(date=0).replace(b'"date": 0', b'"date": 1e400'), "date", "not an integer"),
    "fractional": (
        text(router={"currentBandwidth": {"in": 0.5, "out": 1}}),
        "router.currentBandwidth.in",
        None,
    ),
    "missing": (text(router={"currentBandwidth": {"in": 1}}), "router.currentBandwidth.out", "missing"),
    "missing, required": (text(date=None), "date", "missing"),
    "not a number": (text(date=0).replace(b'"date": 0', b'"date": NaN'), "", "not JSON"),
    "duplicate destinations": (
        many(2, {"destination": destination(1)}),
        "destinations[1].destination",
        "named twice",
    ),
    "10,000 destinations": (many(10_000, {"destination": destination(1)}), "", "too large"),
    "1,000 destinations that fit": (many(1_000, {}), "destinations[0].destination", "missing"),
    "years ahead": (text(date=T0 + YEARS_MS), "date", "years ahead"),
    "years ahead, a note": (text(id=0, date=T0 + YEARS_MS, config={"by": "alice"}), "date", "years ahead"),
    "past the end of I2P's dates": (text(date=2**32 * 1000), "date", "out of range"),
    "invalid base64": (many(1, {"destination": "?" * 516}), "destinations[0].destination", "not I2P base64"),
    "lone surrogate": (text(extra="\ud800"), "", "lone surrogate"),
    "deep": (b'{"a":' * 33 + b"1" + b"}" * 33, "", "nested too deep"),
    "deep, in a key unknown to us": (
        text(extra=0).replace(b'"extra": 0', b'"extra": ' + b"[" * 32 + b"]" * 32),
        "",
        "nested too deep",
    ),
}


def farm_of_three() -> PublisherFold:
    farm = PublisherFold("farm")
    farm.configure(0, configuration(1, 2, 3))
    for member in (1, 2, 3):
        farm.apply(member, 1, encode_status(status(member, T0 + member, applied=member - 1)))
    return farm


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_refused_at_posting_and_skipped_by_all_alike(kind: str) -> None:
    entry, field, reason = BAD[kind]
    farms = [farm_of_three(), farm_of_three(), PublisherFold("farm")]
    farms[2].restore(farms[0].snapshot())
    before = farms[0].ranking()
    with pytest.raises(EntryRefused) as refused:
        farms[0].check(entry, 0 if b'"id": 0' in entry else 2)
    assert refused.value.field == field
    assert reason in (None, refused.value.reason)
    for farm in farms:
        farm.apply(4, 1, entry)
        assert farm.skipped == {refused.value.reason: 1}
        assert farm.ranking() == before
    assert len({farm.snapshot() for farm in farms}) == 1
    later = encode_status(status(2, T0 + 9000, applied=4))
    for farm in farms:
        farm.apply(5, 1, later)
        assert farm.newest(2) is not None
    assert len({farm.snapshot() for farm in farms}) == 1


def test_somebody_elses_id_is_refused_at_posting() -> None:
    """Once committed, nobody can tell who brought it: members are trusted not to lie about each other."""
    farm = farm_of_three()
    for author in (0, 1, 3):
        with pytest.raises(EntryRefused, match="id: not the poster's id"):
            farm.check(text(), author)
    farm.check(text(), 2)
    stranger = text(id=9)
    farm.apply(4, 1, stranger)
    assert farm.skipped == {"not a member": 1}


def test_all_bad_input_together_leaves_no_trace_but_the_counts() -> None:
    farm = farm_of_three()
    before = json.loads(farm.snapshot())
    for index, (entry, _, _) in enumerate(BAD.values(), 4):
        farm.apply(index, 1, entry)
    after = json.loads(farm.snapshot())
    assert sum(after.pop("skipped").values()) == len(BAD)
    assert after == {key: value for key, value in before.items() if key != "skipped"}


@pytest.mark.parametrize("wrong", [0, 1_600_000_000_000])
def test_clock_that_was_years_behind_and_is_right_now_is_not_kept_out(wrong: int) -> None:
    """Neither by clocks that began in 1970, whoever has them, nor by one or two that are alone."""
    farm = PublisherFold("farm")
    farm.configure(0, configuration(1, 2, 3))
    members = (1, 2, 3) if wrong == 0 else (1, 2)
    for index, member in enumerate((*members, *members), 1):
        date = wrong + index * 1000
        farm.apply(index, 1, encode_status(status(member, date, sequence=None)))
    right = encode_status(status(1, wrong + YEARS_MS if wrong else T0, sequence=None))
    farm.check(right, 1)
    farm.apply(9, 1, right)
    assert farm.skipped == {}


def test_administrator_is_heard_whatever_the_clocks_say() -> None:
    farm = farm_of_three()
    order = {"action": "interval", "by": "alice", "args": {"ms": 1000}}
    farm.check(text(date=T0 + YEARS_MS, config={"admin": order}), 2)
