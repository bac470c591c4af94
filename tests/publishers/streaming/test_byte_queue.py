"""Bytes that wait to be sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from garlicfarm_plugin_i2cp.streaming.byte_queue import ByteQueue


@given(st.lists(st.binary(max_size=3000) | st.integers(0, 4000)))
def test_what_is_taken_is_what_was_added(steps: list[bytes | int]) -> None:
    queue, waiting = ByteQueue(), b""
    for step in steps:
        if isinstance(step, bytes):
            queue.append(step)
            waiting += step
        else:
            assert queue.take(step) == waiting[:step]
            waiting = waiting[step:]
        assert len(queue) == len(waiting)
    assert queue.take(len(waiting)) == waiting
    queue.append(b"more")
    queue.clear()
    assert (len(queue), queue.take(1)) == (0, b"")


def test_many_small_pieces_are_kept_as_few() -> None:
    queue = ByteQueue()
    for _ in range(100_000):
        queue.append(b".")
    assert len(vars(queue)["_pieces"]) < 100
