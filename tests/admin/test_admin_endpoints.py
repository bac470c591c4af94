from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import msgspec
import pytest

from garlicfarm.errors import DiskHangs, EntryRefused, NoQuorum, NotLeader, OutcomeUnknown, ProposalDropped
from garlicfarm.feed.binary_format import MEDIA_TYPE, encode_records
from garlicfarm.feed.lines import encode_lines
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import MessageType, ValueType
from tests.admin.fake_node import PASSWORDS, FakeNode
from tests.running import wait_until


@pytest.fixture
def user() -> str:
    return "paul"


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["type"] == f"garlicfarm:{kind}"
    assert body["title"]
    assert body["detail"]
    assert body["next"]
    return body


async def test_node_asked_names_itself_and_its_farms(node: FakeNode, http: httpx.AsyncClient) -> None:
    body = (await http.get("/v1/node")).json()
    assert body["schema"] == "garlicfarm.node/1"
    assert (body["id"], body["version"], body["transports"], body["farms"]) == (
        1,
        "0.0-test",
        ["ssl"],
        ["farm"],
    )
    assert body["uptime_s"] > 0


async def test_farms_asked_gives_a_row_for_each(node: FakeNode, http: httpx.AsyncClient) -> None:
    node.farm.commit(b"x")
    body = (await http.get("/v1/farms")).json()
    assert body["farms"] == [
        {
            "name": "farm",
            "application": "publisher",
            "farm_id": node.farm.farm_id.hex(),
            "first_index": 1,
            "commit_index": 1,
            "leader": 1,
            "disk_hangs_s": None,
        }
    ]


async def test_status_and_ranking_asked_are_the_farms_own_words(node, http):
    response = await http.get("/v1/farms/farm/status")
    assert response.json() == node.farm.status()
    assert response.headers["garlic-farm-id"] == node.farm.farm_id.hex()
    assert (await http.get("/v1/farms/farm/ranking")).json() == node.farm.ranking()


async def test_state_asked_names_the_index_where_a_reader_goes_on(node, http):
    node.farm.commit(b"x")
    node.farm.snapshot = bytes(range(256)) * 4096
    response = await http.get("/v1/farms/farm/state")
    assert response.content == node.farm.snapshot
    assert response.headers["garlic-farm-next-after"] == "1"
    assert node.largest_piece == 256 << 10


async def test_oldest_state_is_that_which_the_kept_log_continues(node, http):
    for _ in range(5):
        node.farm.commit(b"x")
    response = await http.get("/v1/farms/farm/state/oldest")
    assert (response.content, response.headers["garlic-farm-next-after"]) == (b"", "0")
    node.farm.compact(4)
    response = await http.get("/v1/farms/farm/state/oldest")
    assert (response.content, response.headers["garlic-farm-next-after"]) == (node.farm.snapshot, "3")


async def test_log_read_gives_json_lines_and_where_to_go_on(node: FakeNode, http: httpx.AsyncClient) -> None:
    node.farm.commit(b"config", ValueType.CONFIGURATION)
    node.farm.commit('{"näme":"\u2028"}'.encode())
    node.farm.commit(b"\xff\x00")
    node.farm.commit(b"config", ValueType.CONFIGURATION)
    response = await http.get("/v1/farms/farm/log", headers={"Accept": "application/jsonl"})
    assert response.headers["content-type"] == "application/jsonl"
    assert [msgspec.json.decode(line) for line in response.content.split(b"\n")[:-1]] == [
        {"index": 2, "term": 3, "type": "application", "value": '{"näme":"\u2028"}'},
        {"index": 3, "term": 3, "type": "application", "value_base64": "/wA="},
    ]
    figures = ["garlic-farm-id", "garlic-farm-first-index", "garlic-farm-commit-index"]
    assert [response.headers[name] for name in figures] == [node.farm.farm_id.hex(), "1", "4"]
    assert response.headers["garlic-farm-next-after"] == "4", "the Configuration is passed over"


async def test_log_read_with_all_types_has_configurations_too(node, http):
    node.farm.commit(b"config", ValueType.CONFIGURATION)
    node.farm.commit(b"entry")
    response = await http.get("/v1/farms/farm/log?types=all&limit=1")
    assert response.json() == {"index": 1, "term": 3, "type": "configuration", "value": "config"}
    assert response.headers["garlic-farm-next-after"] == "1"


async def test_log_read_as_records_gives_them_with_their_place(node, http):
    node.farm.commit(b"config", ValueType.CONFIGURATION)
    node.farm.commit(b"\xff")
    for types, expected in (("all", node.farm.log), ("application", node.farm.log[1:])):
        for accept in (MEDIA_TYPE, f"{MEDIA_TYPE}, */*;q=0.1"):
            response = await http.get(f"/v1/farms/farm/log?types={types}", headers={"Accept": accept})
            assert response.headers["content-type"] == MEDIA_TYPE
            assert response.content == encode_records(expected)
            assert response.headers["garlic-farm-next-after"] == "2"


async def test_log_limit_bounds_how_far_a_read_goes(node: FakeNode, http: httpx.AsyncClient) -> None:
    for number in range(6):
        node.farm.commit(b"x", ValueType.APPLICATION if number % 3 else ValueType.CONFIGURATION)
    response = await http.get("/v1/farms/farm/log?after=2&limit=3")
    assert [line["index"] for line in map(msgspec.json.decode, response.content.splitlines())] == [3, 5]
    assert response.headers["garlic-farm-next-after"] == "5"
    response = await http.get("/v1/farms/farm/log?after=3&limit=1")
    assert (response.content, response.headers["garlic-farm-next-after"]) == (b"", "4")
    for after in (6, 9):
        response = await http.get(f"/v1/farms/farm/log?after={after}&limit=1")
        assert (response.content, response.headers["garlic-farm-next-after"]) == (b"", str(after))


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("after=0&max_bytes=30", {"upto": 2, "bytes": 30}),
        ("after=0&max_bytes=29", {"upto": 1, "bytes": 10}),
        ("after=1&max_bytes=1", {"upto": 2, "bytes": 20}),  # one is always in it
        ("after=0&limit=2", {"upto": 2, "bytes": 30}),
        ("after=0", {"upto": 4, "bytes": 100}),
        ("after=4", {"upto": 4, "bytes": 0}),
        ("after=9", {"upto": 9, "bytes": 0}),
    ],
)
async def test_log_extent_counts_bytes_of_all_types(node, http, query, answer):
    for size in (10, 20, 30, 40):
        node.farm.commit(b"x" * size, ValueType.CONFIGURATION if size == 20 else ValueType.APPLICATION)
    response = await http.get(f"/v1/farms/farm/log/extent?{query}")
    assert response.json() == answer
    assert response.headers["garlic-farm-id"] == node.farm.farm_id.hex()


async def test_log_extent_below_the_first_entry_is_gone(node: FakeNode, http: httpx.AsyncClient) -> None:
    for _ in range(5):
        node.farm.commit(b"x")
    node.farm.compact(3)
    body = problem(await http.get("/v1/farms/farm/log/extent?after=1"), 410, "compacted")
    assert body["first_index"] == 3


@pytest.mark.parametrize("accept", ["application/jsonl", MEDIA_TYPE])
async def test_log_read_of_large_entries_streams_them_in_bounded_pieces(node, http, accept):
    for _ in range(40):
        node.farm.commit(b"\xff" * 100_000)
    node.farm.commit(b"\xff" * (1 << 20))
    response = await http.get("/v1/farms/farm/log?limit=20000", headers={"Accept": accept})
    encode = encode_records if accept == MEDIA_TYPE else encode_lines
    assert response.content == encode(node.farm.log)
    assert response.headers["garlic-farm-next-after"] == "41"
    assert node.largest_piece == 256 << 10


async def test_log_compacted_under_a_reader_breaks_its_answer_off(node, http, caplog):
    for _ in range(100):
        node.farm.commit(bytes(200_000))
    async with http.stream("GET", "/v1/farms/farm/log?limit=100") as response:
        assert response.headers["garlic-farm-next-after"] == "100"
        node.farm.compact(100)
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await response.aread()
    response = await http.get("/v1/farms/farm/log?after=50")
    problem(response, 410, "compacted")
    assert "Error in ASGI" not in caplog.text


async def test_log_read_by_a_client_that_leaves_is_read_no_further(node, http):
    for _ in range(200):
        node.farm.commit(bytes(200_000))
    gauge = partial(node.metrics.registry.get_sample_value, "garlicfarm_feed_readers", {"farm": "farm"})
    async with http.stream("GET", "/v1/farms/farm/log?limit=200") as response:
        assert response.status_code == 200
        await wait_until(lambda: gauge() == 1)
    await wait_until(lambda: gauge() == 0)
    read = node.metrics.registry.get_sample_value("garlicfarm_feed_entries_total", {"farm": "farm"})
    assert 1 <= read < 100


@pytest.mark.parametrize(
    "query",
    ["after=-1", "after=x", "limit=0", "limit=20001", "limit=1.5", "wait_s=31", "wait_s=nan", "types=some"],
)
async def test_log_asked_wrongly_is_a_bad_query(http: httpx.AsyncClient, query: str) -> None:
    response = await http.get(f"/v1/farms/farm/log?{query}")
    problem(response, 400, "bad-query")
    assert response.headers["garlic-farm-commit-index"] == "0"


async def test_log_asked_in_a_form_that_is_not_there_is_not_acceptable(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/farms/farm/log", headers={"Accept": "text/html"})
    problem(response, 406, "not-acceptable")
    response = await http.get("/v1/farms/farm/log", headers={"Accept": "text/html, application/jsonl;q=0.5"})
    assert response.status_code == 200


async def test_log_read_below_its_first_entry_is_gone(node: FakeNode, http: httpx.AsyncClient) -> None:
    for _ in range(9):
        node.farm.commit(b"x")
    node.farm.compact(6)
    response = await http.get("/v1/farms/farm/log?after=4")
    assert problem(response, 410, "compacted")["first_index"] == 6
    figures = ["garlic-farm-id", "garlic-farm-first-index", "garlic-farm-commit-index"]
    assert [response.headers[name] for name in figures] == [node.farm.farm_id.hex(), "6", "9"]
    assert response.headers["garlic-farm-next-after"] == "5"
    assert (await http.get("/v1/farms/farm/log?after=5")).status_code == 200


async def test_post_taken_answers_with_its_place_after_commit(node, http):
    response = await http.post("/v1/farms/farm/log", content=b"entry \xff")
    assert response.status_code == 201
    assert response.json() == {"index": 1, "term": 3}
    assert node.farm.log[0].value == b"entry \xff"
    assert node.farm.posted_by == ["paul"]


@pytest.mark.parametrize(
    ("error", "status", "kind", "members"),
    [
        (NotLeader(2, "ssl://b.example:1"), 421, "not-leader", {}),
        (NotLeader(), 503, "no-quorum", {}),
        (NoQuorum("no majority"), 503, "no-quorum", {}),
        (
            ProposalDropped(Refusal.TOO_MUCH_UNCOMMITTED),
            503,
            "proposal-dropped",
            {"reason": "too-much-uncommitted"},
        ),
        (ProposalDropped(Refusal.DISK_FULL), 507, "disk-full", {"reason": "disk-full"}),
        (DiskHangs("no answer"), 503, "disk-hangs", {"detail": "no answer"}),
        (EntryRefused("$.date", "absent"), 422, "entry-refused", {"field": "$.date", "reason": "absent"}),
        (EntryRefused("", "odd", "Even."), 422, "entry-refused", {"reason": "odd", "hint": "Even."}),
        (OutcomeUnknown("stepped down"), 504, "outcome-unknown", {}),
    ],
)
async def test_post_not_taken_says_why_and_what_next(node, http, error, status, kind, members):
    node.farm.post_error = error
    response = await http.post("/v1/farms/farm/log", content=b"entry")
    body = problem(response, status, kind)
    assert {name: body[name] for name in members} == members
    if status == 421:
        assert response.headers["garlic-farm-leader"] == "2 ssl://b.example:1"


@pytest.mark.parametrize("name", ["名.example", "a\nb"])
async def test_leader_whose_name_no_header_can_carry_is_named_by_its_id(node, http, name):
    node.farm.post_error = NotLeader(2, f"ssl://{name}:1" if name.isprintable() else None)
    node.farm.url_of_leader = f"https://{name}:2"
    response = await http.post("/v1/farms/farm/log", content=b"entry")
    problem(response, 421, "not-leader")
    assert response.headers["garlic-farm-leader"] == "2"
    assert "garlic-farm-leader-url" not in response.headers


async def test_post_that_never_commits_ends_with_its_outcome_unknown(node, http, monkeypatch):
    monkeypatch.setattr("garlicfarm.admin.responses.COMMIT_DEADLINE_S", 0.05)
    node.farm.post_blocks = True
    problem(await http.post("/v1/farms/farm/log", content=b"entry"), 504, "outcome-unknown")


async def test_policy_posted_by_an_admin_is_one_committed_entry_in_that_name(node, url, http):
    async with node.client(url) as client:
        assert await client.administer("farm", "interval", {"ms": 1000}) == (1, 3)
    assert node.farm.log[0].value == b"('interval', {'ms': 1000}, 'anna')"
    problem(await http.post("/v1/farms/farm/policy", json={"action": "interval"}), 403, "forbidden")
    http.auth = httpx.DigestAuth("anna", PASSWORDS["anna"][1])
    problem(await http.post("/v1/farms/farm/policy", json={"args": {}}), 400, "bad-body")
    for action, args in (("remove", {"member": 2}), ("level", {"to": 1})):  # it would do nothing
        order = {"action": action, "args": args}
        problem(await http.post("/v1/farms/farm/policy", json=order), 400, "bad-body")
    problem(await http.post("/v1/farms/farm/policy", content=b"\xff"), 400, "bad-body")
    deep = b'{"action":"a","args":' + b'{"a":' * 10_000
    problem(await http.post("/v1/farms/farm/policy", content=deep), 400, "bad-body")
    assert node.farm.commit_index == 1


async def test_ranking_holds_the_newest_statuses_where_they_are_asked_for(node, url, http):
    async with node.client(url, "rita") as client:
        [row] = (await client.ranking("farm"))["members"]
        assert not {"status", "age_s"} & row.keys()
        assert (await client.ranking("farm", statuses=True))["members"] == [
            row | {"status": {"id": 1}, "age_s": 2.5}
        ]
    problem(await http.get("/v1/farms/farm/ranking?statuses=1"), 400, "bad-query")


async def test_status_with_numbers_that_no_type_holds_keeps_nobody_from_the_others(node, url):
    """Keys unknown to us may have any value: an entry with these is valid, and kept byte for byte."""
    numbers = {"router.x": "1e400", "y": "-" + "9" * 5000, "z": "0.5", "u": str(2**63 - 1)}
    status = msgspec.Raw(b"{" + ",".join(f'"{key}":{text}' for key, text in numbers.items()).encode() + b"}")
    rows = [{"id": 1, "status": status, "age_s": 1.5}, {"id": 2, "status": None}]
    node.farm.ranking = lambda **_: {"members": rows}  # type: ignore[method-assign]
    async with node.client(url, "rita") as client:
        first, second = (await client.ranking("farm", statuses=True))["members"]
    assert first["status"] == numbers | {"z": 0.5, "u": 2**63 - 1}
    assert (first["age_s"], second) == (1.5, {"id": 2, "status": None})


@pytest.mark.parametrize("chunked", [False, True])
async def test_post_of_more_than_a_mebibyte_is_refused(node, http, chunked):
    assert (await http.get("/v1/node")).status_code == 200  # logs in, so that the body goes out only once
    size = (1 << 20) + 1

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(0, size, 1 << 16):
            yield bytes(1 << 16)

    response = await http.post("/v1/farms/farm/log", content=pieces() if chunked else bytes(size))
    problem(response, 413, "too-large")
    response = await http.post("/v1/farms/farm/log", content=bytes(1 << 20))
    assert response.status_code == 201


async def test_unknown_names_are_problems_too(http: httpx.AsyncClient) -> None:
    problem(await http.get("/v1/farms/other/status"), 404, "no-such-farm")
    assert (await http.get("/v1/farms/other/status")).json()["next"] == "Its farms are: farm."
    problem(await http.get("/v2/node"), 404, "no-such-endpoint")
    problem(await http.delete("/v1/node"), 405, "no-such-endpoint")


async def test_defect_of_an_endpoint_is_answered_and_logged_without_its_text(node, http, caplog):
    node.farm.commit(b"x")
    node.farm.read_error = RuntimeError("defect")
    body = problem(await http.get("/v1/farms/farm/log"), 500, "defect")
    assert "RuntimeError" not in str(body)
    await wait_until(lambda: "RuntimeError: defect" in caplog.text)
    node.farm.read_error = None
    assert (await http.get("/v1/farms/farm/log")).status_code == 200


async def test_metrics_scraped_hold_what_the_node_counted(node: FakeNode, http: httpx.AsyncClient) -> None:
    farm = node.metrics.farm("farm")
    farm.raft_leader_changes.inc()
    farm.set_role("leader")
    farm.sent[MessageType.APPEND_ENTRIES_REQUEST] += 2
    farm.set_peer(2, state="replicate", match_index=7, rtt_s=0.5, last_contact_s=None)
    node.farm.commit(b"x")
    await http.get("/v1/farms/farm/log")
    await http.get("/metrics", auth=None)
    farm.sent[MessageType.APPEND_ENTRIES_REQUEST] += 1
    text = (await http.get("/metrics", auth=None)).text
    for line in [
        'garlicfarm_raft_leader_changes_total{farm="farm"} 1.0',
        'garlicfarm_raft_role{farm="farm",role="leader"} 1.0',
        'garlicfarm_raft_role{farm="farm",role="follower"} 0.0',
        'garlicfarm_raft_messages_total{direction="out",farm="farm",type="APPEND_ENTRIES_REQUEST"} 3.0',
        'garlicfarm_peer_state{farm="farm",peer="2",state="replicate"} 1.0',
        'garlicfarm_peer_match_index{farm="farm",peer="2"} 7.0',
        'garlicfarm_feed_entries_total{farm="farm"} 1.0',
        'garlicfarm_feed_readers{farm="farm"} 0.0',
        "garlicfarm_build_info{version=",
        "process_resident_memory_bytes",
    ]:
        assert line in text


async def test_health_and_readiness_asked_without_a_user(node: FakeNode, http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz", auth=None)).status_code == 200
    assert (await http.get("/readyz", auth=None)).status_code == 200
    node.leader_known = False
    problem(await http.get("/readyz", auth=None), 503, "not-ready")
    assert (await http.get("/healthz", auth=None)).status_code == 200
