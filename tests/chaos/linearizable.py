"""Whether what clients did to a log and saw of it is linearizable.

A history is linearizable if each operation can be given one moment between its invocation and its completion
so that, one after another in the order of these moments, each does what a log on one machine would do: a post
appends, a read shows all that was appended before it and nothing else (Herlihy and Wing 1990). In general
this takes a search over orders (Wing and Gong; Knossos and porcupine do it). Here it takes none: the object
is a log that only grows, and the committed log itself shows its order.

* a post that is in it stands at its index; whether it was acknowledged does not matter;
* a post that is not in it had no effect, and may not have been acknowledged;
* a read that shows the log up to index r stands after the post at r and before the one at r + 1.

Only the order among reads at one place is left open, and reads do not affect each other. So a history is
linearizable if and only if no operation ended before another one began that stands in front of it. If there
is no such pair, the moments are found by going through the order and giving each operation the latest
invocation so far: none is after its completion. If there is such a pair, no moments fit both orders.

This one rule covers all of these: a read shows what was acknowledged before it began; it shows what an
earlier read showed; posts that follow each other in time do so in the log; nothing is shown before it was
posted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from tests.crash.crash_checks import Violation


class Post(msgspec.Struct, frozen=True, tag="post"):
    """``label`` was posted, once and under no other label. ``index``: of its acknowledgement, 0 where there
    was none; ``refused``: it was said to be certainly not in the log. ``ended_s`` of any other: whenever."""

    label: str
    begun_s: float
    ended_s: float | None = None
    index: int = 0
    refused: bool = False


class Read(msgspec.Struct, frozen=True, tag="read"):
    """A linearizable read that showed the log up to index ``upto``, and these entries of it: all those with
    ``after`` < index ≤ ``to``, labels by index. ``to`` is at most ``upto``."""

    begun_s: float
    ended_s: float
    upto: int
    after: int = 0
    to: int = 0
    shown: dict[int, str] = {}


Operation = Post | Read


def check_linearizable(operations: Iterable[Operation], log: Mapping[int, str]) -> int:
    """Raise `Violation` unless the operations are linearizable and made ``log``, the labels of its entries by
    index. All times are of one monotonic clock. Returns how many operations were put into the order."""
    indexes = {label: index for index, label in log.items()}
    if len(indexes) != len(log):
        index, label = next((i, label) for i, label in log.items() if indexes[label] != i)
        raise Violation(f"{label} was posted once and is in the log at {index} and {indexes[label]}")
    placed: list[tuple[tuple[int, int, float], float, Operation]] = []
    unposted = set(indexes)
    for operation in operations:
        if isinstance(operation, Read):
            _check_shown(operation, log)
            place, ended_s = (operation.upto, 1, operation.begun_s), operation.ended_s
        else:
            index = indexes.get(operation.label, 0)
            unposted.discard(operation.label)
            _check_outcome(operation, index, log)
            if not index:
                continue
            place = (index, 0, operation.begun_s)
            ended_s = operation.ended_s if operation.index and operation.ended_s is not None else math.inf
        placed.append((place, ended_s, operation))
    if unposted:
        raise Violation(f"{min(unposted)} is in the log, and no client posted it")
    _check_order(placed)
    return len(placed)


def _check_shown(read: Read, log: Mapping[int, str]) -> None:
    there = {index: log[index] for index in range(read.after + 1, read.to + 1) if index in log}
    for index in sorted(there.keys() | read.shown.keys()):
        shown, has = read.shown.get(index, "nothing"), there.get(index, "nothing")
        if shown != has:
            raise Violation(f"{_words(read)} showed {shown} at index {index}, where the log has {has}")


def _check_outcome(post: Post, index: int, log: Mapping[int, str]) -> None:
    if post.index and post.index != index:
        raise Violation(
            f"{post.label} was acknowledged at index {post.index}, where the log has "
            f"{log.get(post.index, 'nothing')}"
        )
    if post.refused and index:
        raise Violation(f"{post.label} was refused, and is in the log at index {index}")


def _check_order(placed: list[tuple[tuple[int, int, float], float, Operation]]) -> None:
    latest: Operation | None = None
    for _, ended_s, operation in sorted(placed, key=lambda one: one[0]):
        if latest is not None and ended_s < latest.begun_s:
            before_ms = (latest.begun_s - ended_s) * 1000
            raise Violation(
                f"not linearizable: {_words(operation)} ended {before_ms:.1f} ms before "
                f"{_words(latest)} began, and stands after it in the log"
            )
        if latest is None or operation.begun_s > latest.begun_s:
            latest = operation


def _words(operation: Operation) -> str:
    if isinstance(operation, Post):
        return f"the post of {operation.label}"
    return f"a read up to index {operation.upto} (from {operation.begun_s:.3f} to {operation.ended_s:.3f} s)"
