"""Receivers that take notices, and those that never answer, redirect, flood, fail or hang."""

from __future__ import annotations

import gc
import hmac
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from garlicfarm.config.model import NotifySection
from garlicfarm.errors import ConfigError
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.node.notifier import notifier
from garlicfarm.node.notifier.notices import Notice
from garlicfarm.node.notifier.notifier import NoticeQueue
from garlicfarm.node.notifier.receivers import make_receiver
from tests.node.notifier.web_receiver import Flood, WebReceiver, silence, status, web_receiver
from tests.running import told, wait_until

NOTICE = Notice("f00d-7", "farm", "f00d", 1, "member", "member 3 lost", False, 5000)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "PAUSE_S", 0.01)


@pytest.fixture
async def web() -> AsyncIterator[WebReceiver]:
    async with web_receiver() as receiver:
        yield receiver


class Sending:
    """A queue with one receiver."""

    def __init__(self, section: NotifySection, directory: Path) -> None:
        self._metrics = NodeMetrics()
        receiver = make_receiver(0, section, directory)
        log = EventLogger(logging.getLogger("garlicfarm.node"))
        self.queue = NoticeQueue(receiver, section, self._metrics, log)
        self._name = receiver.name

    def count(self, outcome: str) -> float:
        labels = {"receiver": self._name, "outcome": outcome}
        return self._metrics.registry.get_sample_value("garlicfarm_notices_total", labels) or 0

    async def send(self, *notices: Notice) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.queue.run)
            for notice in notices:
                self.queue.put(notice)
            with trio.fail_after(240):
                await self.queue.wait_empty()
            nursery.cancel_scope.cancel()


def webhook(web: WebReceiver, directory: Path, secret: str = "") -> Sending:
    file = None
    if secret:
        file = directory / "secret"
        file.write_text(secret + "\n")
        file.chmod(0o600)
    return Sending(NotifySection(kind="webhook", url=web.url, secret_file=file), directory)


def command(directory: Path, code: str) -> Sending:
    return Sending(NotifySection(kind="command", command=(sys.executable, "-c", code)), directory)


async def test_webhook_gets_the_notice_signed_with_the_secret(web: WebReceiver, tmp_path: Path) -> None:
    sending = webhook(web, tmp_path, "the secret")
    await sending.send(NOTICE)
    ((headers, body),) = web.received
    assert web.paths == ["POST /topic?token=hidden"]
    assert json.loads(body) == {
        "id": "f00d-7",
        "farm": "farm",
        "farm_id": "f00d",
        "node": 1,
        "kind": "member",
        "text": "member 3 lost",
        "over": False,
        "date_ms": 5000,
        "schema": "garlicfarm.notice/1",
    }
    signature = hmac.new(b"the secret", body, sha256).hexdigest()
    assert headers["garlic-farm-signature"] == f"sha256={signature}"
    assert headers["content-type"] == "application/json"
    assert sending.count("sent") == 1


async def test_failing_server_is_asked_again_until_it_takes_the_notice(
    web: WebReceiver, tmp_path: Path
) -> None:
    web.answers = [status(500), status(429), status(503)]
    sending = webhook(web, tmp_path)
    await sending.send(NOTICE)
    assert len(web.received) == 4
    assert len({body for _, body in web.received}) == 1
    assert sending.count("sent") == 1


@pytest.mark.parametrize("answer", [status(302, "Location: /elsewhere"), status(404)])
async def test_redirect_is_not_followed_and_a_refusal_not_repeated(
    web: WebReceiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: object
) -> None:
    web.answers = [answer]  # type: ignore[list-item]
    sending = webhook(web, tmp_path)
    await sending.send(NOTICE)
    assert web.paths == ["POST /topic?token=hidden"]
    (line,) = told(caplog, "notice-not-sent")
    assert line["cause"].startswith("HTTP status ")
    assert "hidden" not in caplog.text + str(line)
    assert sending.count("failed") == 1


async def test_server_that_never_answers_costs_its_own_notice_alone(
    web: WebReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sending = webhook(web, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(notifier, "DEADLINE_S", 0.2)
        patched.setattr(notifier, "ATTEMPTS", 2)
        web.answers = [silence, silence]
        await sending.send(NOTICE)
        assert told(caplog, "notice-not-sent")[0]["cause"] == "no answer within 0.2 s"
    web.answers = []
    await sending.send(NOTICE)
    assert (sending.count("failed"), sending.count("sent")) == (1, 1)


async def test_large_answer_is_not_read(web: WebReceiver, tmp_path: Path) -> None:
    flood = Flood()
    web.answers = [flood]
    sending = webhook(web, tmp_path)
    await sending.send(NOTICE)
    await wait_until(lambda: web.closed == 1)
    assert flood.sent < 30_000_000  # what the sockets hold
    assert sending.count("sent") == 1


async def test_nothing_listens_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with web_receiver() as gone:
        pass
    sending = webhook(gone, tmp_path)
    await sending.send(NOTICE)
    assert "refused" in told(caplog, "notice-not-sent")[0]["cause"].lower()


async def test_notices_beyond_those_that_wait_are_dropped_and_counted(
    web: WebReceiver, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "QUEUED", 10)
    sending = webhook(web, tmp_path)
    await sending.send(*[NOTICE] * 15)
    assert (sending.count("sent"), sending.count("dropped")) == (10, 5)
    assert told(caplog, "notice-dropped")


async def test_only_wanted_kinds_and_farms_are_sent(web: WebReceiver, tmp_path: Path) -> None:
    section = NotifySection(kind="webhook", url=web.url, events=("keys",), farms=("farm",))
    sending = Sending(section, tmp_path)
    await sending.send(
        NOTICE,
        Notice("1", "farm", "f00d", 1, "keys", "wanted", False, 0),
        Notice("2", "other", "f00d", 1, "keys", "of another farm", False, 0),
    )
    assert [notice["text"] for notice in web.notices()] == ["wanted"]


async def test_command_gets_the_notice_as_its_input_and_little_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the node")
    code = "import os, sys; open('got', 'w').write(sys.stdin.read() + chr(10) + repr(dict(os.environ)))"
    sending = command(tmp_path, code)
    await sending.send(NOTICE)
    body, _, environment = (tmp_path / "got").read_text().partition("\n")
    assert json.loads(body)["text"] == "member 3 lost"
    assert "'GARLICFARM_KIND': 'member'" in environment
    assert "A_SECRET" not in environment
    assert sending.count("sent") == 1


async def test_command_that_is_cancelled_is_killed_with_its_children(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    # Its child holds the pipe open as long as it lives.
    code = "import subprocess; subprocess.run(['sh', '-c', 'exec 3>alive; sleep 1000'])"
    section = NotifySection(kind="command", command=(sys.executable, "-c", code))
    receiver = make_receiver(0, section, tmp_path)
    with trio.fail_after(240):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receiver.send, NOTICE, b"{}")
            alive = await trio.open_file(tmp_path / "alive", "rb")  # once the child has opened it
            nursery.cancel_scope.cancel()
        async with alive:
            assert await alive.read() == b""  # once all that had it open are gone


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("/nonexistent/program",), "it cannot be started: No such file or directory"),
        (("a\0b",), "it cannot be started: embedded null byte"),
        (("false",), "it ended with status 1"),
    ],
)
async def test_command_that_fails_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, words: tuple[str, ...], says: str
) -> None:
    sending = Sending(NotifySection(kind="command", command=words), tmp_path)
    await sending.send(NOTICE)
    assert [line["cause"] for line in told(caplog, "notice-not-sent")] == [says]


async def test_url_that_is_none_after_all_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sending = Sending(NotifySection(kind="webhook", url="http://a..b/"), tmp_path)
    await sending.send(NOTICE)
    assert len(told(caplog, "notice-not-sent")) == 1


def test_secret_that_cannot_be_read_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    section = NotifySection(kind="webhook", url="http://127.0.0.1/", secret_file=tmp_path / "none")
    with pytest.raises(ConfigError):
        make_receiver(0, section, tmp_path)


async def test_notice_that_is_cancelled_while_it_is_sent_leaves_no_generator(tmp_path: Path) -> None:
    """Trio would warn of one."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
    receiver = make_receiver(0, NotifySection(kind="webhook", url=url), tmp_path)
    async with trio.open_nursery() as nursery, listener:
        nursery.start_soon(receiver.send, NOTICE, bytes(100_000_000))
        async with await listener.accept() as stream:
            await stream.receive_some(1)
            await wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
    gc.collect()
