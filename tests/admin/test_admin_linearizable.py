"""``linearizable=true``: what it makes of each question, and how a client finds the node that may answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
import pytest
import trio
from starlette.routing import Route

from garlicfarm.admin.app import create_app
from garlicfarm.client import AdminClient
from garlicfarm.errors import DiskHangs, GarlicFarmError, NoQuorum, NotLeader, ProposalDropped
from garlicfarm.refusals import Refusal
from tests.admin.fake_node import FakeNode, client_of

FARM = "/v1/farms/{farm}/"
READS = ["status", "log", "log/extent", "state", "state/oldest", "snapshot", "ranking", "policy", "members"]
OF_THE_NODE = ["readers", "rankings", "rankings/{query}"]
"""These answer what this node keeps, which no other member confirms."""


def test_every_question_about_a_farm_is_tried_here(node: FakeNode) -> None:
    app = create_app(node, shutdown=trio.Event())  # type: ignore[arg-type]
    routes = [route for route in app.routes if isinstance(route, Route) and "GET" in (route.methods or ())]
    found = {route.path for route in routes if route.path.startswith(FARM)}
    assert found == {FARM + what for what in (*READS, *OF_THE_NODE, "events")}


@pytest.mark.parametrize("what", READS)
async def test_answer_is_of_the_moment_after_the_leader_was_confirmed(node, http, what):
    path = FARM.format(farm="farm") + what
    for query in ("", "?linearizable=false"):
        response = await http.get(path + query)
        assert (response.status_code, response.headers["garlic-farm-commit-index"]) == (200, "0")
    assert node.farm.confirmed == 0
    response = await http.get(f"{path}?linearizable=true")
    assert response.headers["garlic-farm-commit-index"] == "1"
    assert node.farm.confirmed == 1
    index = {
        "log": lambda: response.json()["index"],
        "state": lambda: int(response.headers["garlic-farm-next-after"]),
        "status": lambda: response.json()["applied"],
        "policy": lambda: response.json()["index"],
    }
    if what in index:
        assert index[what]() == 1, "what is told is of that moment, not only the header"


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (NotLeader(2, "ssl://b.example:1"), 421, "not-leader"),
        (NotLeader(), 503, "no-quorum"),
        (NoQuorum("no majority"), 503, "no-quorum"),
        (ProposalDropped(Refusal.TOO_MANY_READS), 503, "proposal-dropped"),
        (DiskHangs("the disk of this node has not answered for 6 s"), 503, "disk-hangs"),
    ],
)
@pytest.mark.parametrize("what", READS)
async def test_node_that_is_not_confirmed_shows_nothing_and_answers_plain_questions(
    node: FakeNode, http: httpx.AsyncClient, what: str, error: GarlicFarmError, status: int, kind: str
) -> None:
    node.farm.confirm_error = error
    path = FARM.format(farm="farm") + what
    response = await http.get(f"{path}?linearizable=true")
    assert (response.status_code, response.json()["type"]) == (status, f"garlicfarm:{kind}")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers.get("garlic-farm-leader") == ("2 ssl://b.example:1" if status == 421 else None)
    assert (await http.get(path)).status_code == 200


async def test_neither_true_nor_false_is_a_bad_query(node: FakeNode, http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/farms/farm/log?linearizable=1")
    assert (response.status_code, response.json()["type"]) == (400, "garlicfarm:bad-query")
    assert node.farm.confirmed == 0


async def test_client_asks_for_it_with_every_page(node: FakeNode, url: str) -> None:
    for number in range(5):
        node.farm.commit(b"%d" % number)
    async with node.client(url, "rita") as client:
        assert len([entry async for entry in client.log("farm")]) == 5
        assert await client.state("farm") == (5, b"snapshot")
        assert node.farm.confirmed == 0
        values = [entry.value async for entry in client.log("farm", limit=4, linearizable=True)]
        assert values == [b"0", b"1", b"2", b"3", b"4", b"confirmed 1", b"confirmed 2"]
        assert await client.state("farm", linearizable=True) == (8, b"snapshot")
        _, commit_index = await client.page("farm", 0, linearizable=True)
        assert commit_index == 9


ASKED: list[Callable[[AdminClient], Awaitable[object]]] = [
    lambda client: client.page("farm", 0, linearizable=True),
    lambda client: client.state("farm", linearizable=True),
]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("error", [NotLeader(2, None), NoQuorum("cut off"), DiskHangs("no answer for 6 s")])
async def test_client_goes_on_until_a_node_is_confirmed(node, url, tmp_path, ask, error):
    node.farm.confirm_error = error
    async with node.client(url, "rita") as client:
        with pytest.raises(type(error)):
            await ask(client)
    other = FakeNode(tmp_path / "other")
    async with other.running() as other_url, client_of({url: node, other_url: other}) as client:
        await ask(client)
    assert (node.farm.confirmed, other.farm.confirmed) == (0, 1)


async def test_leader_with_too_many_reads_is_asked_no_further(node: FakeNode, url: str) -> None:
    node.farm.confirm_error = ProposalDropped(Refusal.TOO_MANY_READS)
    async with node.client(url, "rita") as client:
        with pytest.raises(ProposalDropped) as refused:
            await client.page("farm", 0, linearizable=True)
    assert refused.value.reason == Refusal.TOO_MANY_READS
