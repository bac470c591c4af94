"""The bodies of requests, bounded in size and time. Raises `Problem` for one that cannot be used."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import trio
from starlette.requests import Request

from garlicfarm.admin.problems import Problem

__all__ = ["MAX_ENTRY_BYTES", "drain", "read_body", "read_json"]

MAX_ENTRY_BYTES = 1 << 20
BODY_DEADLINE_S = 30.0

T = TypeVar("T")


async def read_body(request: Request) -> bytes:
    """The request's body, at most `MAX_ENTRY_BYTES`; no more is ever in memory."""
    body = bytearray()
    with trio.move_on_after(BODY_DEADLINE_S):
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Problem(400, "incomplete", "the body is incomplete", "Send it again.")
            body += message.get("body", b"")
            if len(body) > MAX_ENTRY_BYTES:
                await drain(request)
                raise Problem(413, "too-large", f"a body has at most {MAX_ENTRY_BYTES} bytes", "Split it.")
            if not message.get("more_body", False):
                return bytes(body)
    raise Problem(408, "too-slow", f"no complete body within {BODY_DEADLINE_S:.0f} s", "Send it again.")


async def read_json(request: Request, kind: type[T], form: str) -> T:
    body = await read_body(request)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "bad-body", f"the body is not {form}", "Correct it.") from error


async def drain(request: Request) -> None:
    """Discard the rest of a body, up to a limit: a client that is still sending would miss the answer if we
    closed the connection."""
    dropped = 0
    with trio.move_on_after(2):
        while dropped <= 2 * MAX_ENTRY_BYTES:
            message = await request.receive()
            dropped += len(message.get("body", b""))
            if not message.get("more_body", False):
                return
