"""What a person reads of an answer that is an error."""

from __future__ import annotations

import json

import pytest

from garlicfarm.client import AdminClient
from garlicfarm.client.answers import Answer, failure
from garlicfarm.client.https import HttpsClient
from garlicfarm.errors import (
    LocalProtocolError,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    RemoteProtocolError,
    UnreachableError,
)

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
    body = json.dumps({"type": "garlicfarm:x", "detail": detail, "next": next_step})
    assert str(failure(Answer(400, {}, body.encode()), URL)) == f"{URL}: {told}"


def test_password_that_was_not_checked_is_not_called_wrong() -> None:
    """Somebody else's wrong ones delay it: a program that has the right one tries again."""
    body = json.dumps({"type": "garlicfarm:too-soon", "detail": "wrong passwords were tried"})
    assert isinstance(failure(Answer(429, {}, body.encode()), URL), UnreachableError)


def test_answer_of_another_server_is_told_as_such() -> None:
    told = str(failure(Answer(404, {}, b"no page"), URL))
    assert told == f"{URL}: status 404, not from an admin API; give the node's admin.url"


def answer_all(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    async def request(client: HttpsClient, method: str, target: str, **options: object) -> Answer:
        return answer

    monkeypatch.setattr(HttpsClient, "request", request)


NESTED = b'{"x":' + b"[" * 20_000


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, NESTED, RemoteProtocolError),
        (503, NESTED, NoQuorum),
        (500, NESTED, RemoteProtocolError),
        (200, b"\xff", RemoteProtocolError),
        (410, b'{"type": "garlicfarm:compacted", "first_index": "x"}', LocalProtocolError),
        (410, b'{"type": "garlicfarm:compacted", "first_index": null}', LocalProtocolError),
    ],
)
async def test_answer_that_no_admin_api_gives_is_a_documented_error(monkeypatch, status, body, error):
    answer_all(monkeypatch, Answer(status, {}, body))
    async with AdminClient([URL], user="bob", password="p") as client:
        with pytest.raises(error):
            await client.status("farm")


def test_leader_of_a_number_that_no_member_has_is_unknown() -> None:
    answer = Answer(421, {"garlic-farm-leader": "9" * 5000 + " ssl://a.example:27150"})
    told = failure(answer, URL)
    assert isinstance(told, NotLeader)
    assert told.leader_id is None


@pytest.mark.parametrize("body", [b"{}", b'{"leader": null}', b'{"leader": "x"}'])
async def test_hand_over_answered_without_a_leader_has_an_unknown_outcome(monkeypatch, body):
    answer_all(monkeypatch, Answer(200, {}, body))
    async with AdminClient([URL], user="bob", password="p") as client:
        with pytest.raises(OutcomeUnknown):
            await client.step_down("farm")
