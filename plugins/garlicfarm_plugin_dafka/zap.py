"""The ZAP handler (ZeroMQ RFC 27): it tells ZeroMQ who may connect, as a task.

ZeroMQ asks for each connection, in a domain that carries its number (`entrance`). With keys, a known CURVE
key is admitted. The number becomes the User-Id of everything that ZeroMQ then receives over that connection
from outside: that is how the other modules know the sender.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import zmq
from zmq.utils import z85

from garlicfarm_plugin_dafka.keys import KnownPeer
from garlicfarm_plugin_dafka.sockets import Context, Socket

_NAME: Final = "zeromq.zap.01"
_VERSION: Final = b"1.0"
_DOMAIN: Final = b"dafka/"
_KEY_BYTES: Final = 32
_MAX_BYTES: Final = 4096


def open_zap(context: Context) -> Socket:
    """The handler's socket. Open it before the sockets of the same context that depend on it."""
    socket = Socket(context, zmq.REP, max_message_bytes=_MAX_BYTES, high_water_mark=1000)
    socket.bind_inside(_NAME)
    return socket


async def serve_zap(
    socket: Socket,
    known: Mapping[str, KnownPeer] | None,
    admit: Callable[[str, str], bool],
    on_refused: Callable[[str, str], None],
) -> None:
    """Answer until cancelled: `zap_answer`."""
    while True:
        await socket.wait_readable()
        for request in socket.receive_nowait(1):
            socket.send(zap_answer(request, known, admit, on_refused))


def zap_answer(
    request: Sequence[bytes],
    known: Mapping[str, KnownPeer] | None,
    admit: Callable[[str, str], bool],
    on_refused: Callable[[str, str], None],
) -> list[bytes]:
    """The frames of the reply. ``known``: the peers by their keys; None: there are no keys here.

    ``admit`` gets the number of a connection and its key, and says whether there is a place; ``on_refused``
    gets those of a connection without a known key.
    """
    request_id = request[1] if len(request) > 1 else b""
    domain = request[2] if len(request) > 2 else b""
    number = domain.removeprefix(_DOMAIN).decode(errors="replace") if domain.startswith(_DOMAIN) else ""
    sound = number and request[0] == _VERSION
    key = ""
    if sound and len(request) == 7 and request[5] == b"CURVE" and len(request[6]) == _KEY_BYTES:
        key = z85.encode(request[6]).decode()
    is_known = key in known if known is not None else sound and request[5:] == [b"NULL"]
    if is_known and admit(number, key):
        return [_VERSION, request_id, b"200", b"OK", number.encode(), b""]
    if not is_known:
        on_refused(number, key)
    return [_VERSION, request_id, b"400", b"not admitted", b"", b""]
