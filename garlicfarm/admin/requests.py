"""What a request carries: the parameters of its query, and its body, bounded in size and time.

Raises `Problem` for one that cannot be used.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import trio
from starlette.requests import HTTPConnection, Request

from garlicfarm.admin.problems import Problem

MAX_ENTRY_BYTES = 1 << 20
BODY_DEADLINE_S = 30.0

T = TypeVar("T")


def number(request: HTTPConnection, name: str, default: float, most: float, *, least: float = 0) -> float:
    """A number from ``least`` to ``most``; a whole one unless ``most`` is a float."""
    text = request.query_params.get(name)
    return default if text is None else parse_number(name, text, most, least=least)


def parse_number(name: str, text: str, most: float, *, least: float = 0) -> float:
    """The same of the value ``text``."""
    try:
        value = float(text) if isinstance(most, float) else int(text)
        if isinstance(most, int) and not text.isdecimal():  # 1_0, which Python takes, or +5
            value = -1
    except ValueError:
        value = -1
    if not least <= value <= most:
        bound = f"{most:.0f}" if isinstance(most, float) else most
        raise Problem(
            400, "bad-query", f"{name} is not a number from {least} to {bound}", "Correct the query."
        )
    return value


def flag(request: HTTPConnection, name: str) -> bool:
    """``true`` or ``false``, which is the default."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        raise Problem(400, "bad-query", f"{name} is neither true nor false", "Correct the query.")
    return text == "true"


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
