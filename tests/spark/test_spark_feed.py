"""The blocking client that Spark's processes use, against the real admin listener; needs no Spark."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from garlicfarm.client.trust import NodeAccess
from garlicfarm.errors import (
    AuthError,
    Compacted,
    ConfigError,
    EntryRefused,
    OutcomeUnknown,
    RankingConflict,
    RankingNotStored,
    UnreachableError,
)
from garlicfarm.feed import Entry
from garlicfarm_plugin_spark import clients
from garlicfarm_plugin_spark.node_reader import NodeReader, close_readers, open_reader
from tests.spark.feed_server import FARM_ID, FeedServer, feed_server
from tests.spark.script import expectations, scripted_log

LOG = scripted_log()
END = len(LOG)
RANKINGS = {index: expected.ranking.encode() for index, expected in expectations(LOG).items()}
FARM = ("farm", FARM_ID)
OTHER_PIN = "sha256-" + "A" * 43


def feed(server: FeedServer, *urls: str, pin: str | None = None) -> NodeReader:
    return NodeReader(replace(server.access, urls=urls or (server.url,), pin=pin))


def entries(opened: NodeReader, upto: int = len(LOG)) -> list[Entry]:
    return [each for page in opened.entries(*FARM, 0, upto) for each in page]


@pytest.mark.parametrize("where", ["url", "option"])
def test_feed_sends_nothing_to_a_node_with_another_certificate(server: FeedServer, where: str) -> None:
    bare = server.url.partition("?")[0]
    opened = feed(server, f"{bare}?pin={OTHER_PIN}") if where == "url" else feed(server, bare, pin=OTHER_PIN)
    before = server.node.requests
    with closing(opened), pytest.raises(AuthError, match="shows another certificate than the pinned"):
        opened.heads()["farm"]
    assert server.node.requests == before


def test_feed_pin_of_the_url_wins_over_the_other(server: FeedServer) -> None:
    with closing(feed(server, pin=OTHER_PIN)) as opened:
        assert opened.heads()["farm"].commit_index == len(LOG)


def test_feed_without_pin_asks_an_authority(server: FeedServer) -> None:
    bare = server.url.partition("?")[0]
    asked = pytest.raises(AuthError, match=r"give its pin, as in https://\S+\?pin=")
    with closing(feed(server, bare)) as opened, asked:
        opened.heads()["farm"]


def test_feed_passes_over_a_node_that_is_away(server: FeedServer) -> None:
    with closing(feed(server, "https://127.0.0.1:1", server.url)) as opened:
        assert opened.heads()["farm"].farm_id == server.farm_id
        assert entries(opened) == LOG


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b'{"farms":[{"name":"farm"}]}'])
def test_feed_of_a_server_that_is_no_node_says_so_and_passes_over_it(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """Somebody else's, who answers everything with 200."""
    other, connect = "https://127.0.0.1:1", clients.connect

    def connect_to_other(url: str, nodes: NodeAccess) -> tuple[str, httpx.Client]:
        answers = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
        return (url, httpx.Client(transport=answers)) if url == other else connect(url, nodes)

    monkeypatch.setattr(clients, "connect", connect_to_other)
    with closing(feed(server, other, server.url)) as opened:
        assert entries(opened) == LOG
    with closing(feed(server, other, server.url)) as opened:
        assert opened.heads()["farm"].farm_id == server.farm_id
    told = pytest.raises(UnreachableError, match=r"127.0.0.1:1 does not answer as an admin API: give the")
    with closing(feed(server, other)) as opened, told:
        opened.heads()["farm"]


def test_feed_of_an_unusable_url_is_refused(server: FeedServer) -> None:
    for url in ("https://127.0.0.1:port", "http://127.0.0.1:9", "https://127.0.0.1:9?pni=x"):
        with pytest.raises(ConfigError, match=r"is not https://host:port"):
            feed(server, url)


def test_feed_refused_says_it_in_sentences(server: FeedServer) -> None:
    server.password_file.write_text("wrong")
    with closing(feed(server)) as opened, pytest.raises(AuthError, match=r"is wrong\. Log in with"):
        opened.heads()["farm"]


def test_feed_refused_reads_the_password_again_and_repeats_the_request(server: FeedServer) -> None:
    right = server.password_file.read_text()
    server.password_file.write_text("old")
    with closing(feed(server)) as opened:
        server.password_file.write_text(right)
        assert entries(opened) == LOG
        server.password_file.write_text("gone again")
        assert opened.heads()["farm"].commit_index == len(LOG)  # it is read only where a node refuses


def test_feed_refused_with_the_same_password_does_not_repeat_the_request(server: FeedServer) -> None:
    server.password_file.write_text("wrong")
    with closing(feed(server)) as opened:
        before = server.node.requests
        with pytest.raises(AuthError):
            opened.heads()["farm"]
        assert server.node.requests == before + 2  # the question for a challenge, and the answer to it


def test_process_has_one_reader_of_the_same_nodes_until_all_are_closed(server: FeedServer) -> None:
    opened = open_reader(server.access)
    assert open_reader(replace(server.access)) is opened
    assert open_reader(replace(server.access, user="another")) is not opened
    close_readers()
    with pytest.raises(RuntimeError, match="closed"):
        opened.heads()
    assert open_reader(server.access).heads()["farm"].commit_index == len(LOG)
    close_readers()


def test_feed_extent_is_where_so_many_bytes_end(server: FeedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [len(each.value) for each in LOG]
    monkeypatch.setattr("garlicfarm_plugin_spark.node_reader.MAX_RANGE", 7)  # several requests
    with closing(feed(server)) as opened:
        for last in (1, 7, 8, 50, len(LOG)):
            assert opened.extent(*FARM, 0, len(LOG), sum(sizes[:last])) == (last, sum(sizes[:last]))
        full = sum(sizes[:7])  # of one request: the next entry does not fit
        assert opened.extent(*FARM, 0, len(LOG), full + 1) == (7, full)
        assert opened.extent(*FARM, 0, 20, 1 << 30) == (20, sum(sizes[:20]))
        assert opened.extent(*FARM, 30, 40, 1) == (31, sizes[30])
        with pytest.raises(ConfigError, match="the checkpoint belongs to another farm"):
            opened.extent("farm", "00" * 16, 0, 20, 1)


def test_feed_of_entries_that_do_not_come_gives_up(
    server: FeedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("garlicfarm_plugin_spark.node_reader.WAIT_S", 0.1)
    with closing(feed(server)) as opened:
        pages = opened.entries(*FARM, len(LOG), len(LOG) + 1)
        with pytest.raises(UnreachableError, match=f"has not reached index {len(LOG) + 1}"):
            next(pages)


def test_feed_of_entries_that_are_gone_here_looks_at_the_next_node(
    server: FeedServer, tmp_path: Path
) -> None:
    with feed_server(tmp_path / "other", LOG) as other:
        server.compact(50)
        with closing(feed(server, server.url, other.url)) as opened:
            assert entries(opened) == LOG
        other.compact(60)
        with closing(feed(server, server.url, other.url)) as opened, pytest.raises(Compacted):
            entries(opened)


def test_feed_whose_password_file_others_can_read_is_refused(server: FeedServer) -> None:
    server.password_file.chmod(0o644)
    with pytest.raises(ConfigError):
        feed(server)


def test_state_and_ranking_are_those_of_the_node(server: FeedServer) -> None:
    with closing(feed(server)) as opened:
        assert opened.state(*FARM) == server.farm.state()
        assert opened.ranking("farm").startswith(b'{"index":%d,' % len(LOG))
        with pytest.raises(ConfigError, match="the checkpoint belongs to another farm"):
            opened.state("farm", "00" * 16)


def put(opened: NodeReader, batch: int, index: int) -> None:
    opened.put_ranking("farm", "spark", batch, RANKINGS[index], asof=index, run="r")


def test_ranking_is_stored_at_the_next_node_where_one_is_gone_or_does_not_confirm(
    server: FeedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(*_: object, **__: object) -> bool:
        raise failed

    monkeypatch.setattr(server.farm.rankings, "put", refuses)
    with feed_server(tmp_path / "other", LOG) as other:
        for batch, failed in enumerate((RankingNotStored("full"), OutcomeUnknown("the disk hangs"))):
            with closing(feed(server, "https://127.0.0.1:1", server.url, other.url)) as opened:
                put(opened, batch, END)
            assert [row["batch"] for row in other.farm.rankings.queries()] == [batch]
            with (
                closing(feed(server)) as opened,
                pytest.raises(UnreachableError, match=str(failed)) as caught,
            ):
                put(opened, batch, END)
            assert "is the node running" not in str(caught.value)


def test_ranking_that_the_node_refuses_goes_to_no_other(server: FeedServer, tmp_path: Path) -> None:
    with (
        feed_server(tmp_path / "other", LOG) as other,
        closing(feed(server, server.url, other.url)) as opened,
    ):
        put(opened, 1, END)
        with pytest.raises(RankingConflict, match="batch 1 is stored with other contents"):
            put(opened, 1, 20)
        with pytest.raises(EntryRefused, match="a body has at most 1048576 bytes"):
            opened.put_ranking("farm", "spark", 2, bytes((1 << 20) + 1), asof=END, run="r")
        assert other.farm.rankings.queries() == []
