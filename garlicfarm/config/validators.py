"""Checks that types and ranges cannot express: the form of values, and the rules between tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from garlicfarm.durations import parse_ms
from garlicfarm.errors import ConfigError
from garlicfarm.i2p.destination import decode_destination
from garlicfarm.transport import Endpoint

MAX_HOST_BYTES = 253
"""As text, without the last dot (RFC 1035 §2.3.4)."""


def is_listen_url(text: str) -> bool:
    """Whether a listener can bind to it; port 0 lets the system choose."""
    return _endpoint(text) is not None


def is_dial_url(text: str) -> bool:
    """Whether others could dial it."""
    return dial_url_problem(text) is None


def dial_url_problem(text: str) -> str | None:
    """Why others could not dial an endpoint; None: it has a valid name, or an address other than a wildcard,
    and a port."""
    try:
        endpoint = Endpoint.parse(text)
    except ConfigError as error:
        return error.problems[0]
    what = f"endpoint {text!r} is not what others can dial: "
    if endpoint.port == 0:
        return f"{what}port 0 means any free port, which only a listener can take"
    if endpoint.host in ("0.0.0.0", "::"):
        return f"{what}{endpoint.host} means all addresses of a machine, which only a listener can take"
    try:
        encoded = endpoint.host.encode("idna")
    except UnicodeError as error:
        # Each Python says it in another form; from 3.13 on with the codec's name and positions.
        reason = error.reason if isinstance(error, UnicodeEncodeError) else error.__cause__ or error
        return f"{what}no host has this name: {reason}"
    if len(encoded) > MAX_HOST_BYTES:
        return f"{what}the name of a host has at most {MAX_HOST_BYTES} characters, this one {len(encoded)}"
    return None


def is_admin_url(text: str) -> bool:
    """Whether it is an HTTPS URL with a host and a port only."""
    try:
        url = urlsplit(text)
        host_and_port = bool(url.hostname) and url.port is not None
    except ValueError:
        return False
    bare = url.path in ("", "/") and not (url.query or url.fragment or url.username)
    return url.scheme == "https" and host_and_port and bare


def is_check_url(text: str) -> bool:
    """Whether it names something to connect to, ``tcp://HOST:PORT`` or an ``http://`` URL; auto: what the
    publisher names; "" is none."""
    try:
        url = urlsplit(text)
        named = bool(url.hostname) and (url.port or url.scheme == "http") and not url.username
    except ValueError:
        return False
    if url.scheme == "tcp":
        return bool(named) and not (url.path or url.query or url.fragment)
    return text in ("", "auto") or (url.scheme == "http" and bool(named))


def is_web_url(text: str) -> bool:
    """Whether it is the URL of a web server, or ""."""
    try:
        url = urlsplit(text)
        return text == "" or (url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0)
    except ValueError:
        return False


def is_period(text: str) -> bool:
    """Whether it is a duration in whole seconds, at least one, with its unit."""
    ms = parse_ms(text)
    return ms is not None and ms >= 1000 and ms % 1000 == 0 and text[-1].isalpha()


def is_destination(text: str) -> bool:
    """Whether it is a destination in I2P base64."""
    try:
        decode_destination(text)
    except ValueError:
        return False
    return True


def is_plugin_table(table: dict[str, Any]) -> bool:
    """Whether a router table is empty or names its plugin."""
    return not table or (isinstance(table.get("plugin"), str) and table["plugin"] != "")


def problems_between_tables(raw: dict[str, Any]) -> Iterator[str]:
    """The problems between tables of the raw document, a sentence each. Wrong types are skipped: they were
    reported already."""
    names = [farm.get("name") for farm in _tables(raw, "farm")]
    for key in ("listener", "farm"):
        if raw.get(key, []) == []:
            yield f"{key}: missing; at least one table [[{key}]] is needed"
    for index, name in enumerate(names):
        if name is not None and name in names[:index]:
            yield f"farm[{index}].name: {name!r} is taken by farm[{names.index(name)}]"
    for index, listener in enumerate(_tables(raw, "listener")):
        farms = listener.get("farms")
        for name in farms if isinstance(farms, list) else ():
            if isinstance(name, str) and name not in names:
                known = ", ".join(str(known) for known in names)
                yield f"listener[{index}].farms: there is no farm {name!r}; it must be one of {known}"


def _endpoint(text: str) -> Endpoint | None:
    try:
        return Endpoint.parse(text)
    except ConfigError:
        return None


def _tables(raw: dict[str, Any], key: str) -> list[dict[str, Any]]:
    tables = raw.get(key)
    return [
        table if isinstance(table, dict) else {} for table in (tables if isinstance(tables, list) else ())
    ]
