"""The ZAP handler (ZeroMQ RFC 27): it tells ZeroMQ which CURVE keys may connect, as a task.

A key that it admits becomes the User-Id of everything that ZeroMQ then receives over that connection from
outside: that is how the other modules know the sender.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import zmq
from zmq.utils import z85

from garlicfarm_plugin_dafka.keys import KnownPeer
from garlicfarm_plugin_dafka.sockets import ZAP_DOMAIN, Context, Socket

__all__ = ["open_zap", "serve_zap", "zap_answer"]

_NAME: Final = "zeromq.zap.01"
_VERSION: Final = b"1.0"
_KEY_BYTES: Final = 32
_MAX_BYTES: Final = 4096


def open_zap(context: Context) -> Socket:
    """The handler's socket. Open it before the sockets of the same context that depend on it."""
    socket = Socket(context, zmq.REP, max_message_bytes=_MAX_BYTES, high_water_mark=1000)
    socket.bind_inside(_NAME)
    return socket


async def serve_zap(
    socket: Socket, known: Mapping[str, KnownPeer], on_refused: Callable[[str, str], None]
) -> None:
    """Answer until cancelled. ``on_refused`` gets the address and the key of each who is refused."""
    while True:
        await socket.wait_readable()
        for request in socket.receive_nowait(1):
            socket.send(zap_answer(request, known, on_refused))


def zap_answer(
    request: Sequence[bytes], known: Mapping[str, KnownPeer], on_refused: Callable[[str, str], None]
) -> list[bytes]:
    """The frames of the reply. Refuses everything but a known CURVE key in our domain."""
    number = request[1] if len(request) > 1 else b""
    key = ""
    if len(request) == 7 and request[0] == _VERSION and request[2] == ZAP_DOMAIN and request[5] == b"CURVE":
        key = z85.encode(request[6]).decode() if len(request[6]) == _KEY_BYTES else ""
    if key in known:
        return [_VERSION, number, b"200", b"OK", key.encode(), b""]
    on_refused(request[3].decode(errors="replace") if len(request) > 3 else "", key)
    return [_VERSION, number, b"400", b"unknown key", b"", b""]
