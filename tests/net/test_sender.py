"""`Sender`: at once if the stream can, else by its task; each byte once and in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from garlicfarm.net.sender import SEND_NOW_BYTES, Sender
from tests.running import background


class Stream:
    """A stream with a method ``send_now``. What that does not take, ``held`` has, until `send_all`."""

    def __init__(self) -> None:
        self.sent, self.held = b"", b""
        self.takes_now = True
        self.sent_by_task = 0
        self.has_room = trio.Event()
        self.has_room.set()

    def send_now(self, data: bytes) -> bool:
        if self.takes_now:
            self.sent += data
        else:
            self.held += data
        return self.takes_now

    async def send_all(self, data: bytes) -> None:
        await self.has_room.wait()
        self.sent_by_task += 1
        self.sent, self.held = self.sent + self.held + data, b""


class Bench:
    def __init__(self) -> None:
        self.stream = cast(Any, Stream())
        self.queue: list[bytes] = []
        self.fault: Exception | None = None
        self.sender = Sender(self.stream, self.take)

    def take(self) -> bytes:
        if self.fault is not None and not self.queue:
            raise self.fault
        data, self.queue = b"".join(self.queue), []
        return data

    def add(self, *parts: bytes) -> None:
        self.queue += parts
        self.sender.flush()

    @asynccontextmanager
    async def running(self, timeout_s: float = 5) -> AsyncIterator[None]:
        async with background(lambda: self.sender.run(timeout_s)):
            await wait_all_tasks_blocked()
            yield
            await wait_all_tasks_blocked()


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_what_the_stream_takes_at_once_wakes_no_task(bench: Bench) -> None:
    async with bench.running():
        bench.add(b"a")
        bench.add(b"b", b"c")
        bench.add()
        assert bench.stream.sent == b"abc"
    assert bench.stream.sent_by_task == 0


async def test_rest_that_the_stream_holds_is_sent_by_the_task_and_later_parts_behind_it(bench: Bench) -> None:
    async with bench.running():
        bench.stream.takes_now = False
        bench.add(b"a")
        bench.stream.takes_now = True
        bench.add(b"b")  # the task is due: nothing overtakes
        assert (bench.stream.sent, bench.stream.held) == (b"", b"a")
        await wait_all_tasks_blocked()
        assert bench.stream.sent == b"ab"
        bench.add(b"c")
    assert (bench.stream.sent, bench.stream.sent_by_task) == (b"abc", 1)


async def test_part_that_is_too_large_for_now_goes_by_the_task_once(bench: Bench) -> None:
    large = bytes(SEND_NOW_BYTES + 1)
    async with bench.running():
        bench.add(large)
        bench.add(b"z")
    assert bench.stream.sent == large + b"z"
    assert bench.stream.sent_by_task == 1


async def test_parts_that_come_while_the_task_sends_follow(bench: Bench) -> None:
    bench.stream.has_room = trio.Event()
    async with bench.running():
        bench.queue.append(b"a")
        bench.sender.wake()
        await wait_all_tasks_blocked()
        bench.add(b"b")
        bench.add(b"c")
        assert bench.stream.sent == b""
        bench.stream.has_room.set()
    assert (bench.stream.sent, bench.stream.sent_by_task) == (b"abc", 2)


async def test_stream_without_send_now_is_sent_on_by_the_task(bench: Bench) -> None:
    bench.stream.send_now = None
    bench.sender = Sender(bench.stream, bench.take)
    async with bench.running():
        bench.add(b"a")
        assert bench.stream.sent == b""
    assert bench.stream.sent == b"a"


async def test_peer_that_takes_nothing_ends_the_task_in_time(bench: Bench, autojump_clock: object) -> None:
    bench.stream.has_room = trio.Event()
    with pytest.RaisesGroup(trio.TooSlowError):
        async with bench.running(timeout_s=3):
            bench.queue.append(b"a")
            bench.sender.wake()
            await trio.sleep(4)
    assert trio.current_time() < 4


async def test_fault_of_what_is_next_is_raised_behind_what_was_taken(bench: Bench) -> None:
    bench.fault = ValueError("no more")
    large = bytes(SEND_NOW_BYTES + 1)
    with pytest.RaisesGroup(ValueError):
        async with bench.running():
            bench.add(large)
            await wait_all_tasks_blocked()
    assert bench.stream.sent == large


async def test_broken_stream_is_the_tasks_to_report(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def send_now(data: bytes) -> bool:
        raise trio.BrokenResourceError

    async def send_all(data: bytes) -> None:
        raise trio.BrokenResourceError

    bench.stream.send_now, bench.stream.send_all = send_now, send_all
    bench.sender = Sender(bench.stream, bench.take)
    bench.add(b"a")
    with pytest.RaisesGroup(trio.BrokenResourceError):
        async with bench.running():
            pass
