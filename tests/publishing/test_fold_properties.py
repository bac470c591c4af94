"""Properties of the fold over logs that no honest farm would write, and over some that it would."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.errors import EntryRefused
from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.levels import HIGHEST
from garlicfarm.publishing.documents import MetaStatus
from garlicfarm.publishing.entries import encode_admin, encode_status, parse_entry
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.publishing.scoring import WEIGHTS
from tests.publishing.scripted_log import T0, configuration, destination, status

Step = tuple[str, Any]

MEMBERS = st.integers(1, 5)
BAD_ENTRIES = st.sampled_from(
    [
        b"",
        b"\xff",
        b"{}",
        b"[" * 50,
        b'{"cluster":"other","date":1,"id":1}',
        b'{"cluster":"farm","date":1,"id":9}',
        b'{"cluster":"farm","date":1,"id":0}',
        b'{"cluster":"farm","date":1.0,"id":1}',
        b'{"cluster":"farm","date":1,"id":1,"config":{"admin":{}}}',
        encode_admin("farm", T0, 1, None, "override", "a", {"member": 9, "mode": "on"}),
    ]
)


@st.composite
def statuses(draw: st.DrawFn) -> Step:
    changes = {
        "headroom": draw(st.integers(0, 100)),
        "applied": draw(st.none() | st.integers(0, 60)),
        "interval_ms": draw(st.sampled_from([None, 1000, 3000])),
        "R": draw(st.sampled_from([None, 3, 4])),
        "publishing": draw(st.sampled_from([None, False, True])),
        "mode": draw(st.sampled_from(["auto", "auto", "auto", "on", "off", None])),
        "leaves": draw(st.sampled_from([(), (1,), (1, 2, 3)])),
        "sequence": draw(st.none() | st.integers(0, 20)),
    }
    return "entry", encode_status(status(draw(MEMBERS), T0 + draw(st.integers(0, 60)) * 500, **changes))


ADMIN = st.builds(
    lambda member, target, mode: encode_admin(
        "farm", T0, member, None, "override", "alice", {"member": target, "mode": mode}
    ),
    MEMBERS,
    MEMBERS,
    st.sampled_from(["off", "on", "auto", None]),
)
INTERVALS = st.builds(
    lambda member, ms: encode_admin("farm", T0, member, None, "interval", "alice", {"ms": ms}),
    MEMBERS,
    st.integers(1000, 5000),
)
PARAMETERS = st.sampled_from(
    [
        ("exclude", {"hash": encode(destination_hash(destination(1)))}),
        ("include", {"hash": encode(destination_hash(destination(1)))}),
        ("weights", {name: 100 * (name == "bandwidth_headroom") for name in WEIGHTS}),
        ("weights", dict(WEIGHTS)),
        ("staleness", {"R": 5}),
        ("publisher", {"margin": 0}),
        ("publisher", {"lifetime_ms": 600_000}),
    ]
)
ORDERS = st.builds(
    lambda member, order: encode_admin("farm", T0, member, None, order[0], "alice", order[1]),
    MEMBERS,
    PARAMETERS,
)
STEPS = st.lists(
    statuses()
    | statuses()
    | st.tuples(st.just("entry"), ADMIN | INTERVALS | ORDERS | BAD_ENTRIES)
    | st.tuples(st.just("configure"), st.lists(MEMBERS, min_size=1, max_size=5, unique=True)),
    max_size=60,
)


def new_farm() -> PublisherFold:
    farm = PublisherFold("farm")
    farm.configure(0, configuration(1, 2, 3))
    return farm


def take(farm: PublisherFold, index: int, step: Step) -> None:
    kind, value = step
    if kind == "entry":
        farm.apply(index, 1, value)
    else:
        farm.configure(index, configuration(*value, index=index))


def floats_in(value: object) -> bool:
    if isinstance(value, dict):
        return any(floats_in(one) for one in value.values())
    if isinstance(value, (list, tuple)):
        return any(floats_in(one) for one in value)
    return isinstance(value, float)


@given(STEPS, st.sets(st.integers(1, 60)))
def test_snapshot_at_any_cuts_gives_identical_bytes(steps: list[Step], cuts: set[int]) -> None:
    whole, cut = new_farm(), new_farm()
    for index, step in enumerate(steps, 1):
        take(whole, index, step)
        take(cut, index, step)
        assert cut.ranking() == whole.ranking()  # and who asks changes nothing
        if index in cuts:
            data = cut.snapshot()
            cut = PublisherFold("farm")
            cut.restore(data)
            assert cut.snapshot() == data
    assert cut.snapshot() == whole.snapshot()
    assert cut.ranking() == whole.ranking()
    assert cut.contents() == whole.contents()


@given(STEPS, st.randoms(use_true_random=False))
def test_order_of_servers_in_a_configuration_is_irrelevant(steps, shuffler):
    one, other = new_farm(), PublisherFold("farm")
    other.configure(0, configuration(3, 1, 2))
    for index, step in enumerate(steps, 1):
        take(one, index, step)
        if step[0] == "configure":
            step = ("configure", shuffler.sample(step[1], len(step[1])))
        take(other, index, step)
    assert one.snapshot() == other.snapshot()


@given(STEPS)
def test_invariants_hold_and_invalid_entries_change_only_the_counts(steps: list[Step]) -> None:
    farm = new_farm()
    for index, step in enumerate(steps, 1):
        before, skipped = json.loads(farm.snapshot()), dict(farm.skipped)
        take(farm, index, step)
        after = json.loads(farm.snapshot())
        if farm.skipped != skipped:
            assert sum(farm.skipped.values()) == sum(skipped.values()) + 1
            assert before | {"skipped": None} == after | {"skipped": None}
        elif step[0] == "entry":
            parse_entry(step[1], "farm", HIGHEST)
        eligible = farm.eligible()
        assert (farm.publisher in eligible) if eligible else (farm.publisher is None)
        assert set(eligible) <= {member for member in farm.members if farm.is_recent(member)}
        assert farm.publisher is None or farm.publisher in farm.holders
        assert (farm.due_since is not None) == (farm.publisher is not None and len(farm.holders) == 1)
        assert all(farm.is_recent(holder) for holder in farm.holders if holder != farm.publisher)
        ranking: dict[str, Any] = farm.ranking()
        assert not floats_in(ranking)
        assert not floats_in(after)
        assert json.loads(json.dumps(ranking)) == ranking
        scores = [one["score"] for one in ranking["members"]]
        assert all(score is None or 0 <= score <= 1_000_000 for score in scores)


def refusal(farm: PublisherFold, entry: bytes) -> str | None:
    author = json.loads(entry).get("id", 1) if entry.startswith(b"{") else 1
    try:
        farm.check(entry, author)
    except EntryRefused as error:
        return error.reason
    return None


@given(STEPS)
def test_entry_refused_at_posting_is_skipped_for_the_same_reason_when_committed(steps: list[Step]) -> None:
    farm = new_farm()
    for index, step in enumerate(steps, 1):
        reason = refusal(farm, step[1]) if step[0] == "entry" else None
        before = farm.skipped.get(reason, 0)
        take(farm, index, step)
        assert reason is None or farm.skipped[reason] == before + 1


def honest_log(seed: int, members: int, rounds: int) -> list[dict[str, Any]]:
    """Members post about every second, with noisy figures, and miss some rounds."""
    chance = random.Random(seed)
    posts: list[dict[str, Any]] = []
    for second in range(rounds):
        for member in range(1, members + 1):
            if second < 2 or chance.random() < 0.8:
                posts.append(
                    {
                        "member": member,
                        "date": T0 + second * 1000 + chance.randrange(-50, 50),
                        "applied": max(len(posts) - chance.randrange(3), 0),
                        "headroom": chance.randrange(101),
                        "publishing": chance.choice([True, False]),
                        "mode": chance.choice(["auto"] * 9 + ["off"]),
                    }
                )
    return posts


def without_dates(farm: PublisherFold) -> dict[str, Any]:
    ranking: dict[str, Any] = farm.ranking()
    members = [one | {"date": 0} for one in ranking["members"]]
    problems = [one for one in ranking["publication"]["problems"] if not one.startswith("the clock of ")]
    publication = ranking["publication"] | {"last_published_ms": 0, "problems": problems}
    return ranking | {"farm_time_ms": 0, "members": members, "publication": publication}


def clock_problems(farm: PublisherFold) -> list[int]:
    """The members whose clocks are reported as wrong."""
    ranking: dict[str, Any] = farm.ranking()
    words = [problem.split() for problem in ranking["publication"]["problems"]]
    return [int(one[4]) for one in words if one[:4] == ["the", "clock", "of", "member"]]


HOURS_MS = st.integers(3_600_000, 48 * 3_600_000) | st.integers(-48 * 3_600_000, -3_600_000)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(3, 5), st.integers(1, 5), HOURS_MS, HOURS_MS, st.integers(0, 75))
def test_one_clock_hours_off_moves_nothing(seed, members, liar, offset_ms, set_by_ms, set_at):
    """Its clock is off from the first status on, and is set by hours at another one. No other member's is
    reported as wrong."""
    right, wrong = PublisherFold("farm"), PublisherFold("farm")
    for farm in (right, wrong):
        farm.configure(0, configuration(*range(1, members + 1)))
    liar, compared, latest, published_ms = min(liar, members), 0, 0, 0
    for index, post in enumerate(honest_log(seed, members, 15), 1):
        known = {key: value for key, value in post.items() if key not in ("member", "date")}
        off_ms = offset_ms + (set_by_ms if index >= set_at else 0)
        for farm in (right, wrong):
            date = post["date"] + (off_ms if farm is wrong and post["member"] == liar else 0)
            meta = MetaStatus(
                publishing=known["publishing"], publish_config=known["mode"], last_published_time=date
            )
            farm.apply(
                index, 1, encode_status(status(post["member"], date, sequence=None, **known, meta=meta))
            )
        assert without_dates(right) == without_dates(wrong)
        assert right.due_since == wrong.due_since
        assert set(clock_problems(wrong)) <= {liar}
        assert clock_problems(right) == []
        recent = [member for member in right.members if right.is_recent(member)]
        if len(recent) >= 3:
            compared += 1
            true_dates = [right.newest(member)[1].date for member in recent]
            assert min(true_dates) <= wrong.farm_time_ms <= max(true_dates)
            assert [(one.hash, one.cost) for one in right.leases()] == [
                (one.hash, one.cost) for one in wrong.leases()
            ]
            latest = max(latest, *true_dates)
            assert wrong.published_ms(0) <= max(published_ms, latest + 600_000 + 1_000)
        published_ms = wrong.published_ms(0)
    assert compared > 10
