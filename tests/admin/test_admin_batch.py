"""Batches of entries over the admin API: what becomes of each."""

from __future__ import annotations

import httpx
import pytest

from garlicfarm.errors import EntryRefused
from garlicfarm.feed.binary_format import encode_records, encode_values
from garlicfarm.raft.types import Entry
from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import FakeNode

PLACE = "/v1/farms/farm/log/batch"


async def test_batch_says_of_each_entry_where_it_is_or_why_it_was_refused(node: FakeNode, url: str) -> None:
    async with node.client(url) as client:
        outcomes = await client.post_batch("farm", [b"\xff", b"refuse me", b""])
    assert outcomes[0] == (1, 3)
    refused = outcomes[1]
    assert isinstance(refused, EntryRefused)
    assert (refused.field, refused.reason) == ("$.date", "absent")
    assert outcomes[2] == (2, 3)
    assert [entry.value for entry in node.farm.log] == [b"\xff", b""]
    assert node.farm.batches == [3]


async def test_entries_read_can_be_posted_as_they_are(node: FakeNode, http: httpx.AsyncClient) -> None:
    read = [Entry(7, 2, ValueType.APPLICATION, b"a"), Entry(9, 2, ValueType.APPLICATION, b"b")]
    response = await http.post(PLACE, content=encode_records(read))
    assert (response.status_code, response.json()) == (
        200,
        {"outcomes": [{"index": 1, "term": 3}, {"index": 2, "term": 3}]},
    )
    assert [entry.value for entry in node.farm.log] == [b"a", b"b"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        encode_values([b"a"])[:-1],
        encode_values([b""] * 1025),
        encode_records([Entry(1, 0, ValueType.CONFIGURATION, b"a")]),
        encode_values([b"a"]) * 2,  # indexes do not ascend
    ],
)
async def test_body_that_is_no_batch_posts_nothing(node, http, body):
    response = await http.post(PLACE, content=body)
    assert (response.status_code, response.json()["type"]) == (400, "garlicfarm:bad-body")
    assert node.farm.log == []


async def test_batch_of_more_than_a_mebibyte_is_refused(node: FakeNode, http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/node")).status_code == 200  # logs in, so that the body goes out only once
    response = await http.post(PLACE, content=encode_values([bytes(1 << 20)]))
    assert (response.status_code, response.json()["type"]) == (413, "garlicfarm:too-large")
    assert node.farm.log == []
