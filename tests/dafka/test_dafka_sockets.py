"""ZeroMQ on Trio: no signal is missed, nothing is lost, nothing blocks."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import zmq
from trio.testing import wait_all_tasks_blocked

from garlicfarm_plugin_dafka.sockets import MAX_BATCH, MAX_FRAMES, Context, user_of
from tests.dafka.meshes import ForeignSocket

HOST = "127.0.0.1"


def socket_of(context: Context, kind: int, **options: Any) -> ForeignSocket:
    return ForeignSocket(context, kind, **{"high_water_mark": 100_000, **options})


async def connected(context: Context) -> tuple[ForeignSocket, ForeignSocket]:
    """A publisher (XPUB), and a subscriber to all."""
    publisher, subscriber = socket_of(context, zmq.XPUB), socket_of(context, zmq.SUB)
    subscriber.set(zmq.SUBSCRIBE, b"")
    subscriber.connect(HOST, publisher.bind(HOST, 0))
    assert await publisher.receive() == [[b"\x01"]]
    return publisher, subscriber


async def test_messages_arrive_whole_and_in_order(context):
    publisher, subscriber = await connected(context)
    sent = [[b"%d" % number, b""] for number in range(5000)]
    for frames in sent:
        publisher.send(frames)
    received: list[list[bytes]] = []
    while len(received) < len(sent):
        batch = await subscriber.receive()
        assert 1 <= len(batch) <= MAX_BATCH
        received += batch
    assert received == sent


async def test_a_signal_that_sending_uses_up_is_not_missed(context):
    publisher, _ = await connected(context)
    second = socket_of(context, zmq.SUB)
    woken: list[list[bytes]] = []

    async def wait() -> None:
        woken.extend(await publisher.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        second.set(zmq.SUBSCRIBE, b"late")
        second.connect(HOST, publisher.bind(HOST, 0))
        while not second.has_messages():  # until the subscription is there; Trio has not seen its signal yet
            publisher.send([b"late"])
    assert woken == [[b"\x01late"]]


async def test_a_cancelled_receiver_loses_nothing(context):
    publisher, subscriber = await connected(context)
    with trio.CancelScope() as scope:
        scope.cancel()
        await subscriber.receive()
    publisher.send([b"one"])
    await subscriber.wait_readable()
    with trio.CancelScope() as scope:
        scope.cancel()
        await subscriber.receive()
    assert scope.cancelled_caught
    assert await subscriber.receive() == [[b"one"]]


async def test_closing_ends_the_wait(context):
    _, subscriber = await connected(context)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await subscriber.receive()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        subscriber.close()
    with pytest.raises(trio.ClosedResourceError):
        await subscriber.wait_readable()


async def test_frames_beyond_any_message_of_ours_are_not_kept(context):
    publisher, subscriber = await connected(context)
    publisher.send([b"f"] * 1000)
    publisher.send([b"next"])
    received: list[list[bytes]] = []
    while len(received) < 2:
        received += await subscriber.receive()
    assert received == [[b"f"] * MAX_FRAMES, [b"next"]]


async def test_sending_to_a_full_queue_drops_and_does_not_wait(context):
    publisher = socket_of(context, zmq.XPUB, high_water_mark=10)
    subscriber = socket_of(context, zmq.SUB, high_water_mark=10)
    subscriber.set(zmq.SUBSCRIBE, b"")
    subscriber.connect(HOST, publisher.bind(HOST, 0))
    await publisher.receive()
    content = bytes(1 << 16)
    for number in range(2000):  # more than the queues and the system's buffers hold
        publisher.send([b"%d" % number, content])
    await subscriber.wait_readable()
    assert subscriber.receive_nowait(1)[0][0] == b"0"


async def test_without_keys_a_sender_has_no_user(context):
    publisher, subscriber = await connected(context)
    publisher.send([b"x"])
    await subscriber.wait_readable()
    ((frame,),) = subscriber.take_frames()
    assert (frame.bytes, user_of(frame)) == (b"x", "")
    assert [*subscriber.take_frames()] == []


async def test_a_flood_does_not_keep_other_tasks_from_their_turn(context):
    publisher, subscriber = await connected(context)
    for _ in range(3 * MAX_BATCH):
        publisher.send([b"x"])
    taken = 0
    while taken < 3 * MAX_BATCH:
        await subscriber.wait_readable()
        batch = [*subscriber.take_frames()]
        assert 1 <= len(batch) <= MAX_BATCH
        taken += len(batch)


async def test_task_that_is_cancelled_as_its_socket_closes_ends_so_even_when_it_was_just_woken(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, subscriber = await connected(context)
    woken = trio.Event()

    async def wait_readable(fd: int) -> None:
        await woken.wait()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(subscriber.receive)
        await wait_all_tasks_blocked()
        woken.set()  # from now on the task is due
        nursery.cancel_scope.cancel()
        subscriber.close()
    assert nursery.cancel_scope.cancelled_caught
