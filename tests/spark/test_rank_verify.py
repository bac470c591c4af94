"""States of Spark against those of nodes, by index; without Spark."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NoReturn
from urllib.request import urlopen

import msgspec
import pytest

from garlicfarm.errors import ConfigError, GarlicFarmError, UnreachableError
from garlicfarm_plugin_spark.node_reader import FarmHead, NodeReader
from garlicfarm_plugin_spark.rank_metrics import RankMetrics, served
from garlicfarm_plugin_spark.verify import KEPT, NodeStates, Verifier
from tests.spark.feed_server import FARM_ID, FeedServer, feed_server
from tests.spark.script import Node, scripted_log

LOG = scripted_log()
FARM = ("farm", FARM_ID)
HEAD = FarmHead(FARM_ID, "publisher", 1, 10)
A, B = "https://a.example:27151", "https://b.example:27151"


@pytest.fixture(scope="module")
def states() -> dict[int, bytes]:
    node, found = Node(), {}
    for entry in LOG[:40]:
        node.apply(entry)
        found[entry.index] = node.farm.snapshot()
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FeedServer]:
    with feed_server(tmp_path / "node", LOG[:10]) as running:
        yield running


def digest(state: bytes) -> str:
    return sha256(state).hexdigest()


def test_states_at_equal_indexes_agree_whichever_side_comes_first(states: dict[int, bytes]) -> None:
    counts: list[int] = []
    verifier = Verifier(counts.append)
    assert verifier.summary() == "verified nothing: no node was seen at the index of a ranking"
    verifier.stated(FARM, A, 10, states[10])
    verifier.ranked(FARM, 10, digest(states[10]))
    verifier.ranked(FARM, 20, digest(states[20]))
    verifier.stated(FARM, B, 20, states[20])
    verifier.stated(FARM, A, 20, states[20])
    verifier.ranked(FARM, 20, digest(states[20]))  # the batch is repeated
    verifier.stated(FARM, A, 20, states[20])  # the node stands still
    verifier.stated(FARM, A, 15, states[15])  # no ranking there
    verifier.ranked(("barn", FARM_ID), 15, digest(states[10]))  # another farm
    verifier.ranked(("farm", "0a" * 16), 20, digest(states[10]))  # made anew
    assert counts == [1, 2, 3]
    assert verifier.summary() == "verified 3 states, equal to the nodes', the last of farm at index 20"


@pytest.mark.parametrize("spark_first", [True, False])
def test_state_that_differs_names_index_farm_and_node(states: dict[int, bytes], spark_first: bool) -> None:
    verifier = Verifier()
    sides = [
        lambda: verifier.ranked(FARM, 12, digest(states[11])),
        lambda: verifier.stated(FARM, A, 12, states[12]),
    ]
    first, second = sides if spark_first else reversed(sides)
    first()
    with pytest.raises(GarlicFarmError, match=rf"^at index 12 of farm, Spark's state is not that of {A} \("):
        second()


def test_state_by_another_algorithm_is_named_as_such_at_any_index(states: dict[int, bytes]) -> None:
    state = msgspec.json.encode(msgspec.json.decode(states[12]) | {"algorithm": 7})
    with pytest.raises(
        ConfigError, match=rf"^{B} ranks farm at index 12 by version 7 of the common algorithm"
    ):
        Verifier().stated(FARM, B, 12, state)


def test_verifier_keeps_a_bounded_number_of_digests(states: dict[int, bytes]) -> None:
    verifier = Verifier()
    for index in range(1, KEPT + 2):
        verifier.ranked(FARM, index, digest(states[10]))
    verifier.stated(FARM, A, 1, states[11])  # forgotten: no difference
    with pytest.raises(GarlicFarmError):
        verifier.stated(FARM, A, 2, states[11])


def test_states_come_from_each_node_that_answers(server: FeedServer) -> None:
    node = Node()
    for entry in LOG[:10]:
        node.apply(entry)
    with socket.socket() as refusing:  # it does not listen
        refusing.bind(("127.0.0.1", 0))
        urls = (f"https://127.0.0.1:{refusing.getsockname()[1]}?pin=sha256-{'A' * 43}", server.url)
        with closing(NodeStates(replace(server.access, urls=urls))) as asked:
            assert asked.newest({"farm": HEAD}) == [
                (FARM, server.url.partition("?")[0], 10, node.farm.snapshot())
            ]


def test_farm_that_a_node_does_not_have_is_not_asked_for(
    server: FeedServer, caplog: pytest.LogCaptureFixture
) -> None:
    barn = FarmHead("ab" * 16, "publisher", 1, 3)
    with closing(NodeStates(server.access)) as asked:
        assert [farm for farm, *_ in asked.newest({"barn": barn, "farm": HEAD})] == [FARM]
        anew = replace(HEAD, farm_id=barn.farm_id)
        for _ in range(2):
            assert asked.newest({"farm": anew}) == []
    (said,) = caplog.messages
    assert said.endswith(f" has another farm farm (id {server.farm_id}): its states are not compared")


def test_farm_that_is_deleted_once_a_node_has_listed_it_is_left_out(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {"barn": HEAD, "farm": HEAD}
    monkeypatch.setattr(NodeReader, "heads", lambda self: listed)
    with closing(NodeStates(server.access)) as asked:
        assert [farm for farm, *_ in asked.newest(listed)] == [FARM]


def test_silent_node_is_asked_once_a_round(server: FeedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def heads(feed: NodeReader) -> NoReturn:
        nonlocal count
        count += 1
        raise UnreachableError("silence")

    monkeypatch.setattr(NodeReader, "heads", heads)
    with closing(NodeStates(server.access)) as asked:
        assert asked.newest(dict.fromkeys(("barn", "farm", "field"), HEAD)) == []
    assert count == 1


def test_metrics_are_served_and_tell_index_and_lag_by_farm() -> None:
    metrics = RankMetrics()
    metrics.progress("farm", None, 12)
    metrics.progress("farm", 10, 12)
    metrics.progress("barn", 7, 7)
    metrics.progress("barn", 7, None)
    with served(metrics, ("127.0.0.1", 0)) as port:
        text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=240).read().decode()
        with (
            pytest.raises(ConfigError, match=rf"nothing can listen at 127.0.0.1:{port} \(Address already"),
            served(RankMetrics(), ("127.0.0.1", port)),
        ):
            pass
    lines = text.splitlines()
    for line in (
        'garlicfarm_rank_index{farm="farm"} 10.0',
        'garlicfarm_rank_commit_index{farm="farm"} 12.0',
        'garlicfarm_rank_lag_entries{farm="farm"} 2.0',
        'garlicfarm_rank_lag_entries{farm="barn"} NaN',
        "garlicfarm_rank_batches_total 0.0",
    ):
        assert line in lines
    with served(RankMetrics(), ("127.0.0.1", port)):
        pass  # the port is free again
