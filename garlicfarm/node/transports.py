"""The transports of one node, and the admission shared by all their listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from functools import partial

from garlicfarm import descriptors
from garlicfarm.config import Config
from garlicfarm.logs import EventLogger
from garlicfarm.metrics import NodeMetrics
from garlicfarm.net.admission import PER_ADDRESS, SLOTS, Admission
from garlicfarm.plugins import make_transport
from garlicfarm.transport import Peer, Transport

HARMLESS = {
    "stale",  # after a restart of this node, clients first use an old nonce, then log in again
    "timeout",  # a port scan sends nothing
    "closed",  # as above; and of a member's streams, all but the first admitted one are closed
    "broken",
    "gone",
}
"""Reasons to refuse a connection that are not the peer's fault."""


class Transports:
    """Makes each transport when it is first needed.

    ``named()``: networks named in the Configurations, see `Admission`.
    """

    def __init__(
        self,
        config: Config,
        metrics: NodeMetrics,
        log: EventLogger,
        named: Callable[[], Container[str]],
    ) -> None:
        total = descriptors.share(SLOTS, len(config.farm))
        self.admission = Admission(total=total, per_address=min(PER_ADDRESS, total // 2), named=named)
        self._config = config
        self._metrics = metrics
        self._log = log
        self._made: dict[str, Transport] = {}

    @property
    def schemes(self) -> Sequence[str]:
        """The schemes of the transports made so far."""
        return sorted(self._made)

    def get(self, scheme: str) -> Transport:
        """The transport for ``scheme``. Raises as `garlicfarm.plugins.make_transport`."""
        if scheme not in self._made:
            table = self._config.transport.get(scheme, {})
            transport = make_transport(scheme, table, self._config.base_dir)
            transport.on_drop = partial(self.on_rejected, scheme)
            if transport.handshake:
                transport.admit = partial(self.admission.admit, on_cut=partial(self._on_cut, scheme))
            self._made[scheme] = transport
        return self._made[scheme]

    def on_rejected(self, scheme: str, peer: Peer, reason: str) -> None:
        """Count and log a connection that is refused, or cut before it logs in."""
        if reason == "challenge":  # every first request gets one
            return
        self._metrics.listener_rejected.labels(scheme, reason).inc()
        if reason == "password":
            self._metrics.auth_failures.labels("").inc()
        level = logging.INFO if reason in HARMLESS else logging.WARNING
        # One cause for all addresses: an attacker may use many.
        self._log.log(level, "rejected", address=peer.address, reason=reason, transport=scheme)

    def _on_cut(self, scheme: str, peer: Peer) -> None:
        self.on_rejected(scheme, peer, "busy")
