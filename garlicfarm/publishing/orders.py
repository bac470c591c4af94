"""What a member orders its publishers to do, and what they answer. Public as `garlicfarm.publisher`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from garlicfarm.i2p.router_kind import RouterKind
from garlicfarm.publishing.documents import U63, DestinationStatus

MAX_PUBLISHED_BYTES = 4096
"""Of `Published.lease_set`, which goes into statuses. A Meta LeaseSet with 16 leaves has less than 1300."""
MAX_CAUSES = 64
"""Of `PublisherStatus.refused`, each a label of a metric."""


class PublishOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order to publish.

    ``due_index``: the index of the log from which this member is due to start: it rises with each change of
    the publisher, and can serve as a fencing token. ``published_ms``: the ``published`` date, ms since 1970,
    later than any that the farm knows. ``expires_ms``: when what is published expires, if it is not published
    again. ``lease_set``: the signed Meta LeaseSet (type 7); None where the node has no keys of the master
    destination, or no leaf is usable.
    """

    due_index: int
    published_ms: int
    expires_ms: int
    lease_set: bytes | None = None


class ClientRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which clients are served, by the SHA-256 of their binary destinations, 32 bytes each. ``banned``: not
    these. ``allowed``: unless it is empty, only these."""

    banned: frozenset[bytes] = frozenset()
    allowed: frozenset[bytes] = frozenset()

    def admits(self, client: bytes) -> bool:
        """Whether the client with this hash is served."""
        return client not in self.banned and (not self.allowed or client in self.allowed)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What was given to a router. ``published_ms``: its date, ms since 1970. ``lease_set``: its bytes, where
    the publisher knows them."""

    published_ms: U63
    lease_set: Annotated[bytes, msgspec.Meta(max_length=MAX_PUBLISHED_BYTES)] | None = None


class ClockReading(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a router, or of another member, that was asked for its clock. ``date_ms``: what it told.
    ``asked_ms`` and ``answered_ms``: this node's wall clock before it was asked, and after the answer came;
    all ms since 1970."""

    date_ms: U63
    asked_ms: U63
    answered_ms: U63


class PublisherStatus(msgspec.Struct, frozen=True, kw_only=True):
    """``is_publishing``: whether the publication stands, as far as the publisher knows; ``since_ms`` and
    ``until_ms``: from when, and until when if it is not published again; ms since 1970. ``is_ready``: False
    where the publisher knows that it could not publish now, above all because its router is gone.
    ``is_withdrawn``: True where it is certain that nothing is published for it, by an earlier process either,
    which a new process may know long before it is ready. ``leaf``: the figures that its own sessions give of
    its destination. ``published_ms``: the date of the newest LeaseSet that a router has taken, of a publisher
    that publishes again by itself; a successor's is dated later. ``router_date``: the router's newest answer,
    where it tells the time and can still be reached; a node whose clock differs does not offer itself.
    ``router_kind``: which program that router is, where the publisher treats them differently. ``refused``:
    how many packets and streams were refused or dropped since the publisher was made, by cause, a fixed
    phrase each. ``problems``: one sentence each, for operators."""

    is_publishing: bool
    is_ready: bool = True
    is_withdrawn: bool = False
    since_ms: U63 | None = None
    until_ms: U63 | None = None
    published_ms: U63 | None = None
    leaf: DestinationStatus | None = None
    router_date: ClockReading | None = None
    router_kind: RouterKind | None = None
    refused: Annotated[dict[str, U63], msgspec.Meta(max_length=MAX_CAUSES)] = {}
    problems: tuple[str, ...] = ()


class KeyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that a publisher signs with, if they were made offline. ``transient``: the first 8 bytes of
    the SHA-256 of the transient public key, in hexadecimal. ``expires_ms``: when they expire, ms since
    1970."""

    transient: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    expires_ms: U63
