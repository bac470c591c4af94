from __future__ import annotations

import gc
import hashlib
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from garlicfarm.admin.app import MAX_WAIT_S
from garlicfarm.admin.responses import COMMIT_DEADLINE_S
from garlicfarm.admin.server import IDLE_S
from garlicfarm.client import AdminClient
from garlicfarm.client.answers import Answer, failure
from garlicfarm.client.https import ANSWER_TIMEOUT_S
from garlicfarm.config.model import PRESETS
from garlicfarm.credentials.certificates import make_certificate
from garlicfarm.errors import (
    AuthError,
    Compacted,
    ConfigError,
    DiskHangs,
    EntryRefused,
    FellBehind,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    ProposalDropped,
    RemoteProtocolError,
    UnreachableError,
)
from garlicfarm.raft.types import Entry
from garlicfarm.refusals import Refusal
from garlicfarm.wire.messages import ValueType
from tests.admin.fake_node import PASSWORDS, FakeNode, client_of

OTHER_PIN = "sha256:" + "00" * 32
NOBODY = "https://127.0.0.1:9"


async def test_client_asking_gets_what_the_farm_says(node: FakeNode, url: str) -> None:
    node.farm.commit(b"x")
    async with node.client(url) as client:
        assert (await client.node())["farms"] == ["farm"]
        assert [row["name"] for row in await client.farms()] == ["farm"]
        assert await client.status("farm") == node.farm.status()
        assert await client.ranking("farm") == node.farm.ranking()
        assert await client.policy("farm") == node.farm.policy()
        assert await client.state("farm") == (1, b"snapshot")


async def test_log_read_to_its_end_gives_every_entry_once_in_order(node: FakeNode, url: str) -> None:
    for number in range(25):
        kind = ValueType.CONFIGURATION if number % 5 == 0 else ValueType.APPLICATION
        node.farm.commit(bytes([number, 0xFF]), kind)
    async with node.client(url) as client:
        read = [entry async for entry in client.log("farm", 2, limit=4, all_types=True)]
        assert read == node.farm.log[2:]
        read = [entry async for entry in client.log("farm", limit=4)]
        assert read == [e for e in node.farm.log if e.value_type is ValueType.APPLICATION]


async def test_log_followed_goes_on_past_the_end(node: FakeNode, url: str) -> None:
    node.farm.commit(b"0")
    async with node.client(url) as client:
        log = client.log("farm", wait_s=30)
        with trio.fail_after(240):
            for number in range(5):
                assert (await anext(log)).value == b"%d" % number
                node.farm.commit(b"%d" % (number + 1))
        await log.aclose()  # type: ignore[attr-defined]


async def test_page_of_large_entries_ends_after_some_mebibytes(node, url, monkeypatch):
    monkeypatch.setattr("garlicfarm.client.admin.MAX_PAGE_BYTES", 1 << 20)
    for number in range(60):
        node.farm.commit(bytes([number]) * 100_000)
    async with node.client(url) as client:
        page, commit_index = await client.page("farm", 0)
        assert page.entries == node.farm.log[: page.next_after]
        assert 10 <= page.next_after < 20
        assert commit_index == 60
        assert [entry async for entry in client.log("farm")] == node.farm.log


async def test_log_whose_answer_breaks_off_goes_on_from_there(node, url, monkeypatch):
    for number in range(60):
        node.farm.commit(bytes([number]) * 100_000)
    read, breaks = node.farm.read, iter([30, 45])

    async def breaking(after: int, upto: int, max_bytes: int) -> Sequence[Entry]:
        if after > at[0]:
            at[0] = next(breaks, 99)
            raise FellBehind("for once")
        return await read(after, upto, max_bytes)

    at = [next(breaks)]
    monkeypatch.setattr(node.farm, "read", breaking)
    async with node.client(url) as client:
        assert [entry async for entry in client.log("farm")] == node.farm.log
    assert at == [99]


@pytest.mark.parametrize("form", ["hex", "base64url"])
async def test_pin_matching_lets_the_client_in(node: FakeNode, url: str, form: str) -> None:
    der = ssl.PEM_cert_to_DER_cert(node.certificate.read_text())
    pin = node.pin if form == "base64url" else f"sha256:{hashlib.sha256(der).hexdigest().upper()}"
    async with node.client(url, pin=pin) as client:
        assert await client.node()


async def test_pin_of_another_certificate_sends_that_node_nothing(node: FakeNode, url: str) -> None:
    async with node.client(url, pin=OTHER_PIN) as client:
        with pytest.raises(
            AuthError, match="than the pinned one: another node answers there, or the pin is wrong"
        ):
            await client.post("farm", b"entry")
    assert node.requests == 0


async def test_authority_vouches_for_a_node_and_for_no_other(node, url, tmp_path):
    async with node.client(url, pin=None, ca=node.certificate) as client:
        assert await client.node()
    make_certificate(tmp_path / "other.crt", tmp_path / "other.key", "127.0.0.1")
    for ca in (tmp_path / "other.crt", None):
        async with node.client(url, pin=None, ca=ca) as client:
            with pytest.raises(
                AuthError, match=r"self-signed certificate\): give its pin, as in https://\S+\?pin="
            ):
                await client.node()


@pytest.mark.parametrize(
    ("urls", "options"),
    [
        (["http://127.0.0.1:1"], {}),
        (["127.0.0.1:27151"], {}),
        ([], {}),
        ([NOBODY], {"pin": "sha256:abc"}),
        ([NOBODY], {"ca": Path("/nowhere/ca.crt")}),
        (["https://127.0.0.1:port"], {}),
        (["https://127.0.0.1:0"], {}),
        (["https://[::1"], {}),
        (["https://anna@127.0.0.1:9"], {}),
        (["https://127.0.0.1:9/v1"], {}),
        (["https://127.0.0.1:9?pni=" + OTHER_PIN], {}),
        (["https://127.0.0.1:9?pin="], {}),
        (["https://127.0.0.1:9?pin=sha256-abc"], {}),
    ],
    ids=str,
)
def test_client_of_something_unusable_is_refused_at_once(urls: list[str], options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        AdminClient(urls, user="u", password="p", **options)  # type: ignore[arg-type]


async def test_pin_of_the_url_counts_before_that_of_all_others(node: FakeNode, url: str) -> None:
    async with node.client(f"{url}?pin={node.pin}", pin=OTHER_PIN) as client:
        assert (await client.node())["id"] == 1
    async with node.client(f"{url}?pin={OTHER_PIN}") as client:
        with pytest.raises(AuthError, match="shows another certificate"):
            await client.node()


async def test_node_that_makes_no_connection_in_time_is_unreachable_and_says_so(monkeypatch):
    monkeypatch.setattr("garlicfarm.client.https.CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        async with AdminClient([url], user="paul", password="x") as client:
            with pytest.raises(UnreachableError, match=f"{url}: no connection in time"):
                await client.node()


async def test_nobody_at_any_url_is_unreachable_and_names_them() -> None:
    async with AdminClient([NOBODY, "https://127.0.0.1:19"], user="u", password="p", pin=OTHER_PIN) as client:
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:9.*127\.0\.0\.1:19"):
            await client.node()


async def test_url_that_does_not_answer_is_passed_over_and_the_good_one_remembered(node, url, nursery):
    tried: list[trio.SocketStream] = []

    async def hang_up(stream: trio.SocketStream) -> None:
        tried.append(stream)
        await stream.aclose()

    (listener,) = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
    bad = f"https://127.0.0.1:{listener.socket.getsockname()[1]}"
    async with AdminClient([bad, url], user="paul", password=PASSWORDS["paul"][1], pin=node.pin) as client:
        assert await client.post("farm", b"entry") == (1, 3)
        assert await client.post("farm", b"entry") == (2, 3)
    assert len(tried) == 1


@pytest.mark.parametrize(
    "error",
    [
        NotLeader(2, "ssl://b.example:1"),
        NoQuorum("no majority"),
        ProposalDropped(Refusal.TOO_MUCH_UNCOMMITTED),
        ProposalDropped(Refusal.DISK_FULL),
        DiskHangs("no answer"),
        EntryRefused("$.date", "absent"),
        OutcomeUnknown("stepped down"),
    ],
)
async def test_error_of_the_farm_arrives_as_what_it_was(node, url, error):
    node.farm.post_error = error
    async with node.client(url) as client:
        with pytest.raises(type(error)) as caught:
            await client.post("farm", b"entry")
    for name in ("leader_id", "endpoint", "reason", "field"):
        assert getattr(caught.value, name, None) == getattr(error, name, None)


def test_reason_of_another_version_arrives_as_a_refusal_that_quotes_it() -> None:
    body = b'{"type": "garlicfarm:proposal-dropped", "reason": "too-hot"}'
    refused = failure(Answer(503, {}, body), "https://a.example")
    assert isinstance(refused, ProposalDropped)
    assert (refused.reason, refused.detail) == (Refusal.REFUSED, "too-hot")


async def test_errors_of_reading_arrive_as_what_they_were(node: FakeNode, url: str) -> None:
    for _ in range(5):
        node.farm.commit(b"x")
    node.farm.compact(4)
    async with node.client(url) as client:
        with pytest.raises(Compacted) as caught:
            await client.page("farm", 1)
        assert caught.value.first_index == 4
        with pytest.raises(ConfigError, match="no farm of that name"):
            await client.status("other")
        with pytest.raises(EntryRefused, match="1048576 bytes"):
            await client.post("farm", bytes((1 << 20) + 1))
        node.farm.read_error = RuntimeError("defect")
        with pytest.raises(RemoteProtocolError, match="defect of this program"):
            await client.page("farm", 4)


@pytest.mark.parametrize("error", [NotLeader(2, None), NoQuorum("cut off")])
async def test_node_that_certainly_took_nothing_is_followed_by_the_next(node, url, tmp_path, error):
    node.farm.post_error = error
    other = FakeNode(tmp_path / "other")
    async with other.running() as other_url, client_of({url: node, f"{other_url}/": other}, "paul") as client:
        assert await client.post("farm", b"entry") == (1, 3)
    assert other.farm.commit_index == 1
    assert node.farm.commit_index == 0


async def test_post_whose_node_dies_has_an_unknown_outcome_and_is_sent_to_nobody_else(node, url, nursery):
    taken = []

    async def dying(stream: trio.SSLStream[trio.SocketStream]) -> None:
        taken.append(bytes(await stream.receive_some()))

    urls = [await node.impersonated(dying, nursery), url]
    async with AdminClient(urls, user="paul", password=PASSWORDS["paul"][1], pin=node.pin) as client:
        with pytest.raises(OutcomeUnknown):
            await client.post("farm", b"entry")
        assert taken[0].startswith(b"POST ")
        assert node.farm.commit_index == 0
        assert (await client.node())["id"] == 1, "a question may be asked elsewhere"


@pytest.mark.parametrize("answered", [True, False])
async def test_question_on_a_connection_that_the_node_closes_is_asked_once_more(node, nursery, answered):
    asked = 0

    async def closing(stream: trio.SSLStream[trio.SocketStream]) -> None:
        """Answers the first question, and the third, or none but the first; closes after the second one."""
        nonlocal asked
        while await stream.receive_some():
            asked += 1
            if asked == 1 or (asked == 3 and answered):
                await stream.send_all(b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"id": 1}')
            else:
                return

    async with node.client(url := await node.impersonated(closing, nursery)) as client:
        assert await client.node() == {"id": 1}
        if answered:
            assert await client.node() == {"id": 1}
        else:
            with pytest.raises(UnreachableError) as caught:
                await client.node()
            assert str(caught.value).count(url) == 1
    assert asked == 3


async def test_question_that_is_cancelled_during_the_handshake_closes_its_connection(node, nursery):
    begun, ended = trio.Event(), trio.Event()

    async def silent(stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            begun.set()
        ended.set()

    listeners = await nursery.start(partial(trio.serve_tcp, silent, 0, host="127.0.0.1"))
    port = listeners[0].socket.getsockname()[1]
    gc.disable()  # or it might do so
    try:
        async with node.client(f"https://127.0.0.1:{port}") as client, trio.open_nursery() as asking:
            asking.start_soon(client.node)
            await begun.wait()
            asking.cancel_scope.cancel()
        with trio.fail_after(240):
            await ended.wait()
    finally:
        gc.enable()


@pytest.mark.parametrize("preset", PRESETS)
def test_admin_api_and_client_wait_longer_than_a_node_which_knows_what_became_of_a_post(preset: str) -> None:
    rpc_s = PRESETS[preset]["rpc_timeout_s"]
    answer_s = PRESETS[preset]["election_timeout_max_s"] + rpc_s
    assert answer_s + rpc_s + 5.0 < COMMIT_DEADLINE_S, "committed, and then applied here"
    assert COMMIT_DEADLINE_S + 5.0 < ANSWER_TIMEOUT_S <= IDLE_S
    assert answer_s + MAX_WAIT_S + 5.0 < ANSWER_TIMEOUT_S, "a linearizable long poll"
