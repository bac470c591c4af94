"""A target, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from garlicfarm.errors import RemoteProtocolError
from garlicfarm.storage import Genesis
from garlicfarm.wire import ClusterServer, Configuration, Limits

DATA = Path(__file__).parents[2] / "data"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where files are made: fsync costs nothing there."""

FARM = "farm"
MEMBERS = Configuration(
    0, 0, tuple(ClusterServer(id_, f"ssl://host{id_}.example:27150") for id_ in (1, 2, 3))
)
GENESIS = Genesis(FARM, b"farm-id-16-bytes", "log", 2, MEMBERS)
KEY = b"k" * 32
SMALL = Limits(max_message_bytes=1 << 16, max_entry_bytes=1 << 12)


class Target(NamedTuple):
    """``run`` raises on a finding; ``seeds`` are inputs that get far."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """``data`` in pieces of ``size`` bytes, or (0) whole."""
    step = size or len(data) or 1
    return (data[start : start + step] for start in range(0, len(data), step))


def decoded(decoder: Any, pieces: Iterator[bytes], **how: bool) -> list[Any]:
    """All messages, and as the last one the words of the error that ended it, if one did."""
    found: list[Any] = []
    try:
        for piece in pieces:
            decoder.receive_data(piece)
            while (message := decoder.next_message(**how)) is not None:
                found.append(message)
        decoder.receive_eof()
    except RemoteProtocolError as error:
        found.append(str(error))
    return found


def public_key(seed: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def choice(data: bytes, count: int) -> tuple[int, bytes]:
    """The first byte chooses what is done with the rest."""
    return (data[0] if data else 0) % count, data[1:]
