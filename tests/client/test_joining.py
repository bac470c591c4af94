"""How a server asks to join: it finds the leader, and each refusal says what to do and whether time helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import trio
import trio.testing

from garlicfarm.client.joining import NotYet, ask_to_join
from garlicfarm.errors import (
    AuthError,
    GarlicFarmError,
    LocalProtocolError,
    NoQuorum,
    RemoteProtocolError,
    UnreachableError,
)
from garlicfarm.extensions import LEADER_HINT
from garlicfarm.net.handshake import Established
from garlicfarm.refusals import Refusal
from garlicfarm.wire import Limits, RequestDecoder, decode_cluster_server, encode_response
from garlicfarm.wire.messages import NO_LEADER, ClusterServer, Configuration, MessageType, Request, Response

NEW = ClusterServer(4, "ssl://d.example:1?pin=sha256-abc")
MEMBERS = Configuration(1, 0, tuple(ClusterServer(i, f"ssl://m{i}.example:1") for i in (1, 2, 3)))
PROBE, ADD = MessageType.CLIENT_REQUEST, MessageType.ADD_SERVER_REQUEST
Say = Callable[[Request], Response | None]


class Servers:
    """Members that answer by script: id → what it says to a request, None to close; or why it cannot be
    reached. ``asked`` are the ids and types of all requests, in order."""

    def __init__(
        self, nursery: trio.Nursery, script: Mapping[int, Say | GarlicFarmError], *, is_jraft: bool = False
    ) -> None:
        self._is_jraft = is_jraft
        self.asked: list[tuple[int, MessageType]] = []
        self.added: list[ClusterServer] = []
        self._nursery = nursery
        self._script = {f"ssl://m{member}.example:1": (member, say) for member, say in script.items()}

    async def connect(self, endpoint: str) -> Established:
        await trio.lowlevel.checkpoint()
        member, say = self._script[endpoint]
        if isinstance(say, GarlicFarmError):
            raise say
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, member, say, theirs)
        user, extensions = ("", frozenset[str]()) if self._is_jraft else ("4", frozenset({LEADER_HINT}))
        return Established(ours, "farm", user, extensions, None, None, b"")

    async def _serve(self, member: int, say: Say, stream: trio.abc.Stream) -> None:
        decoder = RequestDecoder(Limits())
        while data := await stream.receive_some(1000):
            decoder.receive_data(bytes(data))
            while (request := decoder.next_message()) is not None:
                ends = (0, 0) if self._is_jraft else (NEW.id, member)
                assert (request.source, request.destination) == ends
                self.asked.append((member, request.type))
                if request.type is ADD:
                    self.added.append(decode_cluster_server(request.entries[0].value))
                else:
                    assert request.entries == ()
                answer = say(request)
                if answer is None:
                    break
                await stream.send_all(encode_response(answer))
            else:
                continue
            break
        await stream.aclose()

    async def ask(self, *ids: int) -> int:
        endpoints = {i: f"ssl://m{i}.example:1" for i in ids or (1, 2, 3)}
        return await ask_to_join(NEW, endpoints, self.connect, 2.0, is_jraft=self._is_jraft)


def redirect(member: int, to: int, hint: Configuration | None = MEMBERS) -> Say:
    def say(request: Request) -> Response:
        assert request.type is PROBE
        return Response(MessageType.APPEND_ENTRIES_RESPONSE, member, to, 3, 0, False, hint)

    return say


def leader(member: int, next_index: int, *, accepted: bool = False) -> Say:
    def say(request: Request) -> Response:
        if request.type is PROBE:
            kind = MessageType.APPEND_ENTRIES_RESPONSE
            return Response(kind, member, member, 3, 0, False, MEMBERS)
        kind = MessageType.ADD_SERVER_RESPONSE
        return Response(kind, member, member, 3, next_index, accepted)

    return say


async def test_leader_is_found_through_any_member_and_asked(nursery: trio.Nursery) -> None:
    servers = Servers(nursery, {1: redirect(1, 3), 2: redirect(2, 3), 3: leader(3, 18, accepted=True)})
    assert await servers.ask() == 17
    assert servers.asked == [(1, PROBE), (3, PROBE), (3, ADD)]
    assert servers.added == [NEW]


def jraft_leader(member: int, next_index: int, *, accepted: bool = False) -> Say:
    """As JRaft: a ClientRequest without entries is accepted."""

    def say(request: Request) -> Response:
        if request.type is PROBE:
            return Response(MessageType.APPEND_ENTRIES_RESPONSE, member, member, 3, 18, True)
        return Response(MessageType.ADD_SERVER_RESPONSE, member, member, 3, next_index, accepted)

    return say


async def test_plain_leader_is_found_by_its_id_alone(nursery: trio.Nursery) -> None:
    script: dict[int, Say | GarlicFarmError] = {
        1: redirect(1, 3, hint=None),
        2: UnreachableError("down"),
        3: jraft_leader(3, 18, accepted=True),
    }
    servers = Servers(nursery, script, is_jraft=True)
    assert await servers.ask() == 17
    assert servers.asked == [(1, PROBE), (3, PROBE), (3, ADD)]
    with pytest.raises(LocalProtocolError, match="member 3 leads: name its endpoint too"):
        await servers.ask(1)


@pytest.mark.parametrize(
    "next_index", [2, Refusal.ID_USED_BEFORE.number, Refusal.ENDPOINT_OF_ANOTHER_MEMBER.number, 27]
)
async def test_plain_leader_that_refuses_gives_its_next_index_and_no_reason(nursery, next_index):
    servers = Servers(nursery, {1: jraft_leader(1, next_index)}, is_jraft=True)
    with pytest.raises(NotYet, match="the id 4 is a member's, or another change"):
        await servers.ask(1)


async def test_leader_that_the_token_does_not_know_is_found_by_the_hint(nursery: trio.Nursery) -> None:
    servers = Servers(nursery, {1: redirect(1, 3), 3: leader(3, 18, accepted=True)})
    assert await servers.ask(1) == 17


@pytest.mark.parametrize(
    "first",
    [
        UnreachableError("down"),
        AuthError("rotated there already"),
        RemoteProtocolError("another farm by now"),
        redirect(1, NO_LEADER),
        redirect(1, 99, hint=Configuration(0, 0)),
        lambda request: None,
    ],
    ids=["down", "auth", "other", "no leader", "unknown leader", "closes"],
)
async def test_server_that_is_no_help_is_passed_over(nursery, first):
    servers = Servers(nursery, {1: first, 2: leader(2, 5, accepted=True), 3: UnreachableError("down")})
    assert await servers.ask() == 4


@pytest.mark.parametrize(
    ("reason", "error", "what_next"),
    [
        (Refusal.ID_USED_BEFORE.number, LocalProtocolError, "garlicfarm member token"),
        (Refusal.ENDPOINT_OF_ANOTHER_MEMBER.number, LocalProtocolError, "--endpoint"),
        (Refusal.NO_SUCH_MEMBER.number, RemoteProtocolError, "not known here"),
        (99, RemoteProtocolError, "not known here"),
    ],
)
async def test_refusal_for_good_is_an_error_at_once(nursery, reason, error, what_next):
    servers = Servers(nursery, {1: leader(1, reason), 2: redirect(2, 1), 3: redirect(3, 1)})
    with pytest.raises(error, match=what_next):
        await servers.ask()
    assert servers.asked == [(1, PROBE), (1, ADD)]


@pytest.mark.parametrize(
    ("reason", "error", "what_next"),
    [
        (Refusal.ANOTHER_CHANGE_IN_FLIGHT.number, LocalProtocolError, "try again when it is done"),
        (Refusal.LEADERSHIP_IN_TRANSFER.number, LocalProtocolError, "try again when it is done"),
        (Refusal.CANNOT_BE_DIALLED.number, UnreachableError, "firewall"),
        (Refusal.TOO_FEW_MEMBERS_HEARD.number, NoQuorum, "garlicfarm status"),
    ],
)
async def test_refusal_that_may_pass_is_to_be_repeated(nursery, reason, error, what_next):
    servers = Servers(nursery, {1: leader(1, reason)})
    with pytest.raises(NotYet, match=what_next) as later:
        await servers.ask(1)
    assert isinstance(later.value.reason, error)


@pytest.mark.parametrize(
    ("all_say", "error"),
    [
        ([UnreachableError("down")] * 3, UnreachableError),
        ([redirect(1, NO_LEADER), UnreachableError("down"), redirect(3, NO_LEADER)], NoQuorum),
        ([redirect(1, 2), UnreachableError("down"), redirect(3, 2)], NoQuorum),
    ],
    ids=["all down", "no leader", "leader down"],
)
async def test_nobody_who_leads_is_to_be_asked_again(nursery, all_say, error):
    servers = Servers(nursery, dict(enumerate(all_say, 1)))
    with pytest.raises(NotYet) as later:
        await servers.ask()
    assert isinstance(later.value.reason, error)
    assert str(later.value)


async def test_id_of_a_member_elsewhere_is_refused_before_its_place_is_asked(nursery: trio.Nursery) -> None:
    """The leader itself would not talk to somebody who logs in as itself."""
    taken = Configuration(1, 0, (*MEMBERS.servers, ClusterServer(4, "ssl://m4.example:1")))
    servers = Servers(nursery, {1: redirect(1, 4, taken), 4: leader(4, 5, accepted=True)})
    with pytest.raises(LocalProtocolError, match="ids are used once"):
        await servers.ask(1)
    assert servers.asked == [(1, PROBE)]
    with pytest.raises(LocalProtocolError, match="ids are used once"):
        await servers.ask(4)


@pytest.mark.parametrize("error", [AuthError("wrong password"), RemoteProtocolError("another farm")])
async def test_what_all_servers_that_answer_say_is_final(nursery, error):
    servers = Servers(nursery, {1: UnreachableError("down"), 2: error, 3: error})
    with pytest.raises(type(error), match=str(error)):
        await servers.ask()


async def test_members_that_name_one_another_are_asked_once_each(nursery: trio.Nursery) -> None:
    servers = Servers(nursery, {1: redirect(1, 2), 2: redirect(2, 3), 3: redirect(3, 1)})
    with pytest.raises(NotYet):
        await servers.ask()
    assert [member for member, _ in servers.asked] == [1, 2, 3]


async def test_server_that_never_answers_is_given_up(nursery, autojump_clock):
    async def connect(endpoint: str) -> Established:
        ours, _theirs = trio.testing.memory_stream_pair()
        silent.append(_theirs)
        return Established(ours, "farm", "4", frozenset(), None, None, b"")

    silent: list[trio.abc.Stream] = []
    with trio.fail_after(10), pytest.raises(NotYet):
        await ask_to_join(NEW, {1: "ssl://m1.example:1"}, connect, 2.0)
    assert len(silent) >= 1
