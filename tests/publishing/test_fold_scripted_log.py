"""The scripted log names the same publisher at every index, however often it is cut and restored."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from garlicfarm.levels import HIGHEST, LOWEST
from garlicfarm.publishing.entries import encode_admin
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.scripted_log import FILE, T0, configuration, script

LEADER = 1
LAST = 80

# from index on: publisher, and why
GOLDEN = [
    (2, None, ""),
    (3, 2, "vacant"),  # the first member with a status
    (19, 3, "margin"),  # 75,000 ahead at its statuses 13, 16 and 19
    (37, 2, "ineligible"),  # 3 died after 31; 1 counts at 32, 34, 36 and 2 at 33, 35, 37
    (52, 3, "ineligible"),  # 2 says publishConfig off
    (67, 2, "override"),  # an override says on
]


STATES_OF_LEVEL = {
    0: "d4b8036a3f9b07e552ffafaa9f5335c9d23584a5ca7fc58a409504292948392a",
    1: "7c7ad91f44d9a779b2a19bff30409c341737992ca3447194fad4097b8859e0ee",
    2: "29ccc2bfb6941f7c494b31ca8020623b9b460b349fd7b4646f6ea637a94ef6c6",
    3: "6973d8e684a8fdc06b446959e8b16fb3118db93ec8cdd48d90138ae6d2aaddaf",
    4: "97328a1fd4ad097723c308655cccbba2e595b4b03f095ad1316b9df464bf1f25",
}
"""The same of each level, the last entry being the order that raises it, as the first program that could it
made them"""

VERSION_1_STATES = "a6bec7f03975c7a351a9c878449229a37e5b6b86ba75501761f4456491b6d9f8"
"""SHA-256 of the snapshots after every entry, one after the other, as garlicfarm 0.1 made them"""


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def golden(index: int) -> int | None:
    return [publisher for first, publisher, _ in GOLDEN if first <= index][-1]


def new_farm() -> PublisherFold:
    farm = PublisherFold("farm")
    farm.configure(0, configuration(1, 2, 3))
    farm.configure(1, configuration(1, 2, 3, index=1))
    return farm


def fold(cuts: set[int]) -> tuple[dict[int, int | None], list[tuple[int, str]], PublisherFold]:
    """Fold the file; after each index in ``cuts`` go on in a new instance, restored from a snapshot."""
    farm = new_farm()
    publishers: dict[int, int | None] = {}
    reasons: list[tuple[int, str]] = []
    for line in lines():
        farm.apply(line["index"], 1, line["entry"].encode())
        if line["index"] in cuts:
            data = farm.snapshot()
            farm = PublisherFold("farm")
            farm.restore(data)
        publishers[line["index"]] = farm.publisher
        ranking: Any = farm.ranking()
        if ranking["since"] == line["index"]:
            reasons.append((line["index"], ranking["because"]))
    return publishers, reasons, farm


def test_scripted_log_three_cuttings_give_the_golden_publisher_at_every_index() -> None:
    expected = {index: golden(index) for index in range(2, LAST + 1)}
    foldings = [fold(set()), fold({3, 18, 20, 36, 51, 66}), fold(set(range(2, LAST + 1)))]
    for publishers, reasons, farm in foldings:
        assert publishers == expected
        assert reasons == [(index, because) for index, _, because in GOLDEN[1:]]
        assert farm.skipped == {}
    assert len({farm.snapshot() for _, _, farm in foldings}) == 1
    assert len({json.dumps(farm.ranking()) for _, _, farm in foldings}) == 1
    assert len({farm.contents() for _, _, farm in foldings}) == 1


def test_scripted_log_gives_the_states_of_version_1_but_for_its_number() -> None:
    farm, digest = new_farm(), hashlib.sha256()
    for line in lines():
        farm.apply(line["index"], 1, line["entry"].encode())
        digest.update(farm.snapshot().replace(b'"algorithm":2', b'"algorithm":1'))
    assert digest.hexdigest() == VERSION_1_STATES


def test_scripted_log_publisher_is_never_the_leader_which_could_have_been_it() -> None:
    farm = new_farm()
    leaders = set()
    for line in lines():
        farm.apply(line["index"], 1, line["entry"].encode())
        config = json.loads(line["entry"])["config"]
        if config.get("node", {}).get("role") == "leader":
            leaders.add(line["author"])
            assert LEADER in farm.eligible()
        assert farm.publisher != LEADER
    assert leaders == {LEADER}


def test_scripted_log_each_entry_passes_the_check_where_it_is_posted() -> None:
    farm = new_farm()
    for line in lines():
        farm.check(line["entry"].encode(), line["author"])
        farm.apply(line["index"], 1, line["entry"].encode())


def test_scripted_log_file_is_what_the_script_writes() -> None:
    assert lines() == list(script())


def test_scripted_log_two_never_publish_at_once() -> None:
    """Between a change and the release of the old publisher nobody is due."""
    farm = new_farm()
    for line in lines():
        farm.apply(line["index"], 1, line["entry"].encode())
        due = farm.due_since is not None
        assert due == (farm.publisher is not None and farm.holders == (farm.publisher,))
        document = json.loads(line["entry"])
        if document.get("meta", {}).get("publishing"):
            assert farm.holders in ((line["author"],), tuple(sorted({line["author"], farm.publisher})))


@pytest.mark.parametrize("level", range(LOWEST, HIGHEST + 1))
def test_scripted_log_gives_at_each_level_the_states_of_that_level(level: int) -> None:
    farm, digest = PublisherFold("farm"), hashlib.sha256()
    farm.configure(1, msgspec.structs.replace(configuration(1, 2, 3, index=1), level=level))
    order = encode_admin("farm", T0 + 100_000, 1, None, "level", "alice", {"to": level or 1})
    for index, entry in [*((line["index"], line["entry"].encode()) for line in lines()), (LAST + 1, order)]:
        farm.apply(index, 1, entry)
        digest.update(farm.snapshot())
    assert farm.skipped == ({} if level else {"unknown action": 1})
    assert digest.hexdigest() == STATES_OF_LEVEL[level]
