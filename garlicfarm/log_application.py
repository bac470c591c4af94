"""The application ``log``: the replicated log on its own. It takes any bytes, within the wire's limits (D14).

Its state says how far the log was folded and lets two servers compare all of it by 40 bytes::

    index u64 | chain 32 bytes             big-endian; at first 0 and 32 zero bytes

    chain' = SHA-256(chain | index u64 | term u64 | value)     for each Application entry
"""

from __future__ import annotations

import struct
from hashlib import sha256

from garlicfarm.application import Application
from garlicfarm.errors import StorageDamaged

_STATE = struct.Struct(">Q32s")
_PLACE = struct.Struct(">QQ")


class LogApplication(Application):
    """Index and hash chain of the Application entries applied so far."""

    def __init__(self) -> None:
        self.index = 0
        self.chain = bytes(32)

    def apply(self, index: int, term: int, entry: bytes) -> None:
        """Lengthen the chain by one entry."""
        digest = sha256(self.chain + _PLACE.pack(index, term))
        digest.update(entry)  # a large entry is not copied
        self.chain = digest.digest()
        self.index = index

    def snapshot(self) -> bytes:
        """The 40 bytes shown above."""
        return _STATE.pack(self.index, self.chain)

    def restore(self, data: bytes) -> None:
        """Restore the 40 bytes of `snapshot`. Raises `StorageDamaged` for any other length."""
        if len(data) != _STATE.size:
            raise StorageDamaged(f"a snapshot of the application log is {_STATE.size} bytes, not {len(data)}")
        self.index, self.chain = _STATE.unpack(data)
