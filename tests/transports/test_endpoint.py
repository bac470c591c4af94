"""Endpoints: what they mean, and that text and value are the same thing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garlicfarm.errors import ConfigError
from garlicfarm.setup.provision import pinned
from garlicfarm.transport import Endpoint

PRINTABLE = st.text(st.characters(codec="utf-8"), max_size=20)
HOSTS = st.one_of(
    st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,60}[a-z0-9])?", fullmatch=True),
    st.ip_addresses().map(str),
    st.sampled_from(["bücher.example", "名.example", "fe80::1%eth0", "localhost"]),
)


@given(
    scheme=st.from_regex(r"[a-z][a-z0-9+.-]{0,9}", fullmatch=True).filter(lambda scheme: scheme != "tcp"),
    host=HOSTS,
    port=st.integers(0, 65535),
    params=st.dictionaries(PRINTABLE.filter(bool), PRINTABLE, max_size=4),
)
def test_endpoint_written_and_parsed_is_the_same(scheme, host, port, params):
    endpoint = Endpoint(scheme, host, port, params)
    assert Endpoint.parse(str(endpoint)) == endpoint


def test_endpoint_with_a_pin_keeps_its_text() -> None:
    text = "ssl://a.example:27150?pin=sha256-Zm9v_-bar"
    endpoint = Endpoint.parse(text)
    assert endpoint == Endpoint("ssl", "a.example", 27150, {"pin": "sha256-Zm9v_-bar"})
    assert str(endpoint) == text


def test_endpoint_of_ipv6_loses_its_brackets_and_gets_them_back() -> None:
    endpoint = Endpoint.parse("ssl://[::1]:9001")
    assert (endpoint.host, endpoint.port) == ("::1", 9001)
    assert str(endpoint) == "ssl://[::1]:9001"
    assert endpoint.authority == "[::1]:9001"


@pytest.mark.parametrize(("text", "proxied"), [("ssl://a:1", False), ("ssl://a:1?proxied=1", True)])
def test_endpoint_says_whether_a_proxy_stands_before_it(text: str, proxied: bool) -> None:
    assert Endpoint.parse(text).proxied is proxied


@pytest.mark.parametrize("value", ["", "0", "true"])
def test_endpoint_that_says_it_in_another_way_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="proxied=1"):
        Endpoint.parse(f"ssl://a:1?proxied={value}")


@pytest.mark.parametrize(("default", "scheme"), [("ssl", "ssl"), ("jraft", "jraft")])
def test_endpoint_tcp_means_the_default_transport(default: str, scheme: str) -> None:
    assert Endpoint.parse("tcp://localhost:9001", default_scheme=default).scheme == scheme


def test_endpoint_other_scheme_is_left_alone_and_lower_case() -> None:
    assert Endpoint.parse("I2P://abc.b32.i2p:80", default_scheme="jraft").scheme == "i2p"


def test_endpoint_is_hashable() -> None:
    assert len({Endpoint.parse("ssl://a:1?x=1"), Endpoint.parse("ssl://a:1?x=1")}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.example:27150",
        "ssl://a.example",
        "ssl://a.example:",
        "ssl://:27150",
        "ssl://a.example:65536",
        "ssl://a.example:-1",
        "ssl://a.example:１２",
        "ssl://a.example:1/path",
        "ssl://a.example:1/",
        "ssl://user@a.example:1",
        "ssl://a example:1",
        "ssl://a\x00b:1",
        "ssl://a.example:1\n",
        "ssl://\ud800:1",
        "ssl://::1:9001",
        "ssl://[::1:9001",
        "ssl://[a.example]:9001",
        "ssl://[]:9001",
        "ssl://a:1?",
        "ssl://a:1?pin",
        "ssl://a:1?=x",
        "ssl://a:1?x=1&x=2",
        "ssl://a:1?x=%ff",
        "ssl://a:1?x=1#y",
        "1ssl://a:1",
        "ssl:a:1",
    ],
)
def test_endpoint_nonsense_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Endpoint.parse(text)
    assert repr(text) in str(caught.value)


@given(st.text(max_size=60))
def test_endpoint_any_text_parses_or_is_a_config_error(text: str) -> None:
    try:
        endpoint = Endpoint.parse(text)
    except ConfigError:
        return
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("ssl://a:1", "ssl://a:1?pin=own"),
        ("ssl://a:1?pin=other", "ssl://a:1?pin=own"),
        ("ssl://a:1?proxied=1", "ssl://a:1?proxied=1&pin=own"),
        ("ssl://a:1?proxied=1&pin=of-the-proxy", "ssl://a:1?proxied=1&pin=of-the-proxy"),
        ("i2p://a:1", "i2p://a:1"),
    ],
)
def test_pin_of_the_nodes_own_certificate_replaces_every_pin_but_that_of_a_proxy(text, becomes):
    assert str(pinned(Endpoint.parse(text), "own")) == becomes
