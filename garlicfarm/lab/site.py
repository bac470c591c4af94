"""A web site for a service inside I2P, and clients that fetch it through routers' HTTP proxies.

Every node's own site says which node it is, so that a client sees which one serves.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import trio

from garlicfarm.errors import RemoteProtocolError, UnreachableError
from garlicfarm.lab.tun_network import listen_at

INTERVAL_S = 1.0
TIMEOUT_S = 6.0
"""As long as a client waits for one answer. A stream to a router that has died gets none at all."""
PATIENCE_S = 600.0
"""How long the site waits for a request."""
MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Fetch:
    """One request of a client: when it began, when it had its answer or was given up, in seconds of Trio's
    clock, and the site's text, None if there was none."""

    began_s: float
    ended_s: float
    text: str | None


class Client:
    """Fetches a site through the HTTP proxy of one router, in a new connection every ``interval_s``.

    A request does not wait for the one before. ``fetches``: what has ended so far, in order of its end.
    """

    def __init__(self, proxy: str, host: str, interval_s: float = INTERVAL_S) -> None:
        self._proxy = proxy
        self._host = host
        self._interval_s = interval_s
        self.fetches: list[Fetch] = []

    async def run(self) -> NoReturn:
        """Fetch until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._fetch)
                await trio.sleep(self._interval_s)

    async def wait_answered(self, but: str | None = None) -> Fetch:
        """The first request that begins from now on and is answered, with another text than ``but``."""
        since, seen = trio.current_time(), len(self.fetches)
        while True:
            for each in self.fetches[seen:]:
                if each.began_s >= since and each.text not in (None, but):
                    return each
            seen = len(self.fetches)
            await trio.sleep(INTERVAL_S / 10)

    async def _fetch(self) -> None:
        began_s, text = trio.current_time(), None
        with suppress(UnreachableError, RemoteProtocolError, trio.TooSlowError), trio.fail_after(TIMEOUT_S):
            text = await fetch(self._proxy, self._host)
        self.fetches.append(Fetch(began_s, trio.current_time(), text))


async def fetch(proxy: str, host: str) -> str:
    """The text of a site, through an HTTP proxy ``http://HOST:PORT``.

    The end of the answer is that of its ``Content-Length``: i2pd 2.45 sometimes leaves the connection open
    after the service has closed it.

    Raises `UnreachableError`: the proxy does not answer, or says that the site does not;
    `RemoteProtocolError`: the answer is not HTTP. Set a deadline: a dead site is silent.
    """
    import httpx  # not at the top: it takes as long as all that a lab without a site imports

    try:
        async with httpx.AsyncClient(proxy=proxy, verify=False, trust_env=False, timeout=None) as client:
            response = await client.get(f"http://{host}/", headers={"Connection": "close"})
    except httpx.RemoteProtocolError as error:
        raise RemoteProtocolError("the answer is not HTTP", proxy) from error
    except httpx.RequestError as error:
        raise UnreachableError(f"the proxy at {proxy} cannot be reached: {error}") from error
    if response.status_code != 200:
        status = f"{response.status_code} {response.reason_phrase}"
        raise UnreachableError(f"{host} does not answer: {status}")
    return response.text.strip()


async def serve_site(
    text: str,
    port: int = 0,
    place: str = "",
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Answer every request at a port of 127.0.0.1 with a text; tells the port. ``place``: the file of a
    network namespace, where a free port is taken; "": this process's."""
    if place:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listen_at(place)))
    else:
        (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
    task_status.started(listener.socket.getsockname()[1])
    await trio.serve_listeners(partial(_answer, f"{text}\n".encode()), [listener])
    raise AssertionError("serving has ended")


async def _answer(body: bytes, stream: trio.SocketStream) -> None:
    fields = f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    async with stream:
        with suppress(trio.BrokenResourceError), trio.move_on_after(PATIENCE_S):
            data = b""
            while b"\r\n\r\n" not in data and len(data) <= MOST_BYTES:
                piece = await stream.receive_some()
                if not piece:
                    return
                data += piece
            await stream.send_all(f"HTTP/1.1 200 OK\r\n{fields}\r\n".encode() + body)
            await stream.send_eof()
            while await stream.receive_some():  # closed with bytes unread, the answer would be lost
                pass
