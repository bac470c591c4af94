"""What a producer and a member of a farm have in common, sans-I/O: they tell of records, and serve them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from garlicfarm_plugin_dafka.codec import Command, DirectHead, DirectTail, Fetch, GetHeads
from garlicfarm_plugin_dafka.serving import FetchQueue

HEAD_INTERVAL_S = 1.0
_MAX_WAITING = 4096
_K = TypeVar("_K")
_V = TypeVar("_V")


class ServingCore(ABC):
    """Serves partitions of ``topic``. ``fetches``: the ranges that peers wait for. ``dropped`` counts
    commands that were not followed, by reason."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.dropped: Counter[str] = Counter()
        self.fetches = FetchQueue()
        self._heads: dict[str, None] = {}  # who asked for them, in order
        self._tails: dict[tuple[str, str], int] = {}  # requester and partition: where it begins

    @property
    def has_answers(self) -> bool:
        """Whether `answers` has something to send, or a range is to be read."""
        return bool(self._heads or self._tails or self.fetches)

    def answers(self) -> list[Command]:
        """The answers that peers wait for: to be called, with pauses, while `has_answers`."""
        found: list[Command] = [
            DirectHead(sender, self.topic, *last) for sender in self._heads for last in self._last_records()
        ]
        for (sender, partition), tail in self._tails.items():
            found.append(DirectTail(sender, self.topic, partition, tail))
        self._heads.clear()
        self._tails.clear()
        return found

    @abstractmethod
    def _last_records(self) -> Iterable[tuple[str, int]]:
        """The partitions that have a record, and the sequence of the last one."""

    def _on_get_heads(self, command: GetHeads) -> None:
        if command.topic != self.topic:
            self.dropped["another topic"] += 1
        elif any(self._last_records()):
            self._ask(self._heads, command.sender, None)

    def _serve(self, command: Fetch, tail: int, end: int) -> None:
        """A FETCH of a partition of which the records from ``tail`` up to ``end`` are there, excluding it."""
        end = min(command.sequence + command.count, end)
        if command.sequence < tail:
            self._ask(self._tails, (command.sender, command.partition), tail)
        elif command.sequence >= end:
            self.dropped["FETCH of what is not there"] += 1
        elif not self.fetches.add(command, command.sequence, end):
            self.dropped["too many requests"] += 1

    def _ask(self, waiting: dict[_K, _V], key: _K, value: _V) -> None:
        if len(waiting) < _MAX_WAITING or key in waiting:
            waiting[key] = value
        else:
            self.dropped["too many requests"] += 1
