"""Meta LeaseSet contents, the publisher's lease, and the application ``log``."""

from __future__ import annotations

import pickle
from hashlib import sha256

import pytest

from garlicfarm.application import Origin
from garlicfarm.errors import StorageDamaged
from garlicfarm.i2p.destination import decode_destination, destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.i2p.lease_set import MetaLease
from garlicfarm.log_application import LogApplication
from garlicfarm.publishing.entries import Leaf
from garlicfarm.publishing.lease import Lease, lease_ms
from garlicfarm.publishing.meta_leaseset import choose, cost, encode_contents, published_ms
from garlicfarm.wire.messages import ClusterServer, Configuration
from tests.publishing.scripted_log import T0, destination

NOW_S = T0 // 1000
HOUR_MS = 3_600_000


def hash_(n: int) -> bytes:
    return bytes([n]) * 32


def test_contents_are_the_entries_of_the_meta_lease_set_that_i2pd_accepted() -> None:
    """The MetaLeases within a signed Meta LeaseSet, made by the encoder whose output i2pd published."""
    leases = [MetaLease(hash_(n), 5 * n, 1_800_000_000 + 10_000 * n) for n in range(3)]
    assert encode_contents(leases) == bytes.fromhex(
        "03"
        + ("00" * 32 + "000003" + "00" + "6b49d200")
        + ("01" * 32 + "000003" + "05" + "6b49f910")
        + ("02" * 32 + "000003" + "0a" + "6b4a2020")
    )


def test_choose_leaves_in_any_order_gives_sorted_equal_entries_at_most_sixteen() -> None:
    leaves = [(Leaf(hash_(n), None), 0) for n in range(20)]
    chosen = choose(leaves, T0, HOUR_MS)
    assert [one.hash for one in chosen] == [hash_(n) for n in range(16)]
    assert chosen == choose(reversed(leaves), T0, HOUR_MS)
    assert {(one.cost, one.end_date) for one in chosen} == {(0, NOW_S + HOUR_MS // 1000)}
    assert len(encode_contents(chosen)) == 1 + 16 * 40
    assert encode_contents(choose([], T0, HOUR_MS)) == b"\0"


@pytest.mark.parametrize(
    ("expires_ms", "end_s"),
    [(T0 + 600_000, 600), (T0 + 2 * HOUR_MS, 3600), (T0 + 1000, 1), (T0 + 999, None), (T0 - 1, None)],
)
def test_choose_end_date_is_bounded_by_the_lease_set_and_by_policy(expires_ms, end_s):
    ends = [one.end_date - NOW_S for one in choose([(Leaf(hash_(1), expires_ms), 0)], T0, HOUR_MS)]
    assert ends == ([] if end_s is None else [end_s])


def test_choose_leaf_of_several_members_gets_the_latest_end_once() -> None:
    ends = [(T0 + 9000, 3), (T0 + 20_000, 5), (T0 - 5, 0)]  # what ended by now says nothing of the cost
    leaves = [(Leaf(hash_(1), end_ms), cost) for end_ms, cost in ends]
    assert [(one.end_date - NOW_S, one.cost) for one in choose(leaves, T0, HOUR_MS)] == [(20, 3)]


def test_choose_more_than_sixteen_takes_the_cheapest_then_the_lowest_hash_and_sorts_by_hash() -> None:
    leaves = [(Leaf(hash_(n), None), 15 - n // 2) for n in range(20)]
    chosen = choose(leaves, T0, HOUR_MS)
    assert [one.hash for one in chosen] == [hash_(n) for n in range(4, 20)]
    assert [one.cost for one in chosen] == [15 - n // 2 for n in range(4, 20)]
    even = [(Leaf(hash_(n), None), 7 if n % 2 else 3) for n in range(20)]
    assert [one.hash[0] for one in choose(even, T0, HOUR_MS)] == [*range(13), 14, 16, 18]


@pytest.mark.parametrize(
    ("score", "before", "expected"),
    [
        (1_000_000, None, 0),
        (937_501, None, 0),
        (937_500, None, 1),
        (0, None, 15),
        (62_500, None, 15),
        (1_000_000, 15, 0),
        (937_500 - 31_250, 0, 0),
        (937_500 - 31_251, 0, 1),
        (937_500 + 31_250, 1, 1),
        (937_500 + 31_251, 1, 0),
        (500_000, 8, 8),
        (500_000, 7, 7),
        (0, 14, 15),
    ],
)
def test_cost_has_sixteen_steps_and_stays_within_half_a_step(score, before, expected):
    assert cost(score, before) == expected


def test_cost_moves_only_when_the_score_moved_by_half_a_step() -> None:
    for before in range(16):
        kept = [score for score in range(0, 1_000_001, 250) if cost(score, before) == before]
        assert kept[-1] - kept[0] >= 62_500 + 31_250
        assert len(kept) == (kept[-1] - kept[0]) // 250 + 1


def test_choose_last_date_of_i2p_does_not_overflow() -> None:
    assert choose([(Leaf(hash_(1), None), 0)], 2**32 * 1000 - 5000, HOUR_MS)[0].end_date == 2**32 - 1


def test_published_is_own_time_but_a_second_after_the_newest_known() -> None:
    assert published_ms(T0, T0 - 5000) == T0
    assert published_ms(T0, T0 - 500) == T0 + 500
    assert published_ms(T0, T0 + 300_000) == T0 + 301_000


def test_base64_of_a_destination_round_trips_and_has_a_known_hash() -> None:
    text = destination(7)
    binary = decode_destination(text)
    assert (len(binary), encode(binary)) == (391, text)
    assert destination_hash(text) == sha256(binary).digest()
    assert encode(b"\xfb\xff\xbf") == "-~-~"


def test_lease_is_three_quarters_of_the_silence_that_others_must_see() -> None:
    assert lease_ms(30_000, 3) == 45_000
    assert lease_ms(1000, 3) == 1500
    for R in (3, 4, 10, 1000):
        assert lease_ms(1000, R) < 900 * (R - 1)


def test_lease_begins_with_the_first_status_of_this_process_that_was_committed() -> None:
    lease = Lease()
    assert lease.expires_ms is None
    lease.begin(10_000, 1000, 3)
    assert lease.expires_ms is None
    lease.committed(10_000)
    assert lease.expires_ms == 11_500
    lease.begin(11_000, 1000, 3)
    assert lease.expires_ms == 11_500
    lease.committed(11_000)
    assert lease.expires_ms == 12_500
    with pytest.raises(KeyError):
        lease.committed(9000)


def test_lease_is_shortened_at_once_by_beginning_a_status_with_a_shorter_one() -> None:
    lease = Lease()
    lease.begin(0, 30_000, 3)
    lease.committed(0)
    assert lease.expires_ms == 45_000
    lease.begin(30_000, 1000, 3)
    assert lease.expires_ms == 1500
    lease.begin(31_000, 30_000, 3)
    assert lease.expires_ms == 1500
    lease.committed(31_000)
    assert lease.expires_ms == 76_000


def test_lease_of_many_statuses_that_were_not_committed_stays_small_and_keeps_the_shortest() -> None:
    lease = Lease()
    lease.begin(0, 1000, 3)
    lease.committed(0)
    for began_ms in range(1, 10_001):
        lease.begin(began_ms, 600 if began_ms == 5000 else 1000, 3)
    assert lease.expires_ms == 900
    assert len(pickle.dumps(lease)) < 200
    with pytest.raises(KeyError):
        lease.committed(5000)  # begun, but not last
    lease.committed(10_000)
    assert lease.expires_ms == 11_500


def test_log_application_chains_every_entry_with_its_place() -> None:
    log = LogApplication()
    assert log.snapshot() == bytes(40)
    log.check(b"", Origin(0, "", 0))
    log.configure(1, Configuration(1, 0, (ClusterServer(1, "x"),)))
    assert log.snapshot() == bytes(40)
    chain = bytes(32)
    for index, term, value in [(2, 1, b"one"), (3, 1, b""), (5, 4, b"\xff" * 100)]:
        log.apply(index, term, value)
        chain = sha256(chain + index.to_bytes(8, "big") + term.to_bytes(8, "big") + value).digest()
        assert log.snapshot() == index.to_bytes(8, "big") + chain


def test_log_application_restored_goes_on_as_if_never_cut() -> None:
    whole, cut = LogApplication(), LogApplication()
    for index in range(1, 5):
        whole.apply(index, 1, b"%d" % index)
    cut.apply(1, 1, b"1")
    other = LogApplication()
    other.restore(cut.snapshot())
    for index in range(2, 5):
        other.apply(index, 1, b"%d" % index)
    assert other.snapshot() == whole.snapshot()
    with pytest.raises(StorageDamaged):
        other.restore(bytes(39))
    assert other.snapshot() == whole.snapshot()
