"""A log of a farm, written entry by entry by whoever tests the fold."""

from __future__ import annotations

from typing import Any

from garlicfarm.i2p.destination import destination_hash
from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from tests.publishing.scripted_log import T0, configuration, destination, status


def leaf_hash(seed: int) -> str:
    """The hash of `destination` (seed), as it is written."""
    return encode(destination_hash(destination(seed)))


class Log:
    """A log written entry by entry; dates are seconds after T0, indexes start at 1."""

    def __init__(self, *members: int) -> None:
        self.farm = PublisherFold("farm")
        self.farm.configure(0, configuration(*members))
        self.index = 0

    def post(self, member: int, second: float, **changes: Any) -> int:
        changes.setdefault("applied", self.index)
        changes.setdefault("sequence", None)
        return self.append(encode_status(status(member, T0 + int(second * 1000), **changes)))

    def append(self, entry: bytes) -> int:
        self.index += 1
        self.farm.apply(self.index, 1, entry)
        return self.index

    def override(self, member: int, mode: str | None) -> int:
        return self.order("override", {"member": member, "mode": mode})

    def exclude(self, leaf: int) -> int:
        return self.order("exclude", {"hash": leaf_hash(leaf)})

    def order(self, action: str, args: Any) -> int:
        return self.append(encode_admin("farm", T0, 1, None, action, "alice", args))


def due_member_1() -> Log:
    """Member 3 is silent, so that nobody is declared dead by one other alone."""
    log = Log(1, 2, 3)
    log.post(1, 0, headroom=90)
    log.post(2, 0, headroom=10)
    assert (log.farm.publisher, log.farm.due_since) == (1, 1)
    return log
