"""A client whose server owes an answer and is silent: it leaves that one where another leads, only then."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from garlicfarm.client.farm import PATIENCE, FarmClient
from garlicfarm.errors import OutcomeUnknown
from garlicfarm.transport import Peer
from garlicfarm.wire.messages import NO_LEADER, MessageType, Request, Response
from tests.client.test_farm_client_leader_header import MEMBERS, TIMEOUT_S, Server, farm
from tests.running import background

Clock = trio.testing.MockClock
PATIENCE_S = PATIENCE * TIMEOUT_S


class Member(Server):
    """One that says that ``leader`` leads in ``term``. It answers a post after ``commits_s`` and everything
    after ``delay_s``; nothing once it is ``stopped``. ``posts`` are the entries that were sent to it."""

    def __init__(self, server: int, leader: int, term: int = 1) -> None:
        super().__init__(server, leader, leader)
        self.term = term
        self.commits_s = self.delay_s = 0.0
        self.is_stopped = False
        self.posts: list[bytes] = []
        self.questions = 0
        self.unanswered = 0

    async def take(self, request: Request) -> Response:
        self.posts += [entry.value for entry in request.entries]
        if not request.entries:
            self.questions += 1
            self.unanswered += 1
        await trio.sleep(self.delay_s + (self.commits_s if request.entries else 0))
        if self.is_stopped:
            await trio.sleep_forever()
        self.unanswered -= not request.entries
        return self.answer()

    def answer(self) -> Response:
        kind, leads = MessageType.APPEND_ENTRIES_RESPONSE, self.leader == self.id
        hint = None if leads else MEMBERS
        return Response(kind, self.id, self.leader, self.term, 8 if leads else 0, leads, hint)


def three() -> tuple[Member, Member, Member]:
    """The first one leads."""
    return Member(1, 1), Member(2, 1), Member(3, 1)


def elect(leader: Member, *voters: Member) -> None:
    for member in (leader, *voters):
        member.leader, member.term = leader.id, member.term + 1


async def unknown_after(client: FarmClient, *entries: bytes) -> float:
    """How long a post took whose outcome is unknown."""
    begun = trio.current_time()
    with pytest.raises(OutcomeUnknown):
        await client.post(entries)
    return trio.current_time() - begun


@pytest.mark.parametrize("new", [2, 3])
async def test_leader_that_falls_silent_is_left_once_another_one_leads(
    new: int, autojump_clock: Clock
) -> None:
    members = first, *others = three()
    async with farm(*members, known=3) as client:
        await client.post([b"before"])
        first.is_stopped = True

        async def election() -> None:
            await trio.sleep(TIMEOUT_S / 3)
            elect(*sorted(others, key=lambda member: member.id != new))

        async with background(election):
            assert TIMEOUT_S / 3 < await unknown_after(client, b"lost") < TIMEOUT_S / 3 + PATIENCE_S
        before = trio.current_time()
        assert await client.post([b"after"]) == (7, 2)
        assert trio.current_time() - before < PATIENCE_S / 10, "its connection is up"
    assert first.posts == [b"before", b"lost"]
    assert [member.posts for member in others] == [
        [b"after"] if member.id == new else [] for member in others
    ]


async def test_leader_that_the_client_was_not_told_of_is_found(autojump_clock: Clock) -> None:
    members = first, second, third = three()
    async with farm(*members, known=2) as client:
        await client.post([b"before"])
        first.is_stopped = True
        elect(third, second)
        assert await unknown_after(client, b"lost") < 3 * PATIENCE_S
        assert await client.post([b"after"]) == (7, 2)
    assert (second.posts, third.posts) == ([], [b"after"])


async def test_leader_that_another_names_is_asked_next(autojump_clock: Clock) -> None:
    members = first, *others = [Member(server, 1) for server in range(1, 8)]
    async with farm(*members, known=7) as client:
        await client.post([b"before"])
        first.is_stopped = True
        elect(members[-1], *others[:-1])
        await unknown_after(client, b"lost")
    assert [member.questions for member in others] == [1, 0, 0, 0, 0, 1]


async def test_silent_one_among_the_others_is_passed_over(autojump_clock: Clock) -> None:
    members = first, second, third = three()
    async with farm(*members, known=3) as client:
        await client.post([b"before"])
        first.is_stopped = second.is_stopped = True
        elect(third, second)
        assert await unknown_after(client, b"lost") < 3 * PATIENCE_S


async def test_everything_that_waits_for_the_silent_leader_is_unknown_and_nothing_is_repeated(autojump_clock):
    members = first, second, third = three()
    async with farm(*members, known=3) as client:
        await client.post([b"before"])
        first.is_stopped = True
        elect(second, third)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(unknown_after, client, b"%d" % number)
    assert len(set(first.posts)) == len(first.posts)
    assert (second.posts, third.posts) == ([], [])


async def test_leader_whose_commits_are_slow_is_asked_on(autojump_clock: Clock) -> None:
    """As where its disk hangs: the others say that it leads."""
    members = first, *others = three()
    async with farm(*members, known=3) as client:
        await client.post([b"before"])
        first.commits_s = 10 * PATIENCE_S
        assert await client.post([b"slow"]) == (7, 1)
    assert first.posts == [b"before", b"slow"]
    assert all(member.questions for member in others), "it was doubted"
    assert [member.logins for member in members] == [1, 1, 1]
    assert not any(member.posts for member in others)


@pytest.mark.parametrize("named", [2, 4], ids=["itself", "each other"])
async def test_others_that_are_wrong_do_not_hide_the_one_that_leads(
    named: int, autojump_clock: Clock
) -> None:
    members = first, second, third, fourth = [Member(server, 1) for server in range(1, 5)]
    async with farm(*members, known=4) as client:
        await client.post([b"before"])
        first.is_stopped = True
        second.leader, fourth.leader = named, 2
        elect(third)
        assert await unknown_after(client, b"lost") < 3 * PATIENCE_S
        assert await client.post([b"after"]) == (7, 2)


@pytest.mark.parametrize("term", [0, 1])
async def test_leader_that_is_slow_is_not_left_for_one_of_the_past(term: int, autojump_clock: Clock) -> None:
    members = first, second, third = three()
    async with farm(*members, known=3) as client:
        await client.post([b"before"])
        second.leader, second.term = 2, term  # it does not know yet that it was replaced
        first.commits_s = 10 * PATIENCE_S
        assert await client.post([b"slow"]) == (7, 1)
    assert second.questions
    assert (second.posts, third.posts) == ([], [])


async def test_leader_that_answers_meanwhile_is_left_to_say_itself_that_it_leads_no_more(autojump_clock):
    members = first, second, third = three()
    async with farm(*members, known=3) as client:
        await client.post([b"before"])
        second.leader, second.term, second.delay_s = 2, 2, 0.9 * PATIENCE_S
        first.commits_s = 1.5 * PATIENCE_S
        await client.post([b"it answers while another one is asked"])
        assert second.questions == 1
        await client.post([b"and now as well"])
    assert (len(first.posts), second.posts, third.posts) == (3, [], [])


async def test_leader_that_answers_late_from_afar_is_not_doubted(autojump_clock: Clock) -> None:
    """A round trip takes seconds within I2P."""
    members = first, *others = three()
    first.delay_s = 5 * PATIENCE_S
    async with farm(*members, known=3) as client:
        await client.post([b"the first one"])
        asked = sum(member.questions for member in others)
        await client.post([b"as usual"])
    assert asked > 0
    assert sum(member.questions for member in others) == asked


async def test_answer_that_took_long_once_does_not_make_the_client_patient(autojump_clock: Clock) -> None:
    members = first, second, third = three()
    async with farm(*members, known=3) as client:
        await client.post([b"before"])
        first.commits_s = 10 * PATIENCE_S
        await client.post([b"slow"])
        first.is_stopped = True
        elect(second, third)
        assert await unknown_after(client, b"lost") < 3 * PATIENCE_S


def silent(member: Member) -> None:
    member.is_stopped = True


def naming_no_one(member: Member) -> None:
    member.leader, member.term = NO_LEADER, 2


def naming_a_stranger(member: Member) -> None:
    member.leader, member.term = 99, 2


def naming_each_other(member: Member) -> None:
    member.leader, member.term = 5 - member.id, 2


@pytest.mark.parametrize("become", [silent, naming_no_one, naming_a_stranger, naming_each_other])
async def test_others_that_do_not_lead_change_nothing(become, autojump_clock):
    members = first, *others = three()
    async with farm(*members, known=3) as client:
        await client.post([b"before"])
        for member in others:
            become(member)
        first.is_stopped = True
        assert await unknown_after(client, b"lost") == pytest.approx(TIMEOUT_S)
    assert sum(len(member.posts) for member in members) == 2
    assert 0 < sum(member.questions for member in others) < 2 * TIMEOUT_S / 0.05


class Down(Member):
    """Connections to it end at once."""

    async def handle(self, stream: trio.abc.Stream, peer: Peer) -> None:
        await stream.aclose()


@pytest.mark.parametrize("others", [(), (Down(2, 2), Down(3, 2))], ids=["unknown", "down"])
async def test_without_others_that_answer_nothing_changes(others, autojump_clock):
    first = Member(1, 1)
    async with farm(first, *others, known=3) as client:
        await client.post([b"before"])
        first.is_stopped = True
        assert await unknown_after(client, b"lost") == pytest.approx(TIMEOUT_S)


async def test_one_question_at_a_time_is_asked(autojump_clock: Clock) -> None:
    members = first, *others = three()
    most = 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, sum(member.unanswered for member in others))
            await trio.sleep(PATIENCE_S / 20)

    async with farm(*members, known=3) as client, background(count):
        await client.post([b"before"])
        for member in others:
            member.delay_s = 0.9 * PATIENCE_S
        first.commits_s = TIMEOUT_S * 0.9
        await client.post([b"slow"])
    assert sum(member.questions for member in others) > 5
    assert most == 1
