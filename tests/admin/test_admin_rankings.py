"""Rankings that queries store, and what readers report: the endpoints, and the page."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable
from pathlib import Path

import httpx
import msgspec
import pytest
import trio
from trio.testing import MockClock

from garlicfarm import durable_files
from garlicfarm.admin import app, readers
from garlicfarm.admin.rankings import STORE_DEADLINE_S
from garlicfarm.admin.readers import EXPIRY_S, MAX_OF_USER
from garlicfarm.storage import ranking_store
from tests.admin.fake_node import PASSWORDS, FakeNode

RANKINGS = "/v1/farms/farm/rankings"
READERS = "/v1/farms/farm/readers"


def ranking(index: int, publisher: int = 1) -> bytes:
    return msgspec.json.encode({"index": index, "publisher": publisher, "members": []})


def fill(node: FakeNode) -> None:
    for _ in range(5):
        node.farm.commit(b"entry")


async def test_ranking_is_created_repeated_and_read_back(http: httpx.AsyncClient, node: FakeNode) -> None:
    node.farm.commit(b"entry")
    for expected in (201, 200):
        answer = await http.put(f"{RANKINGS}/spark/7?asof=1&run=r", content=ranking(1))
        assert (answer.status_code, answer.json()) == (
            expected,
            {"query": "spark", "batch": 7, "asof": 1, "run": "r"},
        )
        assert answer.headers["Garlic-Farm-Id"] == node.farm.farm_id.hex()
    answer = await http.get(f"{RANKINGS}/spark")
    assert (answer.content, answer.headers["Content-Type"]) == (ranking(1), "application/json")
    listed = (await http.get(RANKINGS)).json()
    assert (listed["schema"], listed["farm"], listed["index"]) == ("garlicfarm.rankings/1", "farm", 1)
    assert listed["unusable"] == 0
    (row,) = listed["queries"]
    assert (row["query"], row["batch"], row["asof"], row["run"], row["user"]) == ("spark", 7, 1, "r", "anna")
    assert row["size_bytes"] == len(ranking(1))


@pytest.mark.parametrize(
    ("place", "content", "status", "kind", "told"),
    [
        ("spark/7?run=r", ranking(1), 400, "bad-query", "asof is missing"),
        ("spark/7?asof=0&run=r", ranking(1), 400, "bad-query", "asof is not a number from 1"),
        ("spark/7?asof=1", ranking(1), 400, "bad-query", "run is '', not 1 to 64 of"),
        ("spark/7?asof=1&run=a/b", ranking(1), 400, "bad-query", "run is 'a/b', not 1 to 64 of"),
        ("%2e%2e/7?asof=1&run=r", ranking(1), 400, "bad-query", "the query's name is '..', not"),
        ("spark/-1?asof=1&run=r", ranking(1), 400, "bad-query", "batch is not a number from 0"),
        ("spark/1_0?asof=1&run=r", ranking(1), 400, "bad-query", "batch is not a number from 0 to 922337"),
        ("spark/9223372036854775808?asof=1&run=r", ranking(1), 400, "bad-query", "to 9223372036854775807"),
        ("spark/x?asof=1&run=r", ranking(1), 400, "bad-query", "batch is not a number from 0"),
        ("spark/7?asof=2&run=r", ranking(1), 400, "bad-body", "the ranking is of index 1, not 2"),
        ("spark/7?asof=1&run=r", b"{", 400, "bad-body", "the body is not a ranking: "),
        ("spark/7?asof=1&run=r", bytes((1 << 20) + 1), 413, "too-large", "a body has at most 1048576 bytes"),
    ],
)
async def test_ranking_that_cannot_be_used_is_refused_and_nothing_stored(
    http: httpx.AsyncClient, place: str, content: bytes, status: int, kind: str, told: str
) -> None:
    answer = await http.put(f"{RANKINGS}/{place}", content=content)
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (status, f"garlicfarm:{kind}")
    assert told in problem["detail"]
    assert (await http.get(RANKINGS)).json()["queries"] == []


async def test_what_is_not_stored_is_not_found(http: httpx.AsyncClient) -> None:
    for method in ("GET", "DELETE"):
        answer = await http.request(method, f"{RANKINGS}/q")
        assert (answer.status_code, answer.json()["type"]) == (404, "garlicfarm:no-such-ranking")


async def test_newest_ranking_of_a_query_is_listed_by_the_client_and_can_be_deleted(
    http: httpx.AsyncClient, node: FakeNode, url: str
) -> None:
    fill(node)
    for batch in (0, 1):
        answer = await http.put(
            f"{RANKINGS}/spark/{batch}?asof={4 + batch}&run=r", content=ranking(4 + batch)
        )
        assert answer.status_code == 201
    assert (await http.get(f"{RANKINGS}/spark")).content == ranking(5)
    async with node.client(url) as client:
        (row,) = await client.rankings("farm")
        assert (row["query"], row["batch"], row["asof"]) == ("spark", 1, 5)
        assert (await http.delete(f"{RANKINGS}/spark")).is_success
        assert await client.rankings("farm") == []


async def test_ranking_that_contradicts_or_finds_no_room_is_refused(
    http: httpx.AsyncClient, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(node)
    await http.put(f"{RANKINGS}/spark/1?asof=4&run=r", content=ranking(4))
    answer = await http.put(f"{RANKINGS}/spark/1?asof=5&run=r", content=ranking(5))
    assert (answer.status_code, answer.json()["type"]) == (409, "garlicfarm:ranking-conflict")
    assert "batch 1 is stored with other contents" in answer.json()["detail"]

    def full(path: Path, parts: Iterable[bytes], mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(ranking_store, "replace_file", full)
    answer = await http.put(f"{RANKINGS}/spark/2?asof=5&run=r", content=ranking(5))
    assert (answer.status_code, answer.json()["type"]) == (507, "garlicfarm:ranking-not-stored")
    assert "No space left on device" in answer.json()["detail"]


async def test_disk_that_hangs_ends_the_request_in_time_and_not_the_page(node, mock_clock, monkeypatch):
    release, begun = threading.Event(), threading.Event()
    replace_file = durable_files.replace_file

    def hanging(path: Path, parts: Iterable[bytes], mode: int) -> None:
        begun.set()
        release.wait(240)
        replace_file(path, parts, mode)

    monkeypatch.setattr(ranking_store, "replace_file", hanging)
    auth = httpx.DigestAuth("anna", PASSWORDS["anna"][1])
    transport = httpx.ASGITransport(app.create_app(node, shutdown=trio.Event()))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1", auth=auth) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_jump_once, begun, mock_clock)
            answer = await client.put(f"{RANKINGS}/spark/7?asof=1&run=r", content=ranking(1))
        assert (answer.status_code, answer.json()["type"]) == (504, "garlicfarm:outcome-unknown")
        assert (await client.get("/")).status_code == 200
        assert (await client.get(RANKINGS)).json()["queries"] == []
        release.set()
        answer = await client.put(f"{RANKINGS}/spark/7?asof=1&run=r", content=ranking(1))
        assert answer.status_code == 200  # the first request has stored it after all


@pytest.mark.parametrize(("method", "name"), [("GET", "body"), ("DELETE", "delete")])
async def test_disk_that_hangs_ends_reading_and_deleting_in_time(node, mock_clock, monkeypatch, method, name):
    hung_s: list[float] = []

    async def hanging(*_: object) -> None:
        begun_s = trio.current_time()
        try:
            mock_clock.jump(STORE_DEADLINE_S - 1)  # not while a thread checks the password
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(1)
            await trio.sleep_forever()
        finally:
            hung_s.append(trio.current_time() - begun_s)

    monkeypatch.setattr(node.farm.rankings, name, hanging)
    auth = httpx.DigestAuth("anna", PASSWORDS["anna"][1])
    transport = httpx.ASGITransport(app.create_app(node, shutdown=trio.Event()))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1", auth=auth) as client:
        answer = await client.request(method, f"{RANKINGS}/spark")
    assert (answer.status_code, answer.json()["type"]) == (504, "garlicfarm:outcome-unknown")
    assert hung_s == [STORE_DEADLINE_S]


async def _jump_once(begun: threading.Event, clock: MockClock) -> None:
    assert await trio.to_thread.run_sync(begun.wait, 240)
    clock.jump(STORE_DEADLINE_S + 1)


async def test_page_and_gauge_show_equality_and_difference(http, node):
    fill(node)
    assert 'id="queries" data-live hidden' in (await http.get("/")).text
    own = msgspec.json.encode({"index": 5, **node.farm.ranking()})
    for query, asof, body in (("alike", 5, own), ("other", 5, ranking(5, 9)), ("early", 2, ranking(2))):
        await http.put(f"{RANKINGS}/{query}/0?asof={asof}&run=r", content=body)
    page = (await http.get("/")).text
    assert 'id="queries" data-live>' in page
    assert '<td class="whole">equal at index 5</td>' in page
    assert '<span class="bad">different at index 5: publisher 9, here 1</span>' in page
    assert '<td class="whole">not compared yet</td>' in page
    assert node.farm.rankings.equality() == {"alike": True, "other": False}


async def test_readers_are_listed_with_their_lag_until_they_expire(node, autojump_clock):
    fill(node)
    transport = httpx.ASGITransport(app.create_app(node, shutdown=trio.Event()))  # type: ignore[arg-type]

    async def ask(method: str, path: str, user: str = "rita") -> httpx.Response:
        auth = httpx.DigestAuth(user, PASSWORDS[user][1])
        async with httpx.AsyncClient(transport=transport, base_url="https://127.0.0.1", auth=auth) as client:
            return await client.request(method, path)

    answer = await ask("PUT", f"{READERS}/spark?index=2")
    assert answer.json() == {"query": "spark", "index": 2, "lag": 3}
    await trio.sleep(10)
    await ask("PUT", f"{READERS}/spark?index=9")  # another node is ahead
    await ask("PUT", f"{READERS}/spark?index=4", "paul")
    await trio.sleep(1)
    rows = (await ask("GET", READERS)).json()["readers"]
    assert [(row["user"], row["index"], row["lag"], row["age_s"]) for row in rows] == [
        ("paul", 4, 1, 1.0),
        ("rita", 9, 0, 1.0),
    ]
    assert "Queries that read this farm" in (await ask("GET", "/")).text
    await trio.sleep(EXPIRY_S)
    assert (await ask("GET", READERS)).json()["readers"] == []
    for path, status in (("spark", 400), ("spark?index=-1", 400), ("%2e%2e?index=1", 400)):
        assert (await ask("PUT", f"{READERS}/{path}")).status_code == status


async def test_readers_of_a_user_are_bounded_and_one_that_is_known_goes_on(
    http: httpx.AsyncClient, node: FakeNode, url: str
) -> None:
    fill(node)
    for number in range(MAX_OF_USER):
        assert (await http.put(f"{READERS}/q{number}?index=1")).is_success
    answer = await http.put(f"{READERS}/late?index=1")
    assert answer.status_code == 503
    assert f"{MAX_OF_USER} of this user" in answer.json()["detail"]
    assert (await http.put(f"{READERS}/q0?index=3")).is_success
    async with node.client(url) as client:
        rows = await client.readers("farm")
    assert (len(rows), rows[0]["index"], rows[0]["lag"]) == (MAX_OF_USER, 3, 2)


async def test_readers_of_a_farm_are_bounded(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "MAX_READERS", 2)
    answers = [await http.put(f"{READERS}/{query}?index=1") for query in ("a", "b", "late")]
    assert [answer.status_code for answer in answers] == [200, 200, 503]
    assert "2 queries already report" in answers[-1].json()["detail"]
