"""A damaged or hostile snapshot is refused by the documented errors, or the fold goes on from it."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from garlicfarm.errors import StorageDamaged, StorageVersion
from garlicfarm.log_application import LogApplication
from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.scripted_log import T0, configuration, status
from tests.publishing.test_fold_orders import due_member_1

DEEP = 100_000
CASES = 300
VALUES: list[Any] = [
    *(
        None,
        True,
        "",
        "x",
        "on",
        1.5,
        1e300,
        [],
        [1],
        [1, 1],
        [3, 2, 1],
        [9],
        {},
        {"1": 1},
        {"9": 1},
        {"-1": 0},
    ),
    *(-1, 0, 1, 2, 3, 4, 2**63, 2**64, 2**70, -(2**70)),
]
KEYS = ["1", "2", "9", "-5", "x", str(2**64)]


def rich() -> PublisherFold:
    """A farm with a publisher, an override and an excluded leaf."""
    log = due_member_1()
    log.override(2, "on")
    log.exclude(1)
    return log.farm


SNAPSHOT = rich().snapshot()


def nested(start: bytes, key: bytes) -> bytes:
    """The snapshot with an unknown ``key`` deep in which there is nothing."""
    value = b"[" * DEEP + b"]" * DEEP
    return SNAPSHOT.replace(start, start + b'"' + key + b'":' + value + b",", 1)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe",
        b'{"schema":"\xff","algorithm":1}',
        SNAPSHOT.replace(b'"farm":"farm"', b'"farm":"\xff"'),
        SNAPSHOT.replace(b'"farm":"farm"', b'"farm":"\\ud800"'),
        b"[" * DEEP,
        SNAPSHOT + b"[" * DEEP,
        *(random.Random(size).randbytes(size) for size in range(0, 200, 7)),
        *(SNAPSHOT[:cut] for cut in range(0, len(SNAPSHOT), 101)),
    ],
    ids=lambda data: f"{data[:12]!r} of {len(data)}",
)
@pytest.mark.parametrize("application", [lambda: PublisherFold("farm"), LogApplication], ids=["farm", "log"])
def test_bytes_that_are_no_snapshot_are_refused_and_change_nothing(application, data):
    farm = application()
    before = farm.snapshot()
    with pytest.raises((StorageDamaged, StorageVersion)):
        farm.restore(data)
    assert farm.snapshot() == before


@pytest.mark.parametrize("start", [b"{", b'"policy":{'])
def test_unknown_part_of_a_snapshot_that_is_too_deep_is_refused_or_skipped(start):
    """As deep as Python's own stack allows, which differs from release to release; entries have a limit."""
    farm = PublisherFold("farm")
    with suppress(StorageDamaged):
        farm.restore(nested(start, b"new"))
    assert farm.snapshot() in (PublisherFold("farm").snapshot(), SNAPSHOT)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of all parts of a snapshot, down to the statuses, which are the authors'."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        if key != "status":
            yield from paths(value[key], (*path, key))


def mutated(rng: random.Random) -> bytes:
    state = json.loads(SNAPSHOT)
    for _ in range(rng.choice((1, 1, 2))):
        *path, last = rng.choice([*paths(state)])
        parent = state
        for key in path:
            parent = parent[key]
        match rng.randrange(6):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent[rng.choice(KEYS)] = parent.pop(last)
            case _:
                parent[last] = copy.deepcopy(rng.choice(VALUES))
    return json.dumps(state, separators=(",", ":")).encode()


def go_on(farm: PublisherFold) -> None:
    """Everything that a node does with a state."""
    index = 1000

    def look() -> None:
        farm.ranking()
        farm.contents()
        farm.snapshot()
        for member in farm.members:
            farm.newest_entry(member)
            farm.newest(member)

    def post(*members: int) -> None:
        nonlocal index
        for member in members * 4:
            index += 1
            entry = status(member, T0 + 100_000 + 1000 * index, applied=index - 1, publishing=True)
            farm.apply(index, 1, encode_status(entry))
            farm.apply(
                index, 1, encode_admin("farm", T0, 1, None, "override", "a", {"member": 2, "mode": "on"})
            )

    look()
    post(1, 2, 3)
    farm.configure(index, configuration(2, 3))
    post(2, 3)
    look()
    farm.configure(index, configuration(1, 2, 3))
    look()


def test_mutated_snapshots_are_refused_or_the_fold_goes_on_from_them() -> None:
    refused = 0
    for seed in range(CASES):
        farm, data = PublisherFold("farm"), mutated(random.Random(seed))
        try:
            farm.restore(data)
        except (StorageDamaged, StorageVersion):
            refused += 1
        else:
            try:
                go_on(farm)
            except Exception as error:
                raise AssertionError(f"seed {seed}: {data!r}") from error
    assert CASES // 4 < refused < CASES


def test_snapshot_whose_status_is_another_members_is_refused() -> None:
    state = json.loads(SNAPSHOT)
    state["records"]["1"]["status"] = state["records"]["2"]["status"]
    with pytest.raises(StorageDamaged):
        PublisherFold("farm").restore(json.dumps(state, separators=(",", ":")).encode())
