"""A message whose numbers are as small or as large as its fields allow costs a farm an election at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
import pytest

from garlicfarm.errors import LocalProtocolError, ProposalDropped, RemoteProtocolError
from garlicfarm.raft import Change, Role
from garlicfarm.raft.state import MAX_TERM, TERM_CEILING, TERMS_PER_MS
from garlicfarm.testing.memory_storage import encode_snapshot
from garlicfarm.wire import (
    Limits,
    RequestDecoder,
    encode_configuration,
    encode_log_pack,
    encode_request,
    encode_snapshot_sync_request,
)
from garlicfarm.wire.messages import (
    LogEntry,
    MessageType,
    Request,
    Response,
    SnapshotSyncRequest,
    ValueType,
)
from tests.raft.playbook import ALL, APPEND, POLL, VOTE, Player, Stage, configuration, configuration_entry

EXTREMES = (0, 1, 2**31 - 1, 2**32 - 1, 2**32 + 9, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1)
REQUESTS = (
    MessageType.REQUEST_VOTE_REQUEST,
    MessageType.APPEND_ENTRIES_REQUEST,
    MessageType.CLIENT_REQUEST,
    MessageType.SYNC_LOG_REQUEST,
    MessageType.JOIN_CLUSTER_REQUEST,
    MessageType.LEAVE_CLUSTER_REQUEST,
    MessageType.INSTALL_SNAPSHOT_REQUEST,
    MessageType.PRE_VOTE_REQUEST,
    MessageType.TIMEOUT_NOW_REQUEST,
    MessageType.READ_INDEX_REQUEST,
)
"""Those that reach the core."""
HEADER = ("source", "destination", "term", "last_log_term", "last_log_index", "commit_index")
STRANGER = 9
LIMITS = Limits(1 << 20, 1 << 16)


def _farm() -> Stage:
    """Three members; 1 leads term 1, and 5 entries are committed."""
    stage = Stage((), (), (), extensions=ALL, watched=False)
    for player in stage.players.values():
        player.random = 100 + 30 * player.id
    stage.elect(1, 2, 3)
    stage[1].propose(b"a", b"b", b"c", b"d")
    stage.settle(1, 2, 3)
    assert [player.commit for player in stage.players.values()] == [5, 5, 5]
    return stage


def _commits(stage: Stage, rounds: int = 150) -> bool:
    """Whether an entry is committed, and applied by a majority, within so many rounds of 20 ms."""
    for _ in range(rounds):
        for player in stage.players.values():
            player.wait(20)
        for player in stage.players.values():
            if player.node.role is Role.LEADER and not player.outcomes.get(77):
                with suppress(ProposalDropped):
                    player.propose(b"new", token=77)
        for player in stage.players.values():
            for peer, seq, request in player.sent():
                if peer not in stage.players:
                    player.node.report_unreachable(peer, seq)
                    continue
                _deliver(stage, player, stage[peer], seq, request)
        if sum(b"new" in player.state for player in stage.players.values()) >= 2:
            return True
    return False


def _deliver(stage: Stage, sender: Player, receiver: Player, seq: int, request: Request) -> None:
    try:
        response = receiver.take(request)
    except RemoteProtocolError:
        response = None
    if response is None:
        sender.node.report_unreachable(receiver.id, seq)
        sender.turn()
    else:
        sender.hear(seq, response)


def _receive(stage: Stage, request: Request) -> None:
    """All members get it as it comes from the wire, which may refuse it. One that says what only a leader may
    say, and no number of it decides whether it is believed, goes to one member."""
    is_order = bool(request.entries) or request.type is MessageType.LEAVE_CLUSTER_REQUEST
    is_belief = is_order and request.source == 1
    kinds = (MessageType.INSTALL_SNAPSHOT_REQUEST,)
    for player in [stage[3]] if is_belief or request.type in kinds else stage.players.values():
        decoder = RequestDecoder(LIMITS)
        try:
            decoder.receive_data(encode_request(request))
            received = decoder.next_message()
            assert received is not None
            player.take(received)
        except (LocalProtocolError, RemoteProtocolError):
            pass  # the connection ends
        player.turn()


def _snapshot(term: int, **changed: int) -> SnapshotSyncRequest:
    piece = SnapshotSyncRequest(9, term, configuration(8, 1), 0, encode_snapshot(b"state", 4), True)
    names = {name: value for name, value in changed.items() if name in SnapshotSyncRequest.__struct_fields__}
    others = {name: value for name, value in changed.items() if name not in names}
    return msgspec.structs.replace(
        piece, configuration=msgspec.structs.replace(piece.configuration, **others), **names
    )


def _bodies(kind: MessageType, term: int) -> Iterator[tuple[LogEntry, ...]]:
    """The entries of such a request, each with one extreme number; the first ones are ordinary."""
    match kind:
        case MessageType.APPEND_ENTRIES_REQUEST:
            yield ()
            yield (LogEntry(term, ValueType.APPLICATION, b"x"),)
            for number in EXTREMES:
                yield (LogEntry(number, ValueType.APPLICATION, b"x"),)
                yield (configuration_entry(term, number, 1),)
                yield (configuration_entry(term, 6, number),)
        case MessageType.CLIENT_REQUEST:
            yield (LogEntry(0, ValueType.APPLICATION, b"x"),)
            for number in EXTREMES:
                yield (LogEntry(number, ValueType.APPLICATION, b"x"),)
        case MessageType.SYNC_LOG_REQUEST:
            for number in (6, *EXTREMES):
                with suppress(LocalProtocolError):
                    pack = encode_log_pack(number, [LogEntry(term, ValueType.APPLICATION, b"x")] * 2)
                    yield (LogEntry(term, ValueType.LOG_PACK, pack),)
        case MessageType.JOIN_CLUSTER_REQUEST:
            for number in (1, *EXTREMES):
                value = encode_configuration(configuration(number, number, (1, 2, 3)))
                yield (LogEntry(number, ValueType.CONFIGURATION, value),)
        case MessageType.INSTALL_SNAPSHOT_REQUEST:
            pieces = [_snapshot(term)]
            for name in ("last_log_index", "last_log_term", "offset", "log_index"):
                pieces += [_snapshot(term, **{name: number}) for number in EXTREMES]
            for piece in pieces:
                value = encode_snapshot_sync_request(piece)
                yield (LogEntry(term, ValueType.SNAPSHOT_SYNC_REQUEST, value),)
        case _:
            yield ()


def _requests(kind: MessageType) -> Iterator[Request]:
    """Of the leader in its term, and of a stranger in the next one."""
    for source, term in ((1, 1), (STRANGER, 2)):
        plain: Request | None = None
        for body in _bodies(kind, term):
            request = Request(kind, source, 2, term, 1, 5, 5, body)
            plain = plain or request
            yield request
        assert plain is not None
        for name in HEADER:
            for number in EXTREMES:
                yield msgspec.structs.replace(plain, **{name: number})


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.name)
def test_request_with_an_extreme_number_leaves_a_farm_that_commits(kind: MessageType) -> None:
    for request in _requests(kind):
        stage = _farm()
        _receive(stage, request)
        assert _commits(stage), request
        assert max(player.node.term for player in stage.players.values()) < 2**40


def _asking(kind: MessageType) -> tuple[Stage, Player]:
    """A farm with a member that waits for an answer of this kind from member 3."""
    stage = _farm()
    player = stage[1]
    match kind:
        case MessageType.REQUEST_VOTE_RESPONSE | MessageType.PRE_VOTE_RESPONSE:
            player = stage[2]
            player.doubt()
            while not any(request.type + 1 == kind for _, _, request in player.requests):
                for peer, seq, request in player.sent():
                    response = stage[1].take(request) if peer == 1 else None
                    if request.type is POLL:
                        player.answer(seq, request, accepted=True)
                    elif response is not None:
                        player.hear(seq, response)
                player.wait(10)
        case MessageType.TIMEOUT_NOW_RESPONSE:
            player.transfer(3)
        case MessageType.READ_INDEX_RESPONSE:
            player = stage[3]
            player.read(5)
        case MessageType.INSTALL_SNAPSHOT_RESPONSE:
            for index in range(3):
                player.propose(b"missed", token=index)
                stage.deliver(1, 2)
            stage.settle(1, 2)
            player.take_snapshot()
            for _ in range(3):
                player.wait(60)
                for peer, seq, request in player.sent():
                    if request.type is MessageType.INSTALL_SNAPSHOT_REQUEST:
                        player.requests.append((peer, seq, request))
                    elif peer == 3 and not any(r.type + 1 == kind for _, _, r in player.requests):
                        player.answer(seq, request, 6, accepted=False)
                    else:
                        _deliver(stage, player, stage[peer], seq, request)
        case MessageType.JOIN_CLUSTER_RESPONSE | MessageType.SYNC_LOG_RESPONSE:
            for _ in range(120 if kind is MessageType.SYNC_LOG_RESPONSE else 0):
                player.propose(b"x", token=1)
                stage.deliver(1, 2, 3)
            stage.settle(1, 2, 3)
            if kind is MessageType.SYNC_LOG_RESPONSE:
                player.add(4)
            else:
                player.change(Change.ADD, 4)
        case _:
            player.propose(b"y", token=9)
    return stage, player


RESPONSES = (
    MessageType.REQUEST_VOTE_RESPONSE,
    MessageType.APPEND_ENTRIES_RESPONSE,
    MessageType.SYNC_LOG_RESPONSE,
    MessageType.JOIN_CLUSTER_RESPONSE,
    MessageType.INSTALL_SNAPSHOT_RESPONSE,
    MessageType.PRE_VOTE_RESPONSE,
    MessageType.TIMEOUT_NOW_RESPONSE,
    MessageType.READ_INDEX_RESPONSE,
)


@pytest.mark.parametrize("kind", RESPONSES, ids=lambda kind: kind.name)
def test_response_with_an_extreme_number_leaves_a_farm_that_commits(kind: MessageType) -> None:
    for accepted in (True, False):
        for term, next_index in [(None, n) for n in EXTREMES] + [(n, 6) for n in EXTREMES]:
            stage, player = _asking(kind)
            peer, seq, request = next(item for item in player.requests if item[2].type + 1 == kind)
            player.requests.remove((peer, seq, request))
            own = player.node.term if term is None else term
            player.hear(seq, Response(kind, peer, player.id, own, next_index, accepted))
            assert _commits(stage), (kind, term, next_index, accepted)
            assert max(player.node.term for player in stage.players.values()) < 2**40


@pytest.mark.parametrize(
    ("own", "named", "is_taken"),
    [
        (5, TERM_CEILING, True),
        (5, TERM_CEILING + 1, False),
        (TERM_CEILING, TERM_CEILING + 1, True),
        (TERM_CEILING, TERM_CEILING + 2, False),
        (TERM_CEILING + 7, TERM_CEILING + 8, True),
        (MAX_TERM - 1, MAX_TERM, True),
        (MAX_TERM, MAX_TERM + 1, False),
    ],
)
@pytest.mark.parametrize("kind", [APPEND, VOTE, POLL], ids=lambda kind: kind.name)
def test_message_raises_the_term_to_the_ceiling_or_to_the_next_one(
    kind: MessageType, own: int, named: int, is_taken: bool
) -> None:
    player = Player(term=own)
    request = Request(kind, STRANGER, 1, named)
    assert player.node.accepts_term(named) is is_taken
    if is_taken:
        assert player.take(request) is not None
        assert player.node.term == (own if kind is POLL else named)
    else:
        picture = player.picture
        with pytest.raises(RemoteProtocolError, match="no election made"):
            player.take(request)
        assert player.picture == picture


def test_answer_of_a_member_in_a_term_too_high_counts_as_none() -> None:
    stage = _farm()
    leader = stage[1]
    for _ in range(10):
        leader.wait(50)
        leader.answer_each(leader.sent(), 1, accepted=False, term=MAX_TERM)
    assert leader.node.role is not Role.LEADER, "members in such a term are no majority that answers"
    assert leader.node.term == 1


def test_member_that_holds_a_term_too_high_deposes_no_leader() -> None:
    stage = _farm()
    stage.players[3] = Player(3, (1,) * 5, term=MAX_TERM - 7, commit=5, extensions=ALL)
    for _ in range(30):
        for player in stage.players.values():
            player.wait(20)
        for player in stage.players.values():
            for peer, seq, request in player.sent():
                _deliver(stage, player, stage[peer], seq, request)
    assert (stage[1].node.role, stage[1].node.term) == (Role.LEADER, 1)
    assert _commits(stage)


def test_leader_that_was_added_while_a_member_was_away_is_followed() -> None:
    player = Player(3, (1, 1), commit=2)
    entries: Sequence[LogEntry] = (configuration_entry(4, 3, 0, (1, 2, 3, 4)),)
    assert player.append(5, (2, 1), entries, commit=2, source=4).accepted
    assert (player.node.leader, player.node.term) == (4, 5)


def test_server_that_is_no_member_takes_the_term_of_the_farm_that_brings_it_in() -> None:
    player = Player(STRANGER, members=())
    entry = LogEntry(2**62 + 7, ValueType.CONFIGURATION, encode_configuration(configuration(1)))
    response = player.take(
        Request(MessageType.JOIN_CLUSTER_REQUEST, 1, STRANGER, 2**62 + 7, entries=(entry,))
    )
    assert response.accepted
    assert player.node.term == 2**62 + 7


def test_members_that_messages_brought_apart_find_together_again() -> None:
    """Each member gets other terms, many in one piece: no distance between them is too large."""
    stage = _farm()
    for member, count in {1: 20, 2: 60}.items():
        for _ in range(count):
            stage[member].append(stage[member].node.term + 50_000, source=STRANGER)
    assert _commits(stage)


def test_configuration_that_names_an_index_which_is_never_applied_is_refused() -> None:
    """A member that took it would never campaign: it waits until that index is applied."""
    player = Player(1, (1,), extensions=ALL)
    with suppress(RemoteProtocolError):
        player.append(2, (1, 1), [configuration_entry(2, 2**40, 0)], commit=2)
    player.doubt()
    player.wait(400)
    assert player.node.role is Role.CANDIDATE


def test_ceiling_rises_with_the_clock_and_stays_below_the_highest_term() -> None:
    player = Player(term=5)
    for unix_ms, highest in ((0, TERM_CEILING), (-7, TERM_CEILING), (9, TERM_CEILING + 9 * TERMS_PER_MS)):
        player.node.limit_terms(unix_ms)
        assert player.node.accepts_term(highest)
        assert not player.node.accepts_term(highest + 1)
    player.node.limit_terms(2**63)
    assert not player.node.accepts_term(2**62 + 1)


def test_member_whose_clock_is_slow_follows_as_soon_as_its_clock_has_come_there() -> None:
    player = Player(3, term=5)
    with pytest.raises(RemoteProtocolError):
        player.append(TERM_CEILING + TERMS_PER_MS)
    player.wait(1)
    assert player.append(TERM_CEILING + TERMS_PER_MS) is not None
    assert player.node.leader == 2
