"""Tells an HTTP service which client asks, in the headers that I2P's server tunnels add.

``X-I2P-DestHash`` is the SHA-256 of the client's destination in I2P base64, ``X-I2P-DestB32`` its
``….b32.i2p`` address, ``X-I2P-DestB64`` the destination itself. A service can trust them: those that a client
sends are removed, in any spelling that a service might read as the same name.

Only the head of a stream's first request is rewritten. So that it is the only request, ``Connection: close``
takes the place of what the client asks for, and ``Upgrade`` is removed: WebSockets are not possible.

A head that two programs could read in two ways is refused: line folding, a space before a colon, a carriage
return inside a line, another version than HTTP/1.0 or 1.1.

Source: RFC 9112, sections 2 to 5 and 9; i2pd, ``I2PServerTunnelHTTP``.
"""

from __future__ import annotations

import re
from hashlib import sha256

from garlicfarm.i2p.encoding import b32_address, encode

MAX_HEAD_BYTES = 32_768

_END = re.compile(rb"\n\r?\n")
_REQUEST_LINE = re.compile(rb"[!-~]+ [!-~\x80-\xff]+ HTTP/1\.[01]")
_FIELD_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[^\r\0]*")
_NO_ALPHANUMERIC = re.compile(rb"[^0-9a-z]")
"""Some servers of CGI give all of these to the service as one."""
_CLIENT = b"x-i2p-dest"
_OF_THE_CONNECTION = {b"connection", b"keep-alive", b"proxy-connection", b"upgrade"}


class ClientHeaders:
    """Rewrites what one client sends. ``destination``: the client's, binary."""

    def __init__(self, destination: bytes) -> None:
        self._fields = [
            b"X-I2P-DestHash: " + encode(sha256(destination).digest()).encode(),
            b"X-I2P-DestB32: " + b32_address(destination).encode(),
            b"X-I2P-DestB64: " + encode(destination).encode(),
            b"Connection: close",
        ]
        self._head = b""
        self._is_past_head = False

    def rewrite(self, data: bytes) -> bytes:
        """What the service is to get now that ``data`` has come. Raises `ValueError`: the head is not that
        of an HTTP request, or has more than 32 KiB."""
        if self._is_past_head:
            return data
        seen = max(0, len(self._head) - len(b"\n\r"))
        self._head += data
        end = _END.search(self._head, seen)
        if end is None:
            if len(self._head) > MAX_HEAD_BYTES:
                raise ValueError(f"the head has more than {MAX_HEAD_BYTES} bytes")
            return b""
        self._is_past_head = True
        head, rest = self._head[: end.start()], self._head[end.end() :]
        self._head = b""
        return self._rewrite_head(head) + rest

    def _rewrite_head(self, head: bytes) -> bytes:
        request, *fields = [line.removesuffix(b"\r") for line in head.split(b"\n")]
        if not _REQUEST_LINE.fullmatch(request):
            raise ValueError("not the first line of an HTTP request")
        lines = [request, *(field for field in fields if _is_kept(field)), *self._fields]
        return b"\r\n".join(lines) + b"\r\n\r\n"


def _is_kept(field: bytes) -> bool:
    match = _FIELD_LINE.fullmatch(field)
    if match is None:
        raise ValueError("not a header of an HTTP request")
    name = _NO_ALPHANUMERIC.sub(b"-", match[1].lower())
    return not name.startswith(_CLIENT) and name not in _OF_THE_CONNECTION
