"""What members compare of what they hold (D26).

Since the level at which members compare, each has a chain over every entry that it has applied::

    chain' = SHA-256(chain | index u64 | term u64 | type u8 | value)        big-endian; at first 32 zero bytes

It begins with the first Configuration in the log of that level or a higher one, and is part of each snapshot.
After each entry at which its application says so, by the log alone, the member digests the chain and its
state, as a snapshot would hold it. Members that have applied the same entries by the same rules have the same
digests.
"""

from __future__ import annotations

import struct
from collections import deque
from hashlib import sha256
from typing import Literal

import msgspec

from garlicfarm.levels import COMPARING

Contradicted = Literal["", "state", "chain"]
"""What most others hold otherwise than a member, "": nothing that is known."""

DIGEST_DIGITS = 32
"""hexadecimal ones, of the first 16 bytes of a SHA-256"""

_KEPT = 8
_START = bytes(32)
_PLACE = struct.Struct(">QQB")


class Digests(msgspec.Struct, frozen=True):
    """Of what one member held after the entry at ``index``: its ``state`` and the ``chain``, `DIGEST_DIGITS`
    each. ``origin``: the member whose snapshot it has restored last, 0: none since the members compare, or a
    majority has held the same since."""

    index: int
    state: str
    chain: str
    origin: int = 0


class DigestKeeper:
    """The chain of one member, ``chain`` (None: it has not begun), and its ``newest`` digests (None: none
    since the start, or since another member's snapshot was restored)."""

    def __init__(self) -> None:
        self.chain: bytes | None = None
        self.newest: Digests | None = None
        self._origin = 0
        self._taken: deque[Digests] = deque(maxlen=_KEPT)

    def restore(self, chain: bytes | None, origin: int) -> None:
        """Continue from a snapshot with this ``chain``; ``origin``: as in `Digests`."""
        self.chain, self._origin, self.newest = chain, origin, None
        self._taken.clear()

    def add(self, index: int, term: int, kind: int, value: bytes, level: int | None) -> None:
        """The entry at ``index`` is applied. ``level``: of the Configuration that it is, None: it is none."""
        if self.chain is None:
            if level is None or level < COMPARING:
                return
            self.chain = _START
        digest = sha256(self.chain + _PLACE.pack(index, term, kind))
        digest.update(value)  # a large entry is not copied
        self.chain = digest.digest()

    def take(self, index: int, state: bytes) -> None:
        """Digest the state after the entry at ``index``, the last one that was added."""
        if self.chain is not None:
            own, chain = (text[:DIGEST_DIGITS] for text in (sha256(state).hexdigest(), self.chain.hex()))
            self.newest = Digests(index, own, chain, self._origin)
            self._taken.append(self.newest)

    @property
    def has_origin(self) -> bool:
        """Whether what is digested next is said to come from another member's snapshot."""
        return self._origin != 0

    def confirm(self, claimed: Digests | None) -> None:
        """A majority holds what this member said last. If this process has digested that, the snapshot that
        it restored was right, and what it digests from now on is its own."""
        if claimed is not None and any(
            (own.index, own.state, own.chain) == (claimed.index, claimed.state, claimed.chain)
            for own in self._taken
        ):
            self._origin = 0

    def bars(self, contradicted: Contradicted, claimed: Digests | None) -> Contradicted:
        """What a member has to follow of what most others contradict. ``claimed``: what it said last. Unless
        this process has digested that chain itself, a former one did, and this one may have another: it does
        not lead, but it votes. Else a farm without a leader could not find out."""
        told = None if claimed is None else (claimed.index, claimed.chain)
        is_own = any((own.index, own.chain) == told for own in self._taken)
        return "state" if contradicted and not is_own else contradicted
