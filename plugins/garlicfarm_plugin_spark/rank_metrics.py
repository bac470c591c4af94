"""The metrics of `garlicfarm rank --metrics`, and the listener that serves them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, start_http_server

from garlicfarm.errors import ConfigError


class RankMetrics:
    """All metrics of one ``rank``, in ``registry``. Those of a farm are absent before they are known."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._index = self._gauge("rank_index", "Last index that is ranked.", "farm")
        self._commit_index = self._gauge("rank_commit_index", "Last committed index of the nodes.", "farm")
        self._lag = self._gauge("rank_lag_entries", "Committed entries that are not ranked.", "farm")
        self.batches = self._counter("rank_batches_total", "Batches of the query that are done.")
        self.restarts = self._counter("rank_restarts_total", "Starts after a failure.", "what")
        self.verified = self._counter("rank_verified_total", "States equal to those of a node.")

    def progress(self, farm: str, index: int | None, commit_index: int | None) -> None:
        """None: unknown; a commit index that was known then becomes NaN."""
        if index is not None:
            self._index.labels(farm).set(index)
        self._commit_index.labels(farm).set(math.nan if commit_index is None else commit_index)
        if index is not None:
            lag = math.nan if commit_index is None else max(0, commit_index - index)
            self._lag.labels(farm).set(lag)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"garlicfarm_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"garlicfarm_{name}", text, labels, registry=self.registry)


@contextmanager
def served(metrics: RankMetrics, address: tuple[str, int] | None) -> Iterator[int]:
    """Serve them at this host and port (0: any), without a login, as long as the block lasts; None: nowhere.
    The block gets the port.

    Raises `ConfigError`: nothing can listen there.
    """
    if address is None:
        yield 0
        return
    host, port = address
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise ConfigError(
            [f"--metrics: nothing can listen at {host}:{port} ({error.strerror}): name another address"]
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
