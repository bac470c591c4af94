"""The chain over what a member has applied, and its digests."""

from __future__ import annotations

import struct
from hashlib import sha256

from garlicfarm.digests import DigestKeeper, Digests
from garlicfarm.levels import COMPARING
from garlicfarm.wire.messages import ValueType

APPLICATION, CONFIGURATION = ValueType.APPLICATION, ValueType.CONFIGURATION


def link(chain: bytes, index: int, term: int, kind: int, value: bytes) -> bytes:
    return sha256(chain + struct.pack(">QQB", index, term, kind) + value).digest()


def test_chain_begins_with_the_first_configuration_of_the_level() -> None:
    keeper = DigestKeeper()
    keeper.add(1, 1, CONFIGURATION, b"low", COMPARING - 1)
    keeper.add(2, 1, APPLICATION, b"before", None)
    keeper.take(2, b"state")
    assert (keeper.chain, keeper.newest) == (None, None)
    keeper.add(3, 2, CONFIGURATION, b"raised", COMPARING)
    keeper.add(4, 2, APPLICATION, b"after", None)
    chain = link(link(bytes(32), 3, 2, 2, b"raised"), 4, 2, 1, b"after")
    assert keeper.chain == chain
    keeper.take(4, b"state")
    assert keeper.newest is not None
    assert keeper.newest.index == 4
    assert keeper.newest.state == sha256(b"state").hexdigest()[:32]
    assert keeper.newest.chain == chain.hex()[:32]


def test_each_part_of_an_entry_changes_the_chain() -> None:
    chains = set()
    for entry in (
        (5, 1, APPLICATION, b"x"),
        (6, 1, APPLICATION, b"x"),
        (5, 2, APPLICATION, b"x"),
        (5, 1, CONFIGURATION, b"x"),
        (5, 1, APPLICATION, b"y"),
    ):
        keeper = DigestKeeper()
        keeper.restore(bytes(32), 0)
        keeper.add(*entry, None)
        chains.add(keeper.chain)
    assert len(chains) == 5


def test_process_that_has_not_digested_what_was_claimed_does_not_lead_but_votes() -> None:
    keeper = DigestKeeper()
    keeper.restore(bytes(32), 0)
    keeper.take(5, b"state")
    own = keeper.newest
    assert own is not None
    for claimed in (None, Digests(4, own.state, own.chain), Digests(5, own.state, "0" * 31 + "1")):
        assert [keeper.bars(one, claimed) for one in ("", "state", "chain")] == ["", "state", "state"]
    keeper.take(9, b"state")
    assert [keeper.bars(one, own) for one in ("", "state", "chain")] == ["", "state", "chain"]


def test_restored_member_continues_the_chain_and_names_its_origin() -> None:
    keeper = DigestKeeper()
    keeper.restore(b"c" * 32, 2)
    assert keeper.newest is None
    keeper.add(9, 3, APPLICATION, b"x", None)
    keeper.take(9, b"state")
    assert keeper.newest is not None
    assert (keeper.newest.origin, keeper.chain) == (2, link(b"c" * 32, 9, 3, 1, b"x"))


def test_origin_of_a_snapshot_is_told_until_what_was_digested_since_is_confirmed() -> None:
    keeper = DigestKeeper()
    keeper.restore(bytes(32), 2)
    keeper.take(5, b"state")
    own = keeper.newest
    assert own is not None
    assert (own.origin, keeper.has_origin) == (2, True)
    for claimed in (None, Digests(4, own.state, own.chain), Digests(5, "0" * 32, own.chain)):
        keeper.confirm(claimed)
        assert keeper.has_origin
    keeper.confirm(own)
    assert not keeper.has_origin
    keeper.take(9, b"state")
    assert keeper.newest is not None
    assert keeper.newest.origin == 0
    keeper.restore(bytes(32), 2)
    keeper.confirm(own)  # digested before that
    assert keeper.has_origin
