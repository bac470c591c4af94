"""The kernel's counters of TCP connections, from `ss`: bytes and segments of each, by process."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

_NAMES = ("bytes_sent", "bytes_received", "segs_out", "segs_in")
_USER = re.compile(r'\("[^"]*",pid=(\d+),fd=\d+\)')


class Connection(NamedTuple):
    """One end of a connection, in a process; addresses in the format of ``ss``."""

    pid: int
    local: str
    peer: str

    @property
    def local_port(self) -> int:
        return int(self.local.rpartition(":")[2])

    @property
    def peer_port(self) -> int:
        return int(self.peer.rpartition(":")[2])


class Traffic(NamedTuple):
    """Bytes of the stream, including retransmissions, and segments, including those without data."""

    sent: int = 0
    received: int = 0
    segments_out: int = 0
    segments_in: int = 0

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(*(mine + its for mine, its in zip(self, other, strict=True)))

    def minus(self, other: Traffic) -> Traffic:
        return Traffic(*(mine - its for mine, its in zip(self, other, strict=True)))


def connections() -> dict[Connection, Traffic]:
    """The sockets of this network namespace that belong to processes of this user."""
    command = ["ss", "--no-header", "--tcp", "--info", "--numeric", "--processes"]
    return dict(parse(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def parse(text: str) -> Iterator[tuple[Connection, Traffic]]:
    """Parses `ss -Htinp`: two lines for each connection, and one for each without a process."""
    found: list[Connection] = []
    for line in text.splitlines():
        if line[:1].isspace():
            counted = dict(field.split(":", 1) for field in line.split() if field.count(":") == 1)
            traffic = Traffic(*(int(counted.get(name, 0)) for name in _NAMES))  # ss omits zeros
            yield from ((each, traffic) for each in found)
        else:
            local, peer = line.split()[3:5]
            found = [Connection(int(pid), local, peer) for pid in _USER.findall(line)]


class Meter:
    """Sums the traffic of connections that open and close. When one ends, its traffic after the last `read`
    is missing; ``ended`` counts these."""

    def __init__(self) -> None:
        self._newest: dict[Connection, Traffic] | None = None
        self.total: dict[Connection, Traffic] = {}
        self.ended = 0

    def read(self, now: dict[Connection, Traffic]) -> None:
        """Read the counters; the first call sets the baseline."""
        if self._newest is not None:
            self.ended += len(self._newest.keys() - now.keys())
            for each, traffic in now.items():
                more = traffic.minus(self._newest.get(each, Traffic()))
                self.total[each] = self.total.get(each, Traffic()).plus(more)
        self._newest = now
