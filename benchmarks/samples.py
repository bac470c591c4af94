"""What is measured of one system under one load, and what follows from it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Load(NamedTuple):
    """``outstanding`` entries of ``size_bytes`` at a time, for ``seconds``; a commit frees the place of the
    next one."""

    outstanding: int
    size_bytes: int
    seconds: float


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One load on one cluster.

    ``nodes_cpu_s``: of all nodes together, user and system time; 0 until it is measured. ``client_cpu_s``:
    None if the client is a part of a node. ``yardstick_us``: the mean of `Yardstick` just before and just
    after; None if the system is only compared with another one. ``unknown``: entries that were refused, or
    whose outcome the client was not told.
    """

    commits: int
    seconds: float
    p50_ms: float
    p99_ms: float
    nodes_cpu_s: float = 0.0
    client_cpu_s: float | None = None
    yardstick_us: float | None = None
    unknown: int = 0

    @property
    def commits_per_s(self) -> float:
        return self.commits / self.seconds

    @property
    def nodes_cpu_us(self) -> float:
        """Per entry."""
        return self.nodes_cpu_s / self.commits * 1e6

    @property
    def client_cpu_us(self) -> float | None:
        """Per entry."""
        return None if self.client_cpu_s is None else self.client_cpu_s / self.commits * 1e6

    @property
    def cpu_us(self) -> float:
        """Per entry, of the nodes and the client."""
        return self.nodes_cpu_us + (self.client_cpu_us or 0.0)
