"""What a person reads of an answer that is an error."""

from __future__ import annotations

import httpx
import pytest

from garlicfarm.client.admin import _object
from garlicfarm.client.answers import failure
from garlicfarm.errors import RemoteProtocolError

URL = "https://a.example:27151"


@pytest.mark.parametrize(
    ("detail", "next_step", "told"),
    [
        ("it is refused", "Correct it.", "it is refused. Correct it"),
        ("nobody answers; is it up?", "Look there.", "nobody answers; is it up? Look there"),
        ("it is refused", "Is it up?", "it is refused. Is it up?"),
    ],
)
def test_failure_is_told_in_sentences(detail: str, next_step: str, told: str) -> None:
    response = httpx.Response(400, json={"type": "garlicfarm:x", "detail": detail, "next": next_step})
    assert str(failure(response, URL)) == f"{URL}: {told}"


@pytest.mark.parametrize("body", [b"[" * 50_000, b'{"new":' + b"[" * 50_000, b"\xff"], ids=len)
async def test_answer_that_is_nested_or_no_text_is_one_of_another_server(body: bytes) -> None:
    assert "not from an admin API" in str(failure(httpx.Response(500, content=body), URL))
    answer = httpx.Response(200, content=body, request=httpx.Request("GET", URL))
    with pytest.raises(RemoteProtocolError, match="not a JSON object"):
        _object(answer)


def test_answer_of_another_server_is_told_as_such() -> None:
    told = str(failure(httpx.Response(404, text="no page"), URL))
    assert told == f"{URL}: status 404, not from an admin API; give the node's admin.url"
