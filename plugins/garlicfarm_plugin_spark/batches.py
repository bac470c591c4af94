"""Where the batches of a query begin and end. Pure: heads and offsets in, offsets out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from garlicfarm.errors import ConfigError, FellBehind
from garlicfarm_plugin_spark.node_reader import FarmHead
from garlicfarm_plugin_spark.offsets import Position
from garlicfarm_plugin_spark.options import Start

MAX_VALUE_BYTES = 1 << 20
"""The largest value of an entry."""

Gone = Literal["fail", "skip", "state"]
"""What to do where entries were deleted: end the query, continue at the first one left, or at the
application's state."""
Extent = Callable[[str, str, int, int, int], tuple[int, int]]
"""(farm, farm_id, after, upto, max_bytes) → (last index of as many bytes, these bytes), as
`NodeReader.extent`."""

State = Callable[[str, str, int], tuple[int, bytes]]
"""(farm, farm_id, least) → (index, snapshot) of its application, as `NodeReader.state`."""

_log = logging.getLogger("garlicfarm.spark")


@dataclass(frozen=True, slots=True)
class Losses:
    """How a query begins, and what it does about deleted entries."""

    start: Start
    strict: bool
    stream: bool = True
    whole: bool = True
    """whether a state may stand for deleted entries: not in a batch query that ends at an index"""

    def first_after(self, farm: str, head: FarmHead, last: int) -> int:
        """The index before the first one to read, in a query without an offset for this farm.

        Raises `ConfigError`: ``startingIndex`` is beyond the log.
        """
        match self.start:
            case "earliest":
                return head.first_index - 1
            case "latest":
                return last
            case "state":
                return 0
            case index if index < 0:
                return max(head.first_index - 1, last + index)
            case index if index > last + 1:
                raise ConfigError(
                    [
                        f"startingIndex is {index}, and the log of {farm} ends at {last}: name an index up to"
                        f" {last + 1}, or latest"
                    ]
                )
            case index:
                return index - 1

    def when_gone(self, *, begun: bool) -> Gone:
        """What the plan of a batch does. ``begun``: the query has an offset for the farm, and would lose what
        follows it."""
        if self.start == "state" and self.whole and not (begun and self.strict):
            return "state"
        return "fail" if self.strict else "skip"

    @property
    def when_gone_later(self) -> Gone:
        """What a reader does where entries of a planned batch are gone. The bounds of the batch are fixed
        then, and a state as of now would be beyond them, so a strict query never takes one."""
        return "fail" if self.strict else self.when_gone(begun=True)

    def error(self, farm: str, after: int, first_index: int, *, begun: bool = True) -> FellBehind:
        """The error about the deleted entries between ``after`` and ``first_index``."""
        if not self.strict:
            remedy = "this query loses the entries in between"
        elif self.start == "state" and not self.whole:
            remedy = "the state of a node is of its newest index, so leave endingIndex out"
        elif not self.stream and (self.start == "earliest" or begun):
            remedy = "they were deleted while this query read, so start it again"
        elif not begun:  # there is no checkpoint to blame
            remedy = f"startingIndex is {self.start}, and earliest begins there"
        else:
            remedy = "begin with a new checkpoint; a query of your own may set failOnDataLoss to false"
        return FellBehind(
            f"the entries after index {after} are gone, the log of {farm} now starts at {first_index}:"
            f" {remedy}"
        )

    def begin(self, farm: str, head: FarmHead, after: int, *, begun: bool) -> int | None:
        """Where to begin if the next index to read is ``after`` + 1; None: with the application's state.

        Raises `FellBehind`: it was deleted, and the query is strict. Otherwise the loss is logged.
        """
        if after >= head.first_index - 1:
            return after
        gone = self.when_gone(begun=begun)
        if gone == "fail":
            raise self.error(farm, after, head.first_index, begun=begun)
        if gone == "state":
            return None
        _log.warning("%s", self.error(farm, after, head.first_index))
        return head.first_index - 1


@dataclass(slots=True)
class _Step:
    farm: str
    farm_id: str
    after: int | None  # None: the query has no offset for this farm
    begin: int
    end: int
    state: bytes | None = None  # at `begin`
    past: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.end - self.begin


def next_positions(
    start: Mapping[str, Position],
    heads: Mapping[str, FarmHead],
    losses: Losses,
    *,
    last: Mapping[str, int] | None = None,
    max_entries: int | None = None,
    max_bytes: int | None = None,
    extent: Extent | None = None,
    state: State | None = None,
) -> Mapping[str, Position]:
    """The end of the next batch; ``start`` itself if there is nothing new.

    :param heads: of the farms to read. A farm in ``start`` without a head stays where it is. One with another
        id there was made anew, and begins as one without an offset does.
    :param last: no farm goes beyond these indexes, and others are not begun. None: no such limit.
    :param max_entries: of all farms together; each farm with entries gets one at least. None: no limit.
    :param max_bytes: likewise, of values; ``extent`` is asked only where there may be more.
    :param state: asked where a state stands for deleted entries. The farm has nothing else in that batch.
    :raises FellBehind, ConfigError: as `Losses`.
    """
    steps = [
        _step(farm, head, start.get(farm), losses, head.commit_index if last is None else last[farm], state)
        for farm, head in heads.items()
        if last is None or farm in last
    ]
    longer = [step for step in steps if step.size]
    if max_entries is not None:
        for step, share in zip(longer, shares([each.size for each in longer], max_entries), strict=True):
            step.end = step.begin + share
    if max_bytes is not None and extent is not None:
        _bound_bytes(longer, max_bytes, extent)
    if all(step.after == step.begin == step.end for step in steps):
        return start
    ends = {farm: Position(one.index, one.farm_id, past=one.past) for farm, one in start.items()}
    for step in steps:
        begin = None if step.after == step.begin else step.begin
        ends[step.farm] = Position(step.end, step.farm_id, begin, step.state, step.past)
    return ends


def _step(
    farm: str, head: FarmHead, position: Position | None, losses: Losses, last: int, state: State | None
) -> _Step:
    past = () if position is None else position.past
    if position is not None and position.farm_id != head.farm_id:  # another farm, made anew
        past, position = (*past, position.farm_id), None
    last = min(last, head.commit_index)
    after = losses.first_after(farm, head, last) if position is None else position.index
    begin = losses.begin(farm, head, after, begun=position is not None)
    begun = None if position is None else after
    if begin is None:
        assert state is not None
        index, snapshot = state(farm, head.farm_id, head.first_index - 1)
        return _Step(farm, head.farm_id, begun, index, index, snapshot, past)
    return _Step(farm, head.farm_id, begun, begin, max(begin, last), None, past)


def _bound_bytes(steps: Iterable[_Step], max_bytes: int, extent: Extent) -> None:
    """Small ranges first: the others get what these leave of their shares."""
    left = sorted(steps, key=lambda step: step.size)
    while left:
        step = left.pop(0)
        share = max_bytes // (len(left) + 1)
        used = step.size * MAX_VALUE_BYTES
        if share < 1:
            step.end, used = step.begin + 1, 0
        elif used > share:
            step.end, used = extent(step.farm, step.farm_id, step.begin, step.end, share)
        max_bytes -= used


def shares(wanted: list[int], limit: int) -> list[int]:
    """Divide ``limit`` fairly: none gets more than it wants, and each gets at least 1, even beyond the limit,
    so that no farm waits forever."""
    found = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for place, number in enumerate(order):
        found[number] = max(1, min(wanted[number], limit // (len(order) - place)))
        limit = max(0, limit - found[number])
    return found


def split(sizes: list[int], least: int) -> list[int]:
    """Into how many parts to split ranges of these sizes so that there are ``least`` in all, or as many as
    there are indexes; larger ranges into more."""
    total = sum(sizes)
    if not total:
        return [1] * len(sizes)
    return [max(1, min(size, -(-least * size // total))) for size in sizes]
