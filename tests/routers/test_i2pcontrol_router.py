from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import ConfigError, NotSupported, RouterError
from garlicfarm.i2p.encoding import b32_address, encode
from garlicfarm.plugins import make_router
from garlicfarm.router import Bandwidth, DestinationStatus, Router, RouterStatus
from garlicfarm.testing.router_suite import RouterSuite
from garlicfarm_plugin_i2pcontrol import I2PControlRouter, client, router_status

CAPTURED_STATUS = RouterStatus(
    uptime=214_000,
    participating_tunnels=23,
    configured_bandwidth=Bandwidth(in_=1_000_000 * 1024, out=1_000_000 * 1024),
    current_bandwidth=Bandwidth(in_=3540, out=4534),
)
METHOD_NOT_FOUND = '{"id":null,"error":{"code":-32601,"message":"Method not found"},"jsonrpc":"2.0"}'
FIGURES = [
    "i2p.router.uptime",
    "i2p.router.net.tunnels.participating",
    "i2p.router.net.bw.inbound.15s",
    "i2p.router.net.bw.outbound.15s",
    "i2p.router.net.bw.in",
    "i2p.router.net.bw.out",
    "Result",
]


def refused(code: int) -> str:
    return json.dumps({"id": 1, "error": {"code": code, "message": "no"}, "jsonrpc": "2.0"})


class TestI2PControlRouter(RouterSuite):
    @pytest.fixture
    def router(self, control_server, make) -> Router:
        return make(url=control_server.url, pin=control_server.pin)

    @pytest.fixture
    def unreachable_router(self, make, closed_port: int) -> Router:
        return make(url=f"https://127.0.0.1:{closed_port}")


# What it reads


async def test_status_from_captured_answers_is_theirs(control_server, make) -> None:
    async with make(url=control_server.url) as router:
        assert await router.get_local_router_status() == CAPTURED_STATUS


async def test_status_as_json_leaves_out_what_i2pd_does_not_report(control_server, make) -> None:
    async with make(url=control_server.url) as router:
        document = msgspec.to_builtins(await router.get_local_router_status())
    assert sorted(document) == ["configuredBandwidth", "currentBandwidth", "participatingTunnels", "uptime"]


async def test_status_without_network_setting_method_lacks_configured_bandwidth(control_server, make) -> None:
    def answer(request: dict[str, Any]) -> str:
        is_setting = request["method"] == "NetworkSetting"
        return METHOD_NOT_FOUND if is_setting else control_server.replay(request)

    control_server.answer = answer
    async with make(url=control_server.url) as router:
        status = await router.get_local_router_status()
    assert status == msgspec.structs.replace(CAPTURED_STATUS, configured_bandwidth=None)


@pytest.mark.parametrize(
    ("uptime", "expected"),
    [
        ("214000", 214_000),  # i2pd before 2.41
        (-2_147_483_648, None),  # an int of 32 bits that overflowed
        (214_000.0, 214_000),
        (True, None),
        (None, None),
        ("", None),
        ("soon", None),
        (2**63, None),
        (1e300, None),
        ([1], None),
    ],
)
def test_uptime_of_any_form_is_a_count_or_absent(uptime: object, expected: int | None) -> None:
    assert router_status({"i2p.router.uptime": uptime}, {}, {}) == RouterStatus(uptime=expected)


def test_bandwidth_known_one_way_only_is_absent() -> None:
    assert router_status({"i2p.router.net.bw.inbound.15s": 7.0}, {}, {}) == RouterStatus()


def test_bandwidth_limit_is_read_as_units_of_1024_bytes() -> None:
    status = router_status({}, {"i2p.router.net.bw.in": 256, "i2p.router.net.bw.out": 32}, {})
    assert status.configured_bandwidth == Bandwidth(in_=262_144, out=32_768)


texts = st.text("0123456789.-e x²\0")  # of all Unicode, a first run is slower than Hypothesis allows
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(FIGURES), json_values))
def test_status_from_any_answers_is_a_valid_document(answer: dict[str, Any]) -> None:
    status = router_status(answer, answer, answer)
    assert msgspec.json.decode(msgspec.json.encode(status), type=RouterStatus) == status


# Leaves


LEAF = bytes(384) + bytes.fromhex("05000400070000")
OTHERS = b32_address(LEAF + bytes(1))


@pytest.mark.parametrize(
    ("sessions", "expected"),
    [
        ("", None),  # i2pd's word for none
        ({}, None),
        ({"a": {"name": "a", "address": OTHERS, "sockets": [{"type": "2"}]}}, None),
        ({"a": {"address": b32_address(LEAF), "sockets": ""}}, 0),
        ({"a": {"address": b32_address(LEAF)}}, 0),
        (
            {
                "a": {"address": OTHERS, "sockets": [{"type": "2"}]},
                "b": {
                    "address": b32_address(LEAF),
                    "sockets": [
                        {"type": "1", "peer": "127.0.0.1:1"},
                        {"type": "2", "peer": "127.0.0.1:2"},
                        {"type": "4", "peer": "127.0.0.1:3"},
                        {"type": "2", "peer": "127.0.0.1:4"},
                    ],
                },
            },
            2,
        ),
        ([1], None),
        ({"a": "b"}, None),
        ({"a": {"address": b32_address(LEAF), "sockets": [None, 7]}}, 0),
        ({"a": {"address": b32_address(LEAF), "sockets": 7}}, 0),
    ],
)
async def test_leaf_of_a_sam_session_has_its_streams_as_connections(control_server, make, sessions, expected):
    def answer(request: dict[str, Any]) -> str:
        if request["method"] == "ClientServicesInfo":
            return json.dumps({"result": {"SAM": {"enabled": "true", "sessions": sessions}}})
        return control_server.replay(request)

    control_server.answer = answer
    async with make(url=control_server.url) as router:
        status = await router.get_local_leaf_status(LEAF)
    assert status == DestinationStatus(destination=encode(LEAF), current_connections=expected)


async def test_leaf_that_no_session_serves_has_no_figures(control_server, make) -> None:
    """As captured; and where the router knows no such question."""
    nothing = DestinationStatus(destination=encode(LEAF))
    async with make(url=control_server.url) as router:
        assert await router.get_local_leaf_status(LEAF) == nothing
    services = "ClientServicesInfo"
    control_server.answer = lambda request: (
        METHOD_NOT_FOUND if request["method"] == services else control_server.replay(request)
    )
    async with make(url=control_server.url) as router:
        assert await router.get_local_leaf_status(LEAF) == nothing


# Its router info


def router_info(key: Ed25519PrivateKey) -> bytes:
    identity = bytes(352) + key.public_key().public_bytes_raw() + bytes.fromhex("05000400070004")
    signed = identity + bytes(8) + b"\0\0\0\0"
    return signed + key.sign(signed)


async def test_router_info_of_the_file_is_reported_while_its_signature_matches(
    control_server, make, tmp_path: Path
) -> None:
    key, file = Ed25519PrivateKey.generate(), tmp_path / "router.info"
    file.write_bytes(router_info(key))
    async with make(url=control_server.url, router_info="router.info") as router:
        status = await router.get_local_router_status()
        assert status == msgspec.structs.replace(CAPTURED_STATUS, last_published_ri=encode(router_info(key)))
        newer = router_info(Ed25519PrivateKey.generate())
        for unusable in (newer[:-1], newer[:391], b"", newer[:-1] + bytes([newer[-1] ^ 1]), bytes(9000)):
            file.write_bytes(unusable)  # i2pd is writing it
            assert await router.get_local_router_status() == CAPTURED_STATUS
        file.unlink()
        assert await router.get_local_router_status() == CAPTURED_STATUS
        file.write_bytes(newer)
        assert (await router.get_local_router_status()).last_published_ri == encode(newer)


@pytest.mark.parametrize("content", [None, b"", b"router", bytes(9000)])
def test_router_info_that_cannot_be_used_is_refused(make, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "router.info").write_bytes(content)
    with pytest.raises(
        ConfigError, match=r"router\.router_info: .*router\.info cannot be used: .*; expected"
    ):
        make(router_info="router.info")


# What it never sends


ANSWERS: dict[str, Callable[[dict[str, Any]], str] | None] = {
    "captured": None,
    "method-not-found": lambda request: METHOD_NOT_FOUND,
    "token-refused": lambda request: (
        '{"result":{"Token":"7"}}' if request["method"] == "Authenticate" else refused(-32003)
    ),
    "empty": lambda request: '{"result":{"Token":"7"}}',
    "internal-error": lambda request: (
        '{"result":{"Token":"7"}}' if request["method"] == "Authenticate" else refused(-32603)
    ),
    "settings-echoed": lambda request: (
        '{"result":{"Token":"7","i2p.router.net.bw.in":"0","i2p.router.net.bw.out":""}}'
    ),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_requests_of_all_methods_never_set_anything(control_server, make, answer) -> None:
    control_server.answer = answer or control_server.replay
    questions: dict[str, tuple[object, ...]] = {
        "get_local_router_status": (),
        "get_local_leaf_status": (bytes(391),),
        "get_remote_measured_status": (bytes(32),),
        "look_up_own": (bytes(32),),
        "answer_tests": (),
    }
    public = {name for name in dir(I2PControlRouter) if callable(getattr(I2PControlRouter, name))}
    assert {name for name in public if not name.startswith("_")} - {"Config"} == set(questions)

    async with make(url=control_server.url) as router:
        for _ in range(2):
            for name, arguments in questions.items():
                with contextlib.suppress(RouterError):
                    await getattr(router, name)(*arguments)

    assert control_server.requests
    for request in control_server.requests:
        params = dict(request["params"])
        if request["method"] == "Authenticate":
            assert set(params) == {"API", "Password"}
            continue
        assert list(params)[-1] == "Token"
        del params["Token"]
        assert_reads(request["method"], params)


@pytest.mark.parametrize("question", list(client.Question))
def test_question_is_one_that_reads(question: client.Question) -> None:
    assert_reads(*question.value)


def assert_reads(method: str, params: dict[str, Any]) -> None:
    """GetRate makes statistics that are not there; each Java I2P has this one. Others set what is no null."""
    if method == "GetRate":
        assert params == {"Stat": "jobQueue.jobLag", "Period": 60_000}
    else:
        assert method in {"RouterInfo", "NetworkSetting", "ClientServicesInfo"}
        assert params
        assert set(params.values()) == {None}


# Authentication


async def test_status_asked_twice_authenticates_and_looks_for_get_rate_once(control_server, make) -> None:
    async with make(url=control_server.url) as router:
        await router.get_local_router_status()
        await router.get_local_router_status()
    questions = ["RouterInfo", "NetworkSetting"]
    assert control_server.methods == ["Authenticate", *questions, "GetRate", *questions]


@pytest.mark.parametrize("error", [None, -32001], ids=["i2pd", "java"])
async def test_wrong_password_raises_router_error_without_the_password(
    control_server, make, wrong_password: str, error: int | None
) -> None:
    if error is not None:
        control_server.answer = lambda request: refused(error)
    async with make(url=control_server.url) as router:
        with pytest.raises(RouterError, match=r"refused the password; put .* into password_file") as caught:
            await router.get_local_router_status()
    assert wrong_password not in str(caught.value)
    assert control_server.methods == ["Authenticate"]


@pytest.mark.parametrize("result", ['{"API":1}', '{"Token":7}', '{"Token":null}'])
async def test_authentication_without_a_token_is_no_wrong_password(control_server, make, result: str) -> None:
    control_server.answer = lambda request: f'{{"result":{result}}}'
    async with make(url=control_server.url) as router:
        with pytest.raises(RouterError, match="gave no token"):
            await router.get_local_router_status()


@pytest.mark.parametrize("code", [-32002, -32003, -32004])
async def test_token_refused_once_authenticates_again(control_server, make, code: int) -> None:
    refusals = [refused(code)]

    def answer(request: dict[str, Any]) -> str:
        if request["method"] == "RouterInfo" and refusals:
            return refusals.pop()
        return control_server.replay(request)

    control_server.answer = answer
    async with make(url=control_server.url) as router:
        assert await router.get_local_router_status() == CAPTURED_STATUS
    assert control_server.methods == ["Authenticate", "RouterInfo"] * 2 + ["NetworkSetting", "GetRate"]


async def test_question_refused_otherwise_raises_router_error_and_is_no_missing_figure(control_server, make):
    control_server.answer = ANSWERS["internal-error"]
    async with make(url=control_server.url) as router:
        with pytest.raises(RouterError, match="refused RouterInfo: 'no'"):
            await router.get_local_router_status()


async def test_token_refused_always_raises_router_error_after_two_tries(control_server, make) -> None:
    control_server.answer = ANSWERS["token-refused"]
    async with make(url=control_server.url) as router:
        with pytest.raises(RouterError, match="token"):
            await router.get_local_router_status()
    assert control_server.methods == ["Authenticate", "RouterInfo"] * 2


# The certificate


async def test_wrong_pin_raises_router_error_before_anything_is_sent(control_server, make) -> None:
    pin = "sha256-" + "A" * 43
    async with make(url=control_server.url, pin=pin) as router:
        with pytest.raises(RouterError, match=control_server.pin):
            await router.get_local_router_status()
    assert control_server.requests == []


@pytest.mark.parametrize("url", ["https://198.51.100.7:7650", "https://localhost:7650", "https://[::2]:7650"])
def test_url_beyond_loopback_without_pin_is_refused(make, url: str) -> None:
    with pytest.raises(ConfigError, match="pin"):
        make(url=url)
    make(url=url, pin="sha256-" + "A" * 43)


@pytest.mark.parametrize("url", ["https://127.0.0.1:7650", "https://127.9.9.9", "https://[::1]:7650/jsonrpc"])
def test_url_of_loopback_address_needs_no_pin(make, url: str) -> None:
    make(url=url)


# Configuration


@pytest.mark.parametrize(
    "url",
    [
        "http://198.51.100.7:7657/jsonrpc/",
        "http://localhost:7657/jsonrpc/",
        "HTTP://127.0.0.1:7657",
        "ftp://127.0.0.1",
        "127.0.0.1:7650",
        "https://",
        "https://[",
        "",
        "https://u:p@127.0.0.1",
        "https://127.0.0.1:70000",
    ],
)
def test_url_that_is_neither_https_nor_loopback_http_is_refused(make, url: str) -> None:
    with pytest.raises(ConfigError, match=r"router\.url"):
        make(url=url, pin="sha256-" + "A" * 43)


def test_pin_for_plain_http_is_refused(make) -> None:
    with pytest.raises(ConfigError, match=r"router\.pin: http has no certificate"):
        make(url="http://127.0.0.1:7657/jsonrpc/", pin="sha256-" + "A" * 43)


def test_all_problems_are_reported_at_once(make) -> None:
    with pytest.raises(ConfigError) as caught:
        make(url="http://192.0.2.1:7650", pin="md5-1", password_file="missing")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "router.url",
        "router.pin",
        "router.password_file",
    ]


def test_password_file_that_is_missing_is_to_be_made(make) -> None:
    with pytest.raises(
        ConfigError, match=r"/missing does not exist; create it with mode 0600, and put"
    ) as caught:
        make(password_file="missing")
    assert "in i2pd.conf: password of [i2pcontrol]" in str(caught.value)
    with pytest.raises(ConfigError, match=r"cannot be read: it is a directory, not a regular file$"):
        make(password_file=".")


def test_password_file_that_others_may_read_is_refused(make, password_file: Path) -> None:
    password_file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        make()


@pytest.mark.parametrize("content", [b"", b"\nsecond\n", b"\xff\xfe", b"a" * 257])
def test_password_file_without_a_password_is_refused(make, password_file: Path, content: bytes) -> None:
    password_file.write_bytes(content)
    with pytest.raises(ConfigError, match="password_file"):
        make()


def test_plugin_is_found_under_its_name_and_wants_a_password_file(password_file: Path) -> None:
    router = make_router("i2pcontrol", {"password_file": str(password_file)}, Path("/nowhere"))
    assert isinstance(router, I2PControlRouter)
    with pytest.raises(ConfigError, match="password_file"):
        make_router("i2pcontrol", {}, password_file.parent)


# A server that misbehaves


async def send(stream: trio.abc.Stream, data: bytes) -> None:
    await stream.receive_some()
    await stream.send_all(data)


async def stay_silent(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def drip(stream: trio.abc.Stream) -> None:
    await send(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
    while True:
        await stream.send_all(b" ")
        await trio.sleep(0.05)


async def flood(stream: trio.abc.Stream) -> None:
    await send(stream, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        await stream.send_all(bytes(16_384))


def http(body: bytes, status: str = "200 OK") -> Callable[[trio.abc.Stream], Any]:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nLocation: /elsewhere\r\n\r\n".encode()

    async def answer(stream: trio.abc.Stream) -> None:
        await send(stream, head + body)

    return answer


MISBEHAVIOURS = {
    "silent": stay_silent,
    "dripping": drip,
    "endless": flood,
    "not-found": http(b"{}", "404 Not Found"),
    "redirect": http(b"{}", "302 Found"),
    "html": http(b"<html></html>"),
    "not-an-object": http(b"[1]"),
    "neither-result-nor-error": http(b"{}"),
    "result-of-wrong-type": http(b'{"result":"yes"}'),
    "error-of-wrong-type": http(b'{"error":"no"}'),
    "nested-deeply": http(b'{"result":{"a":' + b"[" * 60_000),
    "not-utf8": http(b'{"result":{"\xff":1}}'),
    "cut-short": lambda stream: send(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
    "not-http": lambda stream: send(stream, b"SSH-2.0-OpenSSH\r\n\r\n"),
    "closes": lambda stream: stream.receive_some(),
}


@pytest.mark.parametrize("raw", MISBEHAVIOURS.values(), ids=MISBEHAVIOURS.keys())
async def test_server_that_misbehaves_raises_router_error_in_time(control_server, make, raw, monkeypatch):
    control_server.raw = raw
    async with make(url=control_server.url) as router:
        with monkeypatch.context() as patch:
            patch.setattr(client, "TIMEOUT_S", 0.3)
            with trio.fail_after(240), pytest.raises(RouterError, match=r"127\.0\.0\.1") as caught:
                await router.get_local_router_status()
        assert not isinstance(caught.value, NotSupported)
        control_server.raw = None
        assert await router.get_local_router_status() == CAPTURED_STATUS


async def test_server_without_tls_raises_router_error(make, nursery: trio.Nursery) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, http(b"{}"), [listener])
    async with make(url=f"https://127.0.0.1:{listener.socket.getsockname()[1]}") as router:
        with pytest.raises(RouterError, match="cannot be reached"):
            await router.get_local_router_status()
