"""A producer, sans-I/O: one partition of one topic, kept until enough stores have acknowledged it.

Commands and the time go in; records, heads and answers come out. The caller may send them at once, and may
lose any of them: heads repeat, and what a peer lacks it fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from garlicfarm.errors import LocalProtocolError
from garlicfarm_plugin_dafka.codec import (
    Ack,
    Command,
    DirectHead,
    DirectRecord,
    Fetch,
    GetHeads,
    Head,
    Record,
    subscription_prefix,
)
from garlicfarm_plugin_dafka.serving import PAGE_BYTES, PAGE_RECORDS
from garlicfarm_plugin_dafka.serving_core import HEAD_INTERVAL_S, ServingCore

_ASK_S = 2.0
_MAX_ASK_S = 8.0
_OVERHEAD_BYTES = 100
_MAX_STORES = 1024


class Backlog(NamedTuple):
    """Records from ``first`` on that an earlier process has produced, and no store acknowledged."""

    first: int = 0
    contents: Sequence[bytes] = ()


_NO_BACKLOG = Backlog()


class ProducerCore(ServingCore):
    """Numbers records, keeps them, and answers for them.

    ``acks``: of how many stores a record needs an ACK before it is dropped. Stores are told apart by their
    keys, without CURVE by their endpoints. 0: nothing is waited for; the oldest records are dropped when
    there is no more room, and a FETCH of what is gone is answered with a DIRECT-TAIL. With ACKs such a FETCH
    gets no answer, since a store has the record.

    ``limit_records`` and ``limit_bytes``: how much is kept at most.

    ``asks_stores``: when no ACK comes for 2 s, then 4 s, then every 8 s, it asks the stores for their heads,
    which say what they have saved. A C store never repeats an ACK; ours do.
    """

    def __init__(
        self,
        topic: str,
        partition: str,
        *,
        acks: int,
        limit_records: int,
        limit_bytes: int,
        asks_stores: bool = True,
        backlog: Backlog = _NO_BACKLOG,
    ) -> None:
        super().__init__(topic)
        first, contents = backlog
        self.partition = partition
        self._acks = acks
        self._limit_records = limit_records
        self._limit_bytes = limit_bytes
        self._kept = dict(enumerate(contents, first))
        self._bytes = sum(map(len, contents)) + _OVERHEAD_BYTES * len(contents)
        self._first = first  # of what is kept
        self._next = first + len(contents)
        # A C store is two nodes, one of which acknowledges and the other tells heads: they are not added up.
        self._acked: dict[object, int] = {}  # by store
        self._told: dict[object, int] = {}  # by store: its head
        self._head_at: float | None = 0.0 if self._next else None
        self._asks = asks_stores and acks > 0
        self._ask_s = _ASK_S
        self._ask_at = 0.0
        self._acked_before = 0  # at the last look

    def subscriptions(self) -> Sequence[bytes]:
        """What to subscribe to."""
        return (
            subscription_prefix(Ack, self.partition),
            subscription_prefix(Fetch, self.partition),
            subscription_prefix(GetHeads, self.topic),
            *((subscription_prefix(DirectHead, self.partition),) if self._asks else ()),
        )

    @property
    def next_sequence(self) -> int:
        """The sequence of the record that is appended next: how many there were."""
        return self._next

    @property
    def acked(self) -> int:
        """How many records, from the first one on, were acknowledged by enough stores; all if none has to."""
        if not self._acks:
            return self._next
        return max(
            self._first,
            *(
                sorted(last.values())[-self._acks] + 1 if len(last) >= self._acks else 0
                for last in (self._acked, self._told)
            ),
        )

    @property
    def first(self) -> int:
        """The first record that is kept."""
        return self._first

    def has_room(self, *sizes: int) -> bool:
        """Whether records of these sizes can be appended now; a single one can if nothing else is kept."""
        return (
            not self._acks
            or (not self._kept and len(sizes) == 1)
            or (
                len(self._kept) + len(sizes) <= self._limit_records
                and self._bytes + sum(sizes) + _OVERHEAD_BYTES * len(sizes) <= self._limit_bytes
            )
        )

    def append(self, content: bytes, now: float) -> Record:
        """Number and keep a record; returns it, to be sent. Raises `LocalProtocolError`: there is no room."""
        if not self.has_room(len(content)):
            raise LocalProtocolError("the producer holds its limit of unacknowledged records")
        sequence = self._next
        self._kept[sequence] = content
        self._next = sequence + 1
        self._bytes += len(content) + _OVERHEAD_BYTES
        if self._head_at is None:
            self._head_at = now + HEAD_INTERVAL_S
            self._ask_at = now + _ASK_S
        if not self._acks:
            while len(self._kept) > self._limit_records or self._bytes > self._limit_bytes:
                if len(self._kept) == 1:
                    break
                self._drop_first()
        return Record(self.topic, self.partition, sequence, content)

    def receive(self, command: Command, key: object = None) -> None:
        """Take a command from a peer with this key."""
        if isinstance(command, Ack):
            self._on_saved(command, key, self._acked)
        elif isinstance(command, DirectHead) and self._asks:
            if (command.recipient, command.partition) == (self.partition, self.partition):
                self._on_saved(command, key, self._told)
            else:
                self.dropped["head of another partition"] += 1
        elif isinstance(command, Fetch):
            if (command.partition, command.topic) != (self.partition, self.topic):
                self.dropped["another partition"] += 1
            elif self._acks and command.sequence < self._first:
                self.dropped["FETCH of what is not there"] += 1
            else:
                self._serve(command, self._first, self._next)
        elif isinstance(command, GetHeads):
            self._on_get_heads(command)
        else:
            self.dropped["not for a producer"] += 1

    def tick(self, now: float) -> Sequence[Head | GetHeads]:
        """What is due: from a second after the first record on its HEAD, and questions to the stores."""
        if self._head_at is None:
            return ()
        due: list[Head | GetHeads] = []
        if now >= self._head_at:
            self._head_at = now + HEAD_INTERVAL_S
            due.append(Head(self.topic, self.partition, self._next - 1))
        if self._asks and self._has_to_ask(now):
            due.append(GetHeads(self.topic, self.partition))
        return due

    def answers(self) -> list[Command]:
        """Some of the answers that peers wait for: to be called, with pauses, while `has_answers`."""
        found = super().answers()
        place = self.topic, self.partition
        turn = self.fetches.turn()
        if turn is not None:
            sequence = first = turn.first
            size = 0
            end = min(turn.end, first + PAGE_RECORDS)
            while sequence < end and size < PAGE_BYTES and (content := self._kept.get(sequence)) is not None:
                found.append(DirectRecord(turn.requester, *place, sequence, content))
                size += len(content)
                sequence += 1
            if self.fetches.advance(turn, first, sequence) and sequence < self._next:
                found.append(DirectHead(turn.requester, *place, self._next - 1))
        return found

    def _last_records(self) -> Iterable[tuple[str, int]]:
        return [(self.partition, self._next - 1)] if self._next else ()

    def _has_to_ask(self, now: float) -> bool:
        acked, before = self.acked, self._acked_before
        self._acked_before = acked
        if acked == self._next or acked > before:
            self._ask_s = _ASK_S
            self._ask_at = now + _ASK_S
            return False
        if now < self._ask_at:
            return False
        self._ask_s = min(2 * self._ask_s, _MAX_ASK_S)
        self._ask_at = now + self._ask_s
        return True

    def _on_saved(self, command: Ack | DirectHead, key: object, saved: dict[object, int]) -> None:
        """A store has saved the records up to a sequence."""
        if (command.partition, command.topic) != (self.partition, self.topic):
            self.dropped["another partition"] += 1
        elif command.sequence >= self._next:
            self.dropped["ACK of what was never sent"] += 1
        elif key not in saved and len(saved) >= _MAX_STORES:
            self.dropped["too many stores"] += 1
        elif command.sequence > saved.get(key, -1):
            saved[key] = command.sequence
            if self._acks:
                for _ in range(self._first, self.acked):
                    self._drop_first()

    def _drop_first(self) -> None:
        self._bytes -= len(self._kept.pop(self._first)) + _OVERHEAD_BYTES
        self._first += 1
