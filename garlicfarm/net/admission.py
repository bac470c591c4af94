"""Which connections may wait to log in: the one policy of all listeners of a node.

Theory of operation. A connection holds an `AdmissionSlot` from its first byte until it has logged in or its
socket is closed. The number of slots is bounded, per address and in total. A new connection always gets one:
at a limit, an older connection is cut for it. So an attacker must reopen all its connections in the time that
one login takes.

* At the limit of an address, one of its own connections is cut; at the total limit, one of a stranger.
* The least advanced stage is cut first, its oldest connection first. A stage with no more than a sixth of the
  slots is spared: otherwise a stranger could fill the most advanced one, and every newcomer would be cut.
* A quarter of all slots is reserved for known addresses: a member logged in from there within the last hour,
  or an endpoint of the Configuration names it.

A TLS handshake costs CPU before any login, so it also takes a token from its address.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager

import trio

from garlicfarm.transport import AdmissionSlot, Peer, Stage, network_of

SLOTS = 512
PER_ADDRESS = 64
KNOWN_FOR_S = 3600.0
BURST = 128  # handshakes of an address after a pause: 16 members that reconnect at once need two each
PER_SECOND = 16.0
KNOWN_TIMES = 8  # a known address gets this many times more
MAX_REMEMBERED = 1024


class Admission:
    """The slots of connections that have not logged in.

    :param per_address: the limit for one address (IPv6: one /64).
    :param total: the limit for all. A quarter is reserved for known addresses.
    :param named: other known addresses, each as from `network_of`; asked at each connection.

    `welcome` makes the address of a member known. A peer whose address is not its own (``address_is_peer``
    False) is a stranger without an address: only ``total`` bounds it.
    """

    def __init__(
        self,
        *,
        per_address: int = PER_ADDRESS,
        total: int = SLOTS,
        named: Callable[[], Container[str]] = frozenset,
    ) -> None:
        self._per_address = per_address
        self._total = total
        self._named = named
        self._slots: dict[HeldSlot, None] = {}  # in the order in which they entered their stage
        self._known: dict[str, float] = {}  # until when
        self._tokens: dict[str, tuple[float, float]] = {}  # how many at which time

    @property
    def taken(self) -> int:
        """The number of slots in use."""
        return len(self._slots)

    @contextmanager
    def admit(self, peer: Peer, on_cut: Callable[[Peer], None] = lambda peer: None) -> Iterator[HeldSlot]:
        """A slot for one connection while the context lasts.

        If another connection needs it, ``on_cut(peer)`` is called and the context cancelled. ``on_cut`` is
        not called for a connection that was refused already. After `AdmissionSlot.leave` neither can happen.
        """
        network = network_of(peer.address) if peer.address_is_peer else None
        known = network is not None and self._is_known(network)
        self._make_room(network, known=known)
        with trio.CancelScope() as scope:
            slot = HeldSlot(self, peer, network, known, scope, on_cut)
            self._slots[slot] = None
            try:
                yield slot
            finally:
                slot.leave()

    def welcome(self, peer: Peer) -> None:
        """A member logged in from this address: it counts as known for an hour."""
        if not peer.address_is_peer:
            return
        network = network_of(peer.address)
        self._known.pop(network, None)
        self._known[network] = trio.current_time() + KNOWN_FOR_S
        if len(self._known) > MAX_REMEMBERED:
            del self._known[next(iter(self._known))]

    def _is_known(self, network: str) -> bool:
        if self._known.get(network, 0.0) > trio.current_time():
            return True
        return network in self._named()

    def _make_room(self, network: str | None, *, known: bool) -> None:
        held = list(self._slots)
        own = [slot for slot in held if network is not None and slot.network == network]
        strangers = [slot for slot in held if not slot.known]
        if len(own) >= self._per_address:
            _cut(own)
        elif not known and len(strangers) >= self._total - self._total // 4:
            _cut(strangers)
        elif len(held) >= self._total:
            _cut(strangers or held)

    def _spend(self, network: str, times: int) -> bool:
        """Take a token of this address; False if there is none."""
        now_s, most = trio.current_time(), float(BURST * times)
        left, since_s = self._tokens.pop(network, (most, now_s))
        left = min(left + (now_s - since_s) * PER_SECOND * times, most)
        granted = left >= 1.0
        self._tokens[network] = (left - granted, now_s)
        if len(self._tokens) > MAX_REMEMBERED:
            del self._tokens[next(iter(self._tokens))]
        return granted


class HeldSlot(AdmissionSlot):
    """A slot of an `Admission`."""

    def __init__(
        self,
        admission: Admission,
        peer: Peer,
        network: str | None,
        known: bool,
        scope: trio.CancelScope,
        on_cut: Callable[[Peer], None],
    ) -> None:
        self.network = network
        self.known = known
        self.stage = Stage.OPEN
        self._admission = admission
        self._peer = peer
        self._scope = scope
        self._on_cut = on_cut

    def begin(self) -> bool:
        self.advance(Stage.HANDSHAKE)
        if self.network is None:
            return True
        return self._admission._spend(self.network, KNOWN_TIMES if self.known else 1)

    def advance(self, stage: Stage) -> None:
        slots = self._admission._slots
        if self in slots and stage is not self.stage:
            self.stage = stage
            del slots[self]
            slots[self] = None

    def leave(self) -> None:
        self._admission._slots.pop(self, None)

    def cut(self) -> None:
        self.leave()
        if self.stage is not Stage.CLOSING:
            self._on_cut(self._peer)
        self._scope.cancel()


def _cut(slots: Sequence[HeldSlot]) -> None:
    """Cut the oldest of the least advanced stage that holds more than its share."""
    share = len(slots) // (len(Stage) + 1)  # so small that not all stages can be at their share
    for stage in Stage:
        there = [slot for slot in slots if slot.stage is stage]
        if len(there) > share:
            there[0].cut()
            return
