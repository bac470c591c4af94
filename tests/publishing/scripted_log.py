"""The scripted log of ``tests/data/farm/scripted-log.jsonl``, and the builders it is made with.

Three members post in rounds of one second; member 1 leads throughout (each says so in its
``config.node.role``) and could publish, but is never the best. Entry 1 of the log is the first
leader's Configuration, so the first line has index 2. Each line is one committed entry::

    {"index": n, "author": member, "entry": "the entry's text"}

``config.node.applied`` holds indexes of this very log: replayed through real nodes, the entries must
get the same indexes. `python -m tests.publishing.scripted_log` writes the file anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from garlicfarm.i2p.encoding import encode
from garlicfarm.publishing.documents import (
    Bandwidth,
    ComparingReport,
    DestinationStatus,
    MetaStatus,
    RouterStatus,
    StatusDocument,
    Tunnels,
)
from garlicfarm.publishing.entries import encode_admin, encode_status
from garlicfarm.publishing.fold import PublisherFold
from garlicfarm.wire.messages import ClusterServer, Configuration

FILE = Path(__file__).parent.parent / "data" / "farm" / "scripted-log.jsonl"
T0 = 1_800_000_000_000
CERTIFICATE = bytes.fromhex("05000400070000")


def configuration(*ids: int, index: int = 0) -> Configuration:
    return Configuration(index, 0, tuple(ClusterServer(id_, f"ssl://n{id_}.example:27150") for id_ in ids))


def destination(seed: int) -> str:
    """A destination of 391 bytes (Ed25519), distinct per seed."""
    filler = hashlib.shake_256(b"leaf %d" % seed).digest(384)
    return encode(filler + CERTIFICATE)


def status(member: int, date: int, **changes: Any) -> StatusDocument:
    """A healthy member's status. ``headroom`` (percent of bandwidth left) sets the score: one percent
    is 2,500 points. The other changes: applied, interval_ms, R, role, boot, outside, control, digests,
    publishing,    mode, leaves, any field of `StatusDocument`."""
    free = changes.pop("headroom", 50)
    node = ComparingReport(
        applied=changes.pop("applied", None),
        interval_ms=changes.pop("interval_ms", 1000),
        R=changes.pop("R", 3),
        role=changes.pop("role", None),
        boot=changes.pop("boot", None),
        outside=changes.pop("outside", None),
        control=changes.pop("control", None),
        digests=changes.pop("digests", None),
    )
    meta = MetaStatus(publishing=changes.pop("publishing", False), publish_config=changes.pop("mode", "auto"))
    leaves = tuple(
        DestinationStatus(
            destination=destination(seed),
            configured_tunnels=Tunnels(in_=3, out=3),
            current_tunnels=Tunnels(in_=3, out=3),
        )
        for seed in changes.pop("leaves", (member,))
    )
    document: dict[str, Any] = {
        "sequence": date,
        "config": {"node": node},
        "meta": meta,
        "router": RouterStatus(
            uptime=86_400_000,
            job_lag=0,
            exploratory_tunnels=4,
            participating_tunnels=100,
            configured_bandwidth=Bandwidth(in_=1000, out=1000),
            current_bandwidth=Bandwidth(in_=1000 - 10 * free, out=0),
        ),
        "destinations": leaves,
    }
    return StatusDocument(cluster="farm", date=date, id=member, **(document | changes))


class Author:
    """Writes a log as honest members would: what they say of ``applied`` and ``publishing`` is what
    they could know when the entry before was committed."""

    def __init__(self, members: tuple[int, ...] = (1, 2, 3)) -> None:
        self.farm = PublisherFold("farm")
        self.farm.configure(0, configuration(*members))
        self.farm.configure(1, configuration(*members, index=1))
        self.index = 1
        self.date = T0
        self.lines: list[dict[str, Any]] = []

    def append(self, author: int, entry: bytes) -> None:
        self.farm.check(entry, author)
        self.index += 1
        self.farm.apply(self.index, 1, entry)
        self.lines.append({"index": self.index, "author": author, "entry": entry.decode()})

    def round(self, headroom: dict[int, int], **changes: Any) -> None:
        """One interval passes; the members named in ``headroom`` post, in that order."""
        self.date += 1000
        for member, free in headroom.items():
            publishing = self.farm.publisher == member and self.farm.due_since is not None
            role = "leader" if member == 1 else "follower"
            mode = changes.get("mode", {}).get(member, "auto")
            known = {"applied": self.index, "role": role, "publishing": publishing, "mode": mode}
            self.append(member, encode_status(status(member, self.date + member, headroom=free, **known)))

    def admin(self, action: str, args: dict[str, object]) -> None:
        self.append(1, encode_admin("farm", self.date, 1, self.date + 500, action, "alice", args))


def script() -> Iterator[dict[str, Any]]:
    """Four changes: margin, death, policy ``off``, an override ``on``."""
    author = Author()
    author.admin("interval", {"ms": 1000})
    for _ in range(3):
        author.round({2: 80, 3: 70, 1: 50})  # 2 is named; 3 is 25,000 behind, 1 75,000
    for _ in range(5):
        author.round({2: 40, 3: 70, 1: 50})  # 3 leads by 75,000
    for _ in range(2):
        author.round({2: 80, 3: 70, 1: 50})  # 2 recovers, within the margin
    for _ in range(5):
        author.round({2: 80, 1: 50})  # 3 is dead
    for _ in range(3):
        author.round({2: 80, 3: 70, 1: 50})  # and back
    for _ in range(3):
        author.round({2: 80, 3: 70, 1: 50}, mode={2: "off"})
    for _ in range(2):
        author.round({2: 80, 3: 70, 1: 50})
    author.admin("override", {"member": 2, "mode": "on"})
    for _ in range(2):
        author.round({2: 80, 3: 70, 1: 50})
    author.admin("override", {"member": 2, "mode": None})
    for _ in range(2):
        author.round({2: 80, 3: 70, 1: 50})
    yield from author.lines


if __name__ == "__main__":
    FILE.write_text("".join(json.dumps(line) + "\n" for line in script()))
