"""Whatever comes in, in whatever state: a member refuses it with the errors that are documented, and then
nothing has changed; or takes it, and goes on. Members that lie may mislead it, but nobody ends it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garlicfarm.errors import LocalProtocolError, ProposalDropped, RemoteProtocolError
from garlicfarm.raft import Change, ConfChange, Ready, Role
from garlicfarm.wire import encode_configuration, encode_log_pack, encode_snapshot_sync_request
from garlicfarm.wire.messages import (
    ClusterServer,
    LogEntry,
    MessageType,
    Request,
    Response,
    SnapshotSyncRequest,
    ValueType,
)
from tests.raft.playbook import ALL, SNAPSHOT, Player, configuration, configuration_entry

LOG = (1,) * 110 + (2,) * 40
"""Long enough that a new server is sent packs."""


def _empty() -> Player:
    return Player()


def _joiner() -> Player:
    return Player(9, members=())


def _alone() -> Player:
    return Player(members=(1,)).lead()


def _follower() -> Player:
    player = Player(1, LOG, commit=120, extensions=ALL)
    player.append(3, (150, 2), [configuration_entry(3, 151, 0, (1, 2, 3, 4))], commit=130)
    return player


def _reading_follower() -> Player:
    player = _follower()
    player.read(2)
    return player


def _voter() -> Player:
    player = Player(1, LOG, extensions=ALL)
    player.slow_disk = True
    player.ask_vote(5, (150, 2), 3)
    return player


def _receiver() -> Player:
    """A part of a snapshot has come, and waits to be stored."""
    player = Player(1, (1, 1), extensions=ALL)
    player.slow_disk = True
    player.piece(SnapshotSyncRequest(40, 2, configuration(), 0, b"part", False), 2)
    return player


def _polling() -> Player:
    player = Player(1, LOG, extensions=ALL)
    player.wait(100)
    assert player.node.role is Role.CANDIDATE
    return player


def _standing() -> Player:
    player = Player(1, LOG)
    player.slow_disk = True
    player.requests.extend(player.campaign())
    return player


def _new_leader() -> Player:
    return Player(1, LOG, extensions=ALL).lead()


def _leader() -> Player:
    player = _new_leader()
    player.accept()
    player.accept()
    player.propose(b"on its way")
    player.read(2)
    return player


def _asked_leader() -> Player:
    """Reads of its own and of followers wait, before an entry of its term is committed."""
    player = _new_leader()
    player.read(2)
    player.ask_index(3)
    return player


def _handing_over() -> Player:
    player = _leader()
    player.accept(peer=2)
    player.transfer(2)
    return player


def _inviting() -> Player:
    player = _leader()
    player.change(Change.ADD, 4)
    return player


def _packing() -> Player:
    player = _leader()
    player.add(4)
    return player


def _sending_snapshot() -> Player:
    player = _leader()
    player.accept(peer=2)
    player.take_snapshot()
    player.lose(3)
    player.wait(50)
    assert any(request.type is SNAPSHOT for _, _, request in player.requests)
    return player


def _being_removed() -> Player:
    player = _leader()
    player.accept()
    player.change(Change.REMOVE, 1)
    return player


STATES: list[Callable[[], Player]] = [
    _empty,
    _joiner,
    _alone,
    _follower,
    _reading_follower,
    _voter,
    _receiver,
    _polling,
    _standing,
    _new_leader,
    _leader,
    _asked_leader,
    _handing_over,
    _inviting,
    _packing,
    _sending_snapshot,
    _being_removed,
]
NUMBERS = st.sampled_from((0, 1, 2, 3, 4, 40, 150, 151, 152, 500, 2**63 - 1, 2**64 - 1))
MEMBERS = st.sampled_from((1, 2, 3, 4, 9, 2**31 - 1))
PACKED = (ValueType.APPLICATION, ValueType.CONFIGURATION)
CONFIGURATIONS = st.builds(configuration, NUMBERS, NUMBERS, st.lists(MEMBERS, max_size=4, unique=True))
PIECES = st.builds(
    SnapshotSyncRequest, NUMBERS, NUMBERS, CONFIGURATIONS, NUMBERS, st.binary(max_size=40), st.booleans()
)
ENTRIES = st.builds(
    LogEntry, st.integers(0, 4), st.sampled_from((ValueType.APPLICATION, *ValueType)), st.binary(max_size=3)
)
VALUES = st.one_of(
    ENTRIES,
    st.builds(lambda c: LogEntry(2, ValueType.CONFIGURATION, encode_configuration(c)), CONFIGURATIONS),
    st.builds(
        lambda p: LogEntry(2, ValueType.SNAPSHOT_SYNC_REQUEST, encode_snapshot_sync_request(p)), PIECES
    ),
    st.builds(
        lambda entries, offset: LogEntry(2, ValueType.LOG_PACK, encode_log_pack(offset, entries)),
        st.lists(ENTRIES.filter(lambda entry: entry.value_type in PACKED), max_size=3),
        st.integers(0, 9),
    ),
)
REQUESTS = st.builds(
    Request,
    st.sampled_from(MessageType),
    *(MEMBERS | st.just(0),) * 2,
    *(NUMBERS,) * 4,
    st.lists(VALUES, max_size=3).map(tuple),
)
RESPONSES = st.builds(
    Response, st.sampled_from(MessageType), MEMBERS, MEMBERS, NUMBERS, NUMBERS, st.booleans()
)
CHANGES = st.builds(
    ConfChange,
    st.sampled_from(Change),
    st.builds(ClusterServer, MEMBERS, st.sampled_from(("", "tcp://m2:1", "tcp://new:1"))),
    st.booleans(),
)


def _call(
    player: Player, data: st.DataObject, token: int
) -> tuple[Callable[[], object], tuple[type[Exception], ...]]:
    """One input, and how it may be refused."""
    node, kind = player.node, data.draw(st.sampled_from((*("step",) * 4, *("hear",) * 6, *range(8))))
    match kind:
        case "step":
            return partial(node.step, data.draw(REQUESTS), token), (RemoteProtocolError,)
        case "hear":
            return partial(node.step_response, *_answer(player, data)), ()
        case 0:
            seq = data.draw(st.none() | st.integers(0, 30))
            return partial(node.report_unreachable, data.draw(MEMBERS), seq), ()
        case 1:
            names = data.draw(st.sampled_from((ALL, frozenset[str]())))
            return partial(node.set_extensions, data.draw(MEMBERS), names), ()
        case 2:
            values = data.draw(st.lists(st.binary(max_size=3), max_size=2))
            return partial(node.propose, values, token), (ProposalDropped, LocalProtocolError)
        case 3:
            return partial(node.propose_conf_change, data.draw(CHANGES), token), (ProposalDropped,)
        case 4:
            return partial(node.transfer_leadership, data.draw(MEMBERS | st.just(0))), (ProposalDropped,)
        case 5:
            return partial(node.read_index, token), (ProposalDropped,)
        case 6:
            return partial(player.wait, data.draw(st.sampled_from((0, 50, 100, 400)))), ()
        case _:
            return player.sync if player.disk.pending else player.turn, ()


def _answer(player: Player, data: st.DataObject) -> tuple[int, Response]:
    """Mostly to what was asked, in the right type and term; but its numbers lie."""
    response = data.draw(RESPONSES)
    if not player.requests or data.draw(st.integers(0, 3)) == 3:
        return data.draw(st.integers(0, 30)), response
    peer, seq, request = data.draw(st.sampled_from(list(player.requests)[::-1]))
    kind = MessageType(request.type + 1)
    term = data.draw(st.sampled_from((request.term, request.term, response.term)))
    return seq, Response(kind, peer, 1, term, response.next_index, response.accepted)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__.strip("_"))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_input_of_any_kind_in_any_state_is_refused_as_documented_or_taken(
    state: Callable[[], Player], data: st.DataObject
) -> None:
    player = state()
    for token in range(1000, 1010):
        call, errors = _call(player, data, token)
        before, picture = player.node.status(), player.picture
        try:
            call()
        except errors:
            assert player.picture == picture
            assert player.node.ready() == Ready()
        player.node.tick(player.now)
        player.turn()
        after = player.node.status()
        assert before.term <= after.term
        assert before.term < after.term or before.vote in (0, after.vote)
        assert before.commit <= after.commit
        assert before.applied <= after.applied <= after.commit <= after.last_index
        assert all(peer.match_index < peer.next_index for peer in after.peers.values())
    player.sync_all()
    player.wait(400)


@pytest.mark.parametrize("state", [_new_leader, _leader, _inviting, _packing, _sending_snapshot])
@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("next_index", [0, 1, 2, 40, 150, 151, 152, 500, 2**63, 2**64 - 1])
def test_answers_that_get_nothing_on_come_to_an_end_before_the_next_heartbeat(
    state: Callable[[], Player], accepted: bool, next_index: int
) -> None:
    player = state()
    rounds = 0
    while waiting := player.sent():
        rounds += 1
        assert rounds <= len(LOG) + 5  # a refusal leads back by an entry at least
        player.answer_each(waiting, next_index, accepted)
