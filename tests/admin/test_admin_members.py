"""Members and leadership over the admin API: what is asked of the farm, and what becomes of a refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import trio

from garlicfarm.admin.problems import problem_of
from garlicfarm.client import AdminClient
from garlicfarm.errors import NotLeader, OutcomeUnknown, ProposalDropped, UnreachableError
from garlicfarm.refusals import Refusal
from tests.admin.fake_node import FakeNode

NEW = "ssl://d.example:27150?pin=sha256-abc"


async def test_client_asks_for_each_change_in_the_users_name(node: FakeNode, url: str) -> None:
    async with node.client(url) as client:
        assert await client.members("farm") == node.farm.members()
        assert await client.add_member("farm", 4, NEW) == (1, 3)
        assert await client.set_member("farm", 2, NEW) == (2, 3)
        assert await client.remove_member("farm", 2) == (3, 3)
        assert await client.remove_member("farm", 3, force=True) == (4, 3)
        assert await client.step_down("farm") == 2
        assert await client.step_down("farm", 3) == 3
        assert await client.repair("farm") == 7
    assert node.farm.changes == [
        ("add", 4, NEW, False, "anna"),
        ("set", 2, NEW, False, "anna"),
        ("remove", 2, "", False, "anna"),
        ("remove", 3, "", True, "anna"),
    ]


ASKED: list[Callable[[AdminClient], Awaitable[object]]] = [
    lambda client: client.members("farm"),
    lambda client: client.add_member("farm", 4, NEW),
    lambda client: client.set_member("farm", 4, NEW),
    lambda client: client.remove_member("farm", 4),
    lambda client: client.step_down("farm"),
]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "members", b""),
        ("POST", "members", b"[]"),
        ("POST", "members", b'{"id": 4}'),
        ("POST", "members", b'{"id": "4", "endpoint": "ssl://d.example:1"}'),
        ("POST", "members", b'{"id": 0, "endpoint": "ssl://d.example:1"}'),
        ("POST", "members", b'{"id": 2147483648, "endpoint": "ssl://d.example:1"}'),
        ("POST", "members", b'{"id": 4, "endpoint": "d.example"}'),
        ("POST", "members", b'{"id": 4, "endpoint": "ssl://0.0.0.0:1"}'),
        ("POST", "members", b'{"id": 4, "endpoint": "\xff"}'),
        ("PATCH", "members/4", b"{}"),
        ("PATCH", "members/four", b'{"endpoint": "ssl://d.example:1"}'),
        ("PATCH", "members/-4", b'{"endpoint": "ssl://d.example:1"}'),
        ("DELETE", "members/0", b""),
        ("DELETE", "members/99999999999999999999", b""),
        ("DELETE", "members/4?force=perhaps", b""),
        ("POST", "leader/stepdown", b'{"to": "me"}'),
        ("POST", "leader/stepdown", b""),
        ("POST", "repair", b""),
        ("POST", "level", b""),
        ("POST", "level", b'{"level": 0}'),
        ("POST", "level", b'{"level": "1"}'),
        ("POST", "level", b'{"level": 4294967296}'),
    ],
)
async def test_nonsense_is_refused_before_the_farm_is_asked(node, http, method, path, body):
    response = await http.request(method, f"/v1/farms/farm/{path}", content=body)
    assert response.status_code == 400, response.text
    assert response.json()["next"] in ("Correct it.", "Correct the query.")
    assert node.farm.changes == []
    assert node.farm.posted_by == []


@pytest.mark.parametrize(
    ("refused", "reason", "detail", "what_next"),
    [
        (
            ProposalDropped(Refusal.TOO_FEW_MEMBERS_HEARD),
            "too-few-members-heard",
            "too few members heard",
            "or use force",
        ),
        (ProposalDropped(Refusal.ID_USED_BEFORE), "id-used-before", "id used before", "Ids are used once"),
        (
            ProposalDropped(Refusal.CANNOT_BE_DIALLED, "[::1]: connection-refused"),
            "cannot-be-dialled: [::1]: connection-refused",
            "cannot be dialled: [::1]: connection-refused",
            "must be running",
        ),
        (
            ProposalDropped(Refusal.JOINER_DOES_NOT_ANSWER),
            "the-new-server-does-not-answer",
            "the new server does not answer",
            "repeat `garlicfarm node join`",
        ),
        (
            ProposalDropped(Refusal.LEADERSHIP_LOST_MEANWHILE),
            "leadership-was-lost-before-the-new-server-had-caught-up",
            "leadership was lost before the new server had caught up",
            "continues where it stopped",
        ),
    ],
    ids=str,
)
async def test_refused_change_is_a_conflict_that_says_why_and_what_to_do(
    node, url, http, refused, reason, detail, what_next
):
    node.farm.post_error = refused
    response = await http.delete("/v1/farms/farm/members/2")
    assert response.status_code == 409
    problem = response.json()
    assert (problem["type"], problem["reason"]) == ("garlicfarm:change-refused", reason)
    assert problem["detail"] == detail
    async with node.client(url) as client:
        with pytest.raises(ProposalDropped) as told:
            await client.remove_member("farm", 2)
    assert (told.value.reason, told.value.detail) == (refused.reason, refused.detail)
    assert detail in str(told.value)
    assert what_next in str(told.value)


CONFLICTS = {
    Refusal.NO_SUCH_MEMBER,
    Refusal.A_MEMBER_ALREADY,
    Refusal.ID_USED_BEFORE,
    Refusal.ANOTHER_CHANGE_IN_FLIGHT,
    Refusal.CANNOT_BE_DIALLED,
    Refusal.ENDPOINT_OF_ANOTHER_MEMBER,
    Refusal.CANNOT_FOLLOW_LEVEL,
    Refusal.LEVEL_REACHED,
    Refusal.THE_LAST_MEMBER,
    Refusal.TOO_FEW_MEMBERS_HEARD,
    Refusal.ANOTHER_TOOK_OVER,
    Refusal.LEADS_ITSELF,
    Refusal.NOT_COMPARED,
    Refusal.JOINER_REFUSES,
    Refusal.JOINER_DOES_NOT_ANSWER,
    Refusal.JOINER_DOES_NOT_CATCH_UP,
    Refusal.LEADERSHIP_LOST_MEANWHILE,
}


@pytest.mark.parametrize("reason", sorted({*Refusal} - {Refusal.DISK_FULL}))  # which refuses posts only
def test_refused_change_is_a_conflict_unless_it_helps_to_try_again_in_a_moment(reason: Refusal) -> None:
    problem = problem_of(ProposalDropped(reason))
    assert problem is not None
    assert problem.members == {"reason": reason.value}
    is_conflict = reason in CONFLICTS
    expected = (409, "change-refused") if is_conflict else (503, "proposal-dropped")
    assert (problem.status, problem.kind) == expected
    assert (problem.next_step == "Nothing was appended. Try again in a moment.") is not is_conflict


async def test_change_that_takes_long_has_an_unknown_outcome(node, url, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.responses.COMMIT_DEADLINE_S", 0.05)
    node.farm.post_blocks = True
    async with node.client(url) as client:
        for ask in ASKED[1:]:
            with pytest.raises(OutcomeUnknown):
                await ask(client)


async def test_follower_that_knows_the_leaders_url_leads_the_client_there(node, url, tmp_path):
    leader = FakeNode(tmp_path / "leader")
    async with leader.running() as its_url, node.client(url) as client:
        node.farm.post_error = NotLeader(2, f"ssl://b.example:1?pin={leader.pin}")
        with pytest.raises(NotLeader):
            await client.remove_member("farm", 3)
        node.farm.url_of_leader = its_url
        assert await client.remove_member("farm", 3) == (1, 3)
        assert leader.farm.changes == [("remove", 3, "", False, "anna")]
        node.farm.post_error = None
        assert await client.set_member("farm", 2, NEW) == (2, 3), "and it is asked first from now on"
    assert len(leader.farm.changes) == 2


@pytest.mark.parametrize("why", ["another certificate", "no user there", "no pin", "nobody there", "itself"])
async def test_leader_that_cannot_be_followed_is_named(node, url, tmp_path, why):
    leader = FakeNode(tmp_path / "leader")
    async with leader.running() as its_url, node.client(url) as client:
        pin = {"another certificate": f"?pin={node.pin}", "no pin": ""}.get(why, f"?pin={leader.pin}")
        node.farm.post_error = NotLeader(2, f"ssl://b.example:1{pin}")
        node.farm.url_of_leader = {"nobody there": "https://127.0.0.1:9", "itself": url}.get(why, its_url)
        if why == "no user there":
            leader.users.remove("anna")
        with pytest.raises(NotLeader) as told:
            await client.remove_member("farm", 3)
        assert told.value.leader_id == 2
        assert (await client.members("farm"))["leader"] == 1, "questions are answered here all the same"
    assert leader.farm.changes == []


async def test_nodes_that_send_each_other_on_for_ever_are_left(node: FakeNode) -> None:
    node.farm.post_error = NotLeader(2, f"ssl://b.example:1?pin={node.pin}")
    async with AsyncExitStack() as stack:
        async with node.running() as url:
            client = await stack.enter_async_context(node.client(url))
            for port in range(1, 60):
                node.farm.url_of_leader = f"https://127.0.0.1:{port}"
                with trio.fail_after(240), pytest.raises(NotLeader):
                    await client.remove_member("farm", 3)
        with pytest.raises(UnreachableError) as told:
            await client.members("farm")
    assert str(told.value).count("https://") == 17, "it asks these, and no more"
